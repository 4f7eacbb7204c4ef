//! Calls the handler of a job with its arguments, and converts the result.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::attempt::{Attempt, Ctx, Done};
use super::data::{Argument, Values, argument, missing};
use super::failure::Failure;
use super::handlers::Layer;
use super::hooks::AnyHooks;
use super::next::{Next, complete};
use super::options::Resolved;
use super::settle_in_tx::{SettleAndCommit, run_closing_hooks};
use super::stages::{Parked, Scope, Stages};
use crate::client::Client;
use crate::command::Outcome;
use crate::error::Result;
use crate::job::Job;
use crate::name::TypeName;
use crate::store::{BoxFuture, Store, Transactional};

/// An `async fn` that runs jobs of type `J`:
///
/// - `async fn(Ctx<J>) -> Result<J::Output, E>` or `-> Result<Next<J>, E>`, on any store;
/// - `async fn(Attempt<J, S>) -> Result<Done<J, S>, E>`, on a store with transactions;
/// - either of them with up to six more arguments of type [`Data<T>`](crate::Data), for values that were passed to the
///   worker.
///
/// `E` is any error. If the handler returns one, the job is retried after the backoff of its type, unless the error is
/// or wraps [`Fatal`](crate::Fatal) or [`RetryAfter`](crate::RetryAfter).
#[diagnostic::on_unimplemented(
    message = "this is not a job handler",
    label = "not a valid handler for this worker",
    note = "a handler is an `async fn(Ctx<J>)` that returns `Result<J::Output, _>` or `Result<Next<J>, _>`, or an \
            `async fn(Attempt<J, S>)` that returns `Result<Done<J, S>, _>`, where `S` is the worker's store",
    note = "the `Ctx` or `Attempt` is the first argument; the others are values of the application: `Data<T>`, passed to \
            the worker with `.data(value)`, where `T` is `Clone + Send + Sync`",
    note = "the function is `async` and returns a `Result`, whose error converts into `BoxError`",
    note = "its future is `Send`: it holds no `Rc`, `RefCell` borrow or `MutexGuard` across an `.await`"
)]
pub trait Handler<J: Job, S: ?Sized, Marker>: Send + Sync + 'static {
    /// Runs one attempt.
    #[doc(hidden)]
    fn call(&self, run: Run<S>, values: &Values) -> BoxFuture<'static, HandlerResult>;

    /// Returns the type of the first argument that is missing among these values.
    #[doc(hidden)]
    fn missing(values: &Values) -> Option<&'static str>;
}

/// An attempt, with what a handler needs to run it.
#[doc(hidden)]
pub struct Run<S: ?Sized> {
    pub(crate) attempt: AnyAttempt,
    pub(crate) scope: Scope<S>,
}

impl<S: ?Sized> Run<S> {
    /// Returns the attempt for another type of the same store.
    pub(crate) fn with_client<T: ?Sized>(self, client: Client<T>) -> Run<T> {
        Run { attempt: self.attempt, scope: self.scope.with_client(client) }
    }
}

impl<S: ?Sized> fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// The result of a handler.
#[doc(hidden)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all results are plain, and a box for each costs more than the moves"
)]
pub enum HandlerResult {
    /// An outcome that the worker settles.
    Plain(Outcome),
    /// An open transaction. The future runs the closing hooks, and returns a future that settles the job in
    /// the transaction and commits it.
    InTx(BoxFuture<'static, Result<SettleAndCommit>>),
    /// An error of the handler, or an input or blocker's output that cannot be decoded. The future rolls back a
    /// transaction that the handler left open, and must run first.
    Failed(Box<Failure>, Option<BoxFuture<'static, Result<()>>>),
}

impl fmt::Debug for HandlerResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::InTx(_) => "InTx",
            Self::Failed(..) => "Failed",
        })
    }
}

impl HandlerResult {
    fn of(outcome: Result<Outcome>) -> Self {
        match outcome {
            Ok(outcome) => Self::Plain(outcome),
            Err(error) => Self::failed(error.of_outcome()),
        }
    }

    pub(crate) fn failed(error: impl Into<BoxError>) -> Self {
        Self::Failed(Box::new(Failure::new(&error.into())), None)
    }
}

#[doc(hidden)]
#[derive(Debug)]
pub struct Value;
#[doc(hidden)]
#[derive(Debug)]
pub struct Chained;
#[doc(hidden)]
#[derive(Debug)]
pub struct InTx;

