//! Compaction: keeps the size of the folder proportional to what is stored.
//!
//! When the journals have grown larger than the last snapshot, a thread starts a new generation and writes a new
//! snapshot. Writers continue while it runs. They wait only for the seal of the old journal, which is a separate batch, and
//! while a group of rows is read. Closing the store waits for a compaction that has begun: otherwise a folder that only
//! short-lived programs use would never be compacted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use windlass_core::model::{Row, RowKey};
use windlass_core::{ErrorKind, Result};

use crate::error::{closed, compaction_timed_out};
use crate::folder::{COMPACT, Files, Position, journal_name, snapshot_name, temporary};
use crate::queue::Work;
use crate::record::Stamp;
use crate::shared::Shared;
use crate::snapshot::Writer;
use crate::state::State;

/// The number of rows that are read in one go, while writers wait.
const ROWS_AT_ONCE: usize = 512;

/// How long to wait after a failed compaction.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// How long to wait if another process is compacting the folder.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// How often a compaction that the application requested checks whether the one of another process has ended.
const LOCK_TICK: Duration = Duration::from_millis(10);

/// Statistics about compactions since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStats {
    /// The number of compactions that this store has completed.
    pub completed: u64,
    /// The longest time that a compaction kept writers waiting.
    pub longest_pause: Duration,
}

#[derive(Debug)]
pub(crate) struct Compaction {
    /// The minimum size of the journals for a compaction.
    at_bytes: u64,
    /// Whether a compaction that the store has started by itself is running.
    is_running: AtomicBool,
    /// The number of compactions that the application has requested and that are running.
    requested: AtomicUsize,
    completed: AtomicU64,
    longest_pause_micros: AtomicU64,
    /// No compaction starts by itself before this time.
    retry_at: Mutex<Option<Instant>>,
}

/// How a compaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compacted {
    /// The folder has a new snapshot, or did not need one.
    Done,
    /// Another process is compacting the folder.
    Busy,
    /// Another process has started a new generation in the meantime.
    Overtaken,
    /// The store was closed.
    Closed,
}

/// Marks a compaction that the application has requested as running until it is dropped, even by a panic. Closing the store
/// waits for this: the compaction runs on a thread that continues if the caller drops its future.
struct Requested<'a>(&'a Compaction);

impl<'a> Requested<'a> {
    /// Returns an error if the store is closed.
    fn begin(shared: &'a Shared) -> Result<Self> {
        // `close` holds the same lock. So either it finds this compaction in the count, or this finds the store closed.
        let _queue = shared.queue();
        if shared.is_closed() {
            return Err(closed());
        }
        shared.compaction.requested.fetch_add(1, Ordering::AcqRel);
        Ok(Self(&shared.compaction))
    }
}

impl Drop for Requested<'_> {
    fn drop(&mut self) {
        self.0.requested.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Marks a compaction that the store has started by itself as running until it is dropped, even by a panic. Closing the
/// store waits for this.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.compaction.is_running.store(false, Ordering::Release);
    }
}

impl Compaction {
    pub(crate) fn new(at_bytes: u64) -> Self {
        Self {
            at_bytes,
            is_running: AtomicBool::new(false),
            requested: AtomicUsize::new(0),
            completed: AtomicU64::new(0),
            longest_pause_micros: AtomicU64::new(0),
            retry_at: Mutex::default(),
        }
    }

