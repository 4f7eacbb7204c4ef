//! Enqueues jobs, outside or inside a transaction.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::encoding::{read, write};
use super::item::ItemState;
use super::wait::Answer;
use super::{Queue, positive};
use crate::client::{Destination, InTx, batches, change_planned, job_options, refused};
use crate::command::{Created, Existing, NewChain, NewJob, NewKey};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::name::Key;
use crate::record::{KeyHold, Status};
use crate::store::{BoxFuture, Transactional};

/// The outcome of an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued<O> {
    /// The job is stored and will run.
    Queued,
    /// The id is in use. Nothing was written.
    Duplicate(ItemState),
    /// The job has already completed with this result. Nothing was written.
    Completed(O),
}

impl<P, O> Queue<P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    /// Enqueues a job under an id. Await the returned value.
    ///
    /// While a job with this id is queued, running or has a cached result, no other job with this id is accepted, no
    /// matter how many callers enqueue it concurrently.
    ///
    /// Concurrent calls share a write. If the future is dropped, the job may or may not have been enqueued.
    pub fn enqueue(&self, id: impl AsRef<str>, payload: impl Borrow<P>) -> Enqueue<'static, P, O> {
        let new = self.plan(id.as_ref(), payload.borrow());
        Enqueue { new, has_error_ttl: self.shared.options.error_ttl.is_some(), queue: self.clone(), to: None }
    }

    /// Enqueues many jobs of this queue, up to 1,000 per command, and returns the outcome of each.
    ///
    /// A refused job does not affect the others. If a command fails, its error is returned for its jobs and for all
    /// later ones; the jobs of earlier commands are enqueued.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the queue is being drained.
    ///
    /// ```
    /// # use windlass::{Client, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// # let client = Client::new(MemoryStore::new());
    /// let squares = client.queue::<u64, u64>("squares").build()?;
    /// let enqueued = squares.enqueue_many((1..=9).map(|n| squares.enqueue(n.to_string(), n))).await?;
    /// assert!(enqueued.iter().all(Result::is_ok));
    /// # Ok(()) }
    /// ```
    pub async fn enqueue_many(
        &self,
        jobs: impl IntoIterator<Item = Enqueue<'static, P, O>> + Send,
    ) -> Result<Vec<Result<Enqueued<O>>>> {
        let _entered = self.enter()?;
        let plans: Vec<_> = jobs.into_iter().map(|job| self.own(job)).collect();
        let good = plans.iter().filter_map(|new| new.as_ref().ok().cloned()).collect();
        let mut created = self.create_many(good).await.into_iter();
        let enqueued = plans.into_iter().map(|new| {
            new?;
            self.enqueued(created.next().unwrap_or(Ok(Created::Busy))?)
        });
        Ok(enqueued.collect())
    }

    /// Returns the planned chain of a job, if the job was built by this queue handle.
    fn own(&self, job: Enqueue<'static, P, O>) -> Result<NewChain> {
        if Arc::ptr_eq(&job.queue.shared, &self.shared) {
            return job.new;
        }
        let (built, this) = (job.queue.name(), self.name());
        let text = format!(
            "the job was built by another handle, of queue `{built}`: enqueue it there, not in queue `{this}`"
        );
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Creates chains and returns the outcome of each. Stops at the first command that fails.
    async fn create_many(&self, chains: Vec<NewChain>) -> Vec<Result<Created>> {
        let count = chains.len();
        let mut created = Vec::with_capacity(count);
        for batch in batches(chains) {
            match self.shared.client.create(batch).await {
                Ok(replies) => created.extend(replies.into_iter().map(Ok)),
                Err(error) => {
                    created.resize(count, Err(error));
                    break;
                }
            }
        }
        created
    }

    /// Enqueues a job, or joins the one that has this id, and waits for the result. Await the returned value.
    ///
    /// By default the wait times out 30 s after this call, including the time to enqueue. The job continues
    /// after a timeout.
    ///
    /// To set options of the job, use `enqueue(id, payload).attempts(1).and_wait()`.
    pub fn enqueue_and_wait(&self, id: impl AsRef<str>, payload: impl Borrow<P>) -> Answer<P, O> {
        self.enqueue(id, payload).and_wait()
    }

    fn plan(&self, id: &str, payload: &P) -> Result<NewChain> {
        let options = self.shared.options;
        let payload = write(&*self.shared.payloads, payload)?;
        let key = NewKey { hold: options.hold, ..NewKey::new(Key::new(id)?) };
        let max_attempts = Some(options.attempts);
        let job = NewJob { max_attempts, ..NewJob::new(self.shared.name.clone(), payload) };
        let retention = options.retention()?;
        Ok(NewChain { key: Some(key), retention, ..NewChain::new(ChainId::new(), job) })
    }

    pub(super) async fn create(&self, new: NewChain) -> Result<Created> {
        Destination::from(&self.shared.client).create(new).await
    }

    fn enqueued(&self, created: Created) -> Result<Enqueued<O>> {
        match created {
            Created::New { .. } => Ok(Enqueued::Queued),
            Created::Existing(existing) => Ok(match self.cached(&existing)? {
                Some(result) => Enqueued::Completed(result),
                None => Enqueued::Duplicate(ItemState::of(existing.status, existing.error.is_some())),
            }),
            created => Err(refused(created)),
        }
    }

    /// Returns the result of an existing job, if it has completed.
    pub(super) fn cached(&self, existing: &Existing) -> Result<Option<O>> {
        match (existing.status, &existing.output) {
            (Status::Completed, Some(output)) => read(&*self.shared.results, output).map(Some),
            _ => Ok(None),
        }
    }
}

