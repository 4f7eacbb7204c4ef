//! Entry points for fuzzing. They open folders whose journal or snapshot contains any bytes.
//!
//! Whatever the bytes are, opening must not panic. If it succeeds, opening the folder again must lead to the same state,
//! and so must a snapshot of that state. If it fails, the error must name the file.
//!
//! The programs in `fuzz/` pass arbitrary bytes. A test passes records of real folders with random changes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;
use windlass_core::model::{ChainRow, JobRow, Row, RowKey};
use windlass_core::{Error, ErrorKind};

use crate::disk::{Disk, DiskFile};
use crate::folder::{Folder, HEAD, journal_name, snapshot_name};
use crate::frame::{self, Header, Kind, Origin};
use crate::open::open_folder;
use crate::options::Options;
use crate::shared::Shared;

/// The generation of the snapshot, and of its journal.
const GENERATION: u64 = 2;

/// Opens a folder whose only journal contains these bytes, and returns whether that succeeded. See [`file`] for their
/// meaning.
#[must_use]
pub fn journal(data: &[u8]) -> bool {
    let journal = file(Header::new(Kind::Journal, Uuid::nil(), 1, 0), 1, data);
    check(BTreeMap::from([(journal_name(1), journal)]))
}

/// Opens a folder whose snapshot contains these bytes, and whose journal is empty. Returns whether that succeeded. See
/// [`file`] for their meaning.
#[must_use]
pub fn snapshot(data: &[u8]) -> bool {
    let snapshot = file(Header::new(Kind::Snapshot, Uuid::nil(), GENERATION, 1), 1, data);
    let journal = Header::new(Kind::Journal, Uuid::nil(), GENERATION, 0).encode();
    check(BTreeMap::from([(snapshot_name(GENERATION), snapshot), (journal_name(GENERATION), journal)]))
}

/// Returns data from which [`file`] creates a file with these records.
#[must_use]
pub fn from_contents(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut data = vec![1];
    for content in contents {
        data.extend(u16::try_from(content.len()).unwrap_or(u16::MAX).to_le_bytes());
        data.extend(content.iter().take(usize::from(u16::MAX)));
    }
    data
}

/// Creates a file. If the first byte of the data is even, the file consists of the other bytes. If it is odd, the other
/// bytes are the contents of records, each after its length (2 bytes). They get valid headers, because a fuzzer does not
/// find valid checksums. The higher bits of the first byte are the number of bytes that are missing at the end of the file,
/// if the second lowest bit is set, or else of zeros that follow, like reserved room.
fn file(header: Header, first: u64, data: &[u8]) -> Vec<u8> {
    let Some((&mode, mut rest)) = data.split_first() else { return Vec::new() };
    if mode & 1 == 0 {
        return rest.to_vec();
    }
    let origin = Origin { kind: header.kind, folder: header.folder, generation: header.generation };
    let mut bytes = header.encode();
    let (mut record, mut number) = (Vec::new(), first);
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (content, after) = after.split_at(length);
        frame::begin(&mut record);
        record.extend(content);
        frame::finish(&mut record, origin, number);
        bytes.append(&mut record);
        (number, rest) = (number + 1, after);
    }
    if mode & 2 != 0 {
        bytes.truncate(bytes.len().saturating_sub(usize::from(mode >> 2)));
    } else {
        bytes.resize(bytes.len() + usize::from(mode >> 2), 0);
    }
    bytes
}

/// Opens the folder, and checks what the module's documentation promises. Returns whether it could be opened.
fn check(files: BTreeMap<String, Vec<u8>>) -> bool {
    let disk = MemoryDisk::new(files);
    let opened = match open(&disk) {
        Ok(opened) => opened,
        Err(error) => {
            check_error(&error);
            return false;
        }
    };
    let rows = rows(&opened);
    disk.remove(HEAD).expect("the file was created");
    let again = open(&disk).expect("a folder that was opened can be opened again");
    assert_eq!(rows, self::rows(&again), "opening changes nothing");
    let folder = again.folder.clone();
    let position = again.state().expect("the state is readable").position;
    let generation = position.generation + 1;
    let write = || {
        folder.prepare_journal(generation)?;
        folder.install(&journal_name(generation))?;
        again.write_snapshot(generation, position.number)?;
        // The rows were read from the journal of the previous generation, which is complete.
        folder.install(&snapshot_name(generation))
    };
    write().expect("a snapshot can be written");
    check_snapshot(&folder, generation, &rows);
    true
}

/// Checks that a snapshot contains these rows.
fn check_snapshot(folder: &Folder, generation: u64, rows: &Rows) {
    let (mut model, mut names) = (windlass_core::model::Model::new(), crate::codec::Names::default());
    let loaded = crate::snapshot::load(folder, generation, &mut model, &mut names);
    loaded.expect("a snapshot that was written can be read");
    assert_eq!(*rows, rows_of(&model), "the snapshot contains all rows");
}

/// An error names the file, and the offset unless the whole file is unusable.
fn check_error(error: &Error) {
    let text = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Incompatible), "{text}");
    assert!(text.contains("disk/journal-") || text.contains("disk/snapshot-"), "{text}");
    let is_clear = ["offset", "is missing", "update this program"].iter().any(|part| text.contains(part));
    assert!(is_clear, "{text}");
}

fn open(disk: &MemoryDisk) -> Result<Shared, Error> {
    open_folder(&(Arc::new(disk.clone()) as Arc<dyn Disk>), &Options::new("disk"))
}

type Rows = (Vec<Arc<JobRow>>, Vec<Arc<ChainRow>>, Vec<(RowKey, Row)>);

fn rows(opened: &Shared) -> Rows {
    rows_of(&opened.state().expect("the state is readable").model)
}

fn rows_of(model: &windlass_core::model::Model) -> Rows {
    (model.jobs_after(0, usize::MAX), model.chains_after(0, usize::MAX), model.registry())
}

/// A disk in memory.
#[derive(Clone, Debug)]
struct MemoryDisk(Arc<Mutex<BTreeMap<String, MemoryFile>>>);

#[derive(Clone, Debug, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl MemoryDisk {
    fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let files = files.into_iter().map(|(name, bytes)| (name, MemoryFile(Arc::new(Mutex::new(bytes)))));
        Self(Arc::new(Mutex::new(files.collect())))
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, MemoryFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryFile {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemoryDisk {
    fn path(&self) -> &Path {
        Path::new("disk")
    }

    fn create_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.files().get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(file))
    }

    fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.files().entry(name.to_owned()).or_default().clone()))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files().remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn shared_file_system(&self) -> Option<String> {
        None
    }

    fn is_current(&self, _: &str, _: &dyn DiskFile) -> bool {
        true
    }
}

impl DiskFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes();
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        Ok(count)
    }

    fn write_at(&self, new: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.bytes();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        if bytes.len() < offset + new.len() {
            bytes.resize(offset + new.len(), 0);
        }
        bytes.iter_mut().skip(offset).zip(new).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.bytes().resize(usize::try_from(size).map_err(io::Error::other)?, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        Ok((0, 0))
    }
}
