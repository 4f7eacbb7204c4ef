use std::fmt;
use std::sync::Arc;

use windlass_core::command::{Command, Reply, Request};
use windlass_core::{BoxFuture, Result, Transactional};

/// A [`Transactional`] store with its transaction type erased.
pub trait ErasedTransactional: Send + Sync {
    /// Begins a transaction.
    fn begin(&self) -> BoxFuture<'_, Result<Box<dyn ErasedTx>>>;
}

/// An open transaction. Dropping it rolls it back.
pub trait ErasedTx: Send {
    /// Runs a command inside the transaction.
    fn execute(&mut self, command: Command) -> BoxFuture<'_, Result<Reply>>;

    /// Creates a savepoint.
    fn savepoint(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Releases the latest savepoint and keeps what was written since.
    fn release(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Discards what was written since the latest savepoint.
    fn rollback_to(&mut self) -> BoxFuture<'_, Result<()>>;

    /// Commits the transaction, which makes its writes durable.
    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<()>>;

    /// Rolls the transaction back, which discards its writes.
    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<()>>;
}

impl dyn ErasedTx {
    /// Like [`execute`](ErasedTx::execute), with a typed reply.
    pub async fn run<R: Request>(&mut self, request: R) -> Result<R::Reply> {
        let command: Command = request.into();
        self.execute(command).await?.try_into()
    }
}

/// Implements [`ErasedTransactional`] for any [`Transactional`] store.
pub struct Erased<S>(Arc<S>);

impl<S: Transactional> Erased<S> {
    /// Wraps a store.
    #[must_use]
    pub const fn new(store: Arc<S>) -> Self {
        Self(store)
    }
}

impl<S> fmt::Debug for Erased<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Erased").finish_non_exhaustive()
    }
}

impl<S: Transactional> ErasedTransactional for Erased<S> {
    fn begin(&self) -> BoxFuture<'_, Result<Box<dyn ErasedTx>>> {
        Box::pin(async {
            let tx = self.0.begin().await?;
            Ok(Box::new(Open { store: Arc::clone(&self.0), tx }) as Box<dyn ErasedTx>)
        })
    }
}

struct Open<S: Transactional> {
    store: Arc<S>,
    tx: S::Tx,
}

impl<S: Transactional> ErasedTx for Open<S> {
    fn execute(&mut self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        self.store.execute_in(S::tx_ref(&mut self.tx), command)
    }

    fn savepoint(&mut self) -> BoxFuture<'_, Result<()>> {
        self.store.savepoint(S::tx_ref(&mut self.tx))
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        self.store.release(S::tx_ref(&mut self.tx))
    }

    fn rollback_to(&mut self) -> BoxFuture<'_, Result<()>> {
        self.store.rollback_to(S::tx_ref(&mut self.tx))
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.store.commit(self.tx).await })
    }

    fn rollback(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.store.rollback(self.tx).await })
    }
}
