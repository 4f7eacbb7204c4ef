use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::abort::Abort;
use super::handler::AnyHandler;
use super::settle::{Settling, settles};
use crate::client::{Batcher, Client, Dispatcher};
use crate::clock::far;
use crate::command::{Acquire, Settled};
use crate::error::Result;
use crate::id::{Fence, JobId, WorkerId};
use crate::job::JobOptions;
use crate::name::WorkerName;
use crate::observer::About;
use crate::store::Store;
use crate::time::Millis;

/// The state that all tasks of one worker share: the loop, the keeper, the heartbeat and the attempts.
pub(super) struct Engine<S: ?Sized> {
    pub(super) id: WorkerId,
    pub(super) name: Option<WorkerName>,
    pub(super) concurrency: u32,
    pub(super) poll: Duration,
    pub(super) handlers: Vec<Arc<AnyHandler<S>>>,
    /// Writes the settlements of attempts that end at about the same time with one command.
    pub(super) settles: Batcher<Arc<Settling>, Settled>,
    /// Locked while an acquire is in flight, alone or in an exchange: two at once would count the same free
    /// slots. Contains the request if its reply was lost; repeating it returns the same jobs.
    pub(super) acquiring: AsyncMutex<Option<Acquire>>,
    pub(super) stopping: CancellationToken,
    /// Notified when a slot frees and no acquire covers it.
    pub(super) freed: Notify,
    /// Whether some handler had no room when the loop last checked. The loop then does not know when jobs of
    /// that handler are due, and must be woken when there is room.
    pub(super) full: AtomicBool,
    /// Notified when the keeper has something to do earlier than it planned.
    pub(super) taken: Notify,
    slots: Mutex<Slots>,
    pub(super) client: Client<S>,
}

/// The running attempts.
pub(super) struct Slots {
    /// Keyed by fence too: if a job is acquired again before an earlier attempt has ended here, both are
    /// running.
    pub(super) running: HashMap<(JobId, Fence), Slot, FixedState>,
    /// When the keeper wakes up unless it is notified earlier.
    pub(super) keeper_sleeps: Instant,
}

/// A slot occupied by an attempt.
pub(super) struct Slot {
    pub(super) about: Arc<About>,
    /// The index of the handler that runs the attempt.
    pub(super) handler: usize,
    pub(super) abort: Abort,
    pub(super) lease: Millis,
    /// When the lease expires, on this machine's clock. Counted from the time of the request, so it is never
    /// later than the expiry on the store's clock.
    pub(super) lease_ends: Instant,
    /// When to renew the lease. `None` once the attempt has timed out or lost its job.
    pub(super) renew_at: Option<Instant>,
    /// Whether the lease is renewed in a command of its own, because its row was busy.
    pub(super) alone: bool,
    /// When the attempt times out. `None` without a timeout, after it, or once the handler has ended.
    pub(super) timeout_at: Option<Instant>,
    /// Whether the handler has ended and its outcome is being written.
    pub(super) settling: bool,
    /// Whether the exchange that settles the attempt also acquires a job for its slot.
    pub(super) leaving: bool,
}

impl<S: Store + ?Sized> Engine<S> {
    pub(super) fn new(
        client: Client<S>,
        name: Option<String>,
        concurrency: u32,
        poll: Duration,
        handlers: Vec<Arc<AnyHandler<S>>>,
    ) -> Result<Arc<Self>> {
        let name = name.map(WorkerName::new).transpose()?;
        let slots = Slots { running: HashMap::default(), keeper_sleeps: Instant::now() };
        Ok(Arc::new_cyclic(|engine| Self {
            id: WorkerId::new(),
            name,
            concurrency,
            poll,
            handlers,
            settles: settles(engine.clone()),
            acquiring: AsyncMutex::new(None),
            stopping: CancellationToken::new(),
            freed: Notify::new(),
            full: AtomicBool::new(true),
            taken: Notify::new(),
            slots: Mutex::new(slots),
            client,
        }))
    }

    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.client.shared.dispatcher
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        // No code panics halfway through a change while it holds this lock, so poisoning can be ignored.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of free slots, and how many more jobs each handler may run.
    pub(super) fn free(&self) -> (u32, Vec<u32>) {
        let slots = self.slots();
        // A slot that is leaving counts as free: its handler has ended, and the exchange that settles it
        // acquires a job for it.
        let staying = || slots.running.values().filter(|slot| !slot.leaving);
        let left = |max: u32, taken: usize| max.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        let free = left(self.concurrency, staying().count());
        let quotas = self.handlers.iter().enumerate().map(|(index, handler)| match handler.concurrency {
            None => free,
            Some(max) => left(max, staying().filter(|slot| slot.handler == index).count()).min(free),
        });
        (free, quotas.collect())
    }

    /// Occupies a slot with an attempt. `left` is the rest of its lease, counted from `asked_at`.
    pub(super) fn occupy(
        &self,
        attempt: (JobId, Fence),
        handler: usize,
        lease: Millis,
        asked_at: Instant,
        left: Duration,
        (about, abort): (Arc<About>, Abort),
    ) {
        let options = self.handlers.get(handler).map_or_else(JobOptions::default, |handler| handler.options);
        let slot = Slot {
            about,
            handler,
            abort,
            lease,
            lease_ends: asked_at + left,
            // One renewal interval after the request, or earlier if part of the lease has passed.
            renew_at: Some(asked_at + left.saturating_sub(options.lease - options.renewal())),
            alone: false,
            timeout_at: options.timeout.map(far),
            settling: false,
            leaving: false,
        };
        // The keeper sets `keeper_sleeps` under the same lock. It either sees this slot when it plans its
        // sleep, or has planned it already and is woken here.
        let mut slots = self.slots();
        let is_early = slot.next_look().is_some_and(|look| look < slots.keeper_sleeps);
        slots.running.insert(attempt, slot);
        drop(slots);
        if is_early {
            self.taken.notify_one();
        }
    }

    /// Frees a slot, unless that has happened already.
    pub(super) fn vacate(&self, attempt: (JobId, Fence)) {
        let Some(slot) = self.slots().running.remove(&attempt) else { return };
        // An exchange has already acquired for a slot that is leaving, so the loop need not. During a stop,
        // `emptied` waits for every slot: notify in any case.
        if !slot.leaving || self.stopping.is_cancelled() {
            self.freed.notify_one();
        }
    }

    /// Whether the loop must be woken when there is room for more jobs.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }
}

impl Slot {
    /// Returns when the keeper must act on this slot: at the renewal or the timeout, or at the end of the
    /// lease if it is no longer renewed. Returns `None` if only the settlement is left to wait for.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match self.renew_at {
            Some(at) => Some(self.timeout_at.map_or(at, |timeout| at.min(timeout))),
            None if self.settling => None,
            None => Some(self.lease_ends),
        }
    }
}
