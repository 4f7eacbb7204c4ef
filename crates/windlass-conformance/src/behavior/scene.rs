use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use windlass_core::{
    BoxFuture, Chain, ChainId, Client, Entry, ErrorKind, Event, Hint, Job, JobRecord, Key, Notifier, Result,
    Running, Store, Subscription, Target, Timestamp, Topic, Transactional, TypeName, Worker,
};

use super::any::AnyStore;
use super::job::Mark;
use super::seen::Seen;
use crate::runner::Kept;

/// Poll interval of workers and waits. It is short, so that only the cases about hints depend on hints.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// Default time that a case waits for an expected condition.
const PATIENCE: Duration = Duration::from_secs(20);

/// Interval for polling a condition that has no signal.
const PAUSE: Duration = Duration::from_millis(5);

/// Deadline for a worker to stop. Only cases about stopping wait this long.
const STOP: Duration = Duration::from_secs(5);

/// A fresh store and its notifier, as seen by two processes. Clones share the same store and notifier.
pub struct Scene<S> {
    /// A client on the first handle of the store.
    pub client: Client<S>,
    /// A client on the second handle of the same store.
    pub other: Client<S>,
    /// The notifier of the first client.
    pub notifier: Arc<dyn Notifier>,
    /// The notifier of the other client.
    others_notifier: Arc<dyn Notifier>,
    /// The events that both clients have reported to their observer.
    pub seen: Seen,
    pub(super) store: Arc<S>,
    others_store: Arc<S>,
    pub(super) poison: Option<Arc<dyn Any + Send + Sync>>,
    outage: Option<Outage>,
    patience: Duration,
    keep: Kept,
}

type Outage = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Methods for fixtures.
impl<S: Store> Scene<S> {
    /// Creates a scene on two handles of a fresh store, each with its own handle of the same notifier.
    #[must_use]
    pub fn new(stores: [Arc<S>; 2], notifiers: [Arc<dyn Notifier>; 2]) -> Self {
        let ([store, others_store], [notifier, others]) = (stores, notifiers);
        let seen = Seen::default();
        let client = |store: &Arc<S>, notifier: &Arc<dyn Notifier>| {
            let builder = Client::builder(Arc::clone(store)).notifier(Shared(Arc::clone(notifier)));
            builder.observer(seen.clone()).build()
        };
        Self {
            client: client(&store, &notifier),
            other: client(&others_store, &others),
            notifier,
            others_notifier: others,
            seen,
            store,
            others_store,
            poison: None,
            outage: None,
            patience: PATIENCE,
            keep: Arc::new(()),
        }
    }

    /// Attaches a resource that lives as long as the scene, such as a server or a directory.
    #[must_use]
    pub fn keeping(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Arc::new(keep);
        self
    }

    /// Sets how long cases wait for an expected condition (default: 20 s).
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Adds a function that breaks all connections to the store. It must be possible to connect again afterwards.
    #[must_use]
    pub fn with_outage(
        mut self,
        outage: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.outage = Some(Arc::new(outage));
        self
    }
}

impl<S: Store> Scene<S> {
    /// Forgets the type of the store.
    pub(super) fn erased(self) -> Scene<AnyStore> {
        let Self { store, others_store, notifier, others_notifier, outage, patience, keep, .. } = self;
        let stores = [AnyStore::new(store), AnyStore::new(others_store)].map(Arc::new);
        let scene = Scene::new(stores, [notifier, others_notifier]);
        Scene { outage, patience, keep, ..scene }
    }
}

/// Helpers for cases.
impl<S: Store> Scene<S> {
    /// Returns the resource of the scene.
    pub(super) fn kept(&self) -> Kept {
        Arc::clone(&self.keep)
    }

    /// Makes both notifiers connect. Some connect on first use, which is not what a case should measure.
    pub(super) async fn connect(&self) {
        for notifier in [&self.notifier, &self.others_notifier] {
            let _ = notifier.subscribe(vec![Topic::ChainClosed(ChainId::new())]).await;
        }
    }

    /// Returns a worker on the first client that needs no hints.
    pub fn worker(&self) -> Worker<S> {
        Worker::new(&self.client).poll(POLL).concurrency(1)
    }

    /// Returns a worker on the other client, as in another process.
    pub fn other_worker(&self) -> Worker<S> {
        Worker::new(&self.other).poll(POLL).concurrency(1)
    }

    /// Returns a client of a store that wraps the scene's store, with the scene's notifier and observer.
    pub(super) fn client_on<W: Store>(&self, store: W) -> Client<W> {
        let builder = Client::builder(store).notifier(Shared(Arc::clone(&self.notifier)));
        builder.observer(self.seen.clone()).build()
    }

    /// Awaits a future within the scene's deadline and returns its output.
    ///
    /// # Panics
    ///
    /// If the deadline passes. The message says what was expected.
    pub async fn soon<T>(&self, what: &str, future: impl Future<Output = T> + Send) -> T {
        match timeout(self.patience, future).await {
            Ok(value) => value,
            Err(_) => panic!("after {:?} still not true: {what}", self.patience),
        }
    }

    /// Waits for a chain and returns its output.
    pub async fn output<J: Entry>(&self, chain: Chain<J>) -> J::Output {
        self.result(chain).await.expect("the chain returns its output")
    }

