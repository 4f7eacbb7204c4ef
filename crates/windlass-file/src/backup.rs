//! Backups: a consistent copy of a folder that is in use.
//!
//! A plain copy of a folder in use may be damaged: while `cp` reads the reserved room of a journal, records are written
//! into it, and `cp` may miss one of them but read a later one. A backup reads only committed records, which never change.
//! So it copies without a lock, and keeps nobody waiting. Only the end of the journal may need the lock, for a moment.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;
use windlass_core::{Error, ErrorKind, Result};

use crate::committed::{Committed, CommittedFile};
use crate::disk::{Disk, DiskFile, RealDisk, sync_parent};
use crate::error::{backup_failed, backup_not_durable, backup_unusable, destination_exists, shortened};
use crate::folder::{Files, Folder, HEAD, Position};
use crate::shared::Shared;
use crate::state::State;

/// How much is copied at once, in bytes.
const COPY_BYTES: usize = 256 << 10;

/// What a backup contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupStats {
    /// The number of jobs.
    pub jobs: usize,
}

/// Copies the committed state of a store to a new folder. `outer` is the folder that contains those of the namespaces.
pub(crate) fn back_up(shared: &Shared, outer: &Path, destination: &Path) -> Result<BackupStats> {
    let failed = |error| backup_failed(destination, error);
    let destination = std::path::absolute(destination).map_err(failed)?;
    let folders = [outer, shared.folder.path()];
    check(&destination, folders)?;
    let incomplete = incomplete_name(&destination)?;
    create_private(&incomplete).map_err(failed)?;
    let to: Arc<dyn Disk> = Arc::new(RealDisk::new(incomplete.clone()));
    let copied = copy_files(shared, &to, &destination).and_then(|stats| {
        copy_modes(shared.folder.path(), &incomplete).and_then(|()| to.sync_folder()).map_err(failed)?;
        check(&destination, folders)?;
        install(&incomplete, &destination, sync_parent)?;
        Ok(stats)
    });
    if copied.is_err() {
        let _ = fs::remove_dir_all(&incomplete);
    }
    copied
}

/// Creates a folder that only this user can read. It gets the mode of the source when it is complete.
pub(crate) fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Lets the same users read the copy as the source. The files first: once the folder has its mode, others can open them.
/// They get the mode of `head`, because compactions may have removed the files that were copied.
#[cfg(unix)]
fn copy_modes(from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let of_files = fs::metadata(from.join(HEAD)).map(|head| head.permissions());
    let of_files = of_files.unwrap_or_else(|_| fs::Permissions::from_mode(0o600));
    for file in fs::read_dir(to)? {
        fs::set_permissions(file?.path(), of_files.clone())?;
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())
}

/// On other systems, a folder and its files have the permissions of the folder that contains them.
#[cfg(not(unix))]
fn copy_modes(_: &Path, _: &Path) -> io::Result<()> {
    Ok(())
}

/// Renames the copy to the destination, and makes that durable.
pub(crate) fn install(
    incomplete: &Path,
    destination: &Path,
    sync_parent: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<()> {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
    fs::rename(incomplete, destination).map_err(|error| match error.kind() {
        // Something else has created it since it was checked.
        AlreadyExists | DirectoryNotEmpty | NotADirectory => destination_exists(destination),
        _ => backup_failed(destination, error),
    })?;
    sync_parent(destination).map_err(|error| backup_not_durable(destination, error))
}

/// Refuses a destination that exists, or that is inside one of the folders.
fn check(destination: &Path, folders: [&Path; 2]) -> Result<()> {
    if destination.symlink_metadata().is_ok() {
        return Err(destination_exists(destination));
    }
    let Some(parent) = destination.parent().and_then(|parent| parent.canonicalize().ok()) else {
        return Ok(());
    };
    let mut folders = folders.into_iter().filter_map(|folder| folder.canonicalize().ok());
    if folders.any(|folder| parent.starts_with(folder)) {
        let text = format!(
            "the destination `{}` is inside the folder of the store: choose another place",
            destination.display()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Returns the name of the destination while it is incomplete. It is unique, so that a backup that was interrupted does not
/// prevent the next one.
fn incomplete_name(destination: &Path) -> Result<PathBuf> {
    let Some(name) = destination.file_name() else {
        let text = format!("the destination `{}` has no name: choose a new folder", destination.display());
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    let mut incomplete = OsString::from(name);
    incomplete.push(format!(".tmp-{}", Uuid::now_v7().simple()));
    Ok(destination.with_file_name(incomplete))
}

/// Copies the committed bytes of all files to an empty folder, syncs them, and opens the copy. `destination` is the name
/// for errors.
pub(crate) fn copy_files(shared: &Shared, to: &Arc<dyn Disk>, destination: &Path) -> Result<BackupStats> {
    let failed = |error| backup_failed(destination, error);
    let folder = &shared.folder;
    let committed = Committed::open_latest(shared)?;
    committed.verify(folder).into_iter().collect::<Result<()>>()?;
    for source in &committed.files {
        let copy = to.open_or_create(&source.name).map_err(failed)?;
        copy_file(shared, source, &*copy, destination)?;
        copy.sync().map_err(failed)?;
    }
    // With the end of the last journal, a copy that was truncated later is not mistaken for a complete one.
    let head = to.open_or_create(HEAD).map_err(failed)?;
    let written = head.write_at(&folder.encode_head(committed.end), 0).and_then(|()| head.sync());
    written.and_then(|()| to.sync_folder()).map_err(failed)?;
    let state = load(to, destination, committed.end).map_err(|error| match error.kind() {
        ErrorKind::Corrupt => backup_unusable(folder.path(), &error),
        _ => error,
    })?;
    Ok(BackupStats { jobs: state.model.jobs() })
}

/// Loads the copy as opening it would. A checksum does not show that a record is missing or does not belong there.
fn load(copy: &Arc<dyn Disk>, destination: &Path, end: Position) -> Result<State> {
    let head = copy.open(HEAD).map_err(|error| backup_failed(destination, error))?;
    let folder = Folder::existing(Arc::clone(copy), head, &Files::list(&**copy)?)?;
    let state = State::load(&folder, end)?;
    if state.position != end {
        let text = format!("the copy ends at {:?} instead of {end:?}", state.position);
        return Err(Error::new(ErrorKind::Corrupt, text));
    }
    Ok(state)
}

fn copy_file(shared: &Shared, source: &CommittedFile, to: &dyn DiskFile, destination: &Path) -> Result<()> {
    let (mut offset, mut buffer) = (0, vec![0; COPY_BYTES]);
    while offset < source.bytes {
        let left = usize::try_from(source.bytes - offset).unwrap_or(usize::MAX);
        buffer.truncate(left);
        let read = source.file.read_exact_at(&mut buffer, offset);
        let read = read.map_err(|error| shared.folder.io("cannot read a file", error))?;
        read.ok_or_else(|| shortened(shared.folder.path(), &source.name, offset, source.bytes))?;
        to.write_at(&buffer, offset).map_err(|error: io::Error| backup_failed(destination, error))?;
        offset += buffer.len() as u64;
    }
    Ok(())
}
