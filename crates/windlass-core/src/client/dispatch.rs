//! Calls observers and publishes hints. Neither a panicking observer nor a slow notifier affects the caller.

mod observers;
mod publish;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use self::observers::{Observers, each, each_on, is_on, reads};
use self::publish::{Failures, Message, Publisher, publish_events, publish_hints};
use super::blockers::Blockers;
use super::create_and_acquire::{AcquireSource, PendingAcquire};
use super::dependents::Dependents;
use super::event_message::EventMessage;
use super::firing::ClosedRuns;
use super::idle_workers::{Expectation, IdleWorker, IdleWorkers};
use super::interest::{Interest, Watching};
use super::local_output::{Completed, LocalOutput, LocalOutputs};
use super::outbox::Outbox;
use super::store_time::StoreTime;
use crate::command::{Acquire, CreateAndAcquire, NewChain, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::{ErrorText, TypeName};
use crate::notifier::{Hint, Notifier, Reach, Subscription, Topic};
use crate::observer::{About, Activity, Event, Frequent, Observer, StoreCall};
use crate::record::ClosedAs;
use crate::store::AnyStore;
use crate::time::Timestamp;
use crate::worker::catch_panic;

/// The maximum number of hints that wait to be published. Further hints are dropped, which is allowed: hints
/// are lossy.
const WAITING_MAX: usize = 4_096;

/// The timeout of a call to the notifier. The first call may have to connect.
pub(super) const NOTIFIER_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of a subscription to events. It is longer than that of other calls, because such a subscriber
/// cannot fall back to polling.
const WATCH_TIMEOUT: Duration = Duration::from_secs(15);

/// The default poll interval of workers and waits while hints arrive from every process that uses the store.
const POLL_NOTIFIED: Duration = Duration::from_secs(5);

/// The default poll interval otherwise.
const POLL_ALONE: Duration = Duration::from_millis(1_500);

/// The timeout of a worker's claim to a wake-up. Without an answer the worker queries the store.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(500);

/// The events that an observer can decline ([`Observer::wants`]), in the order of [`Dispatcher::read`].
const FREQUENT: [Frequent; 3] = [Frequent::ChainCreated, Frequent::AttemptStarted, Frequent::JobCompleted];

/// Whether observers are removed at compile time. `cargo xtask bench telemetry` builds the core once like this, to measure
/// what observers cost if there are none.
const REMOVED: bool = cfg!(windlass_unobserved);

/// The notifier and the observers of a client.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    notifier: Arc<dyn Notifier>,
    observers: Observers,
    /// The observers that the application added. The others only log, and need not be measured for.
    added: Observers,
    /// Whether one of those reads the events in [`FREQUENT`].
    read: [bool; FREQUENT.len()],
    time: Arc<StoreTime>,
    hints: Outbox<Message<Hint>>,
    /// Events have their own channel: a flood of events must not displace the hints that wake workers.
    events: Outbox<Message<EventMessage>>,
    interest: Interest,
    blockers: Blockers,
    dependents: Dependents,
    pub(super) closed_runs: ClosedRuns,
    failures: Arc<Failures>,
    idle_workers: IdleWorkers,
    local_outputs: LocalOutputs,
    /// The number of events that were dropped and have not been reported to subscribers yet.
    unsent: Arc<AtomicU64>,
    this: Weak<Self>,
}

/// Who wants events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Whether there may be a subscriber.
    pub(crate) is_watched: bool,
    /// Whether events are logged.
    is_logged: bool,
    /// Whether an observer of the application wants them.
    is_observed: bool,
}

impl Wanted {
    pub(crate) const fn is_any(self) -> bool {
        self.is_watched || self.is_logged || self.is_observed
    }
}

