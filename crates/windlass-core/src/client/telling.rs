//! Tells observers and notifiers, without ever being held up by them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::watch::News;
use crate::name::{ErrorText, TraceContext};
use crate::notifier::{Hint, Notifier, Subscription, Topic};
use crate::observer::{About, Event, Observer, Traced};
use crate::worker::catch_panic;

/// How many hints wait to be published before some are dropped: they are hints.
const WAITING_MAX: usize = 4_096;

/// How long a call of the notifier may take. The first one may have to connect.
const NOTIFIER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a subscription may take that is all that somebody wants.
const WATCH_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a worker asks whether to look for jobs, instead of looking.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(500);

/// The notifier and the observers of a client.
#[derive(Debug)]
pub(crate) struct Teller {
    notifier: Arc<dyn Notifier>,
    observers: Observers,
    hints: Lane,
    /// Apart from the hints: however many events there are, workers are woken.
    news: Lane,
    /// Whether events are published though nobody here is known to watch.
    publishes_events: bool,
    /// How many watch by this client.
    watchers: AtomicUsize,
    /// Events that were dropped since the last that was published.
    unsent: Arc<AtomicU64>,
}

/// Feeds a task that publishes. It ends with its runtime, and is then started again.
type Lane = Mutex<Option<mpsc::Sender<Hint>>>;

impl Teller {
    pub(super) fn new(
        notifier: Arc<dyn Notifier>,
        observers: Vec<Arc<dyn Observer>>,
        publishes_events: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            notifier,
            observers: observers.into(),
            hints: Lane::default(),
            news: Lane::default(),
            publishes_events,
            watchers: AtomicUsize::new(0),
            unsent: Arc::default(),
        })
    }

    /// Whether anybody wants to be told.
    pub(crate) fn is_observed(&self) -> bool {
        // One that panics is told: that is guarded.
        let is_on = |observer: &Arc<dyn Observer>| catch_unwind(AssertUnwindSafe(|| observer.is_on()));
        self.observers.iter().any(|observer| is_on(observer).unwrap_or(true)) || self.is_watched()
    }

    /// Tells the observers and those who watch.
    pub(crate) fn observe(&self, event: &Event) {
        each(&self.observers, |observer| observer.observe(event));
        self.tell(|| News::of(event));
    }

    /// Tells those who watch, if anybody does. Where too much waits to be told, it is counted instead.
    pub(crate) fn tell(&self, news: impl FnOnce() -> Option<News>) {
        if !self.is_watched() {
            return;
        }
        let Some(news) = news() else { return };
        let hint = Hint::Event(news.encode());
        if self.sender(&self.news, Some(&self.unsent)).try_send(hint).is_err() {
            self.unsent.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Subscribes to events. While this is kept, the client publishes its own.
    pub(crate) async fn watch(self: &Arc<Self>) -> Option<(Subscription, Watching)> {
        self.watchers.fetch_add(1, Ordering::AcqRel);
        let watching = Watching(Arc::clone(self));
        Some((self.subscribe_within(WATCH_TIMEOUT, vec![Topic::Events]).await?, watching))
    }

    fn is_watched(&self) -> bool {
        let elsewhere = || catch_unwind(AssertUnwindSafe(|| self.notifier.is_watched())).unwrap_or(false);
        self.publishes_events || self.watchers.load(Ordering::Acquire) > 0 || elsewhere()
    }

    /// Asks every observer; the first answer is stored.
    pub(super) fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let mut answer = None;
        each(&self.observers, |observer| {
            let context = observer.trace_context(traced, about);
            answer = answer.take().or(context);
        });
        answer
    }

    /// Tells the observers that what they were asked about was not written.
    pub(super) fn untrace(&self, traced: Traced, about: &About) {
        each(&self.observers, |observer| observer.rolled_back(traced, about));
    }

    /// Publishes hints in the background, in order. The end of a chain that nobody waits for is no news: whoever
    /// begins to wait after this finds it in the store.
    pub(crate) fn publish(&self, hints: impl IntoIterator<Item = Hint>) {
        let is_awaited = |chain| catch_unwind(AssertUnwindSafe(|| self.notifier.is_awaited(chain)));
        let is_news = |hint: &Hint| match hint {
            Hint::ChainClosed(chain) => is_awaited(*chain).unwrap_or(true),
            _ => true,
        };
        let mut hints = hints.into_iter().filter(is_news).peekable();
        if hints.peek().is_none() {
            return;
        }
        let sender = self.sender(&self.hints, None);
        for hint in hints {
            if sender.try_send(hint).is_err() {
                self.failed("publish", "too many hints are waiting, or the runtime has stopped");
                return;
            }
        }
    }

    /// Subscribes, if the notifier answers in time.
    pub(crate) async fn subscribe(&self, topics: Vec<Topic>) -> Option<Subscription> {
        self.subscribe_within(NOTIFIER_TIMEOUT, topics).await
    }

    async fn subscribe_within(&self, limit: Duration, topics: Vec<Topic>) -> Option<Subscription> {
        let subscribe = catch_panic("notifier", async { self.notifier.subscribe(topics).await });
        match timeout(limit, subscribe).await {
            Ok(Ok(Ok(subscription))) => Some(subscription),
            Ok(Err(panic)) => {
                self.failed("subscribe", panic.as_str());
                None
            }
            Ok(Ok(Err(error))) => {
                self.failed("subscribe", &error.to_string());
                None
            }
            Err(_) => {
                self.failed("subscribe", "the notifier did not answer in time");
                None
            }
        }
    }

    /// Whether to look for jobs of this type; when in doubt, yes.
    pub(crate) async fn claim_wake(&self, job_type: crate::name::TypeName) -> bool {
        let claim = catch_panic("notifier", async { self.notifier.claim_wake(job_type).await });
        !matches!(timeout(CLAIM_TIMEOUT, claim).await, Ok(Ok(Ok(false))))
    }

    fn sender(&self, lane: &Lane, unsent: Option<&Arc<AtomicU64>>) -> mpsc::Sender<Hint> {
        let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lane {
            Some(sender) if !sender.is_closed() => sender.clone(),
            _ => {
                let (sender, receiver) = mpsc::channel(WAITING_MAX);
                let (notifier, observers) = (Arc::clone(&self.notifier), Arc::clone(&self.observers));
                tokio::spawn(publish(receiver, notifier, observers, unsent.cloned()));
                lane.insert(sender).clone()
            }
        }
    }

    fn failed(&self, call: &'static str, why: &str) {
        self.observe(&Event::NotifierFailed(call, ErrorText::new(why)));
    }
}

