//! The files of a folder, and how to find the end of its journal.
//!
//! | file | content |
//! |---|---|
//! | `journal-N` | the batches of generation N, the last one incomplete if a process was killed |
//! | `snapshot-N` | all rows, for the start of generation N |
//! | `head` | the offset up to which the journal is known to be synced |
//! | `lock`, `turn`, `compact` | empty; the locks of the process that writes, of the next one, and of the one that compacts |
//! | `holder` | the last process that held the lock, for messages |
//!
//! A file with the suffix `.tmp` is incomplete. It is renamed after it has been synced.

use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;
use windlass_core::{Error, ErrorKind, Result};

use crate::codec::{Encoder, Malformed};
use crate::disk::{Disk, DiskFile};
use crate::error::{bad_header, damaged, from_io, shortened};
use crate::frame::{
    FRAME_BYTES, HEADER_BYTES, Header, Kind, Next, Origin, RECORD_MAX_BYTES, Reader, VERSION,
    has_later_record, record_number, u32_at, u64_at,
};
use crate::options::NAMESPACE;
use crate::record;
use crate::reserve::{self, is_zero};

pub(crate) const HEAD: &str = "head";
pub(crate) const LOCK: &str = "lock";
pub(crate) const TURN: &str = "turn";
pub(crate) const COMPACT: &str = "compact";
pub(crate) const HOLDER: &str = "holder";
const TEMPORARY: &str = ".tmp";

/// Why a journal without a seal is damaged if another one follows it.
pub(crate) const UNSEALED: &str = "it is not sealed";

/// Why a snapshot without its last record is damaged.
pub(crate) const SNAPSHOT_CUT: &str = "its end is missing";

pub(crate) fn journal_name(generation: u64) -> String {
    format!("journal-{generation:010}")
}

pub(crate) fn snapshot_name(generation: u64) -> String {
    format!("snapshot-{generation:010}")
}

/// Returns the name of a file while it is incomplete.
pub(crate) fn temporary(name: &str) -> String {
    format!("{name}{TEMPORARY}")
}

/// The end of the possible generations and record numbers. No store can ever reach it, so it can be counted up safely.
const COUNT_END: u64 = 1 << 62;

/// Whether a generation or record number is possible.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "for `filter`")]
const fn is_possible(number: &u64) -> bool {
    *number < COUNT_END
}

/// A position in the journal, between two records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    /// The number of the next record.
    pub(crate) number: u64,
}

impl Position {
    /// The start of a generation.
    pub(crate) const fn start(generation: u64, number: u64) -> Self {
        Self { generation, offset: HEADER_BYTES, number }
    }
}

/// The names of the files in a folder, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) journals: Vec<u64>,
    pub(crate) snapshots: Vec<u64>,
    pub(crate) temporary: Vec<String>,
    /// Files of other programs.
    pub(crate) foreign: Vec<String>,
    /// Whether there is any file of a store.
    pub(crate) is_known: bool,
}

impl Files {
    pub(crate) fn list(disk: &dyn Disk) -> Result<Self> {
        let names = disk.list().map_err(|error| from_io("cannot list the files", disk.path(), error))?;
        Ok(Self::sort(names))
    }

    fn sort(names: Vec<String>) -> Self {
        let mut files = Self::default();
        for name in names {
            let generation = |prefix: &str| {
                name.strip_prefix(prefix).and_then(|rest| rest.parse().ok()).filter(is_possible)
            };
            if let Some(found) = generation("journal-").filter(|found| journal_name(*found) == name) {
                files.journals.push(found);
            } else if let Some(found) = generation("snapshot-").filter(|found| snapshot_name(*found) == name)
            {
                files.snapshots.push(found);
            } else if name.ends_with(TEMPORARY)
                && (name.starts_with("journal-") || name.starts_with("snapshot-"))
            {
                files.temporary.push(name);
            } else if name.starts_with(NAMESPACE) {
                // The folder of another store.
                continue;
            } else if ![HEAD, LOCK, TURN, COMPACT, HOLDER].contains(&name.as_str()) {
                files.foreign.push(name);
                continue;
            }
            files.is_known = true;
        }
        files.journals.sort_unstable();
        files.snapshots.sort_unstable();
        files.foreign.sort_unstable();
        files
    }

