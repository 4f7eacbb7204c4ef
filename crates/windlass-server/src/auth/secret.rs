//! Random secrets and their hashes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The SHA-256 of a secret. A secret has 256 random bits, so it cannot be guessed from its hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Hash([u8; 32]);

impl Hash {
    pub(super) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(bytes.chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }

    pub(super) fn to_hex(self) -> String {
        hex(&self.0)
    }

    /// Compares two hashes in constant time.
    pub(super) fn equals(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

/// Returns random bytes as hexadecimal digits.
pub(super) fn random<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file that no other process changes, until this is dropped. Every change of a file needs it, so that a change that was
/// read before another one cannot undo it.
pub(super) struct LockedFile {
    /// The file itself, not a symbolic link to it.
    path: PathBuf,
    _lock: File,
}

impl LockedFile {
    /// Waits until no other process changes the file. The lock is a file beside it, because the file itself is replaced.
    pub(super) fn lock(path: &Path) -> io::Result<Self> {
        let path = match path.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            resolved => resolved?,
        };
        let lock = options_private().write(true).create(true).truncate(false).open(beside(&path, "lock")?)?;
        lock.lock()?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content in one step, so that a reader never sees half of it. The owner and the mode remain. Of a new
    /// file, only the owner can read it.
    pub(super) fn replace(&self, text: &str) -> io::Result<()> {
        replace_file(&self.path, text)
    }
}

fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let temporary = beside(path, &format!("{}.new", random::<4>()?))?;
    let written = options_private()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .and_then(|mut file| {
            keep_owner(path, &file)?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all())
        })
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_folder(path));
    if written.is_err() {
        // The error of the write is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Returns the path of a file beside another.
fn beside(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    let mut name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?.to_owned();
    name.push(format!(".{suffix}"));
    Ok(path.with_file_name(name))
}

/// Gives a file the owner and the mode of the one that it replaces, if there is one.
fn keep_owner(replaced: &Path, file: &File) -> io::Result<()> {
    let Ok(before) = fs::metadata(replaced) else { return Ok(()) };
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
            std::os::unix::fs::fchown(file, Some(before.uid()), Some(before.gid()))?;
        }
    }
    file.set_permissions(before.permissions())
}

/// Makes a rename durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

fn options_private() -> fs::OpenOptions {
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
