//! The worker's main loop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::acquire::Acquisition;
use super::engine::Engine;
use super::task::catch_panic;
use crate::client::answered;
use crate::clock::far;
use crate::command::{NextDue, Reap, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::job::Backoff;
use crate::maintenance::{REAP_MAX, expire, reap};
use crate::name::ErrorText;
use crate::notifier::{Hint, Signal, Subscription, Topic};
use crate::observer::Event;
use crate::store::{Capability, Store};
use crate::time::{Millis, Timestamp};

/// How often expired leases are reaped while all slots are occupied. A worker with free slots reaps whenever
/// it finds no more jobs.
const REAP_EVERY: Duration = Duration::from_secs(5);
/// The shortest interval between two removals of expired chains and jobs. Up to the same time again is added
/// at random.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// The largest share by which the poll interval is randomly shortened, so that workers do not all poll at the
/// same time.
const JITTER: f64 = 0.1;
/// The delay before the worker subscribes again after a subscription failed or ended.
const RESUBSCRIBE_DELAY: Duration = Duration::from_secs(5);
/// The default delay of the loop after an error. The first success resets it.
pub(crate) const RECOVERY: Backoff = Backoff {
    initial: Duration::from_millis(100),
    multiplier: 2.0,
    max: Duration::from_secs(30),
    jitter: 0.2,
};
/// The delay of the loop while it cannot acquire jobs that are due, because another transaction has locked
/// them.
const LOCKED_BACKOFF: Backoff =
    Backoff { initial: Duration::from_millis(10), multiplier: 2.0, max: Duration::from_secs(5), jitter: 0.2 };

/// The main loop.
///
/// It fills all free slots with one acquire. Then it waits for a notification, a due time, a freed slot or
/// the end of the poll interval. It reaps if slots are left over and a lease has expired, and every
/// [`REAP_EVERY`]. Errors of the store do not end it.
pub(super) struct Loop<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    subscription: Option<Subscription>,
    /// The earliest time to subscribe if there is no subscription.
    subscribe_at: Instant,
    /// The number of turns that failed in a row.
    failures: u32,
    /// How many times in a row the worker could not acquire jobs that were due.
    fruitless: u32,
    reap_at: Instant,
    expire_at: Instant,
    /// The due time of the next job that this worker will try to acquire. The worker may have claimed the
    /// wake-up for the job, in which case other workers may not know of it.
    awaited: Option<Timestamp>,
    /// Whether the last wait ended because the poll interval had passed, rather than by a signal or a due time.
    has_polled: bool,
}

/// How long the loop waits.
struct Wait {
    length: Duration,
    /// Whether it ends with the poll interval.
    is_poll: bool,
    /// Whether there is a job whose lease has expired, or may have: not every store knows.
    may_reap: bool,
}

impl<S: Store + ?Sized> Loop<S> {
    pub(super) async fn run(engine: Arc<Engine<S>>) {
        let now = Instant::now();
        let stopping = engine.stopping.clone();
        let mut this = Self {
            engine,
            subscription: None,
            subscribe_at: now,
            failures: 0,
            fruitless: 0,
            reap_at: now,
            expire_at: now + EXPIRE_EVERY,
            awaited: None,
            has_polled: false,
        };
        // Only the waits below race with `stopping`. Dropping an acquire halfway would lose its reply, and
        // the jobs that it leased could stay idle until their leases expire.
        while !stopping.is_cancelled() {
            this.subscribe().await;
            // A panic in a store counts as an error. Otherwise it would end the loop, and the worker would
            // acquire no more jobs while it still sends heartbeats.
            let turn = catch_panic("worker loop", this.turn()).await;
            let turn =
                turn.unwrap_or_else(|panic| Err(Error::new(ErrorKind::Unavailable, panic.to_string())));
            let wait = match turn {
                Ok(wait) => {
                    this.failures = 0;
                    this.engine.health.succeeded();
                    wait
                }
                Err(error) => {
                    this.failures += 1;
                    this.engine.health.failed(&error);
                    let event = Event::WorkerFailed(this.engine.about(), ErrorText::new(error.to_string()));
                    this.engine.dispatcher().observe(&event);
                    let delay = this.engine.recovery.delay(this.failures, fastrand::f64());
                    let _ = timeout(delay, stopping.cancelled()).await;
                    continue;
                }
            };
            tokio::select! {
                biased;
                () = stopping.cancelled() => {}
                () = this.wait(wait) => {}
            }
        }
        this.hand_over();
    }