    /// The generation from which the state is restored.
    pub(crate) fn base(&self) -> u64 {
        self.snapshots.last().copied().unwrap_or(1)
    }
}

/// The folder of a store: its disk, its id, and the file `head`.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) id: Uuid,
    head: Arc<dyn DiskFile>,
}

/// The number of tries to read `head` if it is invalid, because another process may be writing it.
const HEAD_TRIES: usize = 20;

const HEAD_BYTES: usize = 64;
const HEAD_MAGIC: [u8; 8] = *b"windhead";

impl Folder {
    /// Creates the first journal. The caller holds the lock.
    pub(crate) fn create(disk: Arc<dyn Disk>, head: Arc<dyn DiskFile>) -> Result<Self> {
        let folder = Self { disk, id: Uuid::now_v7(), head };
        folder.prepare_journal(1)?;
        folder.install(&journal_name(1))?;
        // An old `head` has the id of another folder, and is ignored.
        folder
            .publish(Position::start(1, 1))
            .map_err(|error| folder.io("cannot write the file `head`", error))?;
        Ok(folder)
    }

    /// Whether `head` shows that there was a journal, of any folder.
    pub(crate) fn was_published(head: &dyn DiskFile) -> bool {
        let mut bytes = [0; HEAD_BYTES];
        matches!(head.read_exact_at(&mut bytes, 0), Ok(Some(()))) && is_head(&bytes)
    }

    /// Opens an existing folder. The caller holds the lock.
    pub(crate) fn existing(disk: Arc<dyn Disk>, head: Arc<dyn DiskFile>, files: &Files) -> Result<Self> {
        let path = disk.path().to_owned();
        let newest = match files.snapshots.last() {
            Some(generation) => (snapshot_name(*generation), Kind::Snapshot),
            None => (journal_name(1), Kind::Journal),
        };
        let file = open_file(&*disk, &newest.0)?;
        let header = read_header(&path, &newest.0, &*file, newest.1)?;
        Ok(Self { disk, id: header.folder, head })
    }

    pub(crate) fn path(&self) -> &Path {
        self.disk.path()
    }

    pub(crate) fn io(&self, action: &str, error: std::io::Error) -> Error {
        from_io(action, self.path(), error)
    }

    pub(crate) fn malformed(&self, file: &str, offset: u64, malformed: Malformed) -> Error {
        damaged(self.path(), file, offset, malformed.0)
    }

    pub(crate) const fn origin(&self, kind: Kind, generation: u64) -> Origin {
        Origin { kind, folder: self.id, generation }
    }

    /// Returns the end of the journal that is known to be synced. `None` if it is not known: the file is missing, or
    /// another process is writing it at this moment.
    pub(crate) fn head(&self) -> Option<Position> {
        self.read_head().ok().flatten()
    }

    /// Like [`head`](Self::head), but fails if the file cannot be read.
    pub(crate) fn read_head(&self) -> std::io::Result<Option<Position>> {
        for _ in 0..HEAD_TRIES {
            let mut bytes = [0; HEAD_BYTES];
            if self.head.read_exact_at(&mut bytes, 0)?.is_none() {
                return Ok(None);
            }
            if is_head(&bytes) {
                let is_ours = u32_at(&bytes, 8) == VERSION && bytes.get(12..28) == Some(self.id.as_bytes());
                let [generation, offset, number] = [28, 36, 44].map(|at| u64_at(&bytes, at));
                let is_ours = is_ours && [generation, offset, number].iter().all(is_possible);
                return Ok(is_ours.then_some(Position { generation, offset, number }));
            }
        }
        Ok(None)
    }

    /// Publishes the end of the journal to other processes. The caller has synced the journal up to that offset.
    pub(crate) fn publish(&self, position: Position) -> std::io::Result<()> {
        self.head.write_at(&self.encode_head(position), 0)
    }

    /// Returns the content of `head` for a position.
    pub(crate) fn encode_head(&self, position: Position) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend(HEAD_MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.id.as_bytes());
        let Position { generation, offset, number } = position;
        [generation, offset, number].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes.resize(HEAD_BYTES - 4, 0);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Writes an empty journal under a temporary name.
    pub(crate) fn prepare_journal(&self, generation: u64) -> Result<()> {
        let header = Header::new(Kind::Journal, self.id, generation, 0);
        let write = || {
            let file = self.disk.open_or_create(&temporary(&journal_name(generation)))?;
            file.set_size(0)?;
            file.write_at(&header.encode(), 0)?;
            file.sync()
        };
        write().map_err(|error| self.io("cannot create a journal", error))
    }

