//! Acquires jobs for the free slots of a worker and starts their attempts.
//!
//! An acquire is sent alone, in an exchange that also settles attempts (`settle.rs`), or with a creation while the worker is
//! idle (`client/create_and_acquire.rs`). A permit of [`Engine::acquiring`] limits how many are in flight. Each one
//! reserves the slots that it may fill ([`Outstanding`]). Otherwise two at the same time would count the same free slots,
//! and together they would take more jobs than there are slots. The reservation of an acquire whose reply was lost stays
//! until a repeat is answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};

use super::any_attempt::HeldJob;
use super::engine::Engine;
use super::settle::Settling;
use super::slot::Outstanding;
use super::task;
use crate::client::{AcquireSource, Announcements, PendingAcquire, answered, send_repeatedly};
use crate::command::{Acquire, AcquireReply, Acquired, DueTime, Outcome, Quota, Request};
use crate::error::Result;
use crate::id::RequestId;
use crate::limit::BATCH_MAX_ITEMS;
use crate::name::{ErrorText, TypeName};
use crate::observer::Event;
use crate::store::Store;
use crate::time::Millis;

/// The delay before a job that was acquired by a worker without a handler is due again.
const UNHANDLED_DELAY: Millis = Millis::from_secs(60);

/// How long a job that was acquired early waits until its creation has been reported. The reply to the creation may be late
/// or lost.
const CREATION_MAX: Duration = Duration::from_millis(5);

/// The number of jobs that an acquire requested and the number that it returned.
pub(super) struct Acquisition {
    pub(super) requested: u32,
    pub(super) acquired: u32,
}

impl Acquisition {
    /// Nothing was requested, because no slot was free.
    const NONE: Self = Self { requested: 0, acquired: 0 };
}

/// An acquire in flight. If it is dropped before [`answered`](Self::answered), its reply is lost, and the next acquire
/// repeats it.
pub(super) struct InFlight<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    request: RequestId,
    requested: u32,
    requested_at: Instant,
    is_answered: bool,
    _permit: OwnedSemaphorePermit,
}

impl<S: Store + ?Sized> InFlight<S> {
    /// Starts an attempt of each acquired job. The reservation of the slots ends only then: until the slots are occupied,
    /// another acquire would count them as free.
    pub(super) fn answered(mut self, reply: AcquireReply) -> Acquisition {
        // First: a repeat after a panic would start the same attempts again.
        self.is_answered = true;
        let acquired = self.engine.start_attempts(reply, self.requested_at);
        self.engine.has_backlog.store(acquired >= self.requested, Ordering::Relaxed);
        Acquisition { requested: self.requested, acquired }
    }
}

impl<S: Store + ?Sized> Drop for InFlight<S> {
    fn drop(&mut self) {
        let mut slots = self.engine.slots();
        if self.is_answered {
            slots.outstanding.retain(|outstanding| outstanding.acquire.request != self.request);
        } else {
            let mut outstanding = slots.outstanding.iter_mut();
            if let Some(lost) = outstanding.find(|outstanding| outstanding.acquire.request == self.request) {
                lost.is_in_flight = false;
            }
        }
    }
}

/// Acquires for this worker are sent with the creations of other tasks, while the main loop waits.
impl<S: Store + ?Sized> AcquireSource for Engine<S> {
    fn can_start(&self) -> bool {
        self.idle_handlers() > 0
    }

    /// The acquire does not prefetch: the jobs that it returns are not announced, so no other process would run them.
    fn request(self: Arc<Self>) -> Option<(Acquire, Box<dyn PendingAcquire>)> {
        let permit = Arc::clone(&self.acquiring).try_acquire_owned().ok()?;
        let idle = self.idle_handlers();
        if self.stopping.is_cancelled() || idle == 0 {
            return None;
        }
        let (acquire, in_flight) = self.request_jobs(permit, &[], idle)?;
        Some((acquire, Box::new(Joined(Some(in_flight)))))
    }
}

/// An acquire that is sent with a creation. It is `None` once it is answered.
struct Joined<S: Store + ?Sized>(Option<InFlight<S>>);

