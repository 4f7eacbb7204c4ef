//! Tells observers and notifiers, without ever being held up by them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::name::{ErrorText, TraceContext};
use crate::notifier::{Hint, Notifier, Subscription, Topic};
use crate::observer::{About, Event, Observer, Traced};
use crate::worker::catch_panic;

/// How many hints wait to be published before some are dropped: they are hints.
const WAITING_MAX: usize = 4_096;

/// How long a call of the notifier may take.
const NOTIFIER_TIMEOUT: Duration = Duration::from_millis(500);

/// The notifier and the observers of a client.
#[derive(Debug)]
pub(crate) struct Teller {
    notifier: Arc<dyn Notifier>,
    observers: Observers,
    /// Feeds the task that publishes. It ends with its runtime, and is then started again.
    hints: Mutex<Option<mpsc::Sender<Hint>>>,
}

impl Teller {
    pub(super) fn new(notifier: Arc<dyn Notifier>, observers: Vec<Arc<dyn Observer>>) -> Arc<Self> {
        Arc::new(Self { notifier, observers: observers.into(), hints: Mutex::new(None) })
    }

    /// Whether anybody wants to be told.
    pub(crate) fn is_observed(&self) -> bool {
        // One that panics is told: that is guarded.
        let is_on = |observer: &Arc<dyn Observer>| catch_unwind(AssertUnwindSafe(|| observer.is_on()));
        self.observers.iter().any(|observer| is_on(observer).unwrap_or(true))
    }

    /// Tells the observers.
    pub(crate) fn observe(&self, event: &Event) {
        each(&self.observers, |observer| observer.observe(event));
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
        let sender = self.sender();
        for hint in hints {
            if sender.try_send(hint).is_err() {
                self.failed("publish", "too many hints are waiting, or the runtime has stopped");
                return;
            }
        }
    }

    /// Subscribes, if the notifier answers in time.
    pub(crate) async fn subscribe(&self, topics: Vec<Topic>) -> Option<Subscription> {
        let subscribe = catch_panic("notifier", async { self.notifier.subscribe(topics).await });
        match timeout(NOTIFIER_TIMEOUT, subscribe).await {
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
        !matches!(timeout(NOTIFIER_TIMEOUT, claim).await, Ok(Ok(Ok(false))))
    }

    fn sender(&self) -> mpsc::Sender<Hint> {
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        match &*hints {
            Some(sender) if !sender.is_closed() => sender.clone(),
            _ => {
                let (sender, receiver) = mpsc::channel(WAITING_MAX);
                tokio::spawn(publish(receiver, Arc::clone(&self.notifier), Arc::clone(&self.observers)));
                hints.insert(sender).clone()
            }
        }
    }

    fn failed(&self, call: &'static str, why: &str) {
        self.observe(&Event::NotifierFailed(call, ErrorText::new(why)));
    }
}

async fn publish(mut hints: mpsc::Receiver<Hint>, notifier: Arc<dyn Notifier>, observers: Observers) {
    while let Some(hint) = hints.recv().await {
        let why = match timeout(NOTIFIER_TIMEOUT, notifier.publish(hint)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the notifier did not answer in time".to_owned(),
        };
        let event = Event::NotifierFailed("publish", ErrorText::new(why));
        each(&observers, |observer| observer.observe(&event));
    }
}

type Observers = Arc<[Arc<dyn Observer>]>;

/// Calls each observer. If one panics, that is its affair.
fn each(observers: &Observers, mut call: impl FnMut(&dyn Observer)) {
    for observer in observers.iter() {
        let _ = catch_unwind(AssertUnwindSafe(|| call(&**observer)));
    }
}