    /// Renames a file from its temporary name, and makes the new name durable.
    pub(crate) fn install(&self, name: &str) -> Result<()> {
        let install = || {
            self.disk.rename(&temporary(name), name)?;
            self.disk.sync_folder()
        };
        install().map_err(|error| self.io(&format!("cannot create `{name}`"), error))
    }

    /// Opens a journal and checks its header.
    pub(crate) fn open_journal(&self, generation: u64) -> Result<Arc<dyn DiskFile>> {
        self.open(&journal_name(generation), Kind::Journal, generation).map(|(file, _)| file)
    }

    /// Opens a snapshot and checks its header.
    pub(crate) fn open_snapshot(&self, generation: u64) -> Result<(Arc<dyn DiskFile>, Header)> {
        self.open(&snapshot_name(generation), Kind::Snapshot, generation)
    }

    fn open(&self, name: &str, kind: Kind, generation: u64) -> Result<(Arc<dyn DiskFile>, Header)> {
        let file = open_file(&*self.disk, name)?;
        let header = read_header(self.path(), name, &*file, kind)?;
        if header.folder != self.id || header.generation != generation {
            let text = "its header belongs to another folder or generation";
            return Err(damaged(self.path(), name, 0, text));
        }
        if !is_possible(&header.first) {
            return Err(damaged(self.path(), name, 40, "the number of the first record is too large"));
        }
        Ok((file, header))
    }

    /// Finds the end of the journal, ensures that everything before it is synced, and publishes it. The caller holds
    /// the lock. `files` is needed if nothing is known about the journal yet.
    pub(crate) fn recover(&self, files: &Files) -> Result<Position> {
        let base = files.base();
        let head = self.head();
        // `head` is not synced, so it may be old: its journal may have been removed since.
        let known = head.filter(|head| head.generation >= base && files.journals.contains(&head.generation));
        let start = match (known, files.snapshots.last()) {
            (Some(head), _) => head,
            (None, Some(generation)) => {
                let (_, header) = self.open_snapshot(*generation)?;
                Position::start(*generation, header.first)
            }
            (None, None) => Position::start(1, 1),
        };
        let end = self.settle_tail(start)?;
        if Some(end) != head {
            self.publish(end).map_err(|error| self.io("cannot write the file `head`", error))?;
        }
        Ok(end)
    }

    /// Makes the records after a position durable, and returns the end. The caller holds the lock.
    ///
    /// There may be complete batches after the position: a process was killed before it could publish them, or the
    /// update of `head` was lost in a power failure. They may have been acknowledged. There may also be one incomplete
    /// batch, which was not acknowledged. It is cut off.
    pub(crate) fn settle_tail(&self, start: Position) -> Result<Position> {
        let mut start = self.skip_seal(start)?;
        loop {
            let file = self.open_journal(start.generation)?;
            let (end, next) = self.settle_file(&*file, Arc::clone(&file), start)?;
            match next {
                Some(generation) => start = Position::start(generation, end.number),
                None => return Ok(end),
            }
        }
    }

    /// If the record before a position is a seal, returns the start of the next generation.
    ///
    /// A process may have been killed after it sealed the journal and published that, and others may have continued in
    /// the next generation. After a power failure, `head` may be as old as that.
    fn skip_seal(&self, position: Position) -> Result<Position> {
        let Position { generation, offset, number } = position;
        let mut seal = Encoder::default();
        record::encode_seal(&mut seal, generation + 1);
        let start = offset.saturating_sub((FRAME_BYTES + seal.0.len()) as u64);
        if start < HEADER_BYTES || number < 2 {
            return Ok(position);
        }
        let file = self.open_journal(generation)?;
        let origin = self.origin(Kind::Journal, generation);
        let mut reader = Reader::new(file, origin, start, number - 1, offset);
        match reader.next().map_err(|error| self.io("cannot read the journal", error))? {
            Next::Record(record) if record.content == seal.0 => Ok(Position::start(generation + 1, number)),
            _ => Ok(position),
        }
    }

