//! Options for opening a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use windlass_core::{Clock, Error, ErrorKind, Result, SystemClock};

use crate::migrate::{MIGRATIONS, sql};

/// Maximum length of a table prefix, in bytes.
pub const PREFIX_MAX_BYTES: usize = 40;

/// How long SQLite itself waits for a lock on the writing connection before it returns `SQLITE_BUSY`.
const WRITER_BUSY_TIMEOUT: Duration = Duration::from_millis(30);

/// Options for opening a [`SqliteStore`](crate::SqliteStore).
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a store is opened with them"]
pub struct Options {
    path: PathBuf,
    prefix: String,
    clock: Arc<dyn Clock>,
    synchronous: Synchronous,
    busy_timeout: Duration,
    readers: u32,
    migrate: bool,
    check_integrity: bool,
    #[cfg(feature = "known-bad")]
    known_bad: Option<crate::known_bad::KnownBad>,
}

/// When SQLite syncs to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// At each commit. Acknowledged commands survive a power failure. The default.
    #[default]
    Full,
    /// At checkpoints only. Acknowledged commands survive a crash of the process, but a power failure may lose the
    /// latest commits. The database stays consistent.
    Normal,
}

impl Default for Options {
    /// Options without a path, for a store on the application's own driver, which has its own path. See
    /// [`SqliteStore::over`](crate::SqliteStore::over).
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            prefix: "windlass_".to_owned(),
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(10),
            readers: 4,
            migrate: true,
            check_integrity: true,
            #[cfg(feature = "known-bad")]
            known_bad: None,
        }
    }
}

impl Options {
    /// Options for the database in this file. Opening creates the file if it is missing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Prefix of all table names, which acts as the namespace: 1 to 40 characters of `a-z`, `0-9` and `_`, starting
    /// neither with a digit nor with `sqlite_`. Default: `windlass_`.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Clock of the store. Default: the machine's clock. All stores on one file must use the same clock.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// When SQLite syncs to disk. Default: [`Synchronous::Full`].
    pub const fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long a command or the start of a transaction waits for the write lock, held in this process or another,
    /// before it fails with kind `Busy`. Default: 10 s.
    pub const fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// Number of connections for queries, in addition to the one that writes. At least 1; default: 4.
    pub const fn readers(mut self, readers: u32) -> Self {
        self.readers = readers;
        self
    }

    /// Whether opening creates or migrates the tables. If not, missing or outdated tables are an error; see
    /// [`migrations_sql`](Self::migrations_sql). Default: `true`.
    pub const fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Whether `health` checks the file for damage, which reads the whole file. Default: `true`.
    pub const fn check_integrity(mut self, check_integrity: bool) -> Self {
        self.check_integrity = check_integrity;
        self
    }

    /// Returns the SQL that creates the tables, for running migrations with another tool.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the table prefix is invalid.
    pub fn migrations_sql(&self) -> Result<String> {
        self.migrations_sql_from(0)
    }

    /// Returns the SQL that migrates tables of an older version: the migrations after this version, which is
    /// `select max(step)` of the table `windlass_migration`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the table prefix is invalid, or if there is no such version.
    pub fn migrations_sql_from(&self, version: u32) -> Result<String> {
        self.check_prefix()?;
        match usize::try_from(version) {
            Ok(done) if done <= MIGRATIONS.len() => Ok(sql(&self.prefix, MIGRATIONS, done)),
            _ => {
                let text = format!("there is no version {version}: the latest is {}", MIGRATIONS.len());
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }

    /// Breaks the store on purpose, to check that the tests fail.
    #[cfg(feature = "known-bad")]
    #[doc(hidden)]
    pub const fn known_bad(mut self, known_bad: crate::known_bad::KnownBad) -> Self {
        self.known_bad = Some(known_bad);
        self
    }

    #[cfg(feature = "known-bad")]
    pub(crate) const fn variant(&self) -> Option<crate::known_bad::KnownBad> {
        self.known_bad
    }

    /// Replaces the path with that of the application's driver.
    pub(crate) fn at(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }

    pub(crate) fn table_prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn store_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    pub(crate) const fn write_timeout(&self) -> Duration {
        self.busy_timeout
    }

    pub(crate) const fn may_migrate(&self) -> bool {
        self.migrate
    }

    pub(crate) const fn checks_integrity(&self) -> bool {
        self.check_integrity
    }

    pub(crate) fn reading_connections(&self) -> u32 {
        self.readers.max(1)
    }

    pub(crate) fn check_prefix(&self) -> Result<()> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let digit_first = self.prefix.starts_with(|first: char| first.is_ascii_digit());
        if self.prefix.is_empty()
            || self.prefix.len() > PREFIX_MAX_BYTES
            || !self.prefix.bytes().all(plain)
            || digit_first
            || self.prefix.starts_with("sqlite_")
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the table prefix {:?} is invalid: use 1 to {PREFIX_MAX_BYTES} characters of a-z, 0-9 and _, and begin \
                     neither with a digit nor with sqlite_",
                    self.prefix
                ),
            ));
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn check_path(&self) -> Result<()> {
        if self.path.as_os_str().is_empty() || self.path.as_os_str() == ":memory:" {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a SQLite store needs a file: set its path, or use the memory store",
            ));
        }
        Ok(())
    }

    pub(crate) fn writing(&self) -> SqliteConnectOptions {
        let synchronous = match self.synchronous {
            Synchronous::Full => SqliteSynchronous::Full,
            Synchronous::Normal => SqliteSynchronous::Normal,
        };
        // Keep SQLite's own wait short. The provider retries a busy `begin` outside SQLite, where the wait can be
        // cancelled.
        let connection = self.connection().busy_timeout(WRITER_BUSY_TIMEOUT.min(self.busy_timeout));
        connection.create_if_missing(true).synchronous(synchronous)
    }

    fn connection(&self) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new().filename(&self.path).busy_timeout(self.busy_timeout);
        options.disable_statement_logging()
    }
}