macro_rules! store_free {
    ($marker:ident, $output:ty, |$value:ident| $outcome:expr, $($argument:ident)*) => {
        impl<J, S, F, Fut, E, $($argument),*> Handler<J, S, ($marker, $($argument,)*)> for F
        where
            J: Job,
            S: Store + ?Sized,
            F: Fn(Ctx<J>, $($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<$output, E>> + Send + 'static,
            E: Into<BoxError>,
            $($argument: Argument,)*
        {
            fn call(&self, run: Run<S>, _values: &Values) -> BoxFuture<'static, HandlerResult> {
                let called = Ctx::new(run.attempt).and_then(|ctx| Ok(self(ctx, $(argument::<$argument>(_values)?),*)));
                Box::pin(async move {
                    match called {
                        Ok(handling) => match handling.await {
                            Ok($value) => HandlerResult::of($outcome),
                            Err(error) => HandlerResult::failed(error),
                        },
                        Err(error) => HandlerResult::failed(error),
                    }
                })
            }

            missing!($($argument)*);
        }
    };
}

macro_rules! handlers {
    ($($argument:ident)*) => {
        store_free!(Value, J::Output, |output| complete(&output), $($argument)*);
        store_free!(Chained, Next<J>, |next| next.0, $($argument)*);

        impl<J, S, F, Fut, E, $($argument),*> Handler<J, S, (InTx, $($argument,)*)> for F
        where
            J: Job,
            S: Transactional,
            F: Fn(Attempt<J, S>, $($argument),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<Done<J, S>, E>> + Send + 'static,
            E: Into<BoxError>,
            $($argument: Argument,)*
        {
            fn call(&self, run: Run<S>, _values: &Values) -> BoxFuture<'static, HandlerResult> {
                in_tx(run, |attempt| Ok(self(attempt, $(argument::<$argument>(_values)?),*)))
            }

            missing!($($argument)*);
        }
    };
}

handlers!();
handlers!(A);
handlers!(A B);
handlers!(A B C);
handlers!(A B C D);
handlers!(A B C D G);
handlers!(A B C D G H);

fn in_tx<J, S, Fut, E>(
    run: Run<S>,
    call: impl FnOnce(Attempt<J, S>) -> Result<Fut>,
) -> BoxFuture<'static, HandlerResult>
where
    J: Job,
    S: Transactional,
    Fut: Future<Output = Result<Done<J, S>, E>> + Send + 'static,
    E: Into<BoxError>,
{
    let Run { attempt, scope } = run;
    let ctx = match Ctx::new(attempt) {
        Ok(ctx) => ctx,
        Err(error) => return Box::pin(async { HandlerResult::failed(error) }),
    };
    let parked = Parked::new();
    let handling = call(Attempt::new(ctx.clone(), Stages::new(scope.clone(), parked.clone())));
    Box::pin(async move {
        let handled = match handling {
            Ok(handling) => handling.await.map_err(Into::into),
            Err(error) => Err(error.into()),
        };
        match handled {
            Ok(done) => {
                let (step, outcome) = done.take();
                HandlerResult::InTx(Box::pin(run_closing_hooks(scope, ctx, step, outcome)))
            }
            Err(error) => HandlerResult::Failed(Box::new(Failure::new(&error)), parked.undo(scope)),
        }
    })
}

/// Converts the result of a handler that returns its outcome itself.
pub(super) fn any<E: Into<BoxError>>(
    handling: impl Future<Output = Result<Outcome, E>> + Send + 'static,
) -> BoxFuture<'static, HandlerResult> {
    Box::pin(async move {
        match handling.await {
            Ok(outcome) => HandlerResult::Plain(outcome),
            Err(error) => HandlerResult::failed(error),
        }
    })
}

/// A handler of any job type, with its middleware and hooks.
pub(super) struct AnyHandler<S: ?Sized> {
    /// The former names of the type, then its name.
    pub(super) types: Vec<TypeName>,
    pub(super) options: Resolved,
    pub(super) layers: Arc<[Layer]>,
    pub(super) hooks: Arc<[AnyHooks]>,
    pub(super) call: Call<S>,
}

/// Runs an attempt.
pub(crate) type Call<S> = Box<dyn Fn(Run<S>) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

impl<S: ?Sized> AnyHandler<S> {
    /// Whether the handler runs jobs of this type.
    pub(super) fn runs(&self, job_type: &TypeName) -> bool {
        self.types.contains(job_type)
    }
}
