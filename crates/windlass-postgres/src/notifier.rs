//! Hints over `LISTEN` and `NOTIFY`.
//!
//! Each notifier has one connection that listens, on one channel per namespace. Hints that are published while a
//! notification is being sent are queued and sent together in the next one, one line of text each. If the queue is
//! long, further `Scheduled` hints of a type collapse into one line, which makes the workers of that type query the
//! store.
//!
//! A notifier delivers hints to its own subscribers directly. It skips its own notifications when the server returns
//! them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;
use windlass_core::{
    BoxFuture, Connected, Error, ErrorKind, Hint, Notifier, Publisher, Reach, Result, Subscription, Topic,
    TypeName,
};

use crate::error::pooled;
use crate::hint::{NotificationLine, PAYLOAD_MAX_BYTES};
use crate::options::Options;
use crate::provider::{Listener, Parameter, Provider, Statement};

/// The shortest interval between two notifications under load. More hints collect for the next one in the meantime.
const SEND_INTERVAL: Duration = Duration::from_millis(2);

/// How many notifications may be sent without a pause after a quiet time. A single job needs two: one for its worker, and
/// one for the caller that waits for its result.
const BURST: u32 = 8;

/// Timeout of the test notification on a new listening connection.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How long `subscribe` waits for the listening connection.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long closing waits for queued hints to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay between connection attempts: initial and maximum. It doubles after each failure.
const RECONNECT_DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Delay before the next attempt if notifications do not arrive on the connection.
const UNSUPPORTED_DELAY: Duration = Duration::from_secs(60);

/// Queue length from which further `Scheduled` hints of a type collapse into one line.
const COLLAPSE_FROM: usize = 200;

/// Queue length from which each new hint displaces the oldest one.
const QUEUE_MAX: usize = 10_000;

/// Queue length from which events are refused. The rest of the queue is reserved for hints that workers need.
const EVENTS_MAX: usize = QUEUE_MAX / 2;

/// Carries hints between processes that use the same database.
///
/// Behind a pooler that assigns a server connection per transaction, `LISTEN` receives nothing. The notifier checks
/// that its connection is not shared and tests it with a notification to itself. If either fails, it logs one warning.
/// Hints then arrive only from the same process, and workers poll. The same applies while the listening connection is
/// lost.
pub struct PostgresNotifier<P> {
    shared: Arc<Shared<P>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<P> {
    provider: Arc<P>,
    channel: String,
    /// Identifies the notifications of this notifier.
    sender: Uuid,
    notify: Statement,
    state: Mutex<State>,
    queued: Notify,
    listening: watch::Sender<Listening>,
    /// Whether the listening connection is open.
    is_connected: AtomicBool,
    /// Held while hints are being sent, so that closing can wait for it.
    sending: tokio::sync::Mutex<()>,
    next_subscriber: AtomicU64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Hint>,
    /// Types whose `Scheduled` hints were collapsed.
    collapsed: BTreeSet<TypeName>,
    /// Number of hints dropped since the last warning about it.
    dropped: usize,
    topics: HashMap<Topic, HashMap<u64, Publisher>>,
    closed: bool,
}

/// State of the listening connection.
#[derive(Clone, Debug)]
enum Listening {
    /// It was never open. Has the error of the latest attempt, if one failed.
    Connecting(Option<Error>),
    /// It is open, or being reopened after it was lost.
    Live,
    /// Notifications do not arrive, so workers poll.
    Unsupported,
    /// The server denies access. The notifier keeps trying, because credentials may change.
    Denied(Error),
}

impl<P: Provider> PostgresNotifier<P> {
    /// Creates a notifier for the namespace in `options`. A background task opens the listening connection and reopens
    /// it whenever it is lost. If the server denies access, subscribing fails with
    /// [`ErrorKind::AccessDenied`].
    pub fn new(provider: impl Into<Arc<P>>, options: &Options) -> Result<Self> {
        let names = options.names()?;
        let text = names.render(include_str!("../sql/notify.sql"));
        let shared = Arc::new(Shared {
            provider: provider.into(),
            channel: names.identifier(),
            sender: Uuid::now_v7(),
            // Without a store that has asked the provider, use the variant that works everywhere.
            notify: Statement::new(text, options.cached_statements.unwrap_or(false)),
            state: Mutex::default(),
            queued: Notify::new(),
            listening: watch::channel(Listening::Connecting(None)).0,
            is_connected: AtomicBool::new(false),
            sending: tokio::sync::Mutex::default(),
            next_subscriber: AtomicU64::new(0),
        });
        let tasks = vec![
            tokio::spawn(Arc::clone(&shared).keep_sending()),
            tokio::spawn(Arc::clone(&shared).keep_listening()),
        ];
        Ok(Self { shared, tasks: Mutex::new(tasks) })
    }

    fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(JoinHandle::abort);
    }
}

impl<P> Drop for PostgresNotifier<P> {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(JoinHandle::abort);
    }
}

impl<P> fmt::Debug for PostgresNotifier<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresNotifier").field("channel", &self.shared.channel).finish_non_exhaustive()
    }
}

impl<P: Provider> Notifier for PostgresNotifier<P> {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let collected = {
                let mut state = self.shared.open()?;
                let collected = state.collect(hint.clone());
                if collected.is_ok() {
                    state.deliver(&hint);
                }
                collected
            };
            self.shared.queued.notify_one();
            collected
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            if topics.is_empty() {
                let text = "a subscription needs at least one topic, got none";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let subscription = self.shared.subscribe(topics)?;
            let mut listening = self.shared.listening.subscribe();
            let is_known = |listening: &Listening| !matches!(listening, Listening::Connecting(_));
            let known = timeout(SUBSCRIBE_TIMEOUT, listening.wait_for(is_known)).await;
            drop(self.shared.open()?);
            match known.map(|listening| listening.map(|listening| listening.clone())) {
                Ok(Ok(Listening::Denied(error))) => Err(error),
                Ok(_) => Ok(subscription),
                Err(_) => Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "no listening connection to PostgreSQL within {SUBSCRIBE_TIMEOUT:?}: check that the server runs"
                    ),
                )),
            }
        })
    }

    /// Always true: a wake budget in PostgreSQL would cost more than it saves, so all woken workers query the store.
    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { self.shared.open().map(|_| true) })
    }

    fn reach(&self) -> Reach {
        match &*self.shared.listening.borrow() {
            Listening::Live if self.shared.is_connected.load(Ordering::Acquire) => Reach::Everywhere,
            Listening::Live => {
                let text =
                    "the listening connection was lost: it is opened again as soon as the server answers";
                Reach::Lost(Error::new(ErrorKind::Unavailable, text))
            }
            Listening::Connecting(None) => Reach::Process,
            Listening::Unsupported => Reach::Lost(pooled()),
            Listening::Connecting(Some(error)) | Listening::Denied(error) => Reach::Lost(error.clone()),
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let (lines, topics) = {
                let mut state = self.shared.state();
                state.closed = true;
                (state.take().0, std::mem::take(&mut state.topics))
            };
            drop(topics);
            // A process may close its notifier right after it has scheduled a job: send what is queued.
            let last = async {
                let _sending = self.shared.sending.lock().await;
                if !lines.is_empty() {
                    let _ = self.shared.send(lines).await;
                }
            };
            let _ = timeout(CLOSE_TIMEOUT, last).await;
            self.stop();
            Ok(())
        })
    }
}

