//! The client: starts, awaits, queries and changes chains.

mod announce;
mod batch;
mod blockers;
mod bulk;
mod check_idle;
mod collect;
mod commands;
mod create_and_acquire;
mod dependents;
mod dispatch;
mod event_message;
mod events;
mod executor;
mod firing;
mod idle_workers;
mod interest;
mod local_output;
mod outbox;
mod outside;
mod per_runtime;
mod plan;
mod schedules;
mod send;
mod start;
mod store_time;
mod trace;
mod transaction;
mod wait;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use announce::{AnnouncementGuard, Announcements};
pub(crate) use batch::{Batcher, batches, unanswered};
pub use bulk::{ChainPages, ChangedChains};
pub(crate) use collect::Collector;
pub(crate) use create_and_acquire::{AcquireSource, PendingAcquire};
pub(crate) use dispatch::{Dispatcher, Wanted};
pub(crate) use event_message::{EventKind, EventMessage};
pub use events::{JobEvent, JobEventKind, JobEvents};
pub(crate) use firing::{visit_due, visit_due_page, visit_every};
pub(crate) use idle_workers::{Expected, IdleWorker};
pub(crate) use interest::Watching;
pub(crate) use local_output::Completed;
pub use outside::{Completion, NoMore, Outside, OutsideStep};
pub(crate) use per_runtime::PerRuntime;
pub use plan::{Destination, IntoPlan, Plan, Start, plan};
pub(crate) use plan::{change_planned, job_options, new_job};
pub(crate) use schedules::{DECLARED_EVERY, Declaration, Declared, Declarer, is_noted};
pub use schedules::{Schedule, ScheduleDetails, Schedules};
pub(crate) use send::{BusyRetries, answered, answered_within, send_repeatedly};
pub(crate) use start::refused;
pub(crate) use trace::RequestedTraces;
pub use transaction::{InTx, PendingAnnouncements, Tx};
pub use wait::Wait;
use wait::query_batcher;
pub(crate) use wait::{ChainWait, FoundChain, Prepared, WaitOptions, wait_options};
pub(crate) use watch::Watcher;

use crate::chain::Chain;
use crate::command::{Created, ListWorkers, NewChain, Pause, WorkerInfo};
use crate::error::Result;
use crate::id::ChainId;
use crate::job::{Blockers, Entry};
use crate::name::TypeName;
use crate::notifier::{Notifier, Reach};
use crate::observer::{Log, Observer};
use crate::queue::{Encoding, Json, QueueBuilder};
use crate::record::ChainRecord;
use crate::store::{AnyStore, BoxFuture, Store, Transactional};
use commands::commands;
use start::start_batcher;

/// How long closing a client waits for its hints to be published.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of a store: starts, awaits, queries and changes chains. Cheap to clone; clones share everything.
///
/// In a field or an argument, name the alias for your store: `windlass::postgres::Client`, `sqlite::Client` and so on.
/// `Client<dyn Store>` is the same client for tools that do not know the type of their store.
pub struct Client<S: ?Sized> {
    pub(crate) shared: Arc<Shared<S>>,
}

pub(crate) struct Shared<S: ?Sized> {
    /// Batches the chains that concurrent callers start.
    pub(crate) starts: StartBatcher,
    /// Batches the queries of callers that wait for a chain to close.
    chain_queries: QueryBatcher,
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// Transactions that the application ends itself.
    watcher: Arc<Watcher>,
    /// The number of transactions that have asked to resolve waits since the task that resolves them started.
    /// 0 if no task runs.
    pub(crate) resolving: Arc<PerRuntime<u32>>,
    pub(crate) store: Arc<S>,
}

type StartBatcher = Batcher<NewChain, Created>;
type QueryBatcher = Batcher<ChainId, Option<ChainRecord>>;

/// A builder for a [`Client`]. See [`Client::builder`].
pub struct ClientBuilder<S: ?Sized> {
    store: Arc<S>,
    notifier: Option<Arc<dyn Notifier>>,
    observers: Vec<Arc<dyn Observer>>,
}

impl<S: Store + ?Sized> Client<S> {
    /// Creates a client of this store with the default settings. The client notifies, and is notified by, every process
    /// that uses the store. See [`Store::notifier`].
    ///
    /// Does not connect, and may be called outside a runtime.
    pub fn new(store: impl Into<Arc<S>>) -> Self {
        Self::builder(store).build()
    }

