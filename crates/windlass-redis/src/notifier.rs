//! Hints over sharded pub/sub.
//!
//! Each topic has its own channel, so a process receives only the hints it subscribed to. One connection listens. The
//! set of wanted topics is kept in shared state, and the listener applies all changes to it in one step.
//!
//! A background task publishes. Hints that arrive while others are being sent are queued and sent together in the next
//! call: a pipeline of plain commands or, to a cluster, one script. The wake budgets grow before the hints are published.
//!
//! A notifier delivers hints to its own subscribers directly, and skips its own messages when the server returns them.
//! Workers of the same process claim wake-ups without a call to the server, until the background task has sent what is
//! left of them. If a worker has claimed all of them and no other worker subscribes here, the hint is not sent at all. So
//! a single job in a program with an idle worker costs no write besides its own.

mod listener;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Client;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;
use windlass_core::{
    BoxFuture, Error, ErrorKind, Hint, Notifier, Publisher, Reach, Result, Subscription, Topic, TypeName,
};

use crate::connection::Connection;
use crate::error::from_driver;
use crate::hint;
use crate::options::{Options, tag};
use crate::permission;
use crate::script::{Text, send};
use listener::Listener;

/// How long `subscribe` waits for the subscription to become live.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long closing waits for queued hints to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of hints in one call.
const BATCH_MAX: usize = 500;

/// How long workers of this process may claim wake-ups before those that are left are offered to other processes. Only
/// hints that have a subscriber here wait: an idle worker claims within microseconds, a busy one never.
const LOCAL_CLAIM_TIME: Duration = Duration::from_millis(1);

/// How long a wake budget is kept, in milliseconds. `publish.lua` has the same number.
const BUDGET_TTL_MS: i64 = 60_000;

/// Maximum number of queued hints. Publishing more fails.
const QUEUE_MAX: usize = 10_000;

/// Carries hints between processes that use the same Redis server or cluster.
///
/// The notifier's keys and channels belong to a namespace, as those of a store do. It can be used with any store.
///
/// Redis channels are not separated by database number. Notifiers with the same namespace on different databases of
/// one server receive each other's hints, which is harmless.
pub struct RedisNotifier {
    shared: Arc<Shared>,
    connection: Connection,
    claim: Text,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    tag: String,
    /// Identifies the messages of this notifier.
    sender: Uuid,
    publish: Text,
    state: Mutex<State>,
    /// Notified when a hint has been queued.
    wanted: Notify,
    /// Notified when the last local wake-up has been claimed.
    claimed: Notify,
    /// Notified when queued hints have been taken to be sent.
    taken: Notify,
    /// Notified when `State::topics` has changed.
    changed: Notify,
    live: watch::Sender<Live>,
    /// Whether the listening connection is open.
    is_connected: AtomicBool,
    /// Held while hints are being sent, so that closing can wait for it.
    sending: tokio::sync::Mutex<()>,
    next_subscriber: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Wake-ups of queued hints that no worker of this process has claimed yet.
    local_wakes: HashMap<TypeName, u32>,
    topics: HashMap<Topic, HashMap<u64, Publisher>>,
    /// Incremented by each new subscription, and when a topic loses its last subscriber.
    version: u64,
    closed: bool,
}

/// State of the listening connection.
#[derive(Clone, Debug, Default)]
struct Live {
    /// The `State::version` that the listener has subscribed to.
    version: u64,
    /// Why the server denies access, if it does. The listener keeps trying, because credentials may change.
    denied: Option<Error>,
    /// The error of the latest attempt to connect, or why the latest connection ended. `None` since it is open, and before
    /// the first attempt has failed.
    failed: Option<Error>,
}

struct Waiting {
    hint: Hint,
    /// Whether its wake-ups are in [`State::local_wakes`].
    is_local: bool,
    /// Receives the result of sending, if the publisher waits for it.
    sent: Option<oneshot::Sender<Result<()>>>,
}

impl RedisNotifier {
    /// Connects to a server, or to the cluster it is part of, as [`RedisStore::open`](crate::RedisStore::open) does.
    /// Uses only the namespace and the response timeout from `options`.
    pub async fn open(url: &str, options: &Options) -> Result<Self> {
        Self::with_client(&Client::open(url).map_err(from_driver)?, options).await
    }