impl Dispatcher {
    pub(super) fn new(
        notifier: Arc<dyn Notifier>,
        log: Arc<dyn Observer>,
        added: Vec<Arc<dyn Observer>>,
        store: AnyStore,
    ) -> Arc<Self> {
        let observers = std::iter::once(log).chain(added.iter().cloned()).collect();
        let read = FREQUENT.map(|event| added.iter().any(|observer| reads(observer, event)));
        Arc::new_cyclic(|dispatcher| Self {
            interest: Interest::new(Arc::clone(&notifier)),
            blockers: Blockers::new(store.clone()),
            dependents: Dependents::new(store.clone(), dispatcher.clone()),
            closed_runs: ClosedRuns::new(store, dispatcher.clone()),
            notifier,
            observers,
            added: added.into(),
            read,
            time: Arc::new(StoreTime::new()),
            hints: Outbox::new(WAITING_MAX),
            events: Outbox::new(WAITING_MAX),
            failures: Arc::default(),
            idle_workers: IdleWorkers::default(),
            local_outputs: LocalOutputs::default(),
            unsent: Arc::default(),
            this: dispatcher.clone(),
        })
    }

    /// Returns a reference that does not keep the dispatcher alive.
    pub(super) fn weak(&self) -> Weak<Self> {
        Weak::clone(&self.this)
    }

    /// Whether any observer or subscriber wants events.
    pub(crate) fn is_observed(&self) -> bool {
        (!REMOVED && self.observers.iter().any(is_on)) || self.is_watched()
    }

    /// Returns who wants events.
    pub(crate) fn wants_events(&self) -> Wanted {
        Wanted {
            is_watched: self.is_watched(),
            is_logged: !REMOVED && self.observers.first().is_some_and(is_on),
            is_observed: self.is_measured(),
        }
    }

    /// Whether an observer of the application wants activities and attempts.
    pub(crate) fn is_measured(&self) -> bool {
        !REMOVED && self.added.iter().any(is_on)
    }

    /// Whether anybody reads this event.
    pub(crate) fn wants(&self, event: Frequent, wanted: Wanted) -> bool {
        let [is_chain_read, is_start_read, is_end_read] = self.read;
        let is_read = match event {
            Frequent::ChainCreated => is_chain_read,
            Frequent::AttemptStarted => is_start_read,
            Frequent::JobCompleted => is_end_read,
        };
        let is_logged = || wanted.is_logged && self.observers.first().is_some_and(|log| reads(log, event));
        wanted.is_watched || is_read || is_logged()
    }

    /// Returns the store's time, as far as this client knows it.
    pub(crate) fn now(&self) -> Timestamp {
        self.time.now()
    }

    /// Returns the clock behind [`now`](Self::now).
    pub(crate) const fn time(&self) -> &Arc<StoreTime> {
        &self.time
    }

    /// Passes an activity to the observers of the application, if one of them wants it.
    pub(crate) fn measure(&self, activity: impl FnOnce() -> Activity) {
        if self.is_measured() {
            let activity = activity();
            each_on(&self.added, |observer| observer.measure(&activity));
        }
    }

    /// Awaits a call to the store, and reports it. `items` counts the items of the reply.
    pub(crate) async fn measured<T>(
        &self,
        command: &'static str,
        items: impl FnOnce(&T) -> usize,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !self.is_measured() {
            return call.await;
        }
        let called_at = Instant::now();
        let reply = call.await;
        let took = called_at.elapsed();
        let (items, error) = match &reply {
            Ok(reply) => (items(reply), None),
            Err(error) => (0, Some(error.kind())),
        };
        self.measure(|| Activity::StoreCalled(StoreCall { command, items, took, error }));
        reply
    }

    /// Passes an event to the observers and publishes it to subscribers.
    pub(crate) fn observe(&self, event: &Event) {
        let is_watched = self.is_watched();
        self.report(event, Wanted { is_watched, is_logged: true, is_observed: true });
    }

    /// Like [`observe`](Self::observe), for a caller that has checked who wants events: the check is not free, and a batch
    /// has many events.
    pub(crate) fn report(&self, event: &Event, wanted: Wanted) {
        if !REMOVED {
            let observers = if wanted.is_logged { &self.observers } else { &self.added };
            each(observers, |observer| observer.observe(event));
            if let Event::JobCreated(about) = event
                && !about.blockers.is_empty()
            {
                self.find_blockers(about);
            }
        }
        if wanted.is_watched {
            self.publish_message(EventMessage::of(event));
        }
    }

    /// Queries the trace contexts of a new job's blockers for the observers that request them.
    fn find_blockers(&self, about: &About) {
        let mut callbacks = Vec::new();
        each_on(&self.added, |observer| callbacks.extend(observer.find_blockers(about)));
        if !callbacks.is_empty() {
            self.blockers.find(&about.blockers, callbacks);
        }
    }