    pub(crate) fn note_pause(&self, pause: Duration) {
        let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
        self.longest_pause_micros.fetch_max(micros, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> CompactionStats {
        CompactionStats {
            completed: self.completed.load(Ordering::Relaxed),
            longest_pause: Duration::from_micros(self.longest_pause_micros.load(Ordering::Relaxed)),
        }
    }

    fn is_needed(&self, state: &State) -> bool {
        state.journal_bytes >= self.at_bytes.max(state.snapshot_bytes)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire) || self.requested.load(Ordering::Acquire) > 0
    }

    fn must_wait(&self) -> bool {
        self.retry_at().is_some_and(|at| Instant::now() < at)
    }

    fn note_end(&self, result: &Result<Compacted>) {
        let delay = match result {
            Ok(Compacted::Busy) => Some(BUSY_INTERVAL),
            Ok(_) => None,
            Err(_) => Some(RETRY_INTERVAL),
        };
        *self.retry_at() = delay.map(|delay| Instant::now() + delay);
    }

    fn retry_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.retry_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Starts a compaction in a separate thread if the journals have grown enough.
    pub(crate) fn compact_if_needed(self: Arc<Self>) {
        let is_needed = self.state().is_ok_and(|state| self.compaction.is_needed(&state));
        if !is_needed || self.is_closed() || self.compaction.must_wait() {
            return;
        }
        if self.compaction.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Running(self);
        let work = move || {
            let shared = &running.0;
            let compacted = shared.compact(false);
            shared.compaction.note_end(&compacted);
            if let Err(error) = compacted {
                let folder = shared.folder.path().display();
                tracing::warn!(%folder, %error, "the folder was not compacted; this will be retried later");
            }
        };
        // If the thread cannot be started, the next batch tries again.
        let _ = thread::Builder::new().name("windlass-compact".to_owned()).spawn(work);
    }

    /// Compacts the folder even if it is small. Waits for a compaction of another process, at most for the busy timeout.
    pub(crate) fn compact_now(&self) -> Result<()> {
        let began_at = Instant::now();
        let _requested = Requested::begin(self)?;
        loop {
            if self.is_closed() {
                return Err(closed());
            }
            match self.compact(true)? {
                Compacted::Done => return Ok(()),
                Compacted::Closed => return Err(closed()),
                Compacted::Overtaken => {}
                Compacted::Busy if began_at.elapsed() >= self.busy_timeout => {
                    return Err(compaction_timed_out(self.folder.path(), self.busy_timeout));
                }
                Compacted::Busy => thread::sleep(LOCK_TICK),
            }
        }
    }

    /// Starts a new generation with a snapshot, and removes the older ones. Unless `forced`, does nothing if another
    /// process has already done so.
    fn compact(&self, forced: bool) -> Result<Compacted> {
        let io = |error| self.folder.io("cannot compact the folder", error);
        let only_one = self.folder.disk.open_or_create(COMPACT).map_err(io)?;
        // Released when the file is dropped.
        if !only_one.try_lock().map_err(io)? {
            return Ok(Compacted::Busy);
        }
        let files = Files::list(&*self.folder.disk)?;
        for name in &files.temporary {
            self.folder.disk.remove(name).map_err(io)?;
        }
        if !self.note_snapshot(&files).map_err(io)? && !forced {
            return Ok(Compacted::Done);
        }
        let (generation, first) = match self.unused_generation(&files)? {
            Some(unused) => unused,
            None => match self.start_generation()? {
                Ok(started) => started,
                Err(ended) => return Ok(ended),
            },
        };
        let written = self.write_snapshot(generation, first);
        let written =
            written.and_then(|bytes| self.folder.install(&snapshot_name(generation)).map(|()| bytes));
        if written.is_err() {
            // The disk may be full because of this file.
            let _ = self.folder.disk.remove(&temporary(&snapshot_name(generation)));
        }
        let bytes = written?;
        {
            let mut state = self.state()?;
            (state.snapshot, state.snapshot_bytes) = (generation, bytes);
            state.journal_bytes = if state.position.generation == generation {
                state.position.offset
            } else {
                // Another process has started the next generation.
                self.journal_bytes(&Files::list(&*self.folder.disk)?, generation).map_err(io)?
            };
        }
        self.remove_before(generation).map_err(io)?;
        self.compaction.completed.fetch_add(1, Ordering::Relaxed);
        let _ = only_one.unlock();
        Ok(Compacted::Done)
    }

    /// Returns the generation and the number of its first record if its journal is empty and it has no snapshot yet: an
    /// earlier compaction could not write the snapshot, for example because the disk is full. Without this, each attempt
    /// would start another generation.
    fn unused_generation(&self, files: &Files) -> Result<Option<(u64, u64)>> {
        let position = self.state()?.position;
        let Position { generation, number, .. } = position;
        // No other process starts a generation, because this one holds the lock for compactions.
        let is_unused = position == Position::start(generation, number)
            && files.base() < generation
            && files.journals.last() == Some(&generation);
        Ok(is_unused.then_some((generation, number)))
    }

    /// Lets the writer seal the journal. Returns the next generation and the number of its first record, or why there is
    /// none.
    fn start_generation(&self) -> Result<std::result::Result<(u64, u64), Compacted>> {
        let generation = self.state()?.position.generation + 1;
        self.folder.prepare_journal(generation)?;
        let (reply, rotated) = mpsc::channel();
        if self.push(Work::Rotate(generation, reply)).is_err() {
            return Ok(Err(Compacted::Closed));
        }
        match rotated.recv() {
            Ok(Err(error)) if error.kind() == ErrorKind::Changed => Ok(Err(Compacted::Overtaken)),
            Ok(first) => first.map(|first| Ok((generation, first))),
            Err(_) => Ok(Err(Compacted::Closed)),
        }
    }

    /// Records the last snapshot, which another process may have written. Returns whether the journals have grown
    /// enough since.
    fn note_snapshot(&self, files: &Files) -> std::io::Result<bool> {
        let latest = files.base();
        let known = self.state().map_or(latest, |state| state.snapshot);
        if latest > known {
            let snapshot_bytes = self.folder.disk.open(&snapshot_name(latest))?.size()?;
            let journal_bytes = self.journal_bytes(files, latest)?;
            if let Ok(mut state) = self.state() {
                (state.snapshot, state.snapshot_bytes) = (latest, snapshot_bytes);
                state.journal_bytes = journal_bytes;
            }
        }
        Ok(self.state().is_ok_and(|state| self.compaction.is_needed(&state)))
    }

    /// Returns the size of the journals from a generation on.
    fn journal_bytes(&self, files: &Files, from: u64) -> std::io::Result<u64> {
        let journals = files.journals.iter().filter(|generation| **generation >= from);
        journals.map(|generation| self.folder.disk.open(&journal_name(*generation))?.size()).sum()
    }

    pub(crate) fn write_snapshot(&self, generation: u64, first: u64) -> Result<u64> {
        self.write_snapshot_in_groups(generation, first, ROWS_AT_ONCE, || {})
    }

    /// Writes a snapshot. Calls `between` before each group of rows: others may write in the meantime.
    pub(crate) fn write_snapshot_in_groups(
        &self,
        generation: u64,
        first: u64,
        rows_at_once: usize,
        mut between: impl FnMut(),
    ) -> Result<u64> {
        let mut writer = Writer::create(&self.folder, generation, first)?;
        // Jobs that are created from now on are in the new journal.
        let last = self.read(|model| model.last_seq())?;
        let mut seq = 0;
        while seq < last {
            between();
            let jobs = self.read(|model| model.jobs_after(seq, rows_at_once))?;
            let Some(latest) = jobs.last() else { break };
            seq = latest.seq;
            for row in jobs {
                writer.add(&RowKey::Job(row.job.id), &Row::Job(row))?;
            }
        }
        let mut seq = 0;
        while seq < last {
            between();
            let chains = self.read(|model| model.chains_after(seq, rows_at_once))?;
            let Some(latest) = chains.last() else { break };
            seq = latest.seq;
            for row in chains {
                writer.add(&RowKey::Chain(row.id), &Row::Chain(row))?;
            }
        }
        between();
        for (key, row) in self.read(|model| model.registry())? {
            writer.add(&key, &row)?;
        }
        between();
        let (stamp, position) = {
            let state = self.state()?;
            (Stamp { time: state.time.last(), last_seq: state.model.last_seq() }, state.position)
        };
        writer.finish(stamp, position.offset)
    }

    /// Reads committed rows.
    fn read<T>(&self, read: impl FnOnce(&mut windlass_core::model::Model) -> T) -> Result<T> {
        let mut state = self.state()?;
        let began = Instant::now();
        let result = state.committed(read);
        drop(state);
        self.compaction.note_pause(began.elapsed());
        Ok(result)
    }

    /// Removes the files of earlier generations. The oldest are removed first, so that the rest can always be read.
    pub(crate) fn remove_before(&self, generation: u64) -> std::io::Result<()> {
        let Ok(files) = Files::list(&*self.folder.disk) else { return Ok(()) };
        for old in files.snapshots.into_iter().filter(|old| *old < generation) {
            self.folder.disk.remove(&snapshot_name(old))?;
        }
        for old in files.journals.into_iter().filter(|old| *old < generation) {
            self.folder.disk.remove(&journal_name(old))?;
        }
        Ok(())
    }
}
