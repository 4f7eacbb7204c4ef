//! Opens a folder; type aliases for applications that use the store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use windlass_core::{Error, ErrorKind, Result};

use crate::disk::{Disk, DiskFile};
use crate::error::{from_io, lock_timed_out};
use crate::folder::{Files, Folder, HEAD, Position, retry_missing};
use crate::lock::Lock;
use crate::options::Options;
use crate::shared::Shared;
use crate::state::State;
use crate::store::FileStore;

/// The maximum number of file names that an error lists.
const NAMES_SHOWN: usize = 3;

/// Opens a store in a folder with the default [`Options`]. Creates the folder if it is missing.
///
/// To choose options, call [`FileStore::open`].
///
/// ```no_run
/// # async fn example() -> windlass::Result<()> {
/// use windlass::{Client, file};
///
/// let client = Client::new(file::open("queue").await?);
/// # let _ = client; Ok(())
/// # }
/// ```
pub async fn open(path: impl Into<PathBuf>) -> Result<FileStore> {
    FileStore::open(Options::new(path)).await
}

/// A client of a [`FileStore`].
pub type Client = windlass_core::Client<FileStore>;

/// An attempt of a job in a [`FileStore`], whose handler may use transactions.
pub type Attempt<J> = windlass_core::Attempt<J, FileStore>;

/// The result of a handler that ends its job in a transaction of a [`FileStore`].
pub type Done<J> = windlass_core::Done<J, FileStore>;

/// An attempt of a queue job in a [`FileStore`], whose handler may use transactions.
pub type ItemAttempt<T> = windlass_core::queue::ItemAttempt<T, FileStore>;

/// The result of a handler that ends a queue job in a transaction of a [`FileStore`].
pub type ItemDone<T> = windlass_core::queue::ItemDone<T, FileStore>;

/// Opens or creates the files, and loads the state. Blocks the thread.
pub(crate) fn open_folder(disk: &Arc<dyn Disk>, options: &Options) -> Result<Shared> {
    options.check()?;
    let path = disk.path().to_owned();
    let path = path.as_path();
    disk.create_folder().map_err(|error| from_io("cannot create the folder", path, error))?;
    check_file_system(&**disk, options)?;
    check_foreign(&**disk)?;
    let lock = Lock::open(Arc::clone(disk))?;
    let head = disk.open_or_create(HEAD).map_err(|error| from_io("cannot open `head`", path, error))?;
    let began_at = Instant::now();
    let Some(held) = lock.acquire(|| began_at.elapsed() < options.busy_timeout)? else {
        return Err(lock_timed_out(path, options.busy_timeout, &lock.holder()));
    };
    // A process may have been killed after it created files, and before their names were synced.
    disk.sync_folder().map_err(|error| from_io("cannot sync the folder", path, error))?;
    let (folder, end) = retry_missing(|| find_end(disk, &head))?;
    // Loading may take seconds. Other processes may write during this time, because the files that are read here do not
    // change.
    drop(held);
    let state = State::load(&folder, end)?;
    let shared = Shared::new(folder, lock, state, options);
    // Warns if the time is ahead of the clock.
    shared.store_time(&mut *shared.state()?);
    Ok(shared)
}

/// Finds the end of the journal, or creates the first journal. The caller holds the lock.
fn find_end(disk: &Arc<dyn Disk>, head: &Arc<dyn DiskFile>) -> Result<(Folder, Position)> {
    let files = Files::list(&**disk)?;
    let is_new = files.journals.is_empty() && files.snapshots.is_empty();
    if !is_new {
        let folder = Folder::existing(Arc::clone(disk), Arc::clone(head), &files)?;
        let end = folder.recover(&files)?;
        return Ok((folder, end));
    }
    if Folder::was_published(&**head) {
        let text = format!(
            "the journals of `{}` are missing: restore the folder from a backup; or, to begin with an empty store, stop all \
             processes that use the folder, and delete `head`",
            disk.path().display()
        );
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    let folder = Folder::create(Arc::clone(disk), Arc::clone(head))?;
    let end = folder.recover(&Files::list(&**disk)?)?;
    Ok((folder, end))
}

/// Refuses a network file system, unless it is allowed.
fn check_file_system(disk: &dyn Disk, options: &Options) -> Result<()> {
    let Some(kind) = disk.shared_file_system() else { return Ok(()) };
    let path = disk.path().display();
    if options.allows_network {
        tracing::warn!(folder = %path, kind, "the folder is on a network file system: only one machine may use it");
        return Ok(());
    }
    let text = format!(
        "the folder `{path}` is on a network or cluster file system ({kind}), where locks are not reliable: choose a folder \
         on a local disk; or, if only this machine uses it, allow it with `Options::allow_network_file_system`"
    );
    Err(Error::new(ErrorKind::Incompatible, text))
}

/// Refuses a folder that contains other files but no store, such as a home directory.
fn check_foreign(disk: &dyn Disk) -> Result<()> {
    let files = Files::list(disk)?;
    let foreign: Vec<_> = files.foreign.iter().filter(|name| !is_harmless(name)).collect();
    if files.is_known || foreign.is_empty() {
        return Ok(());
    }
    let mut names: Vec<_> = foreign.iter().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
    if foreign.len() > NAMES_SHOWN {
        names.push("…".to_owned());
    }
    let text = format!(
        "the folder `{}` contains other files ({}): choose a new or an empty folder",
        disk.path().display(),
        names.join(", ")
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Files that operating systems create.
pub(crate) fn is_harmless(name: &str) -> bool {
    name.starts_with('.') || name == "lost+found"
}
