//! The files that contain the committed state.
//!
//! A committed record never changes. So these files can be read without the folder's lock, while processes write after the
//! end of the last journal.

use std::sync::Arc;

use windlass_core::Result;

use crate::disk::DiskFile;
use crate::error::unknown_end;
use crate::folder::{Files, Folder, Position, journal_name, retry_missing, snapshot_name, verify};
use crate::frame::{HEADER_BYTES, Kind, Reader};
use crate::reserve::has_record;
use crate::shared::Shared;

/// The number of tries to open the files if the end is older than the snapshot.
const TRIES: usize = 10;

/// The latest snapshot, if there is one, and the journals since then.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) files: Vec<CommittedFile>,
    /// The end of the last journal.
    pub(crate) end: Position,
    /// Whether the end is known to be the latest. Otherwise, `head` is invalid, and other processes may have written more.
    pub(crate) is_latest: bool,
}

/// An open file. It can be read even if a compaction removes its name.
#[derive(Debug)]
pub(crate) struct CommittedFile {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
    /// The number of committed bytes. In the last journal, others may follow.
    pub(crate) bytes: u64,
    kind: Kind,
    generation: u64,
    /// The number of the first record in the journal, if this is a snapshot.
    first: u64,
}

impl Committed {
    /// Opens the files with everything that was committed before the call.
    ///
    /// A process that cannot write `head` goes on: its batches are synced and acknowledged. So `head` may be behind. In the
    /// journal, such a batch is not different from one that is being written. So the end is then determined as when the
    /// folder is opened, with the folder's lock.
    pub(crate) fn open_latest(shared: &Shared) -> Result<Self> {
        let committed = Self::open(shared)?;
        if !committed.may_continue(&shared.folder)? {
            return Ok(committed);
        }
        for _ in 0..TRIES {
            shared.settle()?;
            // The end is now that of this store, or a later one.
            let committed = Self::open(shared)?;
            if committed.last_journal().is_some() {
                return Ok(committed);
            }
        }
        Err(unknown_end(shared.folder.path()))
    }

    /// Opens the files. Starts again if a compaction removed one of them since they were listed.
    pub(crate) fn open(shared: &Shared) -> Result<Self> {
        retry_missing(|| {
            let files = Files::list(&*shared.folder.disk)?;
            // After the files were listed: a snapshot in the list may be newer than the end was before.
            let (end, is_latest) = {
                let mut state = shared.state()?;
                let head = shared.folder.head();
                shared.follow(&mut state)?;
                (state.position, head.is_some_and(|head| head <= state.position))
            };
            Self::try_open(&shared.folder, &files, end, is_latest)
        })
    }

    /// Whether there may be committed records after the end.
    fn may_continue(&self, folder: &Folder) -> Result<bool> {
        match self.last_journal() {
            Some(last) if self.is_latest => has_record(&*last.file, self.end.offset)
                .map_err(|error| folder.io("cannot read the journal", error)),
            _ => Ok(true),
        }
    }

    /// The journal that contains the end. `None` if there is a snapshot that is newer than the end: the process that
    /// compacted the folder could not write `head`.
    fn last_journal(&self) -> Option<&CommittedFile> {
        self.files.last().filter(|file| file.generation == self.end.generation && file.kind == Kind::Journal)
    }

    fn try_open(folder: &Folder, files: &Files, end: Position, is_latest: bool) -> Result<Self> {
        let (mut opened, base) = (Vec::new(), files.base());
        if files.snapshots.contains(&base) {
            let (file, header) = folder.open_snapshot(base)?;
            let bytes = file.size().map_err(|error| folder.io("cannot read a snapshot", error))?;
            let (name, kind, first) = (snapshot_name(base), Kind::Snapshot, header.first);
            opened.push(CommittedFile { name, file, bytes, kind, generation: base, first });
        }
        for generation in base..=end.generation {
            let file = folder.open_journal(generation)?;
            let bytes = match generation == end.generation {
                true => end.offset,
                false => file.size().map_err(|error| folder.io("cannot read the journal", error))?,
            };
            let (name, kind) = (journal_name(generation), Kind::Journal);
            opened.push(CommittedFile { name, file, bytes, kind, generation, first: 1 });
        }
        Ok(Self { files: opened, end, is_latest })
    }

    /// Checks all records. Returns a result for each file.
    pub(crate) fn verify(&self, folder: &Folder) -> Vec<Result<()>> {
        let mut next = 1;
        let check = |file: &CommittedFile| {
            let CommittedFile { kind, generation, first, .. } = *file;
            let number = if kind == Kind::Snapshot { 1 } else { next };
            let (reading, origin) = (Arc::clone(&file.file), folder.origin(kind, generation));
            let mut reader = Reader::new(reading, origin, HEADER_BYTES, number, file.bytes);
            let checked = verify(&mut reader, kind, folder.path(), &file.name);
            next = if kind == Kind::Snapshot { first } else { reader.number() };
            checked
        };
        self.files.iter().map(check).collect()
    }
}
