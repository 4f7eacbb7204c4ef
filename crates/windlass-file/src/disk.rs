//! Access to the disk, as a trait, so that tests can replace it with a disk that fails and that loses unsynced writes.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use windlass_core::shared_file_system;

use crate::options::NAMESPACE;

/// A folder on a disk. Names are names of files in the folder.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// The folder, for messages and for the watcher.
    fn path(&self) -> &Path;

    /// Creates the folder if it is missing.
    fn create_folder(&self) -> io::Result<()>;

    /// Returns the names of all files and folders in the folder.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file, and creates it if it is missing.
    fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, and replaces one with the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes created, renamed and removed names durable.
    fn sync_folder(&self) -> io::Result<()>;

    /// Returns the type of the file system if machines share it.
    fn shared_file_system(&self) -> Option<String>;

    /// Whether the name still belongs to this file.
    fn is_current(&self, name: &str, file: &dyn DiskFile) -> bool;
}

/// An open file.
pub(crate) trait DiskFile: fmt::Debug + Send + Sync {
    /// The number of bytes in the file.
    fn size(&self) -> io::Result<u64>;

    /// Reads up to the length of the buffer. Returns 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all bytes.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Changes the size.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Waits until the data and the size are on the disk.
    fn sync(&self) -> io::Result<()>;

    /// Acquires the lock of the file. Returns `false` if another open file holds it.
    fn try_lock(&self) -> io::Result<bool>;

    /// Releases the lock of the file.
    fn unlock(&self) -> io::Result<()>;

    /// A number that identifies the file while it is open.
    fn identity(&self) -> io::Result<(u64, u64)>;
}

impl dyn DiskFile + '_ {
    /// Fills the buffer. Returns `None` if the file ends earlier.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<Option<()>> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, offset + done as u64)? {
                0 => return Ok(None),
                count => done += count,
            }
        }
        Ok(Some(()))
    }
}

/// A folder of this machine.
#[derive(Debug)]
pub(crate) struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    pub(crate) const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }
}

impl Disk for RealDisk {
    fn path(&self) -> &Path {
        &self.folder
    }

    fn create_folder(&self) -> io::Result<()> {
        let folder = std::path::absolute(&self.folder)?;
        let missing: Vec<_> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
        fs::create_dir_all(&folder)?;
        let parents = parents_to_sync(&folder, &missing);
        parents.into_iter().try_for_each(|parent| if_permitted(sync_names(parent)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| {
            entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        fs::read_dir(&self.folder)?.map(name).collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.folder.join(name))?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(self.folder.join(name))?;
        Ok(Arc::new(RealFile::new(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync_names(&self.folder)
    }

    fn shared_file_system(&self) -> Option<String> {
        shared_file_system(&self.folder)
    }

    fn is_current(&self, name: &str, file: &dyn DiskFile) -> bool {
        match (fs::metadata(self.folder.join(name)), file.identity()) {
            (Ok(found), Ok(open)) => identity(&found) == open,
            _ => false,
        }
    }
}

/// Returns the folders whose names must be synced. Otherwise a power failure could remove the new folders, with everything
/// that was synced in them. The folder itself, and that of the namespaces, may have been created by a process that was killed
/// before it could sync the name.
fn parents_to_sync<'a>(folder: &'a Path, missing: &[&'a Path]) -> BTreeSet<&'a Path> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let outer = folder.parent().filter(|_| name.starts_with(NAMESPACE));
    missing.iter().copied().chain([folder]).chain(outer).filter_map(Path::parent).collect()
}

/// Ignores that a folder above the store may not be read, and so cannot be synced: `/var/lib` may have the mode 711. The
/// system writes its names soon after, and the folder was most likely created long ago.
fn if_permitted(synced: io::Result<()>) -> io::Result<()> {
    match synced {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced,
    }
}

/// Makes the name of a folder durable.
pub(crate) fn sync_parent(folder: &Path) -> io::Result<()> {
    folder.parent().map_or(Ok(()), |parent| if_permitted(sync_names(parent)))
}

/// Makes the names in a folder durable.
#[cfg(unix)]
fn sync_names(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Other systems cannot open a folder as a file. They write names in order.
#[cfg(not(unix))]
fn sync_names(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Other systems do not let a file be replaced while it is open.
#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> (u64, u64) {
    (0, 0)
}

#[cfg(unix)]
#[derive(Debug)]
struct RealFile {
    file: File,
}

#[cfg(unix)]
impl RealFile {
    const fn new(file: File) -> Self {
        Self { file }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.file, buffer, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, offset)
    }
}

/// A file with a position, on systems that cannot read and write at an offset.
#[cfg(not(unix))]
#[derive(Debug)]
struct RealFile {
    file: File,
    position: std::sync::Mutex<()>,
}

#[cfg(not(unix))]
impl RealFile {
    const fn new(file: File) -> Self {
        Self { file, position: std::sync::Mutex::new(()) }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        use std::io::{Read, Seek};
        let _turn = self.position.lock();
        (&self.file).seek(io::SeekFrom::Start(offset))?;
        (&self.file).read(buffer)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek, Write};
        let _turn = self.position.lock();
        (&self.file).seek(io::SeekFrom::Start(offset))?;
        (&self.file).write_all(bytes)
    }
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        self.file.metadata().map(|found| found.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.read(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, offset)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        self.file.metadata().map(|found| identity(&found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process is killed after it has created the folders and before it has synced their names.
    #[test]
    fn the_names_of_both_folders_of_a_namespace_are_synced() {
        let check = |folder: &str, missing: &[&str], expected: &[&str]| {
            let missing: Vec<_> = missing.iter().map(Path::new).collect();
            let parents = parents_to_sync(Path::new(folder), &missing);
            assert_eq!(parents, expected.iter().map(Path::new).collect(), "{folder}, {missing:?} missing");
        };
        check("/a/b/queue", &[], &["/a/b"]);
        check("/a/b/queue", &["/a/b/queue", "/a/b"], &["/a", "/a/b"]);
        check("/a/b/queue/namespace-x", &[], &["/a/b", "/a/b/queue"]);
        check("/a/b/queue/namespace-x", &["/a/b/queue/namespace-x"], &["/a/b", "/a/b/queue"]);
        check("/", &[], &[]);
    }
}
