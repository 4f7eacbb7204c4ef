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
use crate::client::{Batcher, Client, Teller};
use crate::clock::far;
use crate::command::{Acquire, Settled};
use crate::error::Result;
use crate::id::{Fence, JobId, WorkerId};
use crate::job::JobOptions;
use crate::name::WorkerName;
use crate::observer::About;
use crate::store::Store;
use crate::time::Millis;

/// What the tasks of one worker share.
pub(super) struct Engine<S: ?Sized> {
    pub(super) id: WorkerId,
    pub(super) name: Option<WorkerName>,
    pub(super) concurrency: u32,
    pub(super) poll: Duration,
    pub(super) handlers: Vec<Arc<AnyHandler<S>>>,
    /// Attempts that end share writes.
    pub(super) settles: Batcher<Arc<Settling>, Settled>,
    /// Held by the one acquire that is under way. Keeps one whose reply was lost: asked again, the store gives
    /// the same jobs.
    pub(super) acquiring: AsyncMutex<Option<Acquire>>,
    pub(super) stopping: CancellationToken,
    /// Told when a slot is freed that nobody has looked for a job for.
    pub(super) freed: Notify,
    /// Whether the loop found no room when it last looked, so that it does not know what is due.
    pub(super) full: AtomicBool,
    /// Told when the keeper has something to do earlier than it thinks.
    pub(super) taken: Notify,
    slots: Mutex<Slots>,
    pub(super) client: Client<S>,
}

/// The running attempts.
pub(super) struct Slots {
    /// A job may be here twice, when it was taken again before a former attempt has ended.
    pub(super) running: HashMap<(JobId, Fence), Slot, FixedState>,
    /// Until when the keeper sleeps.
    pub(super) keeper_sleeps: Instant,
}

/// A place for a running attempt.
pub(super) struct Slot {
    pub(super) about: Arc<About>,
    /// Which handler runs it.
    pub(super) handler: usize,
    pub(super) abort: Abort,
    pub(super) lease: Millis,
    /// When the lease ends, by this machine's clock, as far as is known.
    pub(super) lease_ends: Instant,
    /// When to renew it; none after the timeout.
    pub(super) renew_at: Option<Instant>,
    /// Whether it is renewed apart from the others, because its row was busy.
    pub(super) alone: bool,
    pub(super) timeout_at: Option<Instant>,
    /// Whether its handler has ended, and its end is being written.
    pub(super) settling: bool,
    /// Whether the write that ends it has asked for a job to take its place.
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

    pub(super) fn teller(&self) -> &Teller {
        &self.client.shared.teller
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        // Nothing under this lock can panic half-way through a change.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many slots are free, and how many jobs each handler may still take.
    pub(super) fn free(&self) -> (u32, Vec<u32>) {
        let slots = self.slots();
        let staying = || slots.running.values().filter(|slot| !slot.leaving);
        let left = |max: u32, taken: usize| max.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        let free = left(self.concurrency, staying().count());
        let quotas = self.handlers.iter().enumerate().map(|(index, handler)| match handler.concurrency {
            None => free,
            Some(max) => left(max, staying().filter(|slot| slot.handler == index).count()).min(free),
        });
        (free, quotas.collect())
    }

    /// Takes a slot for an attempt. So much of its lease is left, counted from the asking.
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
            renew_at: Some(asked_at + left.saturating_sub(options.lease - options.renewal())),
            alone: false,
            timeout_at: options.timeout.map(far),
            settling: false,
            leaving: false,
        };
        let mut slots = self.slots();
        let is_early = slot.next_look().is_some_and(|look| look < slots.keeper_sleeps);
        slots.running.insert(attempt, slot);
        drop(slots);
        if is_early {
            self.taken.notify_one();
        }
    }

    /// Frees a slot.
    pub(super) fn vacate(&self, attempt: (JobId, Fence)) {
        let Some(slot) = self.slots().running.remove(&attempt) else { return };
        // A slot for which a job was asked has been looked after, unless somebody waits for its end.
        if !slot.leaving || self.stopping.is_cancelled() {
            self.freed.notify_one();
        }
    }

    /// Whether the loop waits for room.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }
}

impl Slot {
    /// When the keeper has something to do for it.
    pub(super) fn next_look(&self) -> Option<Instant> {
        match self.renew_at {
            Some(at) => Some(self.timeout_at.map_or(at, |timeout| at.min(timeout))),
            None if self.settling => None,
            None => Some(self.lease_ends),
        }
    }
}
