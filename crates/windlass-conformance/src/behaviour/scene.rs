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

use super::job::Mark;
use super::seen::Seen;

/// How often workers and waits look by themselves, so that no case depends on a hint unless it says so.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// How long a case waits for what is to happen, unless its scene says otherwise.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often a condition is looked at that nobody signals.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a worker may take to stop. Only a case about stopping waits for it.
const STOP: Duration = Duration::from_secs(5);

/// A fresh store and its notifier, as two processes would have them. Clones are on the same scene.
pub struct Scene<S> {
    /// The store, through one handle.
    pub client: Client<S>,
    /// The same store, through another.
    pub other: Client<S>,
    /// The notifier of the first client.
    pub notifier: Arc<dyn Notifier>,
    /// That of the other.
    others_notifier: Arc<dyn Notifier>,
    /// What the observer of both clients was told.
    pub seen: Seen,
    pub(super) store: Arc<S>,
    pub(super) poison: Option<Arc<dyn Any + Send + Sync>>,
    outage: Option<Outage>,
    patience: Duration,
    keep: Arc<dyn Any + Send + Sync>,
}

type Outage = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// What a fixture makes.
impl<S: Store> Scene<S> {
    /// A scene on two handles of a fresh store, each with a handle of the same notifier.
    #[must_use]
    pub fn new(stores: [Arc<S>; 2], notifiers: [Arc<dyn Notifier>; 2]) -> Self {
        let ([store, other], [notifier, others]) = (stores, notifiers);
        let seen = Seen::default();
        let client = |store: &Arc<S>, notifier: &Arc<dyn Notifier>| {
            let builder = Client::builder(Arc::clone(store)).notifier(Shared(Arc::clone(notifier)));
            builder.observer(seen.clone()).build()
        };
        Self {
            client: client(&store, &notifier),
            other: client(&other, &others),
            notifier,
            others_notifier: others,
            seen,
            store,
            poison: None,
            outage: None,
            patience: PATIENCE,
            keep: Arc::new(()),
        }
    }

    /// The same with something that lives as long as it: a server, a folder.
    #[must_use]
    pub fn keeping(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Arc::new(keep);
        self
    }

    /// The same with another deadline for what is to happen; 20 s unless said otherwise.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same with something that breaks all connections to the store, which then can be made again.
    #[must_use]
    pub fn with_outage(
        mut self,
        outage: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        self.outage = Some(Arc::new(outage));
        self
    }
}

/// What cases say often.
impl<S: Store> Scene<S> {
    /// Lets both notifiers connect, if they do so at their first use: a case is about what follows.
    pub(super) async fn connect(&self) {
        for notifier in [&self.notifier, &self.others_notifier] {
            let _ = notifier.subscribe(vec![Topic::ChainClosed(ChainId::new())]).await;
        }
    }

    /// A worker of the first client that needs no hints.
    pub fn worker(&self) -> Worker<S> {
        Worker::new(&self.client).poll(POLL)
    }

    /// A worker of the other client: another process.
    pub fn other_worker(&self) -> Worker<S> {
        Worker::new(&self.other).poll(POLL)
    }

    /// A client of a store that is wrapped around the scene's, with the scene's notifier and observer.
    pub(super) fn client_on<W: Store>(&self, store: W) -> Client<W> {
        let builder = Client::builder(store).notifier(Shared(Arc::clone(&self.notifier)));
        builder.observer(self.seen.clone()).build()
    }

    /// What this gives, within the scene's deadline.
    ///
    /// # Panics
    ///
    /// If it is late: the message says what was waited for.
    pub async fn soon<T>(&self, what: &str, future: impl Future<Output = T> + Send) -> T {
        match timeout(self.patience, future).await {
            Ok(value) => value,
            Err(_) => panic!("after {:?} still not true: {what}", self.patience),
        }
    }

    /// What a chain gives.
    pub async fn output<J: Entry>(&self, chain: Chain<J>) -> J::Output {
        self.result(chain).await.expect("the chain gives its output")
    }

    /// How a chain ends.
    pub async fn result<J: Entry>(&self, chain: Chain<J>) -> Result<J::Output> {
        self.client.wait(chain).poll(POLL).timeout(self.patience).await
    }

    /// The latest job of a chain, as it is stored.
    pub async fn job<J: Job>(&self, chain: Chain<J>) -> JobRecord {
        self.client.chain(chain).await.expect("the store answers").expect("the chain is stored").latest
    }

    /// The latest job of a chain, once it is so.
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

    /// Waits until it is so.
    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool + Send + Sync) {
        self.soon(what, async {
            while !is_so() {
                sleep(PAUSE).await;
            }
        })
        .await;
    }

    /// Waits until the observer was told so many events like this.
    pub async fn sees(&self, what: &str, count: usize, is: impl Fn(&Event) -> bool + Send + Sync) {
        self.soon(what, self.seen.until(count, is)).await;
    }

    /// Waits until the store's clock is past this time.
    pub async fn past(&self, time: Timestamp) {
        self.soon("time goes on", async {
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
        let target = Target::Key(mark.expect("the name is good"), key.expect("the key is good"));
        self.other.chain(target).await.expect("the store answers").is_some()
    }

    /// Breaks all connections to the store.
    pub async fn break_connections(&self) {
        if let Some(outage) = &self.outage {
            outage().await;
        }
    }

    /// Stops workers.
    pub async fn stop<W: Store + ?Sized>(&self, workers: impl IntoIterator<Item = Running<W>>) {
        for worker in workers {
            self.soon("the worker stops", worker.stop(STOP)).await;
        }
    }
}

/// What a call gives, which is repeated while a row is somebody else's for longer than a client has patience.
pub(super) async fn unless_busy<T, F: Future<Output = Result<T>>>(call: impl Fn() -> F) -> T {
    loop {
        match call().await {
            Err(error) if error.kind() == ErrorKind::Busy => {}
            given => return given.expect("it is not refused"),
        }
    }
}

/// A failed statement inside a transaction, as the driver has it.
pub(super) type Poison<S> = fn(&mut <S as Transactional>::Tx) -> BoxFuture<'_, ()>;

impl<S: Transactional> Scene<S> {
    /// The same with a way to make a statement of a transaction fail, so that the driver refuses the rest.
    #[must_use]
    pub fn with_poison(mut self, poison: fn(&mut S::Tx) -> BoxFuture<'_, ()>) -> Self {
        self.poison = Some(Arc::new(poison as Poison<S>));
        self
    }

    /// Writes what stands for a row of the application: it is there if the transaction commits.
    ///
    /// # Panics
    ///
    /// If it is there already.
    pub async fn mark(&self, tx: &mut S::Tx, name: &str) -> Result<()> {
        let chain = self.client.in_tx(S::lend(tx)).start(Mark).key(name).await?;
        assert!(chain.is_new(), "{name:?} was marked before");
        Ok(())
    }

    /// Lets a statement of the transaction fail.
    pub async fn poison(&self, tx: &mut S::Tx) {
        match self.poison.as_ref().and_then(|poison| poison.downcast_ref::<Poison<S>>()) {
            Some(poison) => poison(tx).await,
            None => {
                let refused = windlass_core::command::Expire { max: 1 };
                let reply = self.store.run_in(S::lend(tx), refused).await;
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

/// A notifier that is used in several places.
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

    fn is_watched(&self) -> bool {
        self.0.is_watched()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.close()
    }
}