    /// Publishes an event message, if there may be a subscriber.
    pub(crate) fn publish_event(&self, message: impl FnOnce() -> Option<EventMessage>) {
        if self.is_watched() {
            self.publish_message(message());
        }
    }

    /// Publishes an event message. Never waits: if too many messages are queued, drops this one and counts it. The
    /// publishing task reports the count to the subscribers.
    fn publish_message(&self, message: Option<EventMessage>) {
        let Some(message) = message else { return };
        let sender = self.events.sender(|runtime, events| {
            let interest = self.interest.subscribers();
            let publishing = publish_events(events, self.publisher(), interest, Arc::clone(&self.unsent));
            runtime.spawn(publishing);
        });
        if sender.is_none_or(|sender| sender.try_send(Message::Publish(message)).is_err()) {
            self.unsent.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Subscribes to events. While the returned guard is held, this client publishes its own events, and others
    /// that the notifier reaches publish theirs.
    pub(crate) async fn watch(&self) -> Result<(Subscription, Watching)> {
        // Count the subscription before subscribing. Otherwise events between the two would not be published,
        // although the subscription is active. The guard undoes this if the subscription fails or this future
        // is dropped.
        let watching = self.interest.count();
        let subscription = self.subscribe_within(WATCH_TIMEOUT, vec![Topic::Events]).await?;
        if self.known_watched().is_none() {
            self.interest.announce().await;
        }
        Ok((subscription, watching))
    }

    /// Whether there may be a subscriber to events.
    pub(super) fn is_watched(&self) -> bool {
        self.interest.is_wanted(self.known_watched())
    }

    /// Whether there is a subscriber to events, as far as the notifier knows.
    fn known_watched(&self) -> Option<bool> {
        catch_unwind(AssertUnwindSafe(|| self.notifier.is_watched())).unwrap_or(Some(false))
    }

    /// Reports the jobs that wait for these chains, which have failed or were cancelled.
    pub(super) fn report_dependents(&self, chains: Vec<(ChainId, ClosedAs)>) {
        self.dependents.report(chains);
    }

    /// Notes that a chain closed or was retried, which a schedule may have started.
    pub(super) fn run_changed(&self, chain: ChainId) {
        self.closed_runs.note(chain);
    }

    /// Publishes hints in the background, in order. Call this only after the commit.
    ///
    /// Skips closed chains that no subscriber waits for. A wait that subscribes later queries the store after
    /// it has subscribed, and finds the chain closed.
    pub(crate) fn publish(&self, hints: impl IntoIterator<Item = Hint>) {
        let is_awaited = |chain| catch_unwind(AssertUnwindSafe(|| self.notifier.is_awaited(chain)));
        let is_needed = |hint: &Hint| match hint {
            Hint::ChainClosed(chain) => is_awaited(*chain).unwrap_or(true),
            _ => true,
        };
        let mut hints = hints.into_iter().filter(is_needed).peekable();
        if hints.peek().is_none() {
            return;
        }
        let sender = self.hints.sender(|runtime, hints| {
            runtime.spawn(publish_hints(hints, self.publisher()));
        });
        for hint in hints {
            if sender.as_ref().is_none_or(|sender| sender.try_send(Message::Publish(hint)).is_err()) {
                self.failed("publish", "the buffer of unsent hints is full, or no runtime is running");
                return;
            }
        }
    }

    /// Registers the worker of a loop that runs on the current runtime, for [`expect`](Self::expect) and
    /// [`join`](Self::join).
    pub(crate) fn idle_worker(
        &self,
        types: Vec<TypeName>,
        source: Weak<dyn AcquireSource>,
    ) -> Arc<IdleWorker> {
        self.idle_workers.add(types, source)
    }

    /// Returns an acquire for a worker of this client that waits for jobs of `chains`, which are about to be created.
    pub(super) fn join(&self, chains: &[NewChain]) -> Option<(Acquire, Box<dyn PendingAcquire>)> {
        self.idle_workers.join(chains)
    }

    /// Creates chains alone for a while.
    pub(super) fn pause_joins(&self) {
        self.idle_workers.pause_joins();
    }

    /// Reports a failed creation with an acquire, and creates chains alone for a while.
    pub(super) fn join_failed(&self, error: &Error) {
        self.pause_joins();
        self.observe(&Event::StoreFailed(CreateAndAcquire::NAME, ErrorText::new(error.to_string())));
    }

    /// Wakes a worker of this client that waits for jobs of `chains`, whose creation was sent to the store.
    pub(super) fn expect(&self, chains: &[NewChain]) -> Option<Arc<Expectation>> {
        self.idle_workers.wake(chains, self)
    }

    /// Registers a wait for a chain that a worker of this client may complete.
    pub(super) fn register_wait(&self, chain: ChainId) -> LocalOutput<'_> {
        self.local_outputs.register(chain)
    }

    /// Returns the number of waits.
    pub(super) fn wait_count(&self) -> usize {
        self.local_outputs.count()
    }

    /// Passes chains that a worker of this client has completed on to their waits. Call this after the announcement.
    pub(crate) fn deliver(&self, chains: impl Iterator<Item = Completed>) {
        self.local_outputs.deliver(chains);
    }

    /// Subscribes to hints. Returns `None` if the notifier fails or does not answer in time.
    pub(crate) async fn subscribe(&self, topics: Vec<Topic>) -> Option<Subscription> {
        self.subscribe_within(NOTIFIER_TIMEOUT, topics).await.ok()
    }

    async fn subscribe_within(&self, limit: Duration, topics: Vec<Topic>) -> Result<Subscription> {
        let subscribe = catch_panic("notifier", async { self.notifier.subscribe(topics).await });
        let unavailable = |text: &str| Error::new(ErrorKind::Unavailable, text);
        let subscribed = match timeout(limit, subscribe).await {
            Ok(Ok(subscribed)) => subscribed,
            Ok(Err(panic)) => Err(unavailable(panic.as_str())),
            Err(_) => Err(unavailable("the notifier did not answer in time: try again")),
        };
        subscribed.inspect_err(|error| self.failed("subscribe", &error.to_string()))
    }

    /// Whether the worker should query the store for jobs of this type. Returns `true` if the notifier fails
    /// or does not answer in time: a needless query is cheap, a missed one delays jobs.
    pub(crate) async fn claim_wake(&self, job_type: TypeName) -> bool {
        let claim = catch_panic("notifier", async { self.notifier.claim_wake(job_type).await });
        !matches!(timeout(CLAIM_TIMEOUT, claim).await, Ok(Ok(Ok(false))))
    }

    /// Returns how often to poll the store: rarely while hints arrive from every process that uses it. Even
    /// then a hint may be missing, because a process can die between its commit and its hint.
    pub(crate) fn poll_interval(&self, is_subscribed: bool) -> Duration {
        match catch_unwind(AssertUnwindSafe(|| self.notifier.reach())) {
            Ok(Reach::Everywhere) if is_subscribed => POLL_NOTIFIED,
            _ => POLL_ALONE,
        }
    }

    /// Returns which processes hints arrive from.
    pub(crate) fn reach(&self) -> Reach {
        self.notifier.reach()
    }

    /// Waits until all hints and events so far have been published, at most for `limit`.
    pub(super) async fn flush(&self, limit: Duration) {
        let events = async {
            // First, because these may publish events.
            self.dependents.flush().await;
            self.closed_runs.flush().await;
            self.events.flush(Message::Flush).await;
        };
        let all = async { tokio::join!(self.hints.flush(Message::Flush), events, self.blockers.flush()) };
        let _ = timeout(limit, all).await;
    }

    /// Closes the notifier.
    pub(super) async fn close(&self) -> Result<()> {
        self.notifier.close().await
    }

    /// Returns the state of a publishing task. The task must not hold the `Dispatcher`, which owns the channel to the task:
    /// the channel would never close, and the task would never end.
    fn publisher(&self) -> Publisher {
        let (notifier, observers) = (Arc::clone(&self.notifier), Arc::clone(&self.observers));
        Publisher { notifier, observers, failures: Arc::clone(&self.failures) }
    }

    fn failed(&self, call: &'static str, why: &str) {
        if self.failures.should_report(call, why) {
            self.observe(&Event::NotifierFailed(call, ErrorText::new(why)));
        }
    }
}
