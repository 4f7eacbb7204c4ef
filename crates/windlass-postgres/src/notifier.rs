//! Hints over `LISTEN` and `NOTIFY`.
//!
//! Each notifier has one connection that listens, on one channel per namespace. Hints that are published while a
//! notification is being sent are queued and sent together in the next one, one line of text each. If the queue is
//! long, further `Scheduled` hints of a type collapse into one line, which makes the workers of that type query the
//! store.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;
use windlass_core::{
    BoxFuture, Error, ErrorKind, Hint, Notifier, Publisher, Result, Subscription, Topic, TypeName,
};

use crate::hint::{NotificationLine, PAYLOAD_MAX_BYTES};
use crate::provider::{Listener, Parameter, Provider, Statement, pooled};
use crate::store::Options;

/// Pause after each notification, in which more hints can collect for the next one.
const PAUSE: Duration = Duration::from_millis(2);

/// Timeout of the test notification on a new listening connection.
const TRIAL: Duration = Duration::from_secs(5);

/// How long `subscribe` waits for the listening connection.
const READY: Duration = Duration::from_secs(10);

/// Delay between connection attempts: initial and maximum. It doubles after each failure.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Delay before the next attempt if notifications do not arrive on the connection.
const DEAF: Duration = Duration::from_secs(60);

/// Queue length from which further `Scheduled` hints of a type collapse into one line.
const SINGLE_MAX: usize = 200;

/// Queue length from which each new hint displaces the oldest one.
const WAITING_MAX: usize = 10_000;

/// Queue length from which events are refused. The rest of the queue is reserved for hints that workers need.
const EVENTS_MAX: usize = WAITING_MAX / 2;

/// Carries hints between processes that use the same database.
///
/// Behind a pooler that assigns a server connection per transaction, `LISTEN` receives nothing. The notifier checks
/// that its connection is not shared and tests it with a notification to itself. If either fails, it logs one warning,
/// and workers poll.
pub struct PostgresNotifier<P> {
    shared: Arc<Shared<P>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<P> {
    provider: P,
    channel: String,
    notify: Statement,
    state: Mutex<State>,
    wanted: Notify,
    ready: watch::Sender<Hearing>,
    next_subscriber: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Hint>,
    /// Types whose `Scheduled` hints were collapsed.
    unheard: BTreeSet<TypeName>,
    /// Number of hints dropped since the last warning about it.
    dropped: usize,
    topics: HashMap<Topic, HashMap<u64, Publisher>>,
    closed: bool,
}

/// State of the listening connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hearing {
    NotYet,
    Listens,
    /// Notifications do not arrive, so workers poll.
    Deaf,
}

impl<P: Provider> PostgresNotifier<P> {
    /// Creates a notifier for the namespace in `options`. A background task opens the listening connection and reopens
    /// it whenever it is lost.
    pub fn new(provider: P, options: &Options) -> Result<Self> {
        let names = options.names()?;
        let text = names.render(include_str!("../sql/notify.sql"));
        let shared = Arc::new(Shared {
            provider,
            channel: names.shown(),
            notify: Statement::new(text, options.caches_statements()),
            state: Mutex::default(),
            wanted: Notify::new(),
            ready: watch::channel(Hearing::NotYet).0,
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
            let collected = self.shared.open()?.collect(hint);
            self.shared.wanted.notify_one();
            collected
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            if topics.is_empty() {
                let text = "a subscription to nothing: give at least one topic";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let subscription = self.shared.subscribe(topics)?;
            let mut ready = self.shared.ready.subscribe();
            let heard = timeout(READY, ready.wait_for(|hearing| *hearing != Hearing::NotYet)).await;
            drop(self.shared.open()?);
            match heard {
                Ok(_) => Ok(subscription),
                Err(_) => Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "no listening connection to PostgreSQL within {READY:?}: check that the server runs"
                    ),
                )),
            }
        })
    }

    /// Always true: a wake budget in PostgreSQL would cost more than it saves, so all woken workers query the store.
    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { self.shared.open().map(|_| true) })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        let topics = {
            let mut state = self.shared.state();
            state.closed = true;
            state.waiting.clear();
            std::mem::take(&mut state.topics)
        };
        drop(topics);
        self.stop();
        Box::pin(async { Ok(()) })
    }
}

