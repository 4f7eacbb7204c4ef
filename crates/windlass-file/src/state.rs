//! The state of the store in memory, and how it follows the journal.

use std::sync::Arc;

use windlass_core::command::{Command, Reply};
use windlass_core::model::{Effect, Model};
use windlass_core::{Error, Result, Timestamp};

use crate::codec::Names;
use crate::disk::DiskFile;
use crate::error::damaged;
use crate::folder::{Files, Folder, Position, UNSEALED, is_missing, journal_name, retry_missing};
use crate::frame::{Kind, Next, Reader};
use crate::hint::Hints;
use crate::record::{self, Replayed, Stamp};
use crate::snapshot;
use crate::time::StoreTime;

/// Why a journal does not lead to the end in `head`.
const WRONG_NUMBERS: &str =
    "its records do not have the numbers that `head` states, as if files of two copies were mixed";

/// The model, and the position up to which the journal was replayed. Everything before that position is synced.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) model: Model,
    pub(crate) position: Position,
    pub(crate) journal: Arc<dyn DiskFile>,
    /// The size of the journal with the reserved room after its end, as known to the holder of the lock.
    pub(crate) journal_size: u64,
    pub(crate) time: StoreTime,
    /// The effects of the open transaction so far.
    pub(crate) uncommitted: Vec<Effect>,
    /// A record after the position whose write or sync failed.
    pub(crate) failed: Option<FailedRecord>,
    /// The generation of the last snapshot that is known here, and its size.
    pub(crate) snapshot: u64,
    pub(crate) snapshot_bytes: u64,
    /// The size of the journals since that snapshot.
    pub(crate) journal_bytes: u64,
    names: Names,
    /// Before this position, the model may already contain later changes of the journal.
    partial_until: Position,
    /// Why the state can no longer be used.
    broken: Option<Error>,
}

/// A record that may or may not be on the disk.
#[derive(Clone, Debug)]
pub(crate) struct FailedRecord {
    /// Its first bytes, which identify it.
    pub(crate) header: Vec<u8>,
    /// The offset after it.
    pub(crate) end: u64,
}

impl State {
    /// Restores the state at a position of the journal, from the last snapshot before it.
    pub(crate) fn load(folder: &Folder, end: Position) -> Result<Self> {
        retry_missing(|| {
            let files = Files::list(&*folder.disk)?;
            // A snapshot that was listed may be newer than `end`, but not newer than `head` is now.
            let end = folder.head().map_or(end, |head| head.max(end));
            Self::try_load(folder, &files, end)
        })
    }

    fn try_load(folder: &Folder, files: &Files, end: Position) -> Result<Self> {
        let (mut model, mut names) = (Model::new(), Names::default());
        let base = files.base();
        let mut loaded = snapshot::Loaded::nothing();
        if files.snapshots.contains(&base) {
            loaded = snapshot::load(folder, base, &mut model, &mut names)?;
        }
        let mut state = Self {
            model,
            position: Position::start(base, loaded.first),
            journal: folder.open_journal(base)?,
            journal_size: 0,
            time: StoreTime::new(loaded.time),
            uncommitted: Vec::new(),
            failed: None,
            snapshot: base,
            snapshot_bytes: loaded.bytes,
            journal_bytes: 0,
            names,
            partial_until: Position { generation: base, offset: loaded.consistent_at, number: 0 },
            broken: None,
        };
        state.advance(folder, end, &mut Hints::ignored())?;
        if state.position < state.partial_until {
            let reason = "the snapshot of this generation contains later changes, which are missing here";
            let Position { generation, offset, .. } = state.position;
            return Err(damaged(folder.path(), &journal_name(generation), offset, reason));
        }
        Ok(state)
    }