impl<S: Store + ?Sized> PendingAcquire for Joined<S> {
    fn answered(mut self: Box<Self>, reply: AcquireReply) {
        let Some(in_flight) = self.0.take() else { return };
        let engine = Arc::clone(&in_flight.engine);
        let Acquisition { requested, acquired } = in_flight.answered(reply);
        // If no requested slot is free, more jobs may be due. The loop had room when it last checked, so it would not be woken
        // when a slot is freed. If `full` is set, the loop counted the slots while they were reserved, and may have ignored a
        // hint. The reservation ends before `full` is read, and the loop sets `full` before it counts the slots.
        if acquired >= requested || engine.is_full() {
            engine.freed.notify_one();
        }
    }
}

impl<S: Store + ?Sized> Drop for Joined<S> {
    /// The reply is lost. The store may have leased jobs, so the loop repeats the acquire.
    fn drop(&mut self) {
        if let Some(in_flight) = self.0.take() {
            let engine = Arc::clone(&in_flight.engine);
            drop(in_flight);
            engine.freed.notify_one();
        }
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Acquires jobs for the free slots and starts their attempts.
    pub(super) async fn acquire(self: &Arc<Self>) -> Result<Acquisition> {
        let permit = Arc::clone(&self.acquiring).acquire_owned().await;
        let Ok(permit) = permit else { return Ok(Acquisition::NONE) };
        let Some((acquire, in_flight)) = self.request_jobs(permit, &[], u32::MAX) else {
            return Ok(Acquisition::NONE);
        };
        let call = answered(self.client.store().acquire(acquire));
        let items = |reply: &AcquireReply| reply.jobs.len();
        let reply = self.dispatcher().measured(Acquire::NAME, items, call).await?;
        // Before the wait below, which may outlast the expectation: the hints of these jobs are not needed.
        self.note_expected(&reply);
        // The reply to the creation of these jobs arrives at the same time. Observers should learn of the creation first.
        let chains = reply.jobs.iter().map(|acquired| acquired.job.chain);
        let creation = self.expected().as_ref().and_then(|expected| expected.creation_of(chains));
        if let Some(creation) = creation {
            let _ = timeout(CREATION_MAX, creation.reported()).await;
        }
        Ok(in_flight.answered(reply))
    }

    /// Returns the acquire whose reply was lost, or a new one for at most `max` free slots, and reserves these slots. The
    /// slots of the attempts in `settling` are leaving, and count as free. Returns `None` if no slot is free.
    pub(super) fn request_jobs(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        settling: &[Settling<S>],
        max: u32,
    ) -> Option<(Acquire, InFlight<S>)> {
        let mut slots = self.slots();
        let acquire = match slots.outstanding.iter_mut().find(|outstanding| !outstanding.is_in_flight) {
            // It may not cover the slots of `settling`, so these are not leaving: they notify the loop when they are freed.
            Some(lost) => {
                lost.is_in_flight = true;
                lost.acquire.clone()
            }
            None => {
                slots.mark_leaving(settling, true);
                let (free, quotas) = slots.free(self);
                let acquire = self.acquire_request(free.min(max), &quotas);
                if acquire.max == 0 || acquire.types.is_empty() {
                    slots.mark_leaving(settling, false);
                    return None;
                }
                // Keep the request before it is sent. If the call fails or is dropped, the store may still have
                // leased jobs; repeating the request returns them.
                slots.outstanding.push(Outstanding { acquire: acquire.clone(), quotas, is_in_flight: true });
                acquire
            }
        };
        let in_flight = InFlight {
            engine: Arc::clone(self),
            request: acquire.request,
            requested: acquire.max,
            requested_at: Instant::now(),
            is_answered: false,
            _permit: permit,
        };
        Some((acquire, in_flight))
    }

    /// Repeats the acquires whose replies were lost, when the worker stops. The jobs that they return are released
    /// immediately instead of staying leased until they expire.
    pub(super) async fn recover_acquires(self: &Arc<Self>) -> Result<()> {
        loop {
            // First, because an exchange in flight holds one, and its reply may be lost too.
            let permits = u32::try_from(self.client.store().capabilities().max_exchanges()).unwrap_or(1);
            let all = Arc::clone(&self.acquiring).acquire_many_owned(permits).await;
            let Ok(all) = all else { return Ok(()) };
            if self.slots().outstanding.is_empty() {
                return Ok(());
            }
            let Some((acquire, in_flight)) = self.request_jobs(all, &[], u32::MAX) else { return Ok(()) };
            let call = send_repeatedly(self.client.store(), &acquire);
            let items = |reply: &AcquireReply| reply.jobs.len();
            let reply = self.dispatcher().measured(Acquire::NAME, items, call).await?;
            in_flight.answered(reply);
        }
    }

    /// Notes which of the expected jobs were acquired, so that they are not announced.
    fn note_expected(&self, reply: &AcquireReply) {
        if let Some(expected) = &*self.expected() {
            reply.jobs.iter().for_each(|acquired| expected.acquired(acquired.job.chain));
        }
    }

    /// Starts an attempt of each acquired job. Returns the number of jobs.
    pub(super) fn start_attempts(self: &Arc<Self>, reply: AcquireReply, requested_at: Instant) -> u32 {
        self.dispatcher().time().learn(reply.now);
        let count = u32::try_from(reply.jobs.len()).unwrap_or(u32::MAX);
        let wanted = self.dispatcher().wants_events();
        self.note_expected(&reply);
        for acquired in reply.jobs {
            // A repeated acquire returns the leases of the first call, part of which has passed since.
            let left =
                acquired.job.lease.as_ref().map(|lease| lease.until.since(reply.now)).unwrap_or_default();
            match self.handlers.iter().position(|handler| handler.runs(&acquired.job.job_type)) {
                Some(handler) => {
                    let held = HeldJob::new(acquired, self.about());
                    task::start(self, &held, handler, requested_at, left, wanted);
                }
                None => self.put_back(acquired),
            }
        }
        let mut announcements = Announcements::committed(self.dispatcher());
        announcements.ripple(&reply.ripple);
        announcements.send(self.dispatcher());
        count
    }

    /// Reschedules an acquired job for which this worker has no handler, which a store should not return.
    ///
    /// Without this, the job would stay leased until its lease expires. Without the delay, this worker might
    /// acquire it again immediately, and so on.
    fn put_back(self: &Arc<Self>, acquired: Acquired) {
        let held = HeldJob::new(acquired, self.about());
        self.dispatcher().observe(&Event::HandlerMissing(held.about(self.dispatcher().now())));
        let text = format!("worker {} has no handler for job type `{}`", self.id, held.acquired.job.job_type);
        let outcome = Outcome::Reschedule {
            schedule: DueTime::After(UNHANDLED_DELAY),
            error: Some(ErrorText::new(text)),
        };
        let engine = Arc::clone(self);
        // It occupies no slot, so `stop` waits for it separately. If the store stays unreachable, the lease expires.
        self.put_backs.spawn(async move {
            tokio::select! {
                _ = engine.settle(outcome, &held) => {}
                () = engine.stopped.cancelled() => {}
            }
        });
    }

    /// Returns a new acquire request for the free slots.
    fn acquire_request(&self, free: u32, quotas: &[u32]) -> Acquire {
        let open = self.handlers.iter().zip(quotas).filter(|(_, max)| **max > 0);
        let types = open.flat_map(|(handler, max)| {
            let quota = |job_type: &TypeName| Quota {
                job_type: job_type.clone(),
                max: *max,
                lease: handler.options.lease_ms(),
            };
            handler.types.iter().map(quota)
        });
        Acquire {
            request: RequestId::new(),
            worker: self.id,
            worker_name: self.name.clone(),
            types: types.collect(),
            max: free.min(u32::try_from(BATCH_MAX_ITEMS).unwrap_or(u32::MAX)).min(self.acquired_max()),
        }
    }

    /// Returns the maximum number of jobs of an acquire.
    ///
    /// If settlements and acquires are separate calls, it is half of the jobs that the worker holds. Otherwise, one
    /// acquire would fill all slots, all their jobs would end together, and one settlement would free all slots: the two
    /// calls would take turns instead of running at the same time.
    fn acquired_max(&self) -> u32 {
        if self.settles_apart { (self.concurrency + self.prefetch).div_ceil(2) } else { u32::MAX }
    }

    /// Whether a job of this type could be acquired now.
    pub(super) fn has_room(&self, job_type: &TypeName) -> bool {
        let (_, quotas) = self.free();
        let mut handlers = self.handlers.iter().zip(quotas);
        handlers.any(|(handler, quota)| quota > 0 && handler.runs(job_type))
    }
}
