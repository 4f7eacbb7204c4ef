//! Handlers of queues.

use std::fmt;

use super::attempt::{ItemAttempt, ItemDone};
use super::item::Item;
use crate::command::Outcome;
use crate::error::Result;
use crate::name::ErrorText;
use crate::observer::Event;
use crate::store::{BoxFuture, Transactional};
use crate::worker::{
    Argument, BoxError, OpenStep, Parked, Scope, SettleAndCommit, Stages, Values, argument, catch_panic,
    missing, roll_back, run_closing_hooks,
};

/// An `async fn` that processes the jobs of a queue:
///
/// - `async fn(Item<P>) -> Result<O, E>`, on any store;
/// - `async fn(ItemAttempt<P, S>) -> Result<ItemDone<O, S>, E>`, on a store with transactions;
/// - either of them with up to six more arguments of type [`Data<T>`](crate::Data), for values that were passed to the
///   consumer or worker.
///
/// `E` is any error.
#[diagnostic::on_unimplemented(
    message = "this is not a handler of a queue",
    label = "not a valid handler for this queue",
    note = "a handler is an `async fn(Item<P>)` that returns `Result<O, _>`, where `P` and `O` are the queue's payload and result",
    note = "a handler `async fn(ItemAttempt<P, S>)` that returns `Result<ItemDone<O, S>, _>` needs the client of its \
            store: pass it to `queue.consume_on(&client, handler)`",
    note = "its other arguments are values of the application: `Data<T>`, passed to the consumer with `.data(value)`",
    note = "a closure must name the type of its argument: `|item: Item<P>|`"
)]
pub trait ItemHandler<P, O, S: ?Sized, Marker>: Send + Sync + 'static {
    /// Runs one attempt.
    #[doc(hidden)]
    fn call(&self, item: Item<P>, scope: Scope<S>, values: &Values) -> BoxFuture<'static, Handled<O>>;

    /// Returns the type of the first argument that is missing among these values.
    #[doc(hidden)]
    fn missing(values: &Values) -> Option<&'static str>;
}

/// The result of a handler, and the transaction that it has left open.
#[doc(hidden)]
pub struct Handled<O> {
    pub(super) result: Result<O, BoxError>,
    /// Only with an [`ItemDone`], whose error is final.
    pub(super) open: Option<Box<dyn OpenTx>>,
}

impl<O> Handled<O> {
    fn plain<E: Into<BoxError>>(result: Result<O, E>) -> Self {
        Self { result: result.map_err(Into::into), open: None }
    }
}

impl<O> fmt::Debug for Handled<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handled").field("is_ok", &self.result.is_ok()).finish_non_exhaustive()
    }
}

/// The open transaction that ends a job, with an erased store type.
pub(super) trait OpenTx: Send {
    /// Runs the closing hooks. Returns a future that settles the job in the transaction and commits it.
    fn settle(self: Box<Self>, outcome: Outcome) -> BoxFuture<'static, Result<SettleAndCommit>>;

    /// Rolls the transaction back. An error is reported to the observers.
    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()>;
}

struct Open<P, S: Transactional> {
    scope: Scope<S>,
    item: Item<P>,
    step: OpenStep<S>,
}

impl<P: Send + Sync + 'static, S: Transactional> OpenTx for Open<P, S> {
    fn settle(self: Box<Self>, outcome: Outcome) -> BoxFuture<'static, Result<SettleAndCommit>> {
        let Self { scope, item, step } = *self;
        Box::pin(run_closing_hooks(scope, item, step, outcome))
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, ()> {
        let Self { scope, step, .. } = *self;
        Box::pin(async move { report(&scope, roll_back(scope.clone(), step).await) })
    }
}

/// Reports the error of a rollback to the observers. A transaction that cannot be rolled back ends with its connection.
fn report<S: Transactional>(scope: &Scope<S>, rolled_back: Result<()>) {
    if let Err(error) = rolled_back {
        let event = Event::StoreFailed("rollback", ErrorText::new(error.to_string()));
        scope.client().shared.dispatcher.observe(&event);
    }
}

/// Runs a handler that ends its job in a transaction. If it fails or panics, rolls back the transaction first: a hook
/// after the execution must not run while it is open.
fn in_tx<P, O, S, Fut, E>(
    item: Item<P>,
    scope: Scope<S>,
    call: impl FnOnce(ItemAttempt<P, S>) -> Result<Fut>,
) -> BoxFuture<'static, Handled<O>>
where
    P: Send + Sync + 'static,
    O: Send + 'static,
    S: Transactional,
    Fut: Future<Output = Result<ItemDone<O, S>, E>> + Send + 'static,
    E: Into<BoxError>,
{
    let parked = Parked::new();
    let handling = call(ItemAttempt::new(item.clone(), Stages::new(scope.clone(), parked.clone())));
    Box::pin(async move {
        let handled = match handling {
            Ok(handling) => {
                match catch_panic("handler", async { handling.await.map_err(Into::into) }).await {
                    Ok(handled) => handled,
                    Err(panic) => Err(panic.as_str().into()),
                }
            }
            Err(error) => Err(error.into()),
        };
        match handled {
            Ok(ItemDone { open: step, result }) => {
                Handled { result, open: Some(Box::new(Open { scope, item, step })) }
            }
            Err(error) => {
                if let Some(undo) = parked.undo(scope.clone()) {
                    report(&scope, undo.await);
                }
                Handled { result: Err(error), open: None }
            }
        }
    })
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Plain;
#[doc(hidden)]
#[derive(Debug)]
pub struct InTx;

macro_rules! item_handlers {
    ($($argument:ident)*) => {
        impl<P, O, S, F, Fut, E, $($argument),*> ItemHandler<P, O, S, (Plain, $($argument,)*)> for F
        where
            S: ?Sized,
            F: Fn(Item<P>, $($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<O, E>> + Send + 'static,
            E: Into<BoxError>,
            $($argument: Argument,)*
        {
            fn call(&self, item: Item<P>, _: Scope<S>, _values: &Values) -> BoxFuture<'static, Handled<O>> {
                let call = || Ok(self(item, $(argument::<$argument>(_values)?),*));
                let handling: Result<Fut> = call();
                Box::pin(async move {
                    match handling {
                        Ok(handling) => Handled::plain(handling.await),
                        Err(error) => Handled::plain(Err(error)),
                    }
                })
            }

            missing!($($argument)*);
        }

        impl<P, O, S, F, Fut, E, $($argument),*> ItemHandler<P, O, S, (InTx, $($argument,)*)> for F
        where
            P: Send + Sync + 'static,
            O: Send + 'static,
            S: Transactional,
            F: Fn(ItemAttempt<P, S>, $($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<ItemDone<O, S>, E>> + Send + 'static,
            E: Into<BoxError>,
            $($argument: Argument,)*
        {
            fn call(&self, item: Item<P>, scope: Scope<S>, _values: &Values) -> BoxFuture<'static, Handled<O>> {
                in_tx(item, scope, |attempt| Ok(self(attempt, $(argument::<$argument>(_values)?),*)))
            }

            missing!($($argument)*);
        }
    };
}

item_handlers!();
item_handlers!(A);
item_handlers!(A B);
item_handlers!(A B C);
item_handlers!(A B C D);
item_handlers!(A B C D G);
item_handlers!(A B C D G H);