    /// Does what [`settle_tail`](Self::settle_tail) does, for one journal. Also returns the next generation if the
    /// journal is sealed.
    fn settle_file(
        &self,
        file: &dyn DiskFile,
        reading: Arc<dyn DiskFile>,
        start: Position,
    ) -> Result<(Position, Option<u64>)> {
        let name = journal_name(start.generation);
        let size = file.size().map_err(|error| self.io("cannot read the journal", error))?;
        if size < start.offset {
            return Err(shortened(self.path(), &name, size, start.offset));
        }
        let origin = self.origin(Kind::Journal, start.generation);
        let mut reader = Reader::new(reading, origin, start.offset, start.number, size);
        let (mut last, mut sealed) = (None, None);
        let invalid = loop {
            if sealed.is_some() {
                // Nothing was ever written after a seal.
                break None;
            }
            match reader.next().map_err(|error| self.io("cannot read the journal", error))? {
                Next::Record(record) => {
                    sealed = record::sealed(record.content, start.generation)
                        .map_err(|malformed| self.malformed(&name, record.offset, malformed))?;
                    last = Some(record.offset);
                }
                Next::End => break None,
                Next::Invalid { reason, .. } => break Some(reason),
            }
        };
        let end = Position { generation: start.generation, offset: reader.offset(), number: reader.number() };
        let is_reserved = match invalid {
            Some(reason) => self.check_rest(file, end, size, reason)?,
            None => false,
        };
        if sealed.is_none() && self.has_records(end.generation + 1)? {
            return Err(damaged(self.path(), &name, end.offset, UNSEALED));
        }
        if let Some(reason) = invalid.filter(|_| !is_reserved) {
            let bytes = size - end.offset;
            tracing::warn!(
                folder = %self.path().display(), file = name, offset = end.offset, bytes, reason,
                "what follows the last complete batch of the journal was cut off: an incomplete batch, which was never \
                 acknowledged, or reserved room that something has changed"
            );
        }
        if size > end.offset && !is_reserved || last.is_some() {
            let rewrite = match last {
                Some(offset) => Some((offset, self.read(file, end.generation, offset, end.offset)?)),
                None => None,
            };
            self.rewrite(file, end.offset, rewrite)
                .map_err(|error| self.io("cannot repair the end of the journal", error))?;
        }
        Ok((end, sealed))
    }

    /// Checks what follows the last record of a journal. Returns whether it is reserved room. Otherwise it is an incomplete
    /// batch.
    fn check_rest(
        &self,
        file: &dyn DiskFile,
        end: Position,
        size: u64,
        reason: &'static str,
    ) -> Result<bool> {
        let invalid = || damaged(self.path(), &journal_name(end.generation), end.offset, reason);
        // At most one batch is incomplete, and no batch is larger than a record can be. Reserved room may follow it.
        if size - end.offset > (FRAME_BYTES + RECORD_MAX_BYTES) as u64 + reserve::MAX_BYTES {
            return Err(invalid());
        }
        let rest = self.read(file, end.generation, end.offset, size)?;
        if has_later_record(&rest, self.origin(Kind::Journal, end.generation), end.number) {
            return Err(invalid());
        }
        Ok(is_zero(&rest))
    }

    /// Whether the journal of a generation has a record. Then the journal before it was sealed.
    ///
    /// A process that was killed before it wrote the seal leaves a journal without records. Anything else with this name is
    /// ignored, because the next compaction replaces it.
    fn has_records(&self, generation: u64) -> Result<bool> {
        let io = |error| self.io("cannot read the journal", error);
        let file = match self.disk.open(&journal_name(generation)) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(io(error)),
        };
        let (mut header, mut frame) = ([0; 64], [0; FRAME_BYTES]);
        let read = file.read_exact_at(&mut header, 0).map_err(io)?;
        let ours = Header::decode(&header, Kind::Journal)
            .is_ok_and(|header| header.folder == self.id && header.generation == generation);
        if read.is_none() || !ours || file.read_exact_at(&mut frame, HEADER_BYTES).map_err(io)?.is_none() {
            return Ok(false);
        }
        // The number of the first record is not known: the end of the journal before it may be missing.
        let (number, size) = (record_number(&frame), file.size().map_err(io)?);
        let origin = self.origin(Kind::Journal, generation);
        let mut reader = Reader::new(file, origin, HEADER_BYTES, number, size);
        Ok(is_possible(&number) && matches!(reader.next().map_err(io)?, Next::Record(_)))
    }

    /// Reads a part of a journal.
    fn read(&self, file: &dyn DiskFile, generation: u64, from: u64, to: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(usize::MAX)];
        let read = file.read_exact_at(&mut bytes, from);
        let read = read.map_err(|error| self.io("cannot read the journal", error))?;
        read.ok_or_else(|| shortened(self.path(), &journal_name(generation), from, to))?;
        Ok(bytes)
    }

    /// Writes the last record again, so that the sync covers it even if an earlier sync of it failed, and cuts off the
    /// rest.
    fn rewrite(&self, file: &dyn DiskFile, end: u64, record: Option<(u64, Vec<u8>)>) -> std::io::Result<()> {
        if let Some((offset, bytes)) = record {
            file.write_at(&bytes, offset)?;
        }
        file.set_size(end)?;
        file.sync()
    }
}

