//! An attempt of a queue job, with the transactions of its handler.

use std::fmt;
use std::ops::Deref;

use super::Item;
use crate::chain::Chain;
use crate::client::{InTx, IntoPlan, Start};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::job::{Blockers, Entry};
use crate::store::Transactional;
use crate::worker::{AnyAttempt, BoxError, OpenPrepare, OpenStep, Stages, View};

/// An attempt of a queue job on a store with transactions. Dereferences to [`Item`].
///
/// As with an [`Attempt`](crate::Attempt), the handler writes its rows in the transaction that completes the job:
/// either both are committed or neither is. If another consumer has taken over the job, nothing is committed.
///
/// ```
/// use std::time::Duration;
/// use windlass::queue::{ItemAttempt, ItemDone};
/// use windlass::{BoxError, Client, MemoryStore};
/// # async fn ask_the_bank(order: u64) -> Result<u64, BoxError> { Ok(order * 100) }
///
/// async fn pay(item: ItemAttempt<u64, MemoryStore>) -> Result<ItemDone<u64, MemoryStore>, BoxError> {
///     let cents = ask_the_bank(*item.payload()).await?;    // no transaction is open; the lease is renewed
///     let mut step = item.begin().await?;                  // the transaction that ends the job
///     let _connection = step.tx();                         // … write the rows with it …
///     Ok(step.done(cents))                                 // the worker commits
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let client = Client::new(MemoryStore::new());
/// let payments = client.queue::<u64, u64>("payments").build()?;
/// let consumer = payments.consume_on(&client, pay).await?;
/// assert_eq!(payments.enqueue_and_wait("order-7", 7).await?, 700);
/// consumer.stop(Duration::from_secs(10)).await;
/// # Ok(()) }
/// ```
///
/// A queue does not know the type of its store, so [`consume`](crate::Queue::consume) does not accept such a handler:
///
/// ```compile_fail,E0277
/// # use windlass::queue::{ItemAttempt, ItemDone};
/// # use windlass::{BoxError, Client, MemoryStore};
/// # async fn pay(item: ItemAttempt<u64, MemoryStore>) -> Result<ItemDone<u64, MemoryStore>, BoxError> {
/// #     Ok(item.begin().await?.done(700))
/// # }
/// # fn main() -> windlass::Result<()> {
/// # let client = Client::new(MemoryStore::new());
/// # let payments = client.queue::<u64, u64>("payments").build()?;
/// let consumer = payments.consume(pay);
/// # Ok(()) }
/// ```
pub struct ItemAttempt<P, S: Transactional> {
    item: Item<P>,
    stages: Stages<S>,
}

impl<P: Send + Sync + 'static, S: Transactional> ItemAttempt<P, S> {
    pub(super) const fn new(item: Item<P>, stages: Stages<S>) -> Self {
        Self { item, stages }
    }

    /// Begins the transaction that comes before the work. Can be called once, before `begin`. If it fails to begin, it
    /// can be called again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it was called before, or after `begin`, or if a hook refuses the transaction.
    pub async fn prepare(&self) -> Result<ItemPrepare<P, S>> {
        Ok(ItemPrepare { open: self.stages.prepare(&self.item).await? })
    }

    /// Begins the transaction that ends the job. Can be called once. If it fails to begin, it can be called again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it was called before, if the transaction of `prepare` is still open, or if a hook
    /// refuses the transaction.
    pub async fn begin(&self) -> Result<ItemStep<S>> {
        Ok(ItemStep { open: self.stages.begin(&self.item).await? })
    }

    /// Begins the transaction that ends the job, before the work. Data read in it stays valid until the job ends. The
    /// transaction stays open while the handler works, so the work should be short.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `prepare`, `begin` or `atomic` was called before, or if a hook refuses the
    /// transaction.
    pub async fn atomic(&self) -> Result<ItemStep<S>> {
        Ok(ItemStep { open: self.stages.atomic(&self.item).await? })
    }
}

impl<P, S: Transactional> Deref for ItemAttempt<P, S> {
    type Target = Item<P>;