    /// Republishes the wake-ups that this worker claimed, so that other workers query for the jobs.
    fn hand_over(&self) {
        if let Some(due_at) = self.awaited {
            let hint = |job_type| Hint::Scheduled { job_type, count: 1, due_at };
            self.engine.dispatcher().publish(self.engine.types().map(hint));
        }
    }

    /// Subscribes if there is no subscription.
    ///
    /// The caller must query the store afterwards: hints that were published before are missed.
    async fn subscribe(&mut self) {
        if self.subscription.is_some() || Instant::now() < self.subscribe_at {
            return;
        }
        let scheduled = self.engine.types().map(Topic::Scheduled);
        let topics = scheduled.chain([Topic::OwnershipLost(self.engine.id), Topic::Schedules]).collect();
        self.subscription = self.engine.dispatcher().subscribe(topics).await;
        self.subscribe_at = Instant::now() + RESUBSCRIBE_DELAY;
    }

    /// Acquires, reaps and expires until nothing is left to do. Returns how long to wait.
    async fn turn(&mut self) -> Result<Wait> {
        let has_polled = std::mem::take(&mut self.has_polled);
        let mut has_reaped_all = false;
        loop {
            let Acquisition { requested, acquired } = self.engine.acquire().await?;
            if acquired > 0 {
                self.fruitless = 0;
            }
            if has_polled {
                self.engine.found_by_polling.fetch_add(acquired.into(), Ordering::Relaxed);
            }
            if self.engine.stopping.is_cancelled() {
                return Ok(Wait { length: Duration::ZERO, is_poll: false, may_reap: false });
            }
            if Instant::now() >= self.reap_at {
                has_reaped_all = self.reap().await? == 0;
            }
            self.expire().await?;
            let is_idle = acquired < requested || requested == 0;
            if !is_idle {
                continue;
            }
            let wait = self.until_next_due().await?;
            // An idle worker would otherwise reap after every job, which costs more than an acquire.
            if !wait.may_reap || has_reaped_all || requested == 0 {
                return Ok(wait);
            }
            has_reaped_all = self.reap().await? == 0;
            if has_reaped_all {
                return Ok(wait);
            }
            // The reaped jobs may be due already.
        }
    }

    /// Reaps once. Returns the number of jobs.
    async fn reap(&mut self) -> Result<usize> {
        let reaped = self.engine.reap().await?;
        self.reap_at = Instant::now() + REAP_EVERY;
        Ok(reaped)
    }

    async fn expire(&mut self) -> Result<()> {
        if Instant::now() < self.expire_at {
            return Ok(());
        }
        self.expire_at = Instant::now() + EXPIRE_EVERY.mul_f64(1.0 + fastrand::f64());
        if expire(&self.engine.client).await? {
            self.expire_at = Instant::now();
        }
        Ok(())
    }

    /// Returns how long to wait until a job that this worker could acquire may be due.
    async fn until_next_due(&mut self) -> Result<Wait> {
        // Set `full` before counting the free slots. An exchange that leaves a slot free reads `full` to
        // decide whether to wake the loop. If it did so between the count and a later store, the wake-up
        // would be lost.
        self.engine.full.store(true, Ordering::SeqCst);
        let (free, quotas) = self.engine.free();
        let is_full = quotas.contains(&0);
        self.engine.full.store(is_full, Ordering::SeqCst);
        let maintenance = self.reap_at.min(self.expire_at).saturating_duration_since(Instant::now());
        let is_subscribed = self.subscription.is_some();
        let poll = self.engine.poll.unwrap_or_else(|| self.engine.dispatcher().poll_interval(is_subscribed));
        let longest = poll.mul_f64(1.0 - JITTER * fastrand::f64());
        // Without a free slot the loop does not query for the next expiry of a lease: wake up in time to
        // reap.
        let longest = if free == 0 { longest.min(maintenance) } else { longest };
        if free == 0 || !self.engine.client.store().capabilities().has(Capability::NextDue) {
            return Ok(Wait { length: longest, is_poll: free > 0, may_reap: free > 0 });
        }
        let open = self.engine.handlers.iter().zip(&quotas).filter(|(_, quota)| **quota > 0);
        let types = Types::Only(open.flat_map(|(handler, _)| handler.types.clone()).collect());
        let reply = answered(self.engine.client.store().next_due(NextDue { types })).await?;
        self.awaited = reply.due_at;
        let Some(next) = reply.due_at.into_iter().chain(reply.lease_until).min() else {
            return Ok(Wait { length: longest, is_poll: true, may_reap: false });
        };
        if next > reply.now {
            self.fruitless = 0;
            let left = next.since(reply.now);
            return Ok(Wait { length: left.min(longest), is_poll: longest < left, may_reap: false });
        }
        // Something is due, but the last acquire and reap did not get it. Back off instead of spinning.
        self.fruitless += 1;
        let length = LOCKED_BACKOFF.delay(self.fruitless, fastrand::f64()).min(longest);
        let may_reap = reply.lease_until.is_some_and(|until| until <= reply.now);
        Ok(Wait { length, is_poll: false, may_reap })
    }