/// A job to enqueue, with its options. Await it, or pass it to [`Queue::enqueue_many`].
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Enqueue<'c, P, O> {
    pub(super) queue: Queue<P, O>,
    /// An invalid option is reported when the job is enqueued; the first one wins.
    pub(super) new: Result<NewChain>,
    /// Whether the queue or the caller has set the TTL of errors.
    has_error_ttl: bool,
    to: Option<Destination<'c>>,
}

impl<'c, P, O> Enqueue<'c, P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    job_options!(attempts);

    /// Sets how long the result is kept. Also applies to the error of a failed job, unless an error TTL is set. While
    /// the job exists, another enqueue with the same id does not change this.
    pub fn result_ttl(self, ttl: Duration) -> Self {
        let has_error_ttl = self.has_error_ttl;
        self.with(|new| {
            new.retention.completed = positive(ttl)?;
            if !has_error_ttl {
                (new.retention.failed, new.retention.cancelled) = (positive(ttl)?, positive(ttl)?);
            }
            Ok(())
        })
    }

    /// Sets how long the job is kept, with its error, if it fails or is cancelled.
    pub fn error_ttl(mut self, ttl: Duration) -> Self {
        self.has_error_ttl = true;
        self.with(|new| {
            let ttl = positive(ttl)?;
            (new.retention.failed, new.retention.cancelled) = (ttl, ttl);
            Ok(())
        })
    }

    /// Sets whether a failed job holds its id until the TTL of its error expires. Otherwise the id is
    /// released immediately.
    pub fn hold_failed(self, holds: bool) -> Self {
        self.with(|new| {
            if let Some(key) = &mut new.key {
                key.hold = if holds { KeyHold::CompletedOrFailed } else { KeyHold::Completed };
            }
            Ok(())
        })
    }

    /// Enqueues the job in a transaction. The job exists once the transaction has committed.
    ///
    /// Takes a transaction of [`Client::begin`](crate::Client::begin). For a transaction of your own driver, pass
    /// `&mut client.in_tx(&mut tx)`; in a handler, `&mut step.client()`.
    ///
    /// ```
    /// # use windlass::{Client, MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// # let client = Client::new(MemoryStore::new());
    /// let mails = client.queue::<String, ()>("mails").build()?;
    /// let mut tx = client.begin().await?;
    /// mails.enqueue("order-7", "thank you".to_owned()).in_tx(&mut tx).await?;
    /// assert!(mails.status("order-7").await?.is_none(), "not visible before the commit");
    /// tx.commit().await?;
    /// assert!(mails.status("order-7").await?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn in_tx<'t, S: Transactional>(self, tx: &'t mut InTx<'_, S>) -> Enqueue<'t, P, O> {
        Enqueue { queue: self.queue, new: self.new, has_error_ttl: self.has_error_ttl, to: Some(tx.into()) }
    }

    /// Waits for the result of the job. Set the options of the job before.
    pub fn and_wait(self) -> Answer<P, O> {
        let new = match self.to {
            None => self.new,
            Some(_) => Err(Error::new(
                ErrorKind::Invalid,
                "a job that is enqueued in a transaction runs after the commit: wait for it after the commit",
            )),
        };
        Answer::new(self.queue, new)
    }

    fn with_job(self, change: impl FnOnce(&mut NewJob) -> Result<()>) -> Self {
        self.with(|new| change(&mut new.job))
    }

    fn with(mut self, change: impl FnOnce(&mut NewChain) -> Result<()>) -> Self {
        change_planned(&mut self.new, change);
        self
    }

    async fn run(self) -> Result<Enqueued<O>> {
        let Self { queue, new, to, .. } = self;
        let _entered = queue.enter()?;
        let created = match to {
            Some(executor) => executor.create(new?).await?,
            None => queue.create(new?).await?,
        };
        queue.enqueued(created)
    }
}

impl<'c, P, O> IntoFuture for Enqueue<'c, P, O>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
{
    type Output = Result<Enqueued<O>>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<P, O> fmt::Debug for Enqueue<'_, P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Enqueue").field("queue", &self.queue).field("new", &self.new).finish_non_exhaustive()
    }
}
