//! The worker's main loop.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::acquire::Acquisition;
use super::engine::Engine;
use super::task::catch_panic;
use crate::client::{IdleWorker, answered};
use crate::clock::far;
use crate::command::{NextDue, NextDueReply, Reap, Request, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::job::Backoff;
use crate::maintenance::{REAP_MAX, expire, reap};
use crate::name::ErrorText;
use crate::notifier::{Hint, Signal, Subscription, Topic};
use crate::observer::{Activity, Event};
use crate::store::{Capability, Store};
use crate::time::{Millis, Timestamp};

/// How long an acquire may withhold the hints of the jobs that it expects.
const EXPECTED_MAX: Duration = Duration::from_millis(5);
/// How often expired leases are reaped while all slots are occupied. A worker with free slots reaps whenever
/// it finds no more jobs.
const REAP_EVERY: Duration = Duration::from_secs(5);
/// How long the reply to a query for the next due time is used again while the worker acquires jobs. Hints report what
/// changes in the meantime.
const NEXT_DUE_VALID: Duration = Duration::from_millis(250);
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
    /// What the last query for the next due time returned, with the hints since.
    known: Option<KnownDue>,
    /// Where creations of this client find the worker while it waits: they wake it, or acquire for it. `None` if the store
    /// supports neither.
    idle: Option<Arc<IdleWorker>>,
    /// Whether the last wait ended because the poll interval had passed, rather than by a signal or a due time.
    has_polled: bool,
}

/// The delay before the next turn of the loop. A signal ends it earlier.
struct Delay {
    length: Duration,
    /// Whether it ends with the poll interval.
    is_poll: bool,
    /// Whether the lease of a job has expired, or may have expired: not every store can tell.
    may_reap: bool,
}

/// When the next job is due, or the next lease expires.
struct KnownDue {
    answered_at: Instant,
    /// The time on the store's clock shortly before `answered_at`.
    now: Timestamp,
    due_at: Option<Timestamp>,
    lease_until: Option<Timestamp>,
    /// The handlers that had room, by index. Other types were not considered.
    open: Vec<bool>,
}

impl KnownDue {
    /// Notes jobs that were scheduled since, the earliest of them at `due_at`. Returns whether the reply is still of use.
    fn scheduled(&mut self, count: u32, due_at: Timestamp) -> bool {
        if due_at > self.now && due_at.since(self.now) > self.answered_at.elapsed() {
            self.due_at = Some(self.due_at.map_or(due_at, |known| known.min(due_at)));
            return true;
        }
        // The next acquire gets a job that is due already. When the others are due is not known.
        count == 1
    }

    /// Returns how long to wait, or `None` if the store must be asked again.
    fn wait(&self, open: &[bool]) -> Option<Duration> {
        let since = self.answered_at.elapsed();
        let left = NEXT_DUE_VALID.checked_sub(since).filter(|_| self.open == open)?;
        match self.due_at.into_iter().chain(self.lease_until).min() {
            None => Some(left),
            Some(next) if next > self.now => Some(left.min(next.since(self.now).checked_sub(since)?)),
            Some(_) => None,
        }
    }
}

