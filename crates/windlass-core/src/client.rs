//! The client: what an application starts, waits for, looks at and changes.

mod announce;
mod batch;
mod start;
mod telling;
mod transaction;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use announce::Announcements;
pub(crate) use start::new_job;
pub use start::{Creator, Start};
pub use transaction::{InTx, Tx};
pub use wait::Wait;

use crate::chain::Chain;
use crate::command::{
    Cancel, CancelMode, Cancelled, Create, Created, Delete, DeleteReply, GetChains, GetJobs, NewChain,
    Retried, Retry, RetryTarget, Target, Trigger, TriggerReply,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};
use crate::job::{Blockers, Entry, Job, decode_output};
use crate::notifier::{InProcessNotifier, Notifier};
use crate::observer::{Log, Observer};
use crate::record::{ChainRecord, JobRecord};
use crate::store::{BoxFuture, Store, Transactional};
pub(crate) use batch::Batcher;
pub(crate) use telling::Teller;

/// How often a creation is repeated whose reply was lost.
const CREATE_REPEATS: u32 = 3;

/// Starts chains, waits for them, looks at them and changes them. Cheap to clone; clones share everything.
///
/// `Client<dyn Store>` is the same for tools that do not know their store.
pub struct Client<S: ?Sized> {
    pub(crate) shared: Arc<Shared<S>>,
}

pub(crate) struct Shared<S: ?Sized> {
    creates: Batcher<NewChain, Created>,
    pub(crate) teller: Arc<Teller>,
    pub(crate) store: Arc<S>,
}

/// Makes a [`Client`].
pub struct ClientBuilder<S: ?Sized> {
    store: Arc<S>,
    notifier: Arc<dyn Notifier>,
    observer: Arc<dyn Observer>,
}

impl<S: Store + ?Sized> Client<S> {
    /// A client of this store that notifies inside this process only.
    pub fn new(store: impl Into<Arc<S>>) -> Self {
        Self::builder(store).build()
    }

    /// A client of this store, with a choice of notifier and observer.
    pub fn builder(store: impl Into<Arc<S>>) -> ClientBuilder<S> {
        let (notifier, observer) = (Arc::new(InProcessNotifier::new()), Arc::new(Log));
        ClientBuilder { store: store.into(), notifier, observer }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Starts a chain at once. Concurrent starts share a write: while one is under way, the next collects.
    ///
    /// Cancel-safe in this sense: a dropped start may or may not have been carried out.
    pub fn start<J: Entry>(&self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        Start::new(self, job)
    }

    /// Starts chains of one type with one command per thousand, and gives their handles in order.
    pub async fn start_many<J: Entry<Blockers = ()>>(
        &self,
        jobs: impl IntoIterator<Item = J> + Send,
    ) -> Result<Vec<Chain<J>>> {
        let mut started = Vec::new();
        for batch in start::batches(jobs)? {
            for created in self.create(batch).await? {
                started.push(start::handle(created)?);
            }
        }
        Ok(started)
    }

    /// Creates chains with one command, and announces them.
    pub async fn create(&self, chains: Vec<NewChain>) -> Result<Vec<Created>> {
        create(&*self.shared.store, &self.shared.teller, chains).await
    }

    /// Waits for what a chain gives.
    pub fn wait<J: Entry>(&self, chain: Chain<J>) -> Wait<'_, J, S> {
        Wait::new(self, chain)
    }