impl State {
    /// Queues a hint.
    fn collect(&mut self, hint: Hint) -> Result<()> {
        let queued = self.queue.len();
        match &hint {
            Hint::Scheduled { job_type, .. } if queued >= COLLAPSE_FROM => {
                self.collapsed.insert(job_type.clone());
                return Ok(());
            }
            Hint::Event(_) if queued >= EVENTS_MAX => {
                let text = format!("{queued} hints are queued: check that PostgreSQL answers");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            _ => {}
        }
        if queued >= QUEUE_MAX {
            self.queue.pop_front();
            self.dropped += 1;
        }
        self.queue.push_back(hint);
        Ok(())
    }

    /// Takes all queued lines and the number of dropped hints.
    fn take(&mut self) -> (Vec<NotificationLine>, usize) {
        let collapsed = std::mem::take(&mut self.collapsed).into_iter().map(NotificationLine::Collapsed);
        let lines = self.queue.drain(..).map(NotificationLine::Hint).chain(collapsed).collect();
        (lines, std::mem::take(&mut self.dropped))
    }

    /// Delivers a hint to the subscribers of its topic.
    fn deliver(&self, hint: &Hint) {
        self.subscribers(&hint.topic()).for_each(|publisher| publisher.send(hint.clone()));
    }

    /// Signals to the subscribers of a topic that they missed hints.
    fn gap(&self, topic: &Topic) {
        self.subscribers(topic).for_each(Publisher::gap);
    }

    fn subscribers(&self, topic: &Topic) -> impl Iterator<Item = &Publisher> {
        self.topics.get(topic).into_iter().flat_map(HashMap::values)
    }
}

impl<P: Provider> Shared<P> {
    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "the notifier is closed: create a new one"));
        }
        Ok(state)
    }

    fn subscribe(self: &Arc<Self>, topics: Vec<Topic>) -> Result<Subscription> {
        let id = self.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let (weak, ended) = (Arc::downgrade(self), topics.clone());
        let (publisher, subscription) = Subscription::new(move || {
            let Some(shared) = weak.upgrade() else { return };
            let mut state = shared.state();
            for topic in &ended {
                let Some(subscribers) = state.topics.get_mut(topic) else { continue };
                subscribers.remove(&id);
                if subscribers.is_empty() {
                    state.topics.remove(topic);
                }
            }
        });
        let mut state = self.open()?;
        for topic in topics {
            state.topics.entry(topic).or_default().insert(id, publisher.clone());
        }
        Ok(subscription)
    }

    /// Sends queued hints in batches, forever.
    async fn keep_sending(self: Arc<Self>) {
        let mut pace = Pace::new();
        loop {
            self.queued.notified().await;
            loop {
                let sending = self.sending.lock().await;
                let (lines, dropped) = self.state().take();
                if lines.is_empty() {
                    break;
                }
                if dropped > 0 {
                    tracing::warn!(
                        "{dropped} hints were dropped, because PostgreSQL did not keep up: workers poll instead"
                    );
                }
                // A lost hint is harmless, since subscribers also poll.
                if let Err(error) = self.send(lines).await {
                    tracing::debug!(%error, "sending a notification failed");
                }
                drop(sending);
                pace.wait().await;
            }
        }
    }

    async fn send(&self, lines: Vec<NotificationLine>) -> Result<()> {
        let payloads = payloads(self.sender, lines).into_iter().map(Some).collect();
        let parameters = vec![Parameter::Text(Some(self.channel.clone())), Parameter::Texts(Some(payloads))];
        self.provider.run(&self.notify, parameters).await.map(drop)
    }

    /// Listens forever. Reconnects whenever the connection is lost.
    async fn keep_listening(self: Arc<Self>) {
        let (initial, longest) = RECONNECT_DELAY;
        let (mut delay, mut warned_unsupported, mut warned_denied) = (initial, false, false);
        loop {
            let error = match self.connect().await {
                Ok(mut listener) => {
                    (delay, warned_denied) = (initial, false);
                    // Before subscribers learn of the connection: from then on, they rely on it.
                    let _connected = Connected::new(&self.is_connected);
                    // Hints may have been lost since the previous connection.
                    if !matches!(self.listening.send_replace(Listening::Live), Listening::Connecting(_)) {
                        self.gap();
                    }
                    self.deliver_all(&mut *listener).await
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Unsupported => {
                    self.listening.send_replace(Listening::Unsupported);
                    if !std::mem::replace(&mut warned_unsupported, true) {
                        tracing::warn!("notifications of PostgreSQL do not arrive, so workers poll: {error}");
                    }
                    delay = UNSUPPORTED_DELAY;
                }
                ErrorKind::AccessDenied => {
                    if !std::mem::replace(&mut warned_denied, true) {
                        tracing::warn!("no listening connection, so workers poll: {error}");
                    }
                    self.listening.send_replace(Listening::Denied(error));
                }
                _ => {
                    tracing::debug!(%error, "no listening connection");
                    // The other states already say why hints do not arrive.
                    self.listening.send_if_modified(|listening| {
                        let was_never_open = matches!(listening, Listening::Connecting(_));
                        if was_never_open {
                            *listening = Listening::Connecting(Some(error));
                        }
                        was_never_open
                    });
                }
            }
            sleep(delay).await;
            delay = (delay * 2).clamp(initial, longest.max(delay));
        }
    }

    /// Opens a listening connection and tests it.
    async fn connect(&self) -> Result<Box<dyn Listener>> {
        let mut listener = self.provider.listen(&self.channel).await?;
        self.test(&mut *listener).await?;
        Ok(listener)
    }

    /// Sends a test notification to this notifier and handles all notifications until it arrives.
    async fn test(&self, listener: &mut dyn Listener) -> Result<()> {
        let nonce = Uuid::now_v7();
        let ends_at = Instant::now() + TEST_TIMEOUT;
        self.send(vec![NotificationLine::Test(nonce)]).await?;
        loop {
            let Ok(payload) = tokio::time::timeout_at(ends_at, listener.next()).await else {
                return Err(pooled());
            };
            if self.take(&payload?).contains(&nonce) {
                return Ok(());
            }
        }
    }

    /// Delivers notifications until the connection is lost.
    async fn deliver_all(&self, listener: &mut dyn Listener) -> Error {
        loop {
            match listener.next().await {
                Ok(payload) => drop(self.take(&payload)),
                Err(error) => return error,
            }
        }
    }

    /// Delivers the hints of a notification, unless this notifier has sent it: then they are delivered already. Returns
    /// the nonces of the test notifications in it.
    fn take(&self, payload: &str) -> Vec<Uuid> {
        let (mut tests, mut is_own) = (Vec::new(), false);
        let state = self.state();
        for line in payload.lines().filter_map(NotificationLine::decoded) {
            match line {
                NotificationLine::Sender(sender) => is_own = sender == self.sender,
                NotificationLine::Test(nonce) => tests.push(nonce),
                _ if is_own => {}
                NotificationLine::Hint(hint) => state.deliver(&hint),
                NotificationLine::Collapsed(job_type) => state.gap(&Topic::Scheduled(job_type)),
                NotificationLine::TooLarge => state.gap(&Topic::Events),
            }
        }
        tests
    }

    /// Signals to all subscribers that they may have missed hints.
    fn gap(&self) {
        let state = self.state();
        state.topics.values().flat_map(HashMap::values).for_each(Publisher::gap);
    }
}

