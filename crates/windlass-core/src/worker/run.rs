//! The worker's loop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::reap::{REAP_MAX, expire, reap};
use super::slot::Engine;
use super::task::catch_panic;
use crate::client::answered;
use crate::clock::far;
use crate::command::{Acquire, NextDue, Quota, Reap, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::id::RequestId;
use crate::job::Backoff;
use crate::limit::BATCH_MAX_ITEMS;
use crate::name::{ErrorText, TypeName};
use crate::notifier::{Hint, Signal, Subscription, Topic};
use crate::observer::Event;
use crate::store::{Capability, Store};
use crate::time::{Millis, Timestamp};

/// How often expired leases are reaped at least, however busy the worker is.
const REAP_EVERY: Duration = Duration::from_secs(5);
/// How often a worker removes what is kept no longer.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// The longest wait for jobs is shortened by up to so much of it, so that workers do not look all at once.
const JITTER: f64 = 0.1;
/// After so long a lost subscription is made again.
const RESUBSCRIBE: Duration = Duration::from_secs(5);
/// The delay of the loop after an error; it resets with the first success.
pub(crate) const RECOVERY: Backoff = Backoff {
    initial: Duration::from_millis(100),
    multiplier: 2.0,
    max: Duration::from_secs(30),
    jitter: 0.2,
};
/// The delay of the loop when jobs are due that it could not take: they are held by somebody's transaction.
const FRUITLESS: Backoff =
    Backoff { initial: Duration::from_millis(10), multiplier: 2.0, max: Duration::from_secs(5), jitter: 0.2 };

/// The loop. It fills all free slots with one acquire; then it waits for a notification, a due time, a freed
/// slot or its poll interval. With slots left over it reaps, and from time to time however busy it is. It
/// survives any error of the store.
pub(super) struct Loop<S: ?Sized> {
    engine: Arc<Engine<S>>,
    subscription: Option<Subscription>,
    subscribe_at: Instant,
    failures: u32,
    fruitless: u32,
    reap_at: Instant,
    expire_at: Instant,
    /// When something is due that this worker will look for and others may not know of: it claimed the wake.
    awaited: Option<Timestamp>,
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
        };
        // An acquire must not be dropped half-way: what it took would wait for its lease to end. So only waits race
        // with the stop.
        while !stopping.is_cancelled() {
            this.subscribe().await;
            let turn = catch_panic("worker's turn", this.turn()).await;
            let turn =
                turn.unwrap_or_else(|panic| Err(Error::new(ErrorKind::Unavailable, panic.to_string())));
            let wait = match turn {
                Ok(wait) => {
                    this.failures = 0;
                    wait
                }
                Err(error) => {
                    this.failures += 1;
                    let event = Event::WorkerFailed(this.engine.id, ErrorText::new(error.to_string()));
                    this.engine.teller().observe(&event);
                    let delay = RECOVERY.delay(this.failures, fastrand::f64());
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

    /// Who leaves passes on what it would have looked for.
    fn hand_over(&self) {
        if let Some(due_at) = self.awaited {
            let hint = |job_type| Hint::Scheduled { job_type, count: 1, due_at };
            self.engine.teller().publish(self.engine.types().map(hint));
        }
    }

    /// Subscribes if there is no subscription. What happens from here on is heard, so that a look must
    /// follow.
    async fn subscribe(&mut self) {
        if self.subscription.is_some() || Instant::now() < self.subscribe_at {
            return;
        }
        let scheduled = self.engine.types().map(Topic::Scheduled);
        let topics = scheduled.chain([Topic::OwnershipLost(self.engine.id)]).collect();
        self.subscription = self.engine.teller().subscribe(topics).await;
        self.subscribe_at = Instant::now() + RESUBSCRIBE;
    }

    /// Does what there is to do, and says how long to wait.
    async fn turn(&mut self) -> Result<Duration> {
        let mut idle = false;
        while !idle {
            let (asked, taken) = self.acquire().await?;
            idle = taken < asked || asked == 0;
            if self.engine.stopping.is_cancelled() {
                return Ok(Duration::ZERO);
            }
            if (idle && asked > 0) || Instant::now() >= self.reap_at {
                let reaped = self.engine.reap().await?;
                self.reap_at = Instant::now() + REAP_EVERY;
                idle = idle && (reaped == 0 || asked == 0);
            }
            self.expire().await?;
        }
        self.until_next_due().await
    }

    /// Takes jobs into free slots and starts their attempts. Gives how many it asked for and took.
    async fn acquire(&mut self) -> Result<(u32, u32)> {
        let mut unanswered = self.engine.acquiring.lock().await;
        let acquire = self.engine.next_acquire(&mut unanswered)?;
        if acquire.max == 0 || acquire.types.is_empty() {
            return Ok((0, 0));
        }
        let (asked, asked_at) = (acquire.max, Instant::now());
        // Kept before it is sent: dropped, failed or unanswered, it is asked again.
        *unanswered = Some(acquire.clone());
        let reply = answered(self.engine.client.store().acquire(acquire)).await?;
        *unanswered = None;
        let taken = self.engine.take(reply, asked_at);
        if taken > 0 {
            self.fruitless = 0;
        }
        Ok((asked, taken))
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

    /// How long nothing will be due that this worker could take.
    async fn until_next_due(&mut self) -> Result<Duration> {
        // First said, then looked: a slot that is freed in between is heard of.
        self.engine.full.store(true, Ordering::SeqCst);
        let (free, quotas) = self.engine.free();
        let is_full = quotas.contains(&0);
        self.engine.full.store(is_full, Ordering::SeqCst);
        let maintenance = self.reap_at.min(self.expire_at).saturating_duration_since(Instant::now());
        let longest = self.engine.poll.mul_f64(1.0 - JITTER * fastrand::f64());
        let longest = if free == 0 { longest.min(maintenance) } else { longest };
        if free == 0 || !self.engine.client.store().capabilities().has(Capability::NextDue) {
            return Ok(longest);
        }
        let open = self.engine.handlers.iter().zip(&quotas).filter(|(_, quota)| **quota > 0);
        let types = Types::Only(open.flat_map(|(handler, _)| handler.types.clone()).collect());
        let reply = answered(self.engine.client.store().next_due(NextDue { types })).await?;
        self.awaited = reply.due_at;
        let Some(next) = reply.due_at.into_iter().chain(reply.lease_until).min() else { return Ok(longest) };
        if next > reply.now {
            self.fruitless = 0;
            return Ok(next.since(reply.now).min(longest));
        }
        self.fruitless += 1;
        Ok(FRUITLESS.delay(self.fruitless, fastrand::f64()).min(longest))
    }

    /// Waits for something to do.
    async fn wait(&mut self, wait: Duration) {
        let until = far(wait);
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
                () = sleep_until(until) => return,
                signal = heard => match signal {
                    Some(signal) => if self.engine.heed(signal).await {
                        self.awaited.get_or_insert_default();
                        return;
                    },
                    None if self.subscription.take().is_some() => {
                        self.subscribe_at = Instant::now() + RESUBSCRIBE;
                    }
                    // It is time to subscribe again, and to look.
                    None => return,
                },
            }
        }
    }
}

impl<S: Store + ?Sized> Engine<S> {
    /// Every type that it has a handler for, by all its names.
    pub(super) fn types(&self) -> impl Iterator<Item = TypeName> {
        self.handlers.iter().flat_map(|handler| handler.types.iter().cloned())
    }

    /// An acquire for all free slots.
    pub(super) fn acquire_request(&self) -> Result<Acquire> {
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
        Ok(Acquire { request: RequestId::new(), worker: self.id, types, max })
    }

    /// Whether a signal is a reason to look for jobs.
    async fn heed(&self, signal: Signal) -> bool {
        match signal {
            Signal::Gap { .. } => true,
            Signal::Hint(Hint::Scheduled { job_type, .. }) => {
                // A wake is claimed only by a worker that has room for the job. One that has none looks when it has: an
                // exchange may have filled the slots since the loop last looked.
                if !self.has_room(&job_type) {
                    self.full.store(true, Ordering::SeqCst);
                    if !self.has_room(&job_type) {
                        return false;
                    }
                }
                self.teller().claim_wake(job_type).await
            }
            Signal::Hint(Hint::OwnershipLost { job, .. }) => {
                // A hint only: the next renewal says why. Bring it forward.
                for (_, slot) in self.slots().running.iter_mut().filter(|((held, _), _)| *held == job) {
                    slot.renew_at = slot.renew_at.map(|_| Instant::now());
                }
                self.taken.notify_one();
                false
            }
            Signal::Hint(_) => false,
        }
    }

    fn has_room(&self, job_type: &TypeName) -> bool {
        let (_, quotas) = self.free();
        let mut handlers = self.handlers.iter().zip(quotas);
        handlers.any(|(handler, quota)| quota > 0 && handler.runs(job_type))
    }

    /// Puts back what others lost. Gives the number.
    async fn reap(&self) -> Result<usize> {
        let renewal = self.handlers.iter().map(|handler| handler.options.renewal()).max().unwrap_or_default();
        // An attempt whose time is over is renewed no longer, and is reaped like any other.
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
