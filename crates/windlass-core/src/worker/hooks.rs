//! Hooks that run inside the transactions of attempts.

use std::any::Any;
use std::future::ready;
use std::marker::PhantomData;
use std::sync::Arc;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use crate::command::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::store::BoxFuture;

/// Hooks that run inside the transactions of attempts: those that [`prepare`](crate::Attempt::prepare),
/// [`begin`](crate::Attempt::begin) and [`atomic`](crate::Attempt::atomic) begin.
///
/// If a hook returns an error, the transaction is rolled back and none of its writes are kept. The call to
/// `prepare`, `begin`, `atomic` or `commit` returns the error. If the worker was about to commit the
/// transaction that ends the job, the attempt fails.
///
/// When a transaction opens, hooks run in the order in which they were added. When it closes, they run in
/// reverse order.
pub trait Hooks<Tx>: Send + Sync + 'static {
    /// Called after the transaction has begun, before the handler uses it.
    fn opened<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        stage: Stage,
        tx: &'a mut Tx,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        let _ = (attempt, stage, tx);
        Box::pin(ready(Ok(())))
    }

    /// Called before the transaction is committed.
    fn closing<'a>(
        &'a self,
        attempt: &'a AnyAttempt,
        closing: Closing<'a>,
        tx: &'a mut Tx,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        let _ = (attempt, closing, tx);
        Box::pin(ready(Ok(())))
    }
}

/// One of the transactions of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The transaction before the work.
    Prepare,
    /// The transaction that ends the job.
    Finish,
}

/// A transaction that is about to be committed.
#[derive(Debug)]
pub enum Closing<'a> {
    /// The transaction before the work.
    Prepare,
    /// The transaction that ends the job, with the outcome to settle. A hook may change the outcome.
    Finish(&'a mut Outcome),
}

impl Closing<'_> {
    fn again(&mut self) -> Closing<'_> {
        match self {
            Self::Prepare => Closing::Prepare,
            Self::Finish(outcome) => Closing::Finish(outcome),
        }
    }
}

/// The hooks of a handler for transactions of type `Tx`, in order.
pub(super) struct HookList<Tx> {
    hooks: Arc<[AnyHooks]>,
    tx: PhantomData<fn(Tx)>,
}

impl<Tx: Send + 'static> HookList<Tx> {
    pub(super) const fn new(hooks: Arc<[AnyHooks]>) -> Self {
        Self { hooks, tx: PhantomData }
    }

    pub(super) async fn opened(&self, attempt: &AnyAttempt, stage: Stage, tx: &mut Tx) -> Result<()> {
        for hooks in self.iter() {
            hooks.opened(attempt, stage, tx).await.map_err(refused)?;
        }
        Ok(())
    }

    pub(super) async fn closing(
        &self,
        attempt: &AnyAttempt,
        mut closing: Closing<'_>,
        tx: &mut Tx,
    ) -> Result<()> {
        for hooks in self.iter().rev() {
            hooks.closing(attempt, closing.again(), tx).await.map_err(refused)?;
        }
        Ok(())
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<dyn Hooks<Tx>>> {
        self.hooks.iter().filter_map(|hooks| hooks.0.downcast_ref())
    }
}

impl<Tx> Clone for HookList<Tx> {
    fn clone(&self) -> Self {
        Self { hooks: Arc::clone(&self.hooks), tx: PhantomData }
    }
}

/// Hooks with an erased transaction type. [`HookList`] knows the type and casts them back.
#[derive(Clone)]
pub(super) struct AnyHooks(Arc<dyn Any + Send + Sync>);

impl AnyHooks {
    pub(super) fn new<Tx: Send + 'static>(hooks: impl Hooks<Tx>) -> Self {
        let hooks: Arc<dyn Hooks<Tx>> = Arc::new(hooks);
        Self(Arc::new(hooks))
    }
}

fn refused(error: BoxError) -> Error {
    Error::new(ErrorKind::Invalid, "a hook refused the transaction").with_source(error)
}