    /// Waits for something to do.
    async fn wait(&mut self, Wait { length, is_poll, .. }: Wait) {
        let until = far(length);
        loop {
            let heard = async {
                match &mut self.subscription {
                    Some(subscription) => subscription.next().await,
                    None => {
                        sleep_until(self.subscribe_at).await;
                        None
                    }
                }
            };
            tokio::select! {
                biased;
                () = self.engine.freed.notified() => return,
                () = sleep_until(until) => {
                    self.has_polled = is_poll;
                    return;
                }
                signal = heard => match signal {
                    Some(signal) => if self.engine.handle_signal(signal).await {
                        // The wake-up may be claimed now. If the worker stops before its next acquire,
                        // `hand_over` must publish it again.
                        self.awaited.get_or_insert_default();
                        return;
                    },
                    None if self.subscription.take().is_some() => {
                        self.subscribe_at = Instant::now() + RESUBSCRIBE_DELAY;
                    }
                    // Time to subscribe again, and then to query the store for what was missed.
                    None => return,
                },
            }
        }
    }
}

/// Signals to attempts that they have lost their jobs or that their chains were cancelled, until it is dropped.
pub(super) async fn hear_losses<S: Store + ?Sized>(engine: Arc<Engine<S>>) {
    loop {
        if let Some(mut subscription) =
            engine.dispatcher().subscribe(vec![Topic::OwnershipLost(engine.id)]).await
        {
            while let Some(signal) = subscription.next().await {
                engine.handle_signal(signal).await;
            }
        }
        sleep_until(Instant::now() + RESUBSCRIBE_DELAY).await;
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Handles a signal. Returns whether the loop should query the store for jobs.
    async fn handle_signal(&self, signal: Signal) -> bool {
        match signal {
            Signal::Gap { .. } => {
                self.schedules_changed.notify_one();
                true
            }
            Signal::Hint(Hint::SchedulesChanged) => {
                self.schedules_changed.notify_one();
                false
            }
            Signal::Hint(Hint::Scheduled { job_type, .. }) => {
                // Only a worker that has room for the job claims its wake-up. Otherwise a worker that is busy
                // would use up the wake-up of an idle one.
                //
                // An exchange may have filled the slots since the loop set `full`. Set it now, so that the
                // loop is woken when a slot frees. Then check again: a slot that was freed in between did not
                // wake it.
                if !self.has_room(&job_type) {
                    self.full.store(true, Ordering::SeqCst);
                    if !self.has_room(&job_type) {
                        return false;
                    }
                }
                self.dispatcher().claim_wake(job_type).await
            }
            Signal::Hint(Hint::OwnershipLost { job, .. }) => {
                // This is only a hint: renew now, and the store returns the reason. `None` stays `None`,
                // because an attempt that timed out must not be renewed again.
                for (_, slot) in self.slots().running.iter_mut().filter(|((held, _), _)| *held == job) {
                    slot.renew_at = slot.renew_at.map(|_| Instant::now());
                }
                self.keeper_wake.notify_one();
                false
            }
            Signal::Hint(_) => false,
        }
    }

    /// Requeues jobs whose lease expired. Returns how many.
    async fn reap(&self) -> Result<usize> {
        let renewal = self.handlers.iter().map(|handler| handler.options.renewal).max().unwrap_or_default();
        // Leave out the jobs that run here: after a stall, their leases may have expired before the keeper
        // could renew them. An attempt that timed out is no longer renewed, so its job is reaped like any
        // other.
        let kept = {
            let slots = self.slots();
            let kept = slots.running.iter().filter(|(_, slot)| slot.renew_at.is_some());
            kept.map(|((job, _), _)| *job).collect()
        };
        let types = Types::Only(self.types().collect());
        let renewal_interval = Millis::try_from(renewal).map_err(Error::from)?;
        reap(&self.client, Reap { types, max: REAP_MAX, except: kept, renewal_interval }).await
    }
}