    /// Fails if the state can no longer be used.
    pub(crate) fn check(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// Replays the journal up to a position that is synced, and adds hints for the changes.
    ///
    /// If another process has compacted the folder several times since the last call, the state is loaded from its
    /// snapshot instead.
    pub(crate) fn advance(&mut self, folder: &Folder, to: Position, hints: &mut Hints) -> Result<()> {
        while self.position < to {
            if let Some((next, number)) = self.replay_file(folder, to, hints)? {
                match folder.open_journal(next) {
                    Ok(journal) => self.journal = journal,
                    Err(error) if is_missing(&error) => {
                        *self = Self::load(folder, to)?;
                        hints.has_gap = true;
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
                // Set the position together with the journal: after an error, the seal is replayed again.
                self.position = Position::start(next, number);
            }
        }
        Ok(())
    }

    /// Replays the rest of the current journal. If the journal is sealed, stops before the seal, and returns the next
    /// generation and the number of its first record.
    fn replay_file(
        &mut self,
        folder: &Folder,
        to: Position,
        hints: &mut Hints,
    ) -> Result<Option<(u64, u64)>> {
        let Position { generation, offset, number } = self.position;
        let name = journal_name(generation);
        let size = self.journal.size().map_err(|error| folder.io("cannot read the journal", error))?;
        let end = if generation == to.generation { to.offset } else { size };
        let origin = folder.origin(Kind::Journal, generation);
        let mut reader = Reader::new(Arc::clone(&self.journal), origin, offset, number, end);
        loop {
            let next = reader.next().map_err(|error| folder.io("cannot read the journal", error))?;
            let record = match next {
                Next::Record(record) => record,
                // Otherwise the end would never be reached.
                Next::End if generation == to.generation && self.position.number != to.number => {
                    return Err(damaged(folder.path(), &name, end, WRONG_NUMBERS));
                }
                Next::End if generation == to.generation => return Ok(None),
                Next::End => return Err(damaged(folder.path(), &name, end, UNSEALED)),
                Next::Invalid { offset, reason } => {
                    return Err(damaged(folder.path(), &name, offset, reason));
                }
            };
            let (start, end) = (record.offset, record.end);
            let is_partial = self.position < self.partial_until;
            let noted = |change| hints.note(&change);
            let replayed =
                record::replay(record.content, &mut self.names, &mut self.model, is_partial, noted);
            let replayed = replayed.map_err(|malformed| {
                let error = folder.malformed(&name, start, malformed);
                self.broken = Some(error.clone());
                error
            })?;
            match replayed {
                Replayed::Changes(stamp) => self.time.committed(stamp.time),
                Replayed::Erased(stamp) => {
                    self.time.reset(stamp.time);
                    // Whatever others wait for is gone.
                    hints.has_gap = true;
                }
                Replayed::Sealed(next) if next == generation + 1 => return Ok(Some((next, reader.number()))),
                Replayed::Sealed(_) | Replayed::SnapshotEnd(_) => {
                    let error = damaged(folder.path(), &name, start, "this record does not belong here");
                    self.broken = Some(error.clone());
                    return Err(error);
                }
            }
            self.position = Position { generation, offset: end, number: reader.number() };
            self.journal_bytes += end - start;
        }
    }

    /// Returns the stamp of a batch at this time.
    pub(crate) const fn stamp(&self, time: Timestamp) -> Stamp {
        Stamp { time, last_seq: self.model.last_seq() }
    }

    /// Answers a query from the committed state, without the writes of the open transaction.
    pub(crate) fn query(&mut self, now: Timestamp, query: &Command) -> Result<Reply> {
        self.committed(|model| model.apply(now, query)).map(|(reply, _)| reply)
    }

    /// Runs a read-only function on the committed state.
    pub(crate) fn committed<T>(&mut self, read: impl FnOnce(&mut Model) -> T) -> T {
        // The caller holds the mutex, so no other thread sees the intermediate state.
        self.model.undo(&self.uncommitted);
        let result = read(&mut self.model);
        self.model.replay(&self.uncommitted);
        result
    }
}
