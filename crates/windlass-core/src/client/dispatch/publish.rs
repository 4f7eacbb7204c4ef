//! The tasks that publish hints and events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::observers::each;
use super::{NOTIFIER_TIMEOUT, Observers, WAITING_MAX};
use crate::client::event_message::EventMessage;
use crate::client::interest::Subscribers;
use crate::name::ErrorText;
use crate::notifier::{Hint, Notifier};
use crate::observer::Event;

/// How often the same failure of the notifier is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A message to a task that publishes.
pub(super) enum Message<T> {
    Publish(T),
    /// Asks the task to answer when it has published everything before this message.
    Flush(oneshot::Sender<()>),
}

/// The latest failure of each call to the notifier that was reported. While a notifier cannot connect, every hint
/// fails for the same reason: one report a minute is enough.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<BTreeMap<&'static str, (String, Instant)>>);

impl Failures {
    pub(super) fn should_report(&self, call: &'static str, why: &str) -> bool {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |(text, at): &(String, Instant)| text == why && at.elapsed() < REPORT_INTERVAL;
        if latest.get(call).is_some_and(is_known) {
            return false;
        }
        latest.insert(call, (why.to_owned(), Instant::now()));
        true
    }
}

/// Publishes through a notifier, and reports failures.
pub(super) struct Publisher {
    pub(super) notifier: Arc<dyn Notifier>,
    pub(super) observers: Observers,
    pub(super) failures: Arc<Failures>,
}

impl Publisher {
    /// Publishes a hint. Returns whether the notifier has accepted it.
    async fn publish(&self, hint: Hint) -> bool {
        let why = match timeout(NOTIFIER_TIMEOUT, self.notifier.publish(hint)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the notifier did not answer in time".to_owned(),
        };
        if self.failures.should_report("publish", &why) {
            let event = Event::NotifierFailed("publish", ErrorText::new(why));
            each(&self.observers, |observer| observer.observe(&event));
        }
        false
    }

    /// Publishes events, preceded by a report of events that were dropped. Events that cannot be published are added to
    /// `unsent`, for the next report.
    async fn publish_events(&self, events: &mut VecDeque<EventMessage>, unsent: &AtomicU64) {
        while let Some(event) = events.pop_front() {
            // Senders may drop more at the same time: `swap` reads and resets the count in one step, so none is lost.
            let missed = unsent.swap(0, Ordering::AcqRel);
            let report = (missed > 0).then(|| (EventMessage::missed(missed), missed));
            for (message, weight) in report.into_iter().chain([(event, 1)]) {
                if !self.publish(Hint::Event(message.encode())).await {
                    unsent.fetch_add(weight, Ordering::AcqRel);
                }
            }
        }
    }
}

/// Publishes the hints of a channel, one after the other.
pub(super) async fn publish_hints(mut hints: mpsc::Receiver<Message<Hint>>, publisher: Publisher) {
    while let Some(message) = hints.recv().await {
        match message {
            Message::Publish(hint) => _ = publisher.publish(hint).await,
            Message::Flush(published) => drop(published.send(())),
        }
    }
}

/// Publishes the events of a channel, in order.
///
/// Holds up to [`WAITING_MAX`] events until it is known whether there are subscribers, then publishes or drops them: usually
/// there are none, and each event would cost a message. On a flush, or when the channel closes, publishes them at once: the
/// process may end before the answers arrive.
pub(super) async fn publish_events(
    mut events: mpsc::Receiver<Message<EventMessage>>,
    publisher: Publisher,
    subscribers: Subscribers,
    unsent: Arc<AtomicU64>,
) {
    let (mut held, mut held_until) = (VecDeque::new(), Instant::now());
    loop {
        tokio::select! {
            biased;
            any = subscribers.any(&*publisher.notifier, held_until), if !held.is_empty() => {
                if any {
                    publisher.publish_events(&mut held, &unsent).await;
                } else {
                    held.clear();
                }
            }
            message = events.recv(), if held.len() < WAITING_MAX => match message {
                Some(Message::Publish(event)) => {
                    if held.is_empty() {
                        held_until = Instant::now() + NOTIFIER_TIMEOUT;
                    }
                    held.push_back(event);
                }
                Some(Message::Flush(published)) => {
                    publisher.publish_events(&mut held, &unsent).await;
                    let _ = published.send(());
                }
                None => return publisher.publish_events(&mut held, &unsent).await,
            },
        }
    }
}