    /// Waits for a chain and returns its output or error.
    pub async fn result<J: Entry>(&self, chain: Chain<J>) -> Result<J::Output> {
        self.client.wait(chain).poll(POLL).timeout(self.patience).await
    }

    /// Returns the latest job of a chain, as stored.
    pub async fn job<J: Job>(&self, chain: Chain<J>) -> JobRecord {
        self.client.chain(chain).await.expect("the store answers").expect("the chain is stored").latest
    }

    /// Waits until the latest job of a chain satisfies the condition, and returns that job.
    pub async fn job_that<J: Job>(
        &self,
        what: &str,
        chain: Chain<J>,
        is_so: impl Fn(&JobRecord) -> bool + Send + Sync,
    ) -> JobRecord {
        self.soon(what, async {
            loop {
                let job = self.job(chain).await;
                if is_so(&job) {
                    return job;
                }
                sleep(PAUSE).await;
            }
        })
        .await
    }

    /// Waits until the condition holds.
    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool + Send + Sync) {
        self.soon(what, async {
            while !is_so() {
                sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// Waits until the observer has received `count` matching events.
    pub async fn sees(&self, what: &str, count: usize, is: impl Fn(&Event) -> bool + Send + Sync) {
        self.soon(what, self.seen.until(count, is)).await;
    }

    /// Waits until the store's clock has passed this time.
    pub async fn past(&self, time: Timestamp) {
        self.soon("the store's clock advances", async {
            loop {
                let chain = self.client.start(Mark).await.expect("a mark is started");
                if self.job(chain).await.created_at > time {
                    return;
                }
                sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// Whether a transaction with this mark has committed. See [`Scene::mark`].
    pub async fn is_marked(&self, name: &str) -> bool {
        let (mark, key) = (TypeName::new(Mark::NAME), Key::new(name));
        let target = Target::Key(mark.expect("the name is valid"), key.expect("the key is valid"));
        self.other.chain(target).await.expect("the store answers").is_some()
    }

    /// Breaks all connections to the store.
    pub async fn break_connections(&self) {
        if let Some(outage) = &self.outage {
            outage().await;
        }
    }

    /// Stops workers whose handlers end when they are asked to stop.
    pub async fn stop_now<W: Store + ?Sized>(&self, workers: impl IntoIterator<Item = Running<W>>) {
        for worker in workers {
            self.soon("the worker stops", worker.stop_now(STOP)).await;
        }
    }

    /// Stops workers.
    pub async fn stop<W: Store + ?Sized>(&self, workers: impl IntoIterator<Item = Running<W>>) {
        for worker in workers {
            self.soon("the worker stops", worker.stop(STOP)).await;
        }
    }
}

/// Repeats a call while it returns [`ErrorKind::Busy`], and returns its result. Another transaction may hold a row for
/// longer than a client retries.
pub(super) async fn unless_busy<T, F: Future<Output = Result<T>>>(call: impl Fn() -> F) -> T {
    loop {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            given => return given.expect("it is not refused"),
        }
    }
}

/// Makes a statement fail inside a transaction of the driver. The second argument only names the lifetime, which an
/// associated type cannot.
pub(super) type Poison<S> = for<'t> fn(<S as Transactional>::Connection<'t>, &'t ()) -> BoxFuture<'t, ()>;

impl<S: Transactional> Scene<S> {
    /// Adds a function that makes a statement of a transaction fail, so that the driver rejects later statements.
    #[must_use]
    pub fn with_poison(mut self, poison: Poison<S>) -> Self {
        self.poison = Some(Arc::new(poison));
        self
    }

    /// Writes a mark that stands for a row of the application. It is stored if the transaction commits.
    ///
    /// # Panics
    ///
    /// If the mark is already stored.
    pub async fn mark(&self, tx: S::Connection<'_>, name: &str) -> Result<()> {
        let chain = self.client.in_tx(tx).start(Mark).key(name).await?;
        assert!(chain.is_new(), "{name:?} was marked before");
        Ok(())
    }

    /// Makes a statement of the transaction fail.
    pub async fn poison<'t>(&'t self, tx: S::Connection<'t>) {
        match self.poison.as_ref().and_then(|poison| poison.downcast_ref::<Poison<S>>()) {
            Some(poison) => poison(tx, &()).await,
            None => {
                let refused = windlass_core::command::Expire { max: 1 };
                let reply = self.store.run_in(tx.into(), refused).await;
                reply.expect_err("a worker's command is refused in a transaction");
            }
        }
    }
}

impl<S> Clone for Scene<S> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            other: self.other.clone(),
            notifier: Arc::clone(&self.notifier),
            others_notifier: Arc::clone(&self.others_notifier),
            seen: self.seen.clone(),
            store: Arc::clone(&self.store),
            others_store: Arc::clone(&self.others_store),
            poison: self.poison.clone(),
            outage: self.outage.clone(),
            patience: self.patience,
            keep: Arc::clone(&self.keep),
        }
    }
}

impl<S: Store> fmt::Debug for Scene<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A notifier handle that several clients share.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<dyn Notifier>);

impl Notifier for Shared {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        self.0.publish(hint)
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        self.0.subscribe(topics)
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        self.0.claim_wake(job_type)
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        self.0.is_awaited(chain)
    }

    fn is_watched(&self) -> Option<bool> {
        self.0.is_watched()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.close()
    }
}
