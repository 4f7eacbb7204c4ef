use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::abort::Abort;
use super::handler::AnyHandler;
use crate::client::{Batcher, Client, Teller};
use crate::clock::far;
use crate::command::{Acquired, Settled, Settlement};
use crate::id::{Fence, JobId, WorkerId};
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
    pub(super) settles: Batcher<(Settlement, About), Settled>,
    pub(super) stopping: CancellationToken,
    /// Told when a slot is freed.
    pub(super) freed: Notify,
    /// Told when there is another lease to keep.
    pub(super) taken: Notify,
    pub(super) slots: Mutex<Slots>,
    pub(super) client: Client<S>,
}

/// The running attempts. A job may be here twice, when it was taken again before a former attempt has ended.
pub(super) type Slots = HashMap<(JobId, Fence), Slot>;

/// A place for a running attempt.
pub(super) struct Slot {
    pub(super) about: About,
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
    pub(super) task: Option<AbortHandle>,
    /// Whether its handler has ended, and its end is being written.
    pub(super) settling: bool,
}

impl<S: Store + ?Sized> Engine<S> {
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
        let running = |handler: usize| slots.values().filter(|slot| slot.handler == handler).count();
        let free = self.concurrency.saturating_sub(u32::try_from(slots.len()).unwrap_or(u32::MAX));
        let quotas = self.handlers.iter().enumerate().map(|(index, handler)| match handler.concurrency {
            None => free,
            Some(max) => max.saturating_sub(u32::try_from(running(index)).unwrap_or(u32::MAX)).min(free),
        });
        (free, quotas.collect())
    }

    /// Takes a slot for what was acquired. The lease counts from the asking.
    pub(super) fn occupy(
        &self,
        acquired: &Acquired,
        handler: usize,
        lease: Millis,
        asked_at: Instant,
    ) -> Option<Abort> {
        let options = self.handlers.get(handler)?.options;
        let abort = Abort::default();
        let job = &acquired.job;
        let slot = Slot {
            about: About {
                job: job.id,
                job_type: job.job_type.clone(),
                chain: job.chain,
                chain_type: job.chain_type.clone(),
                attempt: Some(job.attempt),
                worker: Some(self.id),
            },
            handler,
            abort: abort.clone(),
            lease,
            lease_ends: asked_at + lease.into(),
            renew_at: Some(asked_at + options.renewal()),
            alone: false,
            timeout_at: options.timeout.map(far),
            task: None,
            settling: false,
        };
        self.slots().insert((job.id, job.fence), slot);
        self.taken.notify_one();
        Some(abort)
    }

    /// Frees a slot.
    pub(super) fn vacate(&self, attempt: (JobId, Fence)) {
        if self.slots().remove(&attempt).is_some() {
            self.freed.notify_one();
        }
    }
}