impl<S: Store + ?Sized> Loop<S> {
    pub(super) async fn run(engine: Arc<Engine<S>>) {
        let now = Instant::now();
        let stopping = engine.stopping.clone();
        let capabilities = engine.client.store().capabilities();
        let is_reached = capabilities.is_ordered() || capabilities.is_joining();
        let idle = is_reached.then(|| {
            let source: Weak<Engine<S>> = Arc::downgrade(&engine);
            engine.dispatcher().idle_worker(engine.types().collect(), source)
        });
        let mut this = Self {
            idle,
            engine,
            subscription: None,
            subscribe_at: now,
            failures: 0,
            fruitless: 0,
            reap_at: now,
            expire_at: now + EXPIRE_EVERY,
            awaited: None,
            known: None,
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
        self.expect_nothing();
        let scheduled = self.engine.types().map(Topic::Scheduled);
        let topics = scheduled.chain([Topic::OwnershipLost(self.engine.id), Topic::Schedules]).collect();
        self.subscription = self.engine.dispatcher().subscribe(topics).await;
        if self.subscription.is_some() {
            self.engine.dispatcher().measure(|| Activity::NotifierConnected);
        }
        self.subscribe_at = Instant::now() + RESUBSCRIBE_DELAY;
    }

    /// Ends the expectation of jobs before the loop waits for something else: it withholds their hints.
    fn expect_nothing(&self) {
        drop(self.idle.as_ref().and_then(|idle| idle.take()));
    }

    /// Acquires, reaps and expires until nothing is left to do. Returns how long to wait.
    async fn turn(&mut self) -> Result<Delay> {
        let has_polled = std::mem::take(&mut self.has_polled);
        let mut has_reaped_all = false;
        loop {
            let is_expected = self.idle.as_ref().is_some_and(|idle| idle.is_woken());
            let Acquisition { requested, acquired } = self.acquire().await?;
            if acquired > 0 {
                self.fruitless = 0;
            }
            if has_polled {
                self.engine.found_by_polling.fetch_add(acquired.into(), Ordering::Relaxed);
            }
            if self.engine.stopping.is_cancelled() {
                return Ok(Delay { length: Duration::ZERO, is_poll: false, may_reap: false });
            }
            if Instant::now() >= self.reap_at {
                has_reaped_all = self.reap().await? == 0;
            }
            self.expire().await?;
            let is_idle = acquired < requested || requested == 0;
            if !is_idle {
                continue;
            }
            let wait = self.until_next_due(acquired > 0 || is_expected).await?;
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

    /// Acquires jobs for the free slots.
    async fn acquire(&self) -> Result<Acquisition> {
        let Some(expected) = self.idle.as_ref().and_then(|idle| idle.take()) else {
            return self.engine.acquire().await;
        };
        *self.engine.expected() = Some(expected);
        // Also if the store panics: what is expected withholds hints.
        let expecting = Expecting(&self.engine);
        let mut call = pin!(self.engine.acquire());
        let acquired = timeout(EXPECTED_MAX, &mut call).await;
        drop(expecting);
        match acquired {
            Ok(acquired) => acquired,
            Err(_) => call.await,
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
    ///
    /// Queries the store, unless the latest reply is still valid: a query for each job would cost as much as the acquire. If
    /// the acquire returned nothing, always queries, because a job may be due but locked. `is_explained`: the acquire
    /// returned a job, or expected one whose chain was not created because another chain holds the key.
    async fn until_next_due(&mut self, is_explained: bool) -> Result<Delay> {
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
            return Ok(Delay { length: longest, is_poll: free > 0, may_reap: free > 0 });
        }
        let open: Vec<_> = quotas.iter().map(|quota| *quota > 0).collect();
        let known = self.known.take().filter(|_| is_explained && is_subscribed);
        if let Some((length, known)) = known.and_then(|known| Some((known.wait(&open)?, known))) {
            self.awaited = known.due_at;
            self.known = Some(known);
            return Ok(Delay { length: length.min(longest), is_poll: false, may_reap: false });
        }
        let handlers = self.engine.handlers.iter().zip(&open).filter(|(_, open)| **open);
        let types = Types::Only(handlers.flat_map(|(handler, _)| handler.types.clone()).collect());
        let call = answered(self.engine.client.store().next_due(NextDue { types }));
        let reply = self.engine.dispatcher().measured(NextDue::NAME, |_| 1, call).await?;
        let NextDueReply { now, due_at, lease_until } = reply;
        self.awaited = due_at;
        self.known = Some(KnownDue { answered_at: Instant::now(), now, due_at, lease_until, open });
        let Some(next) = reply.due_at.into_iter().chain(reply.lease_until).min() else {
            return Ok(Delay { length: longest, is_poll: true, may_reap: false });
        };
        if next > reply.now {
            self.fruitless = 0;
            let left = next.since(reply.now);
            return Ok(Delay { length: left.min(longest), is_poll: longest < left, may_reap: false });
        }
        // Something is due, but the last acquire and reap did not get it. Back off instead of spinning.
        self.fruitless += 1;
        let length = LOCKED_BACKOFF.delay(self.fruitless, fastrand::f64()).min(longest);
        let may_reap = reply.lease_until.is_some_and(|until| until <= reply.now);
        Ok(Delay { length, is_poll: false, may_reap })
    }

    /// Waits for something to do.
    async fn wait(&mut self, Delay { length, is_poll, .. }: Delay) {
        let until = far(length);
        loop {
            // A hint may have ended the wait at the moment at which the loop was woken.
            if self.idle.as_ref().is_some_and(|idle| idle.is_woken()) {
                return;
            }
            let heard = async {
                match &mut self.subscription {
                    Some(subscription) => subscription.next().await,
                    None => {
                        sleep_until(self.subscribe_at).await;
                        None
                    }
                }
            };
            let expected = async {
                match &self.idle {
                    Some(idle) if !self.engine.is_full() => idle.woken().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.engine.freed.notified() => return,
                () = expected => return,
                () = sleep_until(until) => {
                    self.has_polled = is_poll;
                    return;
                }
                signal = heard => match signal {
                    Some(signal) => if self.hear(signal).await {
                        // The wake-up may be claimed now. If the worker stops before its next acquire,
                        // `hand_over` must publish it again.
                        self.awaited.get_or_insert_default();
                        return;
                    },
                    None if self.subscription.take().is_some() => {
                        self.engine.dispatcher().measure(|| Activity::NotifierLost);
                        self.subscribe_at = Instant::now() + RESUBSCRIBE_DELAY;
                    }
                    // Time to subscribe again, and then to query the store for what was missed.
                    None => return,
                },
            }
        }
    }
}

impl<S: Store + ?Sized> Loop<S> {
    /// Handles a signal. Returns whether to query the store for jobs.
    async fn hear(&mut self, signal: Signal) -> bool {
        // The claim below may take long.
        self.expect_nothing();
        match &signal {
            Signal::Hint(Hint::Scheduled { count, due_at, .. }) => {
                self.known.take_if(|known| !known.scheduled(*count, *due_at));
            }
            Signal::Gap { .. } => self.known = None,
            Signal::Hint(_) => {}
        }
        self.engine.handle_signal(signal).await
    }
}

/// Ends the expectation of an acquire when it is dropped.
struct Expecting<'e, S: Store + ?Sized>(&'e Engine<S>);

impl<S: Store + ?Sized> Drop for Expecting<'_, S> {
    fn drop(&mut self) {
        // Unlocked before it is dropped, which publishes hints.
        let expected = self.0.expected().take();
        drop(expected);
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
            Signal::Gap { missed } => {
                self.dispatcher().measure(|| Activity::NotifierGap { missed });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis).unwrap()
    }

    /// A reply at second 1 of the store's clock.
    fn known(due_at: Option<i64>, lease_until: Option<i64>) -> KnownDue {
        let (due_at, lease_until) = (due_at.map(at), lease_until.map(at));
        KnownDue { answered_at: Instant::now(), now: at(1_000), due_at, lease_until, open: vec![true, false] }
    }

    const OPEN: &[bool] = &[true, false];

    #[tokio::test(start_paused = true)]
    async fn a_reply_is_valid_for_a_while_and_for_the_same_types() {
        let nothing = known(None, None);
        assert_eq!(nothing.wait(OPEN), Some(NEXT_DUE_VALID));
        assert_eq!(nothing.wait(&[true, true]), None);
        tokio::time::advance(millis(100)).await;
        assert_eq!(nothing.wait(OPEN), Some(NEXT_DUE_VALID - millis(100)));
        tokio::time::advance(NEXT_DUE_VALID).await;
        assert_eq!(nothing.wait(OPEN), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_ends_with_the_first_due_time_or_lease() {
        assert_eq!(known(Some(1_040), Some(1_030)).wait(OPEN), Some(millis(30)));
        assert_eq!(known(Some(1_000), None).wait(OPEN), None, "the job is due");
        let due = known(Some(1_040), None);
        tokio::time::advance(millis(41)).await;
        assert_eq!(due.wait(OPEN), None, "the job has become due");
    }

    #[tokio::test(start_paused = true)]
    async fn hints_move_the_next_due_time() {
        let mut known = known(Some(1_200), None);
        tokio::time::advance(millis(10)).await;
        assert!(known.scheduled(3, at(1_050)));
        assert_eq!(known.wait(OPEN), Some(millis(40)));
        assert!(known.scheduled(1, at(1_005)), "the next acquire gets the job");
        assert_eq!(known.wait(OPEN), Some(millis(40)));
        assert!(!known.scheduled(2, at(1_005)), "the second job may be due at any time");
    }
}
