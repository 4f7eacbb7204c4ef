//! The client: what an application starts, waits for, looks at and changes.

mod announce;
mod batch;
mod commands;
mod executor;
mod outside;
mod plan;
mod send;
mod telling;
mod trace;
mod transaction;
mod wait;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use announce::{Announcements, Untold};
pub(crate) use batch::Batcher;
pub use outside::{Completion, NoMore, Outside, OutsideStep};
pub use plan::{Destination, IntoPlan, Plan, Start, plan};
pub(crate) use plan::{alter, batches, job_options, new_job, refused};
pub(crate) use send::{BusyRetries, answered};
pub(crate) use telling::{Teller, Watching};
pub use transaction::{InTx, Tx, Unannounced};
pub use wait::Wait;
pub(crate) use wait::{Ending, Patience};
pub(crate) use watch::{News, What};

use crate::chain::Chain;
use crate::command::{Create, Created, GetChains, ListWorkers, NewChain, Pause, Size, Target, WorkerInfo};
use crate::error::Result;
use crate::id::ChainId;
use crate::job::{Blockers, Entry};
use crate::limit::BATCH_MAX_BYTES;
use crate::name::TypeName;
use crate::notifier::{InProcessNotifier, Notifier};
use crate::observer::{Log, Observer};
use crate::queue::{Encoding, Json, QueueBuilder};
use crate::record::ChainRecord;
use crate::store::{AnyStore, BoxFuture, Store, Transactional};
use commands::commands;
use send::{send, send_repeatedly};

/// Starts chains, waits for them, looks at them and changes them. Cheap to clone; clones share everything.
///
/// `Client<dyn Store>` is the same for tools that do not know their store.
pub struct Client<S: ?Sized> {
    pub(crate) shared: Arc<Shared<S>>,
}

pub(crate) struct Shared<S: ?Sized> {
    pub(crate) creates: Batcher<NewChain, Created>,
    /// The looks of those who wait for the ends of chains.
    looks: Looks,
    pub(crate) teller: Arc<Teller>,
    pub(crate) store: Arc<S>,
}

type Looks = Batcher<ChainId, Option<ChainRecord>>;

/// Makes a [`Client`].
pub struct ClientBuilder<S: ?Sized> {
    store: Arc<S>,
    notifier: Arc<dyn Notifier>,
    observers: Vec<Arc<dyn Observer>>,
    publishes_events: bool,
}

impl<S: Store + ?Sized> Client<S> {
    /// A client of this store that notifies inside this process only.
    pub fn new(store: impl Into<Arc<S>>) -> Self {
        Self::builder(store).build()
    }

    /// A client of this store, with a choice of notifier and observer.
    pub fn builder(store: impl Into<Arc<S>>) -> ClientBuilder<S> {
        let notifier = Arc::new(InProcessNotifier::new());
        let observers: Vec<Arc<dyn Observer>> = vec![Arc::new(Log)];
        ClientBuilder { store: store.into(), notifier, observers, publishes_events: false }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Starts a chain at once. Concurrent starts share a write: while one is under way, the next collects.
    ///
    /// ```
    /// # use windlass_core::{Client, Entry, Job, MemoryStore};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
    /// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Mail {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass_core::Result<()> {
    /// let client = Client::new(MemoryStore::new());
    /// let first = client.start(Mail { to: "ada".into() }).key("order-7").priority(5).await?;
    /// let again = client.start(Mail { to: "ada".into() }).key("order-7").await?;
    /// assert!(again == first && !again.is_new(), "the key is held by the first");
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel-safe in this sense: a dropped start may or may not have been carried out.
    pub fn start<J: Entry>(&self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        plan(job).to(self)
    }

    /// Waits for what a chain gives.
    pub fn wait<J: Entry>(&self, chain: Chain<J>) -> Wait<'_, J, S> {
        Wait::new(self, chain)
    }

    /// Waits for the end of a chain of whatever type, and gives it as it is stored then: for tools that do not
    /// know job types. An error of kind `TimedOut` if it is still open after so long; the chain goes on.
    #[must_use = "a wait does nothing until it is awaited"]
    pub fn closed(&self, chain: ChainId, timeout: Duration) -> BoxFuture<'_, Result<ChainRecord>> {
        let patience = Patience { timeout, ..Patience::default() };
        Box::pin(Ending::new(self, chain, chain.into(), patience).run())
    }

    /// A queue of this name whose jobs take a `P` and give an `O`, written as JSON. See [`queue`].
    ///
    /// [`queue`]: crate::queue
    pub fn queue<P, O>(&self, name: impl AsRef<str>) -> QueueBuilder<P, O>
    where
        P: Serialize + DeserializeOwned + Send + Sync + 'static,
        O: Serialize + DeserializeOwned + Send + 'static,
    {
        self.queue_with(name, Json)
    }

    /// The same with another encoding.
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
        // A batcher of its own: a write of one queue that takes long holds no other up.
        let client = self.on(store, self.shared.creates.apart(), self.shared.looks.apart());
        QueueBuilder::new(client, name.as_ref(), encoding)
    }

    /// The workers that were heard of within their time.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>> {
        Ok(commands::run(self, ListWorkers).await?.workers)
    }

    commands!([&self] self);

    /// Pauses a type, or resumes it. Whether it was paused before is not asked, so that this can be repeated
    /// when a reply is lost.
    pub(crate) async fn set_paused(&self, job_type: &TypeName, paused: bool) -> Result<()> {
        let types = vec![job_type.clone()];
        send_repeatedly(self.store(), &Pause { types, paused }).await.map(drop)
    }
}

