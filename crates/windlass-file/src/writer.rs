//! Group commit.
//!
//! Waiting for the disk costs more than executing a command. So commands do not write on their own: they queue, and one
//! thread executes all queued commands, appends their effects to the journal as one record, and syncs it. While one
//! batch is synced, the next one collects. Under load, batches grow and throughput rises; when idle, a command is
//! written alone and immediately.
//!
//! The thread holds the folder's lock while it executes, writes and syncs a batch. So no other process acts on changes
//! that are not durable, and at most one batch is incomplete after a crash.
//!
//! The state stays locked until the batch is synced. A query in between waits for the disk; otherwise it would see
//! changes that may still be undone.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use windlass_core::command::{Command, Reply};
use windlass_core::model::Effect;
use windlass_core::{Error, ErrorKind, Result, Timestamp};

use crate::codec::Encoder;
use crate::error::{closed, lock_timed_out, shortened};
use crate::folder::{Files, Position, is_missing, journal_name, retry_missing};
use crate::frame::{self, Kind};
use crate::lock::Held;
use crate::pace::Pace;
use crate::queue::{BATCH_MAX, End, Turn, Waiting, Work};
use crate::record;
use crate::reserve::{Pause, has_record, reserve};
use crate::shared::{Shared, durable};
use crate::state::{FailedRecord, State};

/// The size of a batch above which the remaining commands are left for the next one, in bytes.
const BATCH_BYTES: usize = 8 << 20;

/// How often a writer that waits for the end of a transaction checks for commands that have waited too long.
const TRANSACTION_TICK: Duration = Duration::from_millis(50);