async fn publish(
    mut hints: mpsc::Receiver<Hint>,
    notifier: Arc<dyn Notifier>,
    observers: Observers,
    unsent: Option<Arc<AtomicU64>>,
) {
    while let Some(hint) = hints.recv().await {
        let missed = unsent.as_ref().map_or(0, |unsent| unsent.swap(0, Ordering::AcqRel));
        let told = (missed > 0).then(|| (Hint::Event(News::missed(missed).encode()), missed));
        for (hint, weight) in told.into_iter().chain([(hint, 1)]) {
            let why = match timeout(NOTIFIER_TIMEOUT, notifier.publish(hint)).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the notifier did not answer in time".to_owned(),
            };
            if let Some(unsent) = &unsent {
                unsent.fetch_add(weight, Ordering::AcqRel);
            }
            let event = Event::NotifierFailed("publish", ErrorText::new(why));
            each(&observers, |observer| observer.observe(&event));
        }
    }
}

/// Somebody watches by a client, as long as this is kept.
#[derive(Debug)]
pub(crate) struct Watching(Arc<Teller>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::AcqRel);
    }
}

type Observers = Arc<[Arc<dyn Observer>]>;

/// Calls each observer. If one panics, that is its affair.
fn each(observers: &Observers, mut call: impl FnMut(&dyn Observer)) {
    for observer in observers.iter() {
        let _ = catch_unwind(AssertUnwindSafe(|| call(&**observer)));
    }
}
