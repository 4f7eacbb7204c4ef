//! The state that all parts of an open store share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use windlass_core::command::{Command, CreateAndAcquireReply, Durability, Reap, Reply};
use windlass_core::{Clock, Counters, Error, ErrorKind, Result, Stalls, Timestamp};

use crate::compact::Compaction;
use crate::folder::{Folder, Position};
use crate::hint::Hints;
use crate::lock::Lock;
use crate::options::Options;
use crate::queue::Queue;
use crate::state::State;
use crate::watch::Watch;

/// An open store.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: Folder,
    pub(crate) lock: Lock,
    state: Mutex<State>,
    /// The end of the journal that this store has published last. The state is at least there.
    published: Mutex<Option<Position>>,
    pub(crate) queue: Mutex<Queue>,
    /// Signals a change of the queue.
    pub(crate) wake: Condvar,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) busy_timeout: Duration,
    pub(crate) record_max_bytes: usize,
    pub(crate) reserve_from_bytes: u64,
    pub(crate) pace_scale: u32,
    pub(crate) stalls: Stalls,
    pub(crate) counted: Counted,
    pub(crate) compaction: Compaction,
    pub(crate) watch: Watch,
    pub(crate) is_closed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(folder: Folder, lock: Lock, state: State, options: &Options) -> Self {
        Self {
            folder,
            lock,
            state: Mutex::new(state),
            published: Mutex::default(),
            queue: Mutex::default(),
            wake: Condvar::new(),
            clock: Arc::clone(&options.clock),
            busy_timeout: options.busy_timeout,
            record_max_bytes: options.record_max_bytes,
            reserve_from_bytes: options.reserve_from_bytes,
            pace_scale: options.pace_scale,
            stalls: Stalls::default(),
            counted: Counted::default(),
            compaction: Compaction::new(options.compact_at_bytes),
            watch: Watch::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns the time of the clock. A batch that was written may be later: see [`store_time`](Self::store_time).
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time for a command: the clock's, but never before the last batch.
    pub(crate) fn store_time(&self, state: &mut State) -> Timestamp {
        let clock = self.now();
        let time = state.time.now(clock);
        if let Some(lead) = state.time.unreported_lead(clock) {
            tracing::warn!(
                folder = %self.folder.path().display(), %clock, store = %time, ?lead,
                "the store's time is ahead of this machine's clock, because a process wrote while the clock was wrong: \
                 `windlass doctor` describes the consequences and the cure"
            );
        }
        time
    }

    /// Locks the state. Fails if a command panicked while it changed the state, or if the journal could not be replayed.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock().map_err(|_| panicked())?;
        state.check()?;
        Ok(state)
    }

    /// Locks the state even after a panic, for cleaning up.
    pub(crate) fn any_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a query if it does not have to wait: no batch is being written, and no other process has written.
    pub(crate) fn try_query(&self, query: &Command) -> Option<Result<Reply>> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => return Some(Err(panicked())),
        };
        if let Err(error) = state.check() {
            return Some(Err(error));
        }
        if self.folder.head().is_some_and(|head| head > state.position) {
            return None;
        }
        let now = self.store_time(&mut state);
        Some(state.query(now, query))
    }

    /// Answers a query. Blocks the thread while a batch is written, or while the batches of other processes are read.
    pub(crate) fn query(&self, query: &Command) -> Result<Reply> {
        let mut state = self.state()?;
        self.follow(&mut state)?;
        let now = self.store_time(&mut state);
        state.query(now, query)
    }

    /// Replays what other processes have committed, and notifies waiting workers and callers. Does not need the
    /// folder's lock.
    pub(crate) fn follow(&self, state: &mut State) -> Result<()> {
        // While a transaction is open, this store holds the folder's lock, and no other process commits.
        if !state.uncommitted.is_empty() {
            return Ok(());
        }
        match self.folder.head() {
            Some(head) if head > state.position => self.advance(state, head),
            _ => Ok(()),
        }
    }

    /// Whether the end of the journal is the one that this store has published. Then there is nothing to follow.
    pub(crate) fn is_own_head(&self) -> bool {
        let head = self.folder.head();
        head.is_some() && head == *self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the end of the journal to other processes. The batch is already durable, so an error does not fail it:
    /// the next batch publishes its end too.
    pub(crate) fn publish(&self, position: Position) {
        *self.published.lock().unwrap_or_else(PoisonError::into_inner) = Some(position);
        if let Err(error) = self.folder.publish(position) {
            let folder = self.folder.path().display();
            tracing::warn!(%folder, %error, "cannot write the file `head`: other processes see this batch later");
        }
    }

    /// Replays the journal up to a position, and notifies waiting workers and callers.
    pub(crate) fn advance(&self, state: &mut State, to: Position) -> Result<()> {
        let mut hints = if self.watch.is_needed() { Hints::default() } else { Hints::ignored() };
        let advanced = state.advance(&self.folder, to, &mut hints);
        if !hints.is_empty() {
            self.watch.publish(hints);
        }
        advanced
    }

    /// Adjusts a command after a stall: a reap then requeues nothing.
    pub(crate) fn adjusted<'c>(&self, command: &'c Command, own: &'c mut Option<Command>) -> &'c Command {
        match command {
            // Stalls are noted in the time of the clock.
            Command::Reap(reap) if self.stalls.forbid_reaping(self.now(), reap.renewal_interval) => {
                // Requeue nothing, but still resolve deferred waits.
                own.insert(Command::Reap(Reap { max: 0, ..reap.clone() }))
            }
            command => command,
        }
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

/// Completes the reply of a command that was synced.
pub(crate) fn durable(mut reply: Reply) -> Reply {
    if let Reply::Create(create) | Reply::CreateAndAcquire(CreateAndAcquireReply { create, .. }) = &mut reply
    {
        create.durability = Durability::Synced;
    }
    reply
}

fn panicked() -> Error {
    let text = "a command panicked, and the state in memory may be inconsistent: open the store again";
    Error::new(ErrorKind::Corrupt, text)
}

/// Counts round trips and commits.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    round_trips: AtomicU64,
    commits: AtomicU64,
}

impl Counted {
    pub(crate) fn round_trip(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            round_trips: self.round_trips.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }
}
