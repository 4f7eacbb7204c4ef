//! Acquires jobs for the free slots of a worker and starts their attempts.
//!
//! Only one acquire is in flight at a time, either alone or in an exchange that also settles attempts (`settle.rs`).
//! Two at the same time would count the same free slots, and together they would take more jobs than there are slots.
//! [`Engine::acquiring`] is the lock; it also holds a request whose reply was lost.

use std::sync::Arc;

use tokio::time::Instant;

use super::abort::Abort;
use super::any_attempt::AnyAttempt;
use super::engine::Engine;
use super::task;
use crate::client::{Announcements, answered};
use crate::command::{Acquire, AcquireReply, Acquired, Outcome, Quota, Schedule, Settlement};
use crate::error::Result;
use crate::id::RequestId;
use crate::limit::BATCH_MAX_ITEMS;
use crate::name::{ErrorText, TypeName};
use crate::observer::{About, Event};
use crate::store::Store;
use crate::time::Millis;

/// The delay before a job that was acquired by a worker without a handler is due again.
const UNHANDLED_DELAY: Millis = Millis::from_secs(60);

/// The number of jobs that an acquire requested and the number that it returned.
pub(super) struct Acquisition {
    pub(super) requested: u32,
    pub(super) acquired: u32,
}

impl<S: Store + ?Sized> Engine<S> {
    /// Acquires jobs for the free slots and starts their attempts.
    pub(super) async fn acquire(self: &Arc<Self>) -> Result<Acquisition> {
        // Held until the reply has been turned into occupied slots.
        let mut unanswered = self.acquiring.lock().await;
        let acquire = self.next_acquire(&mut unanswered)?;
        if acquire.max == 0 || acquire.types.is_empty() {
            return Ok(Acquisition { requested: 0, acquired: 0 });
        }
        let (requested, requested_at) = (acquire.max, Instant::now());
        // Keep the request before sending it. If the call fails or is dropped, the store may have leased jobs
        // all the same; repeating the request returns them.
        *unanswered = Some(acquire.clone());
        let reply = answered(self.client.store().acquire(acquire)).await?;
        *unanswered = None;
        Ok(Acquisition { requested, acquired: self.start_attempts(reply, requested_at) })
    }

    /// Returns the acquire whose reply was lost, or a new one for all free slots. The caller holds
    /// `acquiring`.
    pub(super) fn next_acquire(&self, unanswered: &mut Option<Acquire>) -> Result<Acquire> {
        match unanswered.take() {
            Some(acquire) => Ok(acquire),
            None => self.acquire_request(),
        }
    }

    /// Repeats an acquire whose reply was lost, when the worker stops. The jobs that it returns are released
    /// immediately instead of staying leased until they expire.
    pub(super) async fn recover_acquire(self: &Arc<Self>) -> Result<()> {
        let mut unanswered = self.acquiring.lock().await;
        if let Some(acquire) = unanswered.clone() {
            let requested_at = Instant::now();
            self.start_attempts(self.client.store().acquire(acquire).await?, requested_at);
            *unanswered = None;
        }
        Ok(())
    }

    /// Starts an attempt of each acquired job. Returns the number of jobs.
    pub(super) fn start_attempts(self: &Arc<Self>, reply: AcquireReply, requested_at: Instant) -> u32 {
        let count = u32::try_from(reply.jobs.len()).unwrap_or(u32::MAX);
        for acquired in reply.jobs {
            // A repeated acquire returns the leases of the first call, part of which has passed since.
            let left =
                acquired.job.lease.as_ref().map(|lease| lease.until.since(reply.now)).unwrap_or_default();
            let mut handlers = self.handlers.iter().enumerate();
            match handlers.find(|(_, handler)| handler.runs(&acquired.job.job_type)) {
                Some(handler) => task::start(self, acquired, handler, requested_at, left),
                None => self.put_back(acquired),
            }
        }
        let mut announcements = Announcements::new(self.dispatcher());
        announcements.ripple(&reply.ripple);
        announcements.send(self.dispatcher());
        count
    }

    /// Reschedules an acquired job for which this worker has no handler, which a store should not return.
    ///
    /// Without this, the job would stay leased until its lease expires. Without the delay, this worker might
    /// acquire it again immediately, and so on.
    fn put_back(self: &Arc<Self>, acquired: Acquired) {
        let attempt = AnyAttempt::new(Box::new(acquired), Abort::default(), self.about());
        let about = Arc::new(attempt.about());
        self.dispatcher().observe(&Event::HandlerMissing(About::clone(&about)));
        let text = format!("worker {} has no handler for job type `{}`", self.id, about.job_type);
        let outcome = Outcome::Reschedule {
            schedule: Schedule::After(UNHANDLED_DELAY),
            error: Some(ErrorText::new(text)),
        };
        let settlement = Settlement { job: attempt.job().id, fence: attempt.job().fence, outcome };
        let engine = Arc::clone(self);
        // It occupies no slot, so `stop` waits for it separately. If the store stays unreachable, the lease expires.
        self.put_backs.spawn(async move {
            tokio::select! {
                _ = engine.settle(settlement, &about) => {}
                () = engine.stopped.cancelled() => {}
            }
        });
    }

    /// Returns an acquire request for all free slots.
    fn acquire_request(&self) -> Result<Acquire> {
        let (free, quotas) = self.free();
        let mut types = Vec::new();
        for (handler, max) in self.handlers.iter().zip(quotas).filter(|(_, max)| *max > 0) {
            let lease = Millis::try_from(handler.options.lease)?;
            types.extend(handler.types.iter().map(|job_type| Quota {
                job_type: job_type.clone(),
                max,
                lease,
            }));
        }
        let max = free.min(u32::try_from(BATCH_MAX_ITEMS).unwrap_or(u32::MAX));
        Ok(Acquire { request: RequestId::new(), worker: self.id, worker_name: self.name.clone(), types, max })
    }

    /// Whether a job of this type could be acquired now.
    pub(super) fn has_room(&self, job_type: &TypeName) -> bool {
        let (_, quotas) = self.free();
        let mut handlers = self.handlers.iter().zip(quotas);
        handlers.any(|(handler, quota)| quota > 0 && handler.runs(job_type))
    }
}