    /// Returns a builder for a client of this store, to set a notifier and observers.
    pub fn builder(store: impl Into<Arc<S>>) -> ClientBuilder<S> {
        ClientBuilder { store: store.into(), notifier: None, observers: Vec::new() }
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Starts a chain, outside any transaction.
    ///
    /// Concurrent starts share a write: starts that arrive while a write is in progress form the next one.
    ///
    /// ```
    /// # use windlass::{Client, Entry, Job, MemoryStore};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
    /// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Mail {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let client = Client::new(MemoryStore::new());
    /// let first = client.start(Mail { to: "ada".into() }).key("order-7").priority(5).await?;
    /// let again = client.start(Mail { to: "ada".into() }).key("order-7").await?;
    /// assert!(again == first && !again.is_new(), "the key is held by the first");
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it completes, the chain may or may not have been started.
    pub fn start<J: Entry>(&self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        plan(job).to(self)
    }

    /// Waits for a chain to close and returns its output.
    pub fn wait<J: Entry>(&self, chain: Chain<J>) -> Wait<'_, J, S> {
        Wait::new(self, chain)
    }

    /// Waits for a chain of any type to close and returns its record. For tools that do not know job types.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if the chain is still open after `timeout`. The
    /// chain continues.
    #[must_use = "a wait does nothing until it is awaited"]
    pub fn closed(&self, chain: ChainId, timeout: Duration) -> BoxFuture<'_, Result<ChainRecord>> {
        let options = WaitOptions { timeout, ..WaitOptions::default() };
        Box::pin(ChainWait::new(self, chain, chain.into(), options).run_for_record())
    }

    /// Returns a builder for the queue with this name. Its jobs have input `P` and output `O`, encoded as
    /// JSON. See [`queue`].
    ///
    /// [`queue`]: crate::queue
    pub fn queue<P, O>(&self, name: impl AsRef<str>) -> QueueBuilder<P, O>
    where
        P: Serialize + DeserializeOwned + Send + Sync + 'static,
        O: Serialize + DeserializeOwned + Send + 'static,
    {
        self.queue_with(name, Json)
    }

    /// Like [`queue`](Self::queue), with another encoding.
    pub fn queue_with<P, O>(
        &self,
        name: impl AsRef<str>,
        encoding: impl Encoding<P> + Encoding<O> + Clone,
    ) -> QueueBuilder<P, O>
    where
        P: Send + Sync + 'static,
        O: Send + 'static,
    {
        let store = AnyStore::new(Arc::clone(&self.shared.store));
        // Each queue has its own batchers. A slow write of one queue then does not delay the others, and
        // draining a queue, which closes the task tracker of its batcher, does not reject starts elsewhere.
        let client = self.on(store, self.shared.starts.separate(), self.shared.chain_queries.separate());
        QueueBuilder::new(client, name.as_ref(), encoding)
    }

    /// Lists the live workers: those whose latest heartbeat has not expired.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>> {
        Ok(commands::run(self, ListWorkers).await?.workers)
    }

    /// Returns which processes this client currently receives hints from.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.shared.dispatcher.reach()
    }

    /// Publishes the hints and events that are still queued, so that workers in other processes learn of the latest
    /// changes, and closes the notifier and the store. Call it before the process exits.
    ///
    /// Clones of this client, and other clients of the same store, stop working too.
    ///
    /// Waits up to 5 s to find out how the transactions of the application ended, and then up to 5 s for hints and
    /// events to be sent. Drops what could not be sent by then:
    ///
    /// - hints: workers find the changes by polling;
    /// - outcomes of runs of [schedules](Self::schedules): another worker records them when it checks the schedule, up to
    ///   5 minutes later;
    /// - events of queues: subscribers do not receive them.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub async fn close(&self) -> Result<()> {
        self.shared.watcher.flush(FLUSH_TIMEOUT).await;
        self.shared.dispatcher.flush(FLUSH_TIMEOUT).await;
        // Nothing depends on the notifier, so its error is of no use to the caller.
        let _ = self.shared.dispatcher.close().await;
        self.store().close().await
    }

    commands!([&self] self);

    /// Returns the same client without the type of its store.
    pub(crate) fn erased(&self) -> Client<AnyStore> {
        let store = AnyStore::new(Arc::clone(&self.shared.store));
        self.on(store, self.shared.starts.clone(), self.shared.chain_queries.clone())
    }

    /// Pauses or resumes a job type. Ignores whether the type was paused before, so the command can be
    /// repeated after a lost reply.
    pub(crate) async fn set_paused(&self, job_type: &TypeName, paused: bool) -> Result<()> {
        let types = vec![job_type.clone()];
        send_repeatedly(self.store(), &Pause { types, paused }).await.map(drop)
    }
}