    fn deref(&self) -> &Item<P> {
        &self.item
    }
}

impl<P, S: Transactional> fmt::Debug for ItemAttempt<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemAttempt").field("item", &self.item).finish_non_exhaustive()
    }
}

impl<P: Send + Sync + 'static> View for Item<P> {
    fn attempt(&self) -> &AnyAttempt {
        self.any()
    }
}

/// The transaction before the work. If it is dropped, it is rolled back.
pub struct ItemPrepare<P, S: Transactional> {
    open: OpenPrepare<Item<P>, S>,
}

impl<P: Send + Sync + 'static, S: Transactional> ItemPrepare<P, S> {
    /// Returns the connection of the transaction, on which the handler runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        self.open.tx()
    }

    /// Returns a client for commands inside the transaction. For example, `prepare.client().start(job)` starts a chain
    /// that exists once the transaction commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        self.open.client()
    }

    /// Commits the transaction, unless the attempt has lost its job in the meantime: a stale attempt writes nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeaseLost`] if the attempt no longer holds its job, [`ErrorKind::Busy`] if another transaction has
    /// locked the job, [`ErrorKind::Invalid`] if a hook refuses the commit. The transaction is rolled back in these
    /// cases.
    pub async fn commit(self) -> Result<()> {
        self.open.commit().await
    }
}

impl<P, S: Transactional> fmt::Debug for ItemPrepare<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemPrepare").field("item", self.open.view()).finish_non_exhaustive()
    }
}

/// The transaction that ends a queue job.
///
/// Call [`done`](Self::done) or [`fail`](Self::fail), and return the result from the handler. If the step is dropped,
/// the transaction is rolled back.
pub struct ItemStep<S: Transactional> {
    open: OpenStep<S>,
}

impl<S: Transactional> ItemStep<S> {
    /// Returns the connection of the transaction, on which the handler runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        self.open.tx()
    }

    /// Returns a client for commands inside the transaction. For example, `step.client().start(job)` starts a chain
    /// that exists once the transaction commits, and `queue.enqueue(id, payload).in_tx(&mut step.client())` enqueues a
    /// job.
    pub fn client(&mut self) -> InTx<'_, S> {
        self.open.client()
    }

    /// Starts a chain in the transaction: it exists once the transaction commits. See
    /// [`Client::start`](crate::Client::start).
    pub fn start<J: Entry>(&mut self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        self.client().into_start(job)
    }

    /// Starts chains in the transaction: they exist once it commits. See
    /// [`Client::start_many`](crate::Client::start_many).
    pub async fn start_many<J: IntoPlan>(
        &mut self,
        plans: impl IntoIterator<Item = J> + Send,
    ) -> Result<Vec<Chain<J::Job>>> {
        self.client().start_many(plans).await
    }

    /// Completes the job with this result.
    ///
    /// If the result cannot be encoded, the transaction is rolled back and the job fails, without further attempts.
    pub fn done<O>(self, result: O) -> ItemDone<O, S> {
        ItemDone { open: self.open, result: Ok(result) }
    }

    /// Fails the job, without further attempts. The writes of the transaction are kept.
    pub fn fail<O>(self, error: impl Into<BoxError>) -> ItemDone<O, S> {
        ItemDone { open: self.open, result: Err(error.into()) }
    }
}

impl<S: Transactional> fmt::Debug for ItemStep<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemStep").finish_non_exhaustive()
    }
}

/// The result of a queue job, with the transaction that ends the job. The handler returns it.
///
/// The worker stores the result in the transaction and commits it after the handler has returned. If the handler fails
/// after creating this value, everything is rolled back.
#[must_use = "return this from the handler"]
pub struct ItemDone<O, S: Transactional> {
    pub(super) open: OpenStep<S>,
    pub(super) result: Result<O, BoxError>,
}

impl<O, S: Transactional> fmt::Debug for ItemDone<O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemDone").field("is_ok", &self.result.is_ok()).finish_non_exhaustive()
    }
}