impl<S: Store> Client<S> {
    /// The same client for code that does not know its store. The two share everything.
    #[must_use]
    pub fn into_dyn(self) -> Client<dyn Store> {
        let store: Arc<dyn Store> = Arc::clone(&self.shared.store) as _;
        self.on(store, self.shared.creates.clone(), self.shared.looks.clone())
    }
}

impl<S: ?Sized> Client<S> {
    /// The same client, on its store by another name.
    fn on<T: ?Sized>(
        &self,
        store: impl Into<Arc<T>>,
        creates: Batcher<NewChain, Created>,
        looks: Looks,
    ) -> Client<T> {
        let teller = Arc::clone(&self.shared.teller);
        Client { shared: Arc::new(Shared { creates, looks, teller, store: store.into() }) }
    }
}

impl<S: Transactional> Client<S> {
    /// Begins a transaction: what is started in it exists when it commits, or not at all.
    pub async fn begin(&self) -> Result<Tx<S>> {
        Tx::begin(self).await
    }

    /// Gives commands inside a transaction that somebody else began and will end: one of the store's, or one of
    /// the application's own driver. They are refused if there is none.
    ///
    /// ```
    /// # use windlass_core::{Client, Entry, Job, MemoryStore, Transactional};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
    /// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Mail {}
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass_core::Result<()> {
    /// let client = Client::new(MemoryStore::new());
    /// # let store = client.store();
    /// let mut tx = store.begin().await?;
    /// let mut inside = client.in_tx(&mut tx);
    /// let chain = inside.start(Mail { to: "ada".into() }).await?;
    /// inside.announcements().announce_after(store.commit(tx)).await?;
    /// assert!(client.chain(chain).await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn in_tx<'a>(&self, tx: impl Into<S::Lent<'a>>) -> InTx<'a, S> {
        InTx::new(self, tx.into())
    }
}

impl<S: Store + ?Sized> ClientBuilder<S> {
    /// Notifies through this one.
    #[must_use]
    pub fn notifier(mut self, notifier: impl Notifier) -> Self {
        self.notifier = Arc::new(notifier);
        self
    }

    /// Tells this one what happens, beside those that were given before.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Publishes events to those who watch in other processes, where the notifier crosses them (see
    /// [`Queue::events`](crate::Queue::events)). It costs a message for each event, several for a job; those
    /// who watch by this client need no such order.
    #[must_use]
    pub fn publish_events(mut self) -> Self {
        self.publishes_events = true;
        self
    }

    /// The client.
    #[must_use]
    pub fn build(self) -> Client<S> {
        let Self { store, notifier, observers, publishes_events } = self;
        let teller = Teller::new(notifier, observers, publishes_events);
        let (creating, telling, looking) = (Arc::clone(&store), Arc::clone(&teller), Arc::clone(&store));
        let creates = Batcher::new(
            |new: &NewChain| new.job.size(),
            move |chains| -> BoxFuture<'static, _> {
                let (store, teller) = (Arc::clone(&creating), Arc::clone(&telling));
                Box::pin(async move { create(&*store, &teller, chains).await })
            },
        );
        let looks = Batcher::new(
            |_| LOOK,
            move |chains| -> BoxFuture<'static, _> {
                let store = Arc::clone(&looking);
                Box::pin(async move { look(&*store, chains).await })
            },
        );
        Client { shared: Arc::new(Shared { creates, looks, teller, store }) }
    }
}

/// Creates chains with one command, and announces them.
async fn create<S: Store + ?Sized>(
    store: &S,
    teller: &Teller,
    chains: Vec<NewChain>,
) -> Result<Vec<Created>> {
    let request = Create { chains };
    let created = send(store, &request).await?.chains;
    let mut announcements = Announcements::by(teller);
    for (new, created) in request.chains.iter().zip(&created) {
        announcements.created(new, created);
    }
    announcements.send(teller);
    Ok(created)
}

/// How large a look counts: nobody knows what it will bring, and 64 of them share a read.
const LOOK: Size = Size { items: 1, bytes: BATCH_MAX_BYTES / 64, blockers: 0 };

/// Looks chains up with one command.
async fn look<S: Store + ?Sized>(store: &S, chains: Vec<ChainId>) -> Result<Vec<Option<ChainRecord>>> {
    let chains = chains.into_iter().map(Target::Chain).collect();
    Ok(send(store, &GetChains { chains }).await?.chains)
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