impl<P> Shared<P> {
    fn state(&self) -> MutexGuard<'_, State> {
        // Safe to ignore poisoning: no code panics in the middle of a change under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins lines into as few payloads as possible, each within PostgreSQL's limit. Each begins with the sender.
fn payloads(sender: Uuid, lines: Vec<NotificationLine>) -> Vec<String> {
    let sender = NotificationLine::Sender(sender).encoded();
    let max = PAYLOAD_MAX_BYTES - sender.len() - 1;
    let mut payloads: Vec<String> = Vec::new();
    for line in lines {
        let mut text = line.encoded();
        if text.len() > max {
            text = NotificationLine::TooLarge.encoded();
        }
        match payloads.last_mut().filter(|last| last.len() + 1 + text.len() <= PAYLOAD_MAX_BYTES) {
            Some(last) => {
                last.push('\n');
                last.push_str(&text);
            }
            None => payloads.push(format!("{sender}\n{text}")),
        }
    }
    payloads
}

/// Limits the rate of notifications: one per [`SEND_INTERVAL`], or up to [`BURST`] at once after a quiet time.
struct Pace {
    /// When the notifications so far would have been sent without bursts.
    paid_until: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { paid_until: Instant::now() }
    }

    /// Waits after a notification until the next one may be sent.
    async fn wait(&mut self) {
        let now = Instant::now();
        self.paid_until = self.paid_until.max(now) + SEND_INTERVAL;
        sleep_until((self.paid_until - SEND_INTERVAL * (BURST - 1)).max(now)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_sent_at_once_and_a_stream_is_paced() {
        let mut pace = Pace::new();
        let elapsed = async |pace: &mut Pace, count| {
            let begun = Instant::now();
            for _ in 0..count {
                pace.wait().await;
            }
            begun.elapsed()
        };
        assert_eq!(elapsed(&mut pace, BURST - 1).await, Duration::ZERO);
        assert_eq!(elapsed(&mut pace, 100).await, SEND_INTERVAL * 100);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(elapsed(&mut pace, BURST - 1).await, Duration::ZERO);
    }
}