impl State {
    /// Queues a hint.
    fn collect(&mut self, hint: Hint) -> Result<()> {
        let waiting = self.waiting.len();
        match &hint {
            Hint::Scheduled { job_type, .. } if waiting >= SINGLE_MAX => {
                self.unheard.insert(job_type.clone());
                return Ok(());
            }
            Hint::Event(_) if waiting >= EVENTS_MAX => {
                let text = format!(
                    "{waiting} hints wait to be sent: check that PostgreSQL answers, or publish no events"
                );
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            _ => {}
        }
        if waiting >= WAITING_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(hint);
        Ok(())
    }

    /// Takes all queued lines and the number of dropped hints.
    fn take(&mut self) -> (Vec<NotificationLine>, usize) {
        let unheard = std::mem::take(&mut self.unheard).into_iter().map(NotificationLine::Unheard);
        let lines = self.waiting.drain(..).map(NotificationLine::Hint).chain(unheard).collect();
        (lines, std::mem::take(&mut self.dropped))
    }

    /// Delivers a line to the subscribers of its topic.
    fn deliver(&self, line: NotificationLine) {
        let (topic, hint) = match line {
            NotificationLine::Hint(hint) => (hint.topic(), Some(hint)),
            NotificationLine::Unheard(job_type) => (Topic::Scheduled(job_type), None),
            NotificationLine::TooLarge => (Topic::Events, None),
            NotificationLine::Trial(_) => return,
        };
        for publisher in self.topics.get(&topic).into_iter().flat_map(HashMap::values) {
            match &hint {
                Some(hint) => publisher.send(hint.clone()),
                None => publisher.gap(),
            }
        }
    }
}

impl<P: Provider> Shared<P> {
    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "the notifier was closed: make a new one"));
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
        loop {
            self.wanted.notified().await;
            loop {
                let (lines, dropped) = self.state().take();
                if lines.is_empty() {
                    break;
                }
                if dropped > 0 {
                    tracing::warn!(
                        "{dropped} hints were dropped: more came than PostgreSQL took, and workers poll for the rest"
                    );
                }
                // A lost hint is harmless, since subscribers also poll.
                if let Err(error) = self.send(payloads(lines)).await {
                    tracing::debug!(%error, "a notification was not sent");
                }
                sleep(PAUSE).await;
            }
        }
    }

    async fn send(&self, payloads: Vec<String>) -> Result<()> {
        let payloads = payloads.into_iter().map(Some).collect();
        let parameters = vec![Parameter::Text(Some(self.channel.clone())), Parameter::Texts(Some(payloads))];
        self.provider.run(&self.notify, parameters).await.map(drop)
    }

    /// Listens forever. Reconnects whenever the connection is lost.
    async fn keep_listening(self: Arc<Self>) {
        let (first, longest) = RECONNECT;
        let (mut wait, mut warned) = (first, false);
        loop {
            let mut unheard = None;
            match self.provider.listen(&self.channel).await {
                Ok(mut listener) => match self.try_out(&mut *listener).await {
                    Ok(()) => {
                        wait = first;
                        // Hints may have been lost since the previous connection.
                        if self.ready.send_replace(Hearing::Listens) != Hearing::NotYet {
                            self.gap();
                        }
                        let error = self.hear(&mut *listener).await;
                        tracing::debug!(%error, "the listening connection was lost");
                    }
                    Err(error) if error.kind() == ErrorKind::Unsupported => unheard = Some(error),
                    Err(error) => tracing::debug!(%error, "the listening connection was lost"),
                },
                Err(error) if error.kind() == ErrorKind::Unsupported => unheard = Some(error),
                Err(error) => tracing::debug!(%error, "no listening connection"),
            }
            if let Some(error) = unheard {
                self.ready.send_replace(Hearing::Deaf);
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(
                        "notifications of PostgreSQL do not arrive, so that workers poll: {error}"
                    );
                }
                wait = DEAF;
            }
            sleep(wait).await;
            wait = (wait * 2).clamp(first, longest.max(wait));
        }
    }

    /// Sends a test notification to this notifier and handles all notifications until it arrives.
    async fn try_out(&self, listener: &mut dyn Listener) -> Result<()> {
        let nonce = Uuid::now_v7();
        let ends_at = Instant::now() + TRIAL;
        self.send(vec![NotificationLine::Trial(nonce).encoded()]).await?;
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
    async fn hear(&self, listener: &mut dyn Listener) -> Error {
        loop {
            match listener.next().await {
                Ok(payload) => drop(self.take(&payload)),
                Err(error) => return error,
            }
        }
    }

    /// Delivers the hints of a notification. Returns the nonces of the test notifications in it.
    fn take(&self, payload: &str) -> Vec<Uuid> {
        let mut trials = Vec::new();
        let state = self.state();
        for line in payload.lines().filter_map(NotificationLine::decoded) {
            if let NotificationLine::Trial(nonce) = line {
                trials.push(nonce);
            }
            state.deliver(line);
        }
        trials
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

/// Joins lines into as few payloads as possible, each within PostgreSQL's limit.
fn payloads(lines: Vec<NotificationLine>) -> Vec<String> {
    let mut payloads: Vec<String> = Vec::new();
    for line in lines {
        let mut text = line.encoded();
        if text.len() > PAYLOAD_MAX_BYTES {
            text = NotificationLine::TooLarge.encoded();
        }
        match payloads.last_mut().filter(|last| last.len() + 1 + text.len() <= PAYLOAD_MAX_BYTES) {
            Some(last) => {
                last.push('\n');
                last.push_str(&text);
            }
            None => payloads.push(text),
        }
    }
    payloads
}
