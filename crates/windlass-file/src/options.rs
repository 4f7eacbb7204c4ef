//! Options for opening a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::{Clock, Error, ErrorKind, Result, SystemClock};

use crate::frame::RECORD_MAX_BYTES;
use crate::reserve::RESERVE_FROM_BYTES;

/// The prefix of the names of namespace folders.
pub(crate) const NAMESPACE: &str = "namespace-";

/// Maximum length of a namespace, in bytes.
pub const NAMESPACE_MAX_BYTES: usize = 40;

/// Options for opening a [`FileStore`](crate::FileStore).
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a store is opened with them"]
pub struct Options {
    pub(crate) path: PathBuf,
    namespace: Option<String>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) busy_timeout: Duration,
    pub(crate) compact_at_bytes: u64,
    pub(crate) allows_network: bool,
    pub(crate) checks_integrity: bool,
    /// The maximum size of a record, in bytes. Only tests change it.
    pub(crate) record_max_bytes: usize,
    /// The minimum size of a journal with reserved room, in bytes. Only tests change it.
    pub(crate) reserve_from_bytes: u64,
    /// Multiplies the measured duration of a sync. Default: 1. Only tests change it.
    pub(crate) pace_scale: u32,
}

impl Options {
    /// Options for the store in this folder. Opening creates the folder if it is missing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            namespace: None,
            clock: Arc::new(SystemClock),
            busy_timeout: Duration::from_secs(10),
            compact_at_bytes: 16 << 20,
            allows_network: false,
            checks_integrity: true,
            record_max_bytes: RECORD_MAX_BYTES,
            reserve_from_bytes: RESERVE_FROM_BYTES,
            pace_scale: 1,
        }
    }

    /// Namespace of the store: a subfolder with a separate store. 1 to 40 characters of `a-z`, `0-9` and `_`. Default:
    /// none, the store is in the folder itself.
    pub fn namespace(self, namespace: impl Into<String>) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// Returns the folder that contains the files of the store: that of the namespace, if there is one.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        match &self.namespace {
            Some(namespace) => self.path.join(format!("{NAMESPACE}{namespace}")),
            None => self.path.clone(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.path.as_os_str().is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a file store needs a folder: set its path"));
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        match &self.namespace {
            Some(name) if name.is_empty() || name.len() > NAMESPACE_MAX_BYTES || !name.bytes().all(plain) => {
                let text = format!(
                    "the namespace {name:?} is invalid: use 1 to {NAMESPACE_MAX_BYTES} characters of a-z, 0-9 and _"
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
            _ => Ok(()),
        }
    }

    /// Clock of the store. Default: the machine's clock. All stores on one folder must use the same clock.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// How long a command or the start of a transaction waits for the lock of the folder, held in this process or
    /// another, before it fails with kind `Busy`. Default: 10 s.
    pub const fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// The minimum size of the journal for a compaction, in bytes. The folder is compacted when the journal is larger
    /// than this and larger than the last snapshot. Default: 16 MiB.
    pub const fn compact_at_bytes(mut self, bytes: u64) -> Self {
        self.compact_at_bytes = bytes;
        self
    }

    /// Whether the folder may be on a network or cluster file system. Only one machine may use such a folder, because
    /// its locks do not work between machines. Default: `false`.
    ///
    /// On Linux, the store recognizes 9P, AFS, BeeGFS, Ceph, CIFS, SMB, GFS2, `GlusterFS`, Lustre, NFS and SSHFS by the type
    /// of the mount. It does not check others, and it checks nothing on other systems.
    pub const fn allow_network_file_system(mut self, allowed: bool) -> Self {
        self.allows_network = allowed;
        self
    }

    /// Whether `health` checks the files for damage, which reads all of them. Default: `true`.
    pub const fn check_integrity(mut self, check_integrity: bool) -> Self {
        self.checks_integrity = check_integrity;
        self
    }
}