impl<S: Store> Client<S> {
    /// Converts the client into one for code that does not know the type of its store. The result shares
    /// everything with the clones of this client.
    #[must_use]
    pub fn into_dyn(self) -> Client<dyn Store> {
        let store: Arc<dyn Store> = Arc::clone(&self.shared.store) as _;
        self.on(store, self.shared.starts.clone(), self.shared.chain_queries.clone())
    }
}

impl<S: ?Sized> Client<S> {
    /// Returns a client with the same dispatcher, for another type of the same store.
    fn on<T: ?Sized>(
        &self,
        store: impl Into<Arc<T>>,
        starts: StartBatcher,
        chain_queries: QueryBatcher,
    ) -> Client<T> {
        let dispatcher = Arc::clone(&self.shared.dispatcher);
        let watcher = Arc::clone(&self.shared.watcher);
        let resolving = Arc::clone(&self.shared.resolving);
        Client {
            shared: Arc::new(Shared {
                starts,
                chain_queries,
                dispatcher,
                watcher,
                resolving,
                store: store.into(),
            }),
        }
    }
}

impl<S: Transactional> Client<S> {
    /// Begins a transaction. Chains that are started in it exist once the transaction has committed.
    pub async fn begin(&self) -> Result<Tx<S>> {
        Tx::begin(self).await
    }

    /// Returns a handle that runs commands inside a transaction that the caller has begun and will end. It
    /// can be a transaction of the store, or one of the application's own database driver. The commands are
    /// refused if no transaction is open.
    ///
    /// Commit as usual: soon after the commit, the client announces the changes to workers, waits and observers, and
    /// runs the commit hooks. It detects how the transaction ended, and which changes were rolled back to a savepoint.
    /// If another client changes the same job before this check, events and hooks may be dropped. If another client
    /// deletes a chain that the transaction has started, or re-creates a chain that the transaction has deleted, the
    /// change counts as rolled back. See [`InTx::after_commit`] for these cases.
    ///
    /// ```
    /// # use windlass::{Client, Entry, Job, MemoryStore, Transactional};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
    /// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Mail {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let client = Client::new(MemoryStore::new());
    /// # let store = client.store();
    /// let mut tx = store.begin().await?;
    /// let chain = client.in_tx(&mut tx).start(Mail { to: "ada".into() }).await?;
    /// store.commit(tx).await?;
    /// assert!(client.chain(chain).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn in_tx<'a>(&self, tx: impl Into<S::TxRef<'a>>) -> InTx<'a, S> {
        InTx::new(self, tx.into())
    }
}

impl<S: Store + ?Sized> ClientBuilder<S> {
    /// Sets the notifier. Default: the store's own ([`Store::notifier`]).
    #[must_use]
    pub fn notifier(mut self, notifier: impl Notifier) -> Self {
        self.notifier = Some(Arc::new(notifier));
        self
    }

    /// Adds an observer. It receives events in addition to the observers added before and the default one,
    /// [`Log`].
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Builds the client.
    #[must_use]
    pub fn build(self) -> Client<S> {
        let Self { store, notifier, observers } = self;
        let notifier = notifier.unwrap_or_else(|| store.notifier());
        let dispatcher =
            Dispatcher::new(notifier, Arc::new(Log), observers, AnyStore::new(Arc::clone(&store)));
        let starts = start_batcher(&store, &dispatcher);
        let chain_queries = query_batcher(&store, &dispatcher);
        let (watcher, resolving) = (Arc::default(), Arc::default());
        let shared = Shared { starts, chain_queries, dispatcher, watcher, resolving, store };
        Client { shared: Arc::new(shared) }
    }
}

impl<S: ?Sized> Clone for Client<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store + ?Sized> fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &&*self.shared.store).finish_non_exhaustive()
    }
}

impl<S: Store + ?Sized> fmt::Debug for ClientBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("store", &&*self.store).finish_non_exhaustive()
    }
}