/// Whether the content of `head` is complete.
fn is_head(bytes: &[u8; HEAD_BYTES]) -> bool {
    let (body, sum) = bytes.split_at(HEAD_BYTES - 4);
    bytes.starts_with(&HEAD_MAGIC) && crc32fast::hash(body).to_le_bytes() == *sum
}

/// The number of tries if a file is missing.
const TRIES: usize = 10;

/// Runs this again if a file is missing: a compaction of another process may have removed it since the files were listed.
pub(crate) fn retry_missing<T>(mut run: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 1;
    loop {
        match run() {
            Err(error) if is_missing(&error) && tries < TRIES => tries += 1,
            done => return done,
        }
    }
}

/// Whether the error says that a file is missing.
pub(crate) fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt && error.inner().is_some()
}

fn open_file(disk: &dyn Disk, name: &str) -> Result<Arc<dyn DiskFile>> {
    disk.open(name).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let path = disk.path().join(name);
            let text = format!("`{}` is missing: restore the folder from a backup", path.display());
            Error::new(ErrorKind::Corrupt, text).with_inner(error)
        }
        _ => from_io(&format!("cannot open `{name}`"), disk.path(), error),
    })
}

fn read_header(folder: &Path, name: &str, file: &dyn DiskFile, kind: Kind) -> Result<Header> {
    let mut bytes = [0; 64];
    let read = file.read_exact_at(&mut bytes, 0);
    let read = read.map_err(|error| from_io(&format!("cannot read `{name}`"), folder, error))?;
    if read.is_none() {
        return Err(damaged(folder, name, 0, "its header is incomplete"));
    }
    Header::decode(&bytes, kind).map_err(|bad| bad_header(folder, name, bad))
}

/// Checks every record of a file, and that a snapshot has an end.
pub(crate) fn verify(reader: &mut Reader, kind: Kind, folder: &Path, name: &str) -> Result<()> {
    let mut has_end = kind == Kind::Journal;
    loop {
        match reader.next().map_err(|error| from_io("cannot read a file", folder, error))? {
            Next::Record(record) => has_end |= record::is_snapshot_end(record.content),
            Next::End if has_end => return Ok(()),
            Next::End => return Err(damaged(folder, name, reader.offset(), SNAPSHOT_CUT)),
            Next::Invalid { offset, reason } => return Err(damaged(folder, name, offset, reason)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_sorted_by_their_names() {
        let names =
            ["journal-0000000002", "journal-0000000001", "snapshot-0000000002", "journal-3", "notes.txt"];
        let names = names.into_iter().chain(["lock", "snapshot-0000000003.tmp", "x.tmp", "namespace-a"]);
        let files = Files::sort(names.map(str::to_owned).collect());
        assert_eq!((files.journals.as_slice(), files.snapshots.as_slice()), (&[1, 2][..], &[2][..]));
        assert_eq!(files.temporary, ["snapshot-0000000003.tmp"]);
        assert_eq!(files.foreign, ["journal-3", "notes.txt", "x.tmp"]);
        assert!(files.is_known && !Files::sort(vec!["a".to_owned()]).is_known);
    }

    #[test]
    fn a_position_is_after_those_of_earlier_generations() {
        let at = |generation, offset| Position { generation, offset, number: 0 };
        assert!(at(2, 64) > at(1, 1_000) && at(2, 65) > at(2, 64));
    }
}
