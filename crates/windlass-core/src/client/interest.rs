//! Learns whether a client in another process subscribes to events.
//!
//! Each event costs a message, and usually there is no subscriber. So a subscriber announces itself when it subscribes
//! and every few seconds from then on, and a client publishes events only while it has received an announcement recently.
//! When a client has its first event, it asks the subscribers to announce themselves. Until the answers have had time
//! to arrive, it holds its events back.
//!
//! Notifiers that know their subscribers do not need this: see [`Notifier::is_watched`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::dispatch::NOTIFIER_TIMEOUT;
use super::per_runtime::PerRuntime;
use crate::notifier::{Hint, Notifier, Signal, Subscription, Topic};
use crate::worker::catch_panic;

/// How often a subscriber announces itself.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(5);

/// How long an announcement counts. Longer than two intervals, because announcements can be lost.
const HEARD_TTL: Duration = Duration::from_secs(15);

/// How long a client waits for answers before it assumes that there are no subscribers.
const ANSWER_TIME: Duration = Duration::from_millis(250);

/// The delay before a subscriber answers. One answer serves all clients that ask in this time, for example after the
/// notifier's server was restarted.
const ANSWER_DELAY: Duration = Duration::from_millis(50);

/// The delay before the next attempt to subscribe.
const RETRY_DELAY: Duration = Duration::from_secs(15);

/// It is not known yet whether there are subscribers.
const UNKNOWN: u64 = u64::MAX;

/// The interest of other processes in this client's events, and this client's own subscriptions.
pub(super) struct Interest {
    shared: Arc<Shared>,
    tasks: PerRuntime<Option<JoinHandle<()>>>,
}

struct Shared {
    notifier: Arc<dyn Notifier>,
    /// The number of event subscriptions made through this client.
    watchers: AtomicUsize,
    created_at: Instant,
    /// Until when there may be subscribers, in milliseconds since `created_at`. [`UNKNOWN`] before the first question.
    wanted_until: AtomicU64,
    /// When the latest announcement expires, in milliseconds since `created_at`.
    heard_until: AtomicU64,
    /// Notified when a watcher is added, and when one of the two times changes.
    changed: Notify,
}

impl Interest {
    pub(super) fn new(notifier: Arc<dyn Notifier>) -> Self {
        let shared = Shared {
            notifier,
            watchers: AtomicUsize::new(0),
            created_at: Instant::now(),
            wanted_until: AtomicU64::new(UNKNOWN),
            heard_until: AtomicU64::new(0),
            changed: Notify::new(),
        };
        Self { shared: Arc::new(shared), tasks: PerRuntime::default() }
    }

    /// Returns a handle with which the publishing tasks check for subscribers.
    pub(super) fn subscribers(&self) -> Subscribers {
        Subscribers(Arc::clone(&self.shared))
    }

    /// Whether this client has a subscription, or another process may have one.
    pub(super) fn is_wanted(&self, is_watched: Option<bool>) -> bool {
        let is_wanted = is_watched.unwrap_or_else(|| {
            self.start();
            self.shared.is_recent()
        });
        is_wanted || self.shared.has_watchers()
    }

    /// Counts an event subscription of this client until the guard is dropped.
    pub(super) fn count(&self) -> Watching {
        self.shared.watchers.fetch_add(1, Ordering::AcqRel);
        self.shared.changed.notify_waiters();
        Watching(Arc::clone(&self.shared))
    }

    /// Announces a new subscription of this client to the others.
    pub(super) async fn announce(&self) {
        self.start();
        self.shared.publish(Hint::EventSubscriber).await;
    }

    /// Starts the task of this runtime, unless it is running. It ends with its runtime.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        self.tasks.with(runtime.id(), |task| {
            if task.as_ref().is_none_or(JoinHandle::is_finished) {
                *task = Some(runtime.spawn(Arc::clone(&self.shared).run()));
            }
        });
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.tasks.map(|task| task.iter().for_each(JoinHandle::abort));
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interest").field("is_recent", &self.shared.is_recent()).finish_non_exhaustive()
    }
}

impl Shared {
    fn is_recent(&self) -> bool {
        self.elapsed_ms() < self.wanted_until.load(Ordering::Acquire)
    }

    fn has_watchers(&self) -> bool {
        self.watchers.load(Ordering::Acquire) > 0
    }