    /// What a chain gave, if it has completed. An error if it failed, was cancelled or is not stored.
    pub async fn output<J: Entry>(&self, chain: Chain<J>) -> Result<Option<J::Output>> {
        let record = self.chain(chain.id()).await?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("chain {} is not stored, or no longer", chain.id()))
        })?;
        if record.chain_type.as_str() != J::NAME && !J::ALIASES.contains(&record.chain_type.as_str()) {
            let (id, stored) = (chain.id(), &record.chain_type);
            let text = format!("chain {id} is of type `{stored}`, and `{}` was expected", J::NAME);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        match (record.closed, &record.latest.output) {
            (None, _) => Ok(None),
            (Some(_), Some(output)) => decode_output::<J>(record.latest.job_type.as_str(), output).map(Some),
            (Some(closed), None) => {
                Err(Error::chain_failed(record.id, closed.closed_as, record.latest.error.clone()))
            }
        }
    }

    /// A chain, by id, by one of its jobs, or by the key that points at it.
    pub async fn chain(&self, chain: impl Into<Target> + Send) -> Result<Option<ChainRecord>> {
        let mut reply = self.store().get_chains(GetChains { chains: vec![chain.into()] }).await?;
        Ok(reply.chains.pop().flatten())
    }

    /// A job.
    pub async fn job(&self, job: JobId) -> Result<Option<JobRecord>> {
        let mut reply = self.store().get_jobs(GetJobs { jobs: vec![job] }).await?;
        Ok(reply.jobs.pop().flatten())
    }

    /// Calls a chain off. A running job is left alone or asked to stop, as `mode` says.
    pub async fn cancel(&self, chain: impl Into<Target> + Send, mode: CancelMode) -> Result<Cancelled> {
        let reply = self.store().cancel(Cancel { chains: vec![chain.into()], mode }).await?;
        let mut announcements = Announcements::default();
        reply.chains.iter().for_each(|cancelled| announcements.cancelled(*cancelled));
        announcements.ripple(&reply.ripple);
        announcements.send(&self.shared.teller);
        Ok(reply.chains.first().copied().unwrap_or(Cancelled::NotFound))
    }

    /// Makes pending jobs due at once, all or none.
    pub async fn trigger(&self, jobs: Vec<Target>) -> Result<TriggerReply> {
        let reply = self.store().trigger(Trigger { jobs }).await?;
        let mut announcements = Announcements::default();
        announcements.triggered(&reply);
        announcements.send(&self.shared.teller);
        Ok(reply)
    }

    /// Opens a chain again that failed or was cancelled.
    pub async fn retry(&self, chain: impl Into<Target> + Send) -> Result<Retried> {
        let Some(record) = self.chain(chain).await? else { return Ok(Retried::NotFound) };
        let target = RetryTarget { job: record.latest.id, version: record.latest.version };
        let mut reply = self.store().retry(Retry { chains: vec![target] }).await?;
        let mut announcements = Announcements::default();
        reply.chains.iter().for_each(|retried| announcements.retried(retried));
        announcements.send(&self.shared.teller);
        Ok(reply.chains.pop().unwrap_or(Retried::NotFound))
    }

    /// Removes chains with all their jobs, all or none; with `cascade` also the chains that they wait or
    /// waited for.
    pub async fn delete(&self, chains: Vec<Target>, cascade: bool) -> Result<DeleteReply> {
        let reply = self.store().delete(Delete { chains, cascade }).await?;
        let mut announcements = Announcements::default();
        announcements.deleted(&reply);
        announcements.send(&self.shared.teller);
        Ok(reply)
    }
}

impl<S: Transactional> Client<S> {
    /// Begins a transaction: what is started in it exists when it commits, or not at all.
    pub async fn begin(&self) -> Result<Tx<S>> {
        Tx::begin(self).await
    }

    /// Gives commands inside a transaction that somebody else began and will end.
    pub fn in_tx<'a>(&'a self, tx: &'a mut S::Tx) -> InTx<'a, S> {
        InTx::new(self, tx)
    }
}

impl<S: Store + ?Sized> ClientBuilder<S> {
    /// Notifies through this one.
    #[must_use]
    pub fn notifier(mut self, notifier: impl Notifier) -> Self {
        self.notifier = Arc::new(notifier);
        self
    }

    /// Tells this one what happens.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// The client.
    #[must_use]
    pub fn build(self) -> Client<S> {
        let Self { store, notifier, observer } = self;
        let teller = Teller::new(notifier, observer);
        let (creating, telling) = (Arc::clone(&store), Arc::clone(&teller));
        let creates = Batcher::new(
            |new: &NewChain| new.job.size(),
            move |chains| -> BoxFuture<'static, _> {
                let (store, teller) = (Arc::clone(&creating), Arc::clone(&telling));
                Box::pin(async move { create(&*store, &teller, chains).await })
            },
        );
        Client { shared: Arc::new(Shared { creates, teller, store }) }
    }
}

impl<S: Store + ?Sized> Creator for &Client<S> {
    fn create_one<'a>(&'a mut self, new: NewChain) -> BoxFuture<'a, Result<Created>> {
        Box::pin(self.shared.creates.add(new))
    }
}

/// Creates chains with one command, and announces them. A reply that was lost is asked for again: the ids of
/// the chains say which are stored already.
async fn create<S: Store + ?Sized>(
    store: &S,
    teller: &Teller,
    chains: Vec<NewChain>,
) -> Result<Vec<Created>> {
    let mut tries = 0;
    let reply = loop {
        match store.create(Create { chains: chains.clone() }).await {
            Err(error) if error.kind() == ErrorKind::Unavailable && tries < CREATE_REPEATS => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(50) * tries).await;
            }
            reply => break reply?,
        }
    };
    let mut announcements = Announcements::default();
    chains.iter().zip(&reply.chains).for_each(|(new, created)| announcements.created(new, created));
    announcements.send(teller);
    Ok(reply.chains)
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

/// The chain by its handle.
impl<J: Job> From<Chain<J>> for Target {
    fn from(chain: Chain<J>) -> Self {
        Self::Chain(ChainId::from(chain))
    }
}

impl<J> From<Chain<J>> for ChainId {
    fn from(chain: Chain<J>) -> Self {
        chain.id()
    }
}
