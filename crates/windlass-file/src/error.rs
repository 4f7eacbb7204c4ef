//! Errors of the disk, and of files that are damaged.

use std::io;
use std::path::Path;
use std::time::Duration;

use windlass_core::{Error, ErrorKind};

use crate::folder::HEAD;
use crate::frame::{BadHeader, VERSION};

/// Converts an error of the disk. `action` says what failed: "cannot write the journal".
pub(crate) fn from_io(action: &str, folder: &Path, error: io::Error) -> Error {
    let (kind, remedy) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Unavailable, "free some space; the store then continues automatically")
        }
        io::ErrorKind::PermissionDenied => (
            ErrorKind::AccessDenied,
            "grant this user permission to read and write the folder and the files in it",
        ),
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::AccessDenied, "mount the file system for writing, or choose another folder")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            (ErrorKind::Invalid, "a file has this name; choose a folder")
        }
        io::ErrorKind::NotFound => {
            (ErrorKind::Unavailable, "the folder or a file in it was moved or deleted; open the store again")
        }
        _ => (ErrorKind::Unavailable, "check the folder and its disk, and try again"),
    };
    let text = format!("{action} in `{}`: {error}: {remedy}", folder.display());
    Error::new(kind, text).with_inner(error)
}

/// The destination of a backup cannot be written.
pub(crate) fn backup_failed(destination: &Path, error: io::Error) -> Error {
    let (kind, remedy) = match error.kind() {
        io::ErrorKind::NotFound => (ErrorKind::Invalid, "create the folder that is to contain it"),
        io::ErrorKind::NotADirectory => (ErrorKind::Invalid, "choose a place in a folder"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Unavailable, "free some space, or choose another disk")
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::AccessDenied, "choose a place where this user may write")
        }
        _ => (ErrorKind::Unavailable, "check the disk, and try again"),
    };
    let text = format!("cannot write the backup `{}`: {error}: {remedy}", destination.display());
    Error::new(kind, text).with_inner(error)
}

/// The destination of a backup exists.
pub(crate) fn destination_exists(destination: &Path) -> Error {
    let text =
        format!("the destination `{}` exists: choose a name that does not exist", destination.display());
    Error::new(ErrorKind::Invalid, text)
}

/// A backup is complete, but its name could not be synced.
pub(crate) fn backup_not_durable(destination: &Path, error: io::Error) -> Error {
    let text = format!(
        "the backup `{}` is complete, but a power failure may still remove it, because the folder that contains it could \
         not be synced: {error}: check the disk",
        destination.display()
    );
    Error::new(ErrorKind::Unavailable, text).with_inner(error)
}

/// The records of a folder are valid, but their copy cannot be opened.
pub(crate) fn backup_unusable(folder: &Path, error: &Error) -> Error {
    let text =
        format!("the folder `{}` is damaged, so its backup cannot be opened: {error}", folder.display());
    Error::new(ErrorKind::Corrupt, text)
}

/// A backup cannot be made because the end in `head` is not known or too old.
pub(crate) fn unknown_end(folder: &Path) -> Error {
    let path = folder.join(HEAD);
    let text = format!(
        "`{}` is invalid or too old, so the end of the journal is not known: the next write of any process repairs it; then \
         try again",
        path.display()
    );
    Error::new(ErrorKind::Unavailable, text)
}

/// A file is damaged.
pub(crate) fn damaged(folder: &Path, file: &str, offset: u64, reason: &str) -> Error {
    let path = folder.join(file);
    let text = format!(
        "`{}` is damaged at offset {offset}: {reason}: restore the folder from a backup",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// The end of the journal that the file `head` states is missing.
pub(crate) fn shortened(folder: &Path, file: &str, offset: u64, stated: u64) -> Error {
    let path = folder.join(file);
    let text = format!(
        "`{}` is damaged at offset {offset}: the file `head` says that it is complete up to offset {stated}: restore the \
         folder from a backup; or, to lose what was written after offset {offset}, stop all processes that use the folder, \
         delete `head`, and open the store again",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, text)
}

/// A file is not usable because of its header.
pub(crate) fn bad_header(folder: &Path, file: &str, bad: BadHeader) -> Error {
    let path = folder.join(file);
    let path = path.display();
    match bad {
        BadHeader::Damaged => damaged(folder, file, 0, "the checksum of its header is wrong"),
        BadHeader::Foreign => Error::new(
            ErrorKind::Corrupt,
            format!(
                "`{path}` is damaged at offset 0, or is not a file of Windlass: remove it, or choose another folder"
            ),
        ),
        BadHeader::Newer(version) => Error::new(
            ErrorKind::Incompatible,
            format!(
                "`{path}` has the format version {version}, and this program knows versions up to {VERSION}: update this \
                 program"
            ),
        ),
    }
}

/// A command did not get the lock in time.
pub(crate) fn lock_timed_out(folder: &Path, timeout: Duration, holder: &str) -> Error {
    let text = format!(
        "no lock on the folder `{}` within {timeout:?}, because {holder} has it: if that process is stopped, continue or \
         end it; if it has a transaction open, end the transaction; a task that has one open must send its commands \
         through it: `tx.start(…)` after `client.begin()`",
        folder.display()
    );
    Error::new(ErrorKind::Busy, text)
}

/// Another process compacts the folder for too long.
pub(crate) fn compaction_timed_out(folder: &Path, timeout: Duration) -> Error {
    let text = format!(
        "another process has been compacting the folder `{}` for more than {timeout:?}: if that process is stopped, \
         continue or end it, then try again",
        folder.display()
    );
    Error::new(ErrorKind::Busy, text)
}

/// The store was closed.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store was closed: open it again")
}

/// The folder was deleted or replaced while the store was open.
pub(crate) fn replaced(folder: &Path) -> Error {
    let text = format!(
        "the folder `{}` was deleted or replaced while the store was open: open the store again",
        folder.display()
    );
    Error::new(ErrorKind::Unavailable, text)
}