/// The thread that writes. There is one for each open store.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    changes: Encoder,
    buffer: Encoder,
    /// Since when no batch could be written.
    failing_since: Option<Timestamp>,
    pace: Pace,
    /// How long the write and sync of the last batch took.
    sync: Duration,
    /// Whether the journal gets more room.
    pause: Pause,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            pace: Pace::new(shared.pace_scale),
            shared,
            changes: Encoder::default(),
            buffer: Encoder::default(),
            failing_since: None,
            sync: Duration::ZERO,
            pause: Pause::default(),
        }
    }

    /// Runs until the store is closed and the queue is empty.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while self.wait_for_work() {
            let held = match shared.lock.acquire(|| shared.still_waits()) {
                Ok(Some(held)) => held,
                Ok(None) => continue,
                Err(error) => {
                    self.note_failure();
                    shared.queue().take_all().into_iter().for_each(|waiting| waiting.fail(error.clone()));
                    continue;
                }
            };
            // Take the work only now: commands that arrived while this thread waited for the lock share the sync.
            let turn = shared.queue().take();
            match turn {
                Some(Turn::Batch(batch)) => self.run_batch(held, batch),
                Some(Turn::Alone(waiting)) => self.run_alone(held, waiting),
                None => drop(held),
            }
            Arc::clone(&shared).compact_if_needed();
        }
    }

    /// Waits until there is work. Returns `false` if the store is closed and the queue is empty.
    fn wait_for_work(&mut self) -> bool {
        let mut queue = self.shared.queue();
        loop {
            if queue.has_work() {
                let commands = queue.only_commands().filter(|_| !self.shared.is_closed());
                let wait = commands.and_then(|commands| self.pace.wait(Instant::now(), commands));
                let Some(wait) = wait else { return true };
                queue = match self.shared.wake.wait_timeout(queue, wait) {
                    Ok((queue, _)) => queue,
                    Err(poisoned) => poisoned.into_inner().0,
                };
                continue;
            }
            if self.shared.is_closed() {
                return false;
            }
            queue = match self.shared.wake.wait(queue) {
                Ok(queue) => queue,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
    }

    /// Executes a batch of commands, commits their effects together, and replies.
    fn run_batch(&mut self, held: Held<'_>, batch: Vec<Waiting>) {
        let shared = Arc::clone(&self.shared);
        shared.note_stall(&batch);
        let mut waiting = batch.into_iter();
        let mut done = Vec::new();
        let committed = self.execute(&shared, &mut waiting, &mut done);
        drop(held);
        let waiting = {
            let mut queue = shared.queue();
            queue.put_back(waiting.collect());
            queue.only_commands().unwrap_or(0)
        };
        // A full batch waits for nobody.
        let (answered, sync) = (done.len(), std::mem::take(&mut self.sync));
        let answered = answered.min(BATCH_MAX.saturating_sub(waiting));
        self.pace.answered(Instant::now(), answered, waiting, sync);
        self.note_result(&committed);
        for (waiting, reply) in done {
            let Work::Command(_, caller) = waiting.work else { continue };
            let reply = match &committed {
                Ok(()) => reply.map(durable),
                Err(error) => Err(error.clone()),
            };
            let _ = caller.send(reply);
        }
    }

    /// Executes commands until the batch is large, and commits them.
    fn execute(
        &mut self,
        shared: &Shared,
        waiting: &mut impl Iterator<Item = Waiting>,
        done: &mut Vec<(Waiting, Result<Reply>)>,
    ) -> Result<()> {
        let prepared = shared.state().and_then(|mut state| {
            shared.prepare(&mut state)?;
            Ok(state)
        });
        let mut state = match prepared {
            Ok(state) => state,
            Err(error) => {
                done.extend(waiting.map(|waiting| (waiting, Err(error.clone()))));
                return Err(error);
            }
        };
        let now = shared.store_time(&mut state);
        let mut effects = Vec::new();
        self.changes.0.clear();
        while self.changes.0.len() < BATCH_BYTES
            && let Some(next) = waiting.next()
        {
            let Work::Command(command, _) = &next.work else { continue };
            shared.watch.note(command);
            let mut adjusted = None;
            let applied = state.model.apply(now, shared.adjusted(command, &mut adjusted));
            let reply = applied.map(|(reply, changed)| {
                record::encode_effects(&mut self.changes, &changed);
                effects.extend(changed);
                reply
            });
            done.push((next, reply));
        }
        self.commit(shared, &mut state, now, &effects)
    }

    /// Writes the encoded changes as one batch, and syncs it. If that fails, undoes the effects.
    fn commit(
        &mut self,
        shared: &Shared,
        state: &mut State,
        now: Timestamp,
        effects: &[Effect],
    ) -> Result<()> {
        if effects.is_empty() {
            return Ok(());
        }
        frame::begin(&mut self.buffer.0);
        record::encode_changes(&mut self.buffer, state.stamp(now));
        self.buffer.0.append(&mut self.changes.0);
        shared.counted.round_trip();
        let appended = frame::check_size(&self.buffer.0, shared.record_max_bytes)
            .and_then(|()| self.append(shared, state));
        match &appended {
            Ok(()) => state.time.committed(now),
            Err(_) => state.model.undo(effects),
        }
        appended
    }

    /// Appends the record in the buffer, syncs it and publishes the new end.
    fn append(&mut self, shared: &Shared, state: &mut State) -> Result<()> {
        self.write(shared, state, true)?;
        shared.publish(state.position);
        Ok(())
    }

    /// Appends the record in the buffer and syncs it. May reserve room for the next records.
    fn write(&mut self, shared: &Shared, state: &mut State, reserves: bool) -> Result<()> {
        let Position { generation, offset, number } = state.position;
        frame::finish(&mut self.buffer.0, shared.folder.origin(Kind::Journal, generation), number);
        let end = offset + self.buffer.0.len() as u64;
        let is_full = end > state.journal_size;
        let reserves = reserves && is_full && end >= shared.reserve_from_bytes && self.pause.is_over();
        let began = Instant::now();
        let written = state.journal.write_at(&self.buffer.0, offset).and_then(|()| {
            if is_full {
                state.journal_size = if reserves { reserve(&*state.journal, end) } else { end };
            }
            state.journal.sync()
        });
        if let Err(error) = written {
            let error = shared.folder.io("cannot write the journal", error);
            // The content of the disk is unknown now. Never sync it again: the next sync may report success for data
            // that the failed one has lost.
            let header = self.buffer.0.iter().take(frame::FRAME_BYTES).copied().collect();
            state.failed = Some(FailedRecord { header, end });
            self.pause.failed(end, reserves);
            let _ = shared.truncate(state);
            return Err(error);
        }
        self.sync = began.elapsed();
        self.pause.appended(end - offset, reserves && state.journal_size > end);
        state.position = Position { generation, offset: end, number: number + 1 };
        state.journal_bytes += end - offset;
        shared.counted.commit();
        Ok(())
    }

    fn run_alone(&mut self, held: Held<'_>, waiting: Waiting) {
        let shared = Arc::clone(&self.shared);
        shared.note_stall(std::slice::from_ref(&waiting));
        match waiting.work {
            Work::Begin(reply) => {
                let began = shared.state().and_then(|mut state| shared.prepare(&mut state));
                self.note_result(&began);
                match began {
                    Ok(()) => self.run_transaction(held, reply),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Work::Erase(reply) => {
                let erased = self.erase(&shared);
                drop(held);
                self.note_result(&erased);
                let _ = reply.send(erased);
            }
            Work::Settle(reply) => {
                let settled = shared.state().and_then(|mut state| shared.prepare(&mut state));
                drop(held);
                self.note_result(&settled);
                let _ = reply.send(settled);
            }
            Work::Rotate(generation, reply) => {
                let began = Instant::now();
                let rotated = self.rotate(&shared, generation);
                drop(held);
                shared.compaction.note_pause(began.elapsed());
                let _ = reply.send(rotated);
            }
            Work::Command(..) => {}
        }
        // Do not wait for the callers of the last batch: too much time has passed. The duration of this sync does not
        // predict that of the next batch.
        self.sync = Duration::ZERO;
        self.pace.forget();
    }

    fn erase(&mut self, shared: &Shared) -> Result<()> {
        let mut state = shared.state()?;
        shared.prepare(&mut state)?;
        // Nothing is left whose lease or due time depends on the time, so a time that is ahead of the clock ends here.
        let now = shared.now();
        let stamp = state.stamp(now);
        frame::begin(&mut self.buffer.0);
        record::encode_erased(&mut self.buffer, stamp);
        shared.counted.round_trip();
        self.append(shared, &mut state)?;
        state.time.reset(now);
        state.model = windlass_core::model::Model::new();
        state.model.skip_seq(stamp.last_seq);
        Ok(())
    }

    /// Seals the journal, and continues in the prepared one.
    fn rotate(&mut self, shared: &Shared, generation: u64) -> Result<u64> {
        let mut state = shared.state()?;
        shared.prepare(&mut state)?;
        if state.position.generation + 1 != generation {
            return Err(Error::new(ErrorKind::Changed, "another process has compacted the folder"));
        }
        // The journal has no seal, so a file with that name was left behind by a process that was killed before it
        // wrote the seal.
        shared.folder.install(&journal_name(generation))?;
        let journal = shared.folder.open_journal(generation)?;
        if state.journal_size > state.position.offset {
            // A journal with a seal has no reserved room: readers take the end of the file for its end.
            shared.truncate(&mut state)?;
        }
        frame::begin(&mut self.buffer.0);
        record::encode_seal(&mut self.buffer, generation);
        // The end of a sealed journal is not published: nothing follows it there.
        self.write(shared, &mut state, false)?;
        state.journal = journal;
        state.position = Position::start(generation, state.position.number);
        shared.publish(state.position);
        Ok(state.position.number)
    }

    /// Keeps the lock until a transaction ends.
    fn run_transaction(
        &mut self,
        held: Held<'_>,
        reply: tokio::sync::oneshot::Sender<Result<mpsc::Sender<End>>>,
    ) {
        let shared = Arc::clone(&self.shared);
        let (sender, receiver) = mpsc::channel();
        let began_at = shared.now();
        shared.stalls.begun(began_at, began_at);
        if reply.send(Ok(sender)).is_err() {
            shared.stalls.ended(shared.now());
            return;
        }
        let end = loop {
            match receiver.recv_timeout(TRANSACTION_TICK) {
                Ok(end) => break Some(end),
                Err(mpsc::RecvTimeoutError::Disconnected) => break None,
                Err(mpsc::RecvTimeoutError::Timeout) => shared.fail_overdue(),
            }
        };
        let ended = match &end {
            Some(End::Commit(_)) => self.commit_transaction(&shared),
            _ => {
                shared.roll_back_to(0);
                Ok(())
            }
        };
        drop(held);
        shared.stalls.ended(shared.now());
        if let Some(End::Commit(reply) | End::Rollback(reply)) = end {
            let _ = reply.send(ended);
        }
    }

    fn commit_transaction(&mut self, shared: &Shared) -> Result<()> {
        let mut state = shared.state()?;
        let effects = std::mem::take(&mut state.uncommitted);
        // The transaction may have been open for a long time.
        if let Err(error) = shared.lock.check_current() {
            state.model.undo(&effects);
            return Err(error);
        }
        self.changes.0.clear();
        record::encode_effects(&mut self.changes, &effects);
        let now = shared.store_time(&mut state);
        let committed = self.commit(shared, &mut state, now, &effects);
        drop(state);
        self.note_result(&committed);
        committed
    }

    /// Records how long writes have failed: no lease could be renewed in that time.
    fn note_result<T>(&mut self, result: &Result<T>) {
        match result {
            Err(_) => self.note_failure(),
            Ok(_) => {
                if let Some(since) = self.failing_since.take() {
                    self.shared.stalls.note(since, self.shared.now());
                }
            }
        }
    }

    fn note_failure(&mut self) {
        self.failing_since.get_or_insert_with(|| self.shared.now());
    }
}

impl Shared {
    /// Adds work for the writer.
    pub(crate) fn push(&self, work: Work) -> Result<()> {
        let waiting = Waiting { work, asked_at: self.now(), queued_at: Instant::now() };
        let mut queue = self.queue();
        // Checked under the lock: the writer ends only when it finds the queue empty under the same lock.
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        queue.push(waiting);
        drop(queue);
        self.wake.notify_all();
        Ok(())
    }

    /// Advances the state to the end of the journal, even if `head` is behind. Waits for the folder's lock.
    pub(crate) fn settle(&self) -> Result<()> {
        let (reply, settled) = mpsc::channel();
        self.push(Work::Settle(reply))?;
        settled.recv().map_err(|_| closed())?
    }

    /// Fails work that has waited too long for the lock. Returns whether any work is left.
    fn still_waits(&self) -> bool {
        self.fail_overdue();
        self.queue().has_work()
    }

    fn fail_overdue(&self) {
        let overdue = self.queue().take_overdue(self.busy_timeout);
        if overdue.is_empty() {
            return;
        }
        self.note_stall(&overdue);
        let error = lock_timed_out(self.folder.path(), self.busy_timeout, &self.lock.holder());
        overdue.into_iter().for_each(|waiting| waiting.fail(error.clone()));
    }

    /// Records the longest wait of this work as a stall: a renewal may have had to wait as long.
    fn note_stall(&self, batch: &[Waiting]) {
        if let Some(asked_at) = batch.iter().map(|waiting| waiting.asked_at).min() {
            self.stalls.note(asked_at, self.now());
        }
    }

    /// Advances the state to the end of the journal, and ensures that the whole journal is synced. The caller holds the
    /// folder's lock.
    fn prepare(&self, state: &mut State) -> Result<()> {
        // If this fails, another process may have continued: a failed record must not be cut off then.
        let head = self.folder.read_head();
        let head = head.map_err(|error| self.folder.io("cannot read the file `head`", error))?;
        match head.filter(|head| *head > state.position) {
            // Other processes have continued. If they found a record of this process whose sync failed, they have made it
            // durable or replaced it: it must not be cut off.
            Some(head) => self.advance(state, head)?,
            None if self.has_failed_tail(state)? => self.truncate(state)?,
            None => {}
        }
        let io = |error| self.folder.io("cannot read the journal", error);
        let size = state.journal.size().map_err(io)?;
        if size < state.position.offset {
            let name = journal_name(state.position.generation);
            return Err(shortened(self.folder.path(), &name, size, state.position.offset));
        }
        state.journal_size = size;
        if size > state.position.offset && has_record(&*state.journal, state.position.offset).map_err(io)? {
            // Another process was killed before it could publish what it wrote.
            let end = match self.folder.settle_tail(state.position) {
                // A compaction has removed this journal, and its process could not publish the next one.
                Err(error) if is_missing(&error) => {
                    retry_missing(|| self.folder.recover(&Files::list(&*self.folder.disk)?))?
                }
                settled => settled?,
            };
            // Publish the end before acting on it. Otherwise a process whose sync failed would still take the record for
            // its own, and cut it off.
            self.folder
                .publish(end)
                .map_err(|error| self.folder.io("cannot write the file `head`", error))?;
            self.advance(state, end)?;
            state.journal_size = state.journal.size().map_err(io)?;
        } else if head != Some(state.position) {
            self.publish(state.position);
        }
        state.failed = None;
        Ok(())
    }

    /// Removes what a failed write has left after the end of the journal, and the reserved room.
    fn truncate(&self, state: &mut State) -> Result<()> {
        let truncated = state.journal.set_size(state.position.offset).and_then(|()| state.journal.sync());
        truncated.map_err(|error| self.folder.io("cannot repair the journal", error))?;
        state.journal_size = state.position.offset;
        state.failed = None;
        Ok(())
    }

    /// Whether the journal ends with a record of this process whose write failed. Since then, other processes may have
    /// replaced that record. What they wrote must not be cut off.
    fn has_failed_tail(&self, state: &State) -> Result<bool> {
        let Some(FailedRecord { header, end }) = &state.failed else { return Ok(false) };
        let io = |error| self.folder.io("cannot read the journal", error);
        let mut found = vec![0; header.len()];
        let read = state.journal.read_exact_at(&mut found, state.position.offset).map_err(io)?;
        Ok(read.is_some() && found == *header && !has_record(&*state.journal, *end).map_err(io)?)
    }

    /// Undoes the effects of the open transaction after the first `kept`.
    pub(crate) fn roll_back_to(&self, kept: usize) {
        let mut state = self.any_state();
        let kept = kept.min(state.uncommitted.len());
        let undone = state.uncommitted.split_off(kept);
        state.model.undo(&undone);
    }

    /// Executes a command in the open transaction.
    pub(crate) fn execute_in_transaction(&self, command: &Command) -> Result<Reply> {
        self.counted.round_trip();
        let mut state = self.state()?;
        let now = self.store_time(&mut state);
        let (reply, effects) = state.model.apply(now, command)?;
        state.uncommitted.extend(effects);
        Ok(durable(reply))
    }
}