    /// Assumes that there may be subscribers for at least this long from now.
    fn want_for(&self, time: Duration) {
        let until = self.deadline_ms(time);
        let later = |known| Some(if known == UNKNOWN { until } else { until.max(known) });
        let _ = self.wanted_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        self.changed.notify_waiters();
    }

    /// Notes the announcement of a subscriber.
    fn note_announcement(&self) {
        self.heard_until.fetch_max(self.deadline_ms(HEARD_TTL), Ordering::AcqRel);
        self.want_for(HEARD_TTL);
    }

    /// Returns the deadline `time` from now, in milliseconds since `created_at`.
    fn deadline_ms(&self, time: Duration) -> u64 {
        self.elapsed_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// Waits until it is known whether there are subscribers.
    async fn any(&self) -> bool {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the fields are read, so that no change is missed.
            changed.as_mut().enable();
            let elapsed = self.elapsed_ms();
            if self.has_watchers() || elapsed < self.heard_until.load(Ordering::Acquire) {
                return true;
            }
            match self.wanted_until.load(Ordering::Acquire) {
                UNKNOWN => changed.await,
                until if elapsed < until => {
                    let _ = timeout(Duration::from_millis(until - elapsed), changed).await;
                }
                _ => return false,
            }
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.created_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Subscribes, and subscribes again after a while whenever that fails or the subscription ends.
    async fn run(self: Arc<Self>) {
        loop {
            let topics = vec![Topic::EventSubscribers];
            let subscribe = catch_panic("notifier", async { self.notifier.subscribe(topics).await });
            if let Ok(Ok(Ok(subscription))) = timeout(NOTIFIER_TIMEOUT, subscribe).await {
                self.listen(subscription).await;
            }
            // No need to report a failure: hints fail for the same reason.
            self.want_for(Duration::ZERO);
            sleep(RETRY_DELAY).await;
        }
    }

    /// Handles announcements and questions until the subscription ends.
    async fn listen(&self, mut subscription: Subscription) {
        self.ask().await;
        // Questions before this subscription were missed.
        let mut announce_at = Instant::now() + ANSWER_DELAY;
        loop {
            let signal = tokio::select! {
                signal = subscription.next() => signal,
                () = sleep_until(announce_at) => {
                    announce_at = Instant::now() + ANNOUNCE_INTERVAL;
                    if self.has_watchers() {
                        self.publish(Hint::EventSubscriber).await;
                    }
                    continue;
                }
            };
            match signal {
                Some(Signal::Hint(Hint::EventSubscriber)) => self.note_announcement(),
                Some(Signal::Hint(Hint::FindEventSubscribers)) => {
                    announce_at = announce_at.min(Instant::now() + ANSWER_DELAY);
                }
                Some(Signal::Hint(_)) => {}
                // Announcements and questions may have been lost.
                Some(Signal::Gap { .. }) => {
                    announce_at = announce_at.min(Instant::now() + ANSWER_DELAY);
                    self.ask().await;
                }
                None => return,
            }
        }
    }

    /// Asks the subscribers to announce themselves. Events are held back until the answers have had time to arrive.
    async fn ask(&self) {
        self.publish(Hint::FindEventSubscribers).await;
        self.want_for(ANSWER_TIME);
    }

    /// Publishes a hint. A failure does no harm: announcements are repeated.
    async fn publish(&self, hint: Hint) {
        let publish = catch_panic("notifier", async { self.notifier.publish(hint).await });
        let _ = timeout(NOTIFIER_TIMEOUT, publish).await;
    }
}

/// Finds out whether anybody subscribes to this client's events.
pub(super) struct Subscribers(Arc<Shared>);

impl Subscribers {
    /// Waits until it is known whether there are subscribers. Returns `true` after the deadline, because there may be some.
    pub(super) async fn any(&self, notifier: &dyn Notifier, deadline: Instant) -> bool {
        match catch_unwind(AssertUnwindSafe(|| notifier.is_watched())) {
            Ok(None) => timeout_at(deadline, self.0.any()).await.unwrap_or(true),
            Ok(Some(is_watched)) => is_watched || self.0.has_watchers(),
            Err(_) => false,
        }
    }
}

/// Counts an event subscription of a client until it is dropped.
pub(crate) struct Watching(Arc<Shared>);

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watching")
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}