    /// Connects with the caller's client. A background task opens the listening connection and reopens it whenever it
    /// is lost.
    pub async fn with_client(client: &Client, options: &Options) -> Result<Self> {
        let tag = tag(&options.namespace)?;
        let mut connection = Connection::open(client, options.response_timeout).await?;
        permission::check_notifier(&mut connection, &tag).await?;
        let shared = Arc::new(Shared {
            tag,
            sender: Uuid::now_v7(),
            publish: Text::new(include_str!("../lua/notifier/publish.lua")),
            state: Mutex::default(),
            wanted: Notify::new(),
            claimed: Notify::new(),
            taken: Notify::new(),
            changed: Notify::new(),
            live: watch::Sender::default(),
            is_connected: AtomicBool::new(false),
            sending: tokio::sync::Mutex::default(),
            next_subscriber: AtomicU64::new(0),
        });
        let listener = Listener::new(client, Arc::clone(&shared))?;
        let tasks = vec![
            tokio::spawn(Arc::clone(&shared).keep_sending(connection.clone())),
            tokio::spawn(listener.keep_listening()),
        ];
        let claim = Text::new(include_str!("../lua/notifier/claim.lua"));
        Ok(Self { shared, connection, claim, tasks: Mutex::new(tasks) })
    }

    fn stop(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Drop for RedisNotifier {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for RedisNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNotifier").field("tag", &self.shared.tag).finish_non_exhaustive()
    }
}

impl Notifier for RedisNotifier {
    /// For `Hint::Scheduled`, returns after the wake budget has been increased, or claimed in this process. Other hints are
    /// only queued.
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Some(sent) = self.shared.collect(hint)? else { return Ok(()) };
            let gone = |_| Err(closed());
            sent.await.unwrap_or_else(gone)
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            if topics.is_empty() {
                let text = "a subscription needs at least one topic, got none";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let (subscription, version) = self.shared.subscribe(topics)?;
            let mut live = self.shared.live.subscribe();
            let is_known = |live: &Live| live.version >= version || live.denied.is_some();
            let known = timeout(SUBSCRIBE_TIMEOUT, live.wait_for(is_known)).await;
            drop(self.shared.open()?);
            match known.map(|live| live.ok().and_then(|live| live.denied.clone())) {
                Ok(Some(denied)) => Err(denied),
                Ok(None) => Ok(subscription),
                Err(_) => Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "no listening connection to Redis within {SUBSCRIBE_TIMEOUT:?}: check that the server runs"
                    ),
                )),
            }
        })
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            if self.shared.claim_locally(&job_type).await? {
                return Ok(true);
            }
            // The rest of a local budget may be on its way. Without this wait, the claim could overtake it, find no budget
            // and be granted in addition to the others.
            drop(self.shared.sending.lock().await);
            let channel = hint::channel(&Topic::Scheduled(job_type));
            let arguments = [channel.into_bytes()];
            send(&mut self.connection.clone(), &self.claim, &self.shared.tag, &arguments).await
        })
    }

    fn reach(&self) -> Reach {
        let live = self.shared.live.borrow();
        match live.denied.as_ref().or(live.failed.as_ref()) {
            Some(error) => Reach::Lost(error.clone()),
            None if self.shared.is_connected.load(Ordering::Acquire) => Reach::Everywhere,
            // The first attempt to connect has not ended yet.
            None => Reach::Process,
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let topics = {
                let mut state = self.shared.state();
                state.closed = true;
                std::mem::take(&mut state.topics)
            };
            drop(topics);
            // A process may close its notifier right after it has scheduled a job: send what is queued.
            let mut connection = self.connection.clone();
            let _ = timeout(CLOSE_TIMEOUT, self.shared.send_queued(&mut connection)).await;
            {
                let mut state = self.shared.state();
                state.local_wakes.clear();
                drop(std::mem::take(&mut state.waiting));
            }
            self.shared.taken.notify_waiters();
            self.stop();
            Ok(())
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Safe to ignore poisoning: no code panics in the middle of a change under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state();
        if state.closed { Err(closed()) } else { Ok(state) }
    }

    /// Queues a hint and delivers it to the subscribers of this process. For a hint with a wake budget, returns a receiver
    /// for the result of sending it.
    fn collect(&self, hint: Hint) -> Result<Option<oneshot::Receiver<Result<()>>>> {
        let mut state = self.open()?;
        if state.waiting.len() >= QUEUE_MAX {
            let text = "too many hints are queued: check that the Redis server answers";
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        let (sent, result) = match hint {
            Hint::Scheduled { .. } => {
                let (sent, result) = oneshot::channel();
                (Some(sent), Some(result))
            }
            _ => (None, None),
        };
        // Under the same lock as the delivery: a worker that receives the hint finds its wake-ups.
        let is_local = state.subscribers(&hint.topic()).next().is_some();
        if is_local && let Hint::Scheduled { job_type, count, .. } = &hint {
            let wakes = state.local_wakes.entry(job_type.clone()).or_default();
            *wakes = wakes.saturating_add(*count);
        }
        state.deliver(&hint);
        state.waiting.push_back(Waiting { hint, is_local, sent });
        drop(state);
        self.wanted.notify_one();
        Ok(result)
    }

    /// Claims a wake-up of a hint that this process has published and not sent yet. Returns whether there was one.
    async fn claim_locally(&self, job_type: &TypeName) -> Result<bool> {
        loop {
            let mut taken = pin!(self.taken.notified());
            // Before the check, so that a batch that is taken in between is noticed.
            taken.as_mut().enable();
            {
                let mut state = self.open()?;
                let Some(wakes) = state.local_wakes.get_mut(job_type) else { return Ok(false) };
                if *wakes > 0 {
                    *wakes -= 1;
                    if !state.has_local_wakes() {
                        self.claimed.notify_one();
                    }
                    return Ok(true);
                }
            }
            // Other workers of this process were faster, and the budget is not in Redis yet.
            taken.await;
        }
    }

    /// Registers a subscription. It is live once `live` reaches the returned version.
    fn subscribe(self: &Arc<Self>, topics: Vec<Topic>) -> Result<(Subscription, u64)> {
        let id = self.next_subscriber.fetch_add(1, Ordering::Relaxed);
        let (weak, ended) = (Arc::downgrade(self), topics.clone());
        let (publisher, subscription) = Subscription::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.unsubscribe(id, &ended);
            }
        });
        let mut state = self.open()?;
        for topic in topics {
            state.topics.entry(topic).or_default().insert(id, publisher.clone());
        }
        state.version += 1;
        let version = state.version;
        drop(state);
        self.changed.notify_one();
        Ok((subscription, version))
    }

    fn unsubscribe(&self, id: u64, topics: &[Topic]) {
        let mut state = self.state();
        for topic in topics {
            let Some(subscribers) = state.topics.get_mut(topic) else { continue };
            subscribers.remove(&id);
            if subscribers.is_empty() {
                state.topics.remove(topic);
                state.version += 1;
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Sends queued hints in batches, forever.
    async fn keep_sending(self: Arc<Self>, mut connection: Connection) {
        loop {
            self.wanted.notified().await;
            let claims = async {
                while self.state().has_local_wakes() {
                    self.claimed.notified().await;
                }
            };
            let _ = timeout(LOCAL_CLAIM_TIME, claims).await;
            self.send_queued(&mut connection).await;
        }
    }

    /// Sends queued hints in batches until none are left.
    async fn send_queued(&self, connection: &mut Connection) {
        let _sending = self.sending.lock().await;
        loop {
            let Some(batch) = self.state().take(BATCH_MAX) else { return };
            self.taken.notify_waiters();
            let sent = self.send_batch(&batch, connection).await;
            if let Err(error) = &sent {
                tracing::debug!(%error, "sending hints failed");
            }
            for publisher in batch.senders {
                // Fails if the publisher was dropped, which is fine.
                let _ = publisher.send(sent.clone());
            }
        }
    }

    /// Sends hints in one call. A pipeline needs two thirds of the script's processor time, but a cluster may redirect
    /// each of its commands while it moves the slot.
    async fn send_batch(&self, batch: &Batch, connection: &mut Connection) -> Result<()> {
        if batch.hints.is_empty() {
            return Ok(());
        }
        let message = |hint: &Hint| [self.sender.as_bytes(), hint.to_message().as_ref()].concat();
        if matches!(connection, Connection::Cluster(_)) {
            let arguments = |(hint, wakes): &(Hint, Option<u32>)| {
                let wakes = wakes.map_or_else(String::new, |wakes| wakes.to_string());
                [hint::channel(&hint.topic()).into_bytes(), message(hint), wakes.into_bytes()]
            };
            let arguments: Vec<_> = batch.hints.iter().flat_map(arguments).collect();
            return send(connection, &self.publish, &self.tag, &arguments).await;
        }
        let mut pipeline = redis::pipe();
        for (hint, wakes) in &batch.hints {
            let channel = hint::channel(&hint.topic());
            if let Some(wakes) = wakes {
                let budget = format!("{}:wake:{channel}", self.tag);
                pipeline.cmd("INCRBY").arg(&budget).arg(*wakes).ignore();
                pipeline.cmd("PEXPIRE").arg(budget).arg(BUDGET_TTL_MS).ignore();
            }
            let channel = format!("{}:hint:{channel}", self.tag);
            pipeline.cmd("SPUBLISH").arg(channel).arg(message(hint)).ignore();
        }
        pipeline.query_async(connection).await.map_err(|error| connection.error(error))
    }

    /// Delivers a received message to the subscribers of a topic, unless this notifier has sent it: then it is delivered
    /// already.
    fn receive(&self, topic: &Topic, message: &[u8]) {
        if let Some((sender, message)) = message.split_at_checked(size_of::<Uuid>())
            && sender != self.sender.as_bytes()
            && let Some(hint) = Hint::from_message(topic, message)
        {
            self.state().deliver(&hint);
        }
    }

    /// Signals to all local subscribers that they may have missed hints.
    fn gap(&self) {
        self.state().topics.values().flat_map(HashMap::values).for_each(Publisher::gap);
    }
}

/// Hints to send in one call.
struct Batch {
    /// The hints, and by how much each increases the wake budget of its type, if it has one.
    hints: Vec<(Hint, Option<u32>)>,
    /// The publishers that wait for the result.
    senders: Vec<oneshot::Sender<Result<()>>>,
}

impl State {
    /// Takes up to `max` queued hints, with the wake-ups that are left of them. Returns `None` if no hint is queued.
    fn take(&mut self, max: usize) -> Option<Batch> {
        if self.waiting.is_empty() {
            return None;
        }
        let waiting: Vec<_> = self.waiting.drain(..self.waiting.len().min(max)).collect();
        let mut batch = Batch { hints: Vec::with_capacity(waiting.len()), senders: Vec::new() };
        // The types whose wake-ups were all claimed here, or not.
        let mut are_claimed = HashMap::new();
        for Waiting { hint, is_local, sent } in waiting {
            batch.senders.extend(sent);
            let Hint::Scheduled { job_type, count, .. } = &hint else {
                batch.hints.push((hint, None));
                continue;
            };
            if !is_local {
                let count = *count;
                batch.hints.push((hint, Some(count)));
                continue;
            }
            // The first hint of a type has the wake-ups that are left of all its hints.
            let left = self.local_wakes.remove(job_type).unwrap_or(0);
            let is_claimed = *are_claimed.entry(job_type.clone()).or_insert(left == 0);
            // If several workers subscribe here, those that have not claimed a wake-up look for the budget in Redis. Without
            // a budget, all of them would wake.
            if !is_claimed || self.subscribers(&hint.topic()).nth(1).is_some() {
                batch.hints.push((hint, Some(left)));
            }
        }
        Some(batch)
    }

    fn has_local_wakes(&self) -> bool {
        self.local_wakes.values().any(|wakes| *wakes > 0)
    }

    /// Delivers a hint to the subscribers of this process.
    fn deliver(&self, hint: &Hint) {
        self.subscribers(&hint.topic()).for_each(|publisher| publisher.send(hint.clone()));
    }

    fn subscribers(&self, topic: &Topic) -> impl Iterator<Item = &Publisher> {
        self.topics.get(topic).into_iter().flat_map(HashMap::values)
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the notifier is closed: create a new one")
}
