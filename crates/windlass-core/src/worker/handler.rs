use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::attempt::{Attempt, Ctx, Done};
use super::handlers::Layer;
use super::hooks::{AnyHooks, HookList};
use super::next::{Next, complete, error_text};
use super::settle_in_tx::{SettleAndCommit, run_closing_hooks};
use crate::client::Client;
use crate::command::Outcome;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobOptions};
use crate::limit::DURATION_MAX_MS;
use crate::name::{ErrorText, TypeName};
use crate::store::{BoxFuture, Store, Transactional};
use crate::time::Millis;

/// The application's state, for the second argument of a handler.
#[derive(Clone, Copy, Debug)]
pub struct State<A>(pub A);

/// An `async fn` that runs jobs of type `J`:
///
/// - `async fn(Ctx<J>) -> Result<J::Output, E>` or `-> Result<Next<J>, E>`, on any store;
/// - `async fn(Attempt<J, S>) -> Result<Done<J, S>, E>`, on a store with transactions;
/// - each optionally with `State<A>` as a second argument, for a worker with that state.
///
/// `E` is any error. If the handler returns one, the job is retried after the backoff of its type.
#[diagnostic::on_unimplemented(
    message = "this is not a job handler",
    label = "not a valid handler for this worker",
    note = "a handler is an `async fn(Ctx<J>)` that returns `Result<J::Output, _>` or `Result<Next<J>, _>`, or an \
            `async fn(Attempt<J, S>)` that returns `Result<Done<J, S>, _>`, where `S` is the worker's store",
    note = "with `State<A>` as its second argument, it needs `.state(a)` on the worker before `.handle(…)`"
)]
pub trait Handler<J: Job, S: ?Sized, A, Marker>: Clone + Send + Sync + 'static {
    /// Runs one attempt.
    #[doc(hidden)]
    fn call(&self, run: Run<S>, app: A) -> BoxFuture<'static, HandlerResult>;
}

/// An attempt, with what a handler needs to run it.
#[doc(hidden)]
pub struct Run<S: ?Sized> {
    pub(super) client: Client<S>,
    pub(super) attempt: AnyAttempt,
    pub(super) lease: Millis,
    pub(super) hooks: Arc<[AnyHooks]>,
}

impl<S: ?Sized> fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// The result of a handler.
#[doc(hidden)]
pub enum HandlerResult {
    /// An outcome that the worker settles.
    Plain(Box<Outcome>),
    /// An open transaction. The future runs the closing hooks, and returns a future that settles the job in
    /// the transaction and commits it.
    InTx(BoxFuture<'static, Result<SettleAndCommit>>),
    /// The input or a blocker's output could not be decoded. The job fails with this error.
    Unreadable(Error),
    /// An error of the handler. The future rolls back a transaction that the handler left open, and must run
    /// first.
    Failed(ErrorText, Option<BoxFuture<'static, Result<()>>>),
}

impl fmt::Debug for HandlerResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::InTx(_) => "InTx",
            Self::Unreadable(_) => "Unreadable",
            Self::Failed(..) => "Failed",
        })
    }
}

impl HandlerResult {
    fn of(outcome: Result<Outcome>) -> Self {
        match outcome {
            Ok(outcome) => Self::Plain(Box::new(outcome)),
            Err(error) => Self::Failed(error_text(&error.into()), None),
        }
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
#[doc(hidden)]
#[derive(Debug)]
pub struct WithState<M>(PhantomData<M>);

macro_rules! store_free {
    ($marker:ident, $output:ty, |$value:ident| $outcome:expr) => {
        impl<J, S, A, F, Fut, E> Handler<J, S, A, $marker> for F
        where
            J: Job,
            S: Store + ?Sized,
            F: Fn(Ctx<J>) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<$output, E>> + Send + 'static,
            E: Into<BoxError>,
        {
            fn call(&self, run: Run<S>, _: A) -> BoxFuture<'static, HandlerResult> {
                let ctx = match Ctx::new(run.attempt) {
                    Ok(ctx) => ctx,
                    Err(error) => return Box::pin(async { HandlerResult::Unreadable(error) }),
                };
                let handling = self(ctx);
                Box::pin(async move {
                    match handling.await {
                        Ok($value) => HandlerResult::of($outcome),
                        Err(error) => HandlerResult::Failed(error_text(&error.into()), None),
                    }
                })
            }
        }

        impl<J, S, A, F, Fut, E> Handler<J, S, A, WithState<$marker>> for F
        where
            J: Job,
            S: Store + ?Sized,
            F: Fn(Ctx<J>, State<A>) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<$output, E>> + Send + 'static,
            E: Into<BoxError>,
        {
            fn call(&self, run: Run<S>, app: A) -> BoxFuture<'static, HandlerResult> {
                let ctx = match Ctx::new(run.attempt) {
                    Ok(ctx) => ctx,
                    Err(error) => return Box::pin(async { HandlerResult::Unreadable(error) }),
                };
                let handling = self(ctx, State(app));
                Box::pin(async move {
                    match handling.await {
                        Ok($value) => HandlerResult::of($outcome),
                        Err(error) => HandlerResult::Failed(error_text(&error.into()), None),
                    }
                })
            }
        }
    };
}
store_free!(Value, J::Output, |output| complete(&output));
store_free!(Chained, Next<J>, |next| next.0);

impl<J, S, A, F, Fut, E> Handler<J, S, A, InTx> for F
where
    J: Job,
    S: Transactional,
    F: Fn(Attempt<J, S>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Done<J, S>, E>> + Send + 'static,
    E: Into<BoxError>,
{
    fn call(&self, run: Run<S>, _: A) -> BoxFuture<'static, HandlerResult> {
        in_tx(run, self)
    }
}

impl<J, S, A, F, Fut, E> Handler<J, S, A, WithState<InTx>> for F
where
    J: Job,
    S: Transactional,
    F: Fn(Attempt<J, S>, State<A>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Done<J, S>, E>> + Send + 'static,
    E: Into<BoxError>,
{
    fn call(&self, run: Run<S>, app: A) -> BoxFuture<'static, HandlerResult> {
        in_tx(run, |attempt| self(attempt, State(app)))
    }
}

fn in_tx<J, S, Fut, E>(
    run: Run<S>,
    call: impl FnOnce(Attempt<J, S>) -> Fut,
) -> BoxFuture<'static, HandlerResult>
where
    J: Job,
    S: Transactional,
    Fut: Future<Output = Result<Done<J, S>, E>> + Send + 'static,
    E: Into<BoxError>,
{
    let Run { client, attempt, lease, hooks } = run;
    let ctx = match Ctx::new(attempt) {
        Ok(ctx) => ctx,
        Err(error) => return Box::pin(async { HandlerResult::Unreadable(error) }),
    };
    let (parked, hooks) = (Arc::new(Mutex::new(None)), HookList::new(hooks));
    let handling = call(Attempt::new(ctx.clone(), client.clone(), lease, hooks.clone(), Arc::clone(&parked)));
    Box::pin(async move {
        match handling.await {
            Ok(done) => HandlerResult::InTx(Box::pin(run_closing_hooks(client, ctx, hooks, done))),
            Err(error) => {
                let left = parked.lock().unwrap_or_else(PoisonError::into_inner).take();
                let undo = left.map(|tx| -> BoxFuture<'static, Result<()>> {
                    Box::pin(async move { client.store().rollback(tx).await })
                });
                HandlerResult::Failed(error_text(&error.into()), undo)
            }
        }
    })
}

/// Converts the result of a handler that returns its outcome itself.
pub(super) fn any<E: Into<BoxError>>(
    handling: impl Future<Output = Result<Outcome, E>> + Send + 'static,
) -> BoxFuture<'static, HandlerResult> {
    Box::pin(async move {
        match handling.await {
            Ok(outcome) => HandlerResult::Plain(Box::new(outcome)),
            Err(error) => HandlerResult::Failed(error_text(&error.into()), None),
        }
    })
}

/// A handler of any job type, with its middleware and hooks.
pub(super) struct AnyHandler<S: ?Sized> {
    /// The former names of the type, then its name.
    pub(super) types: Vec<TypeName>,
    pub(super) options: JobOptions,
    pub(super) concurrency: Option<u32>,
    pub(super) layers: Arc<[Layer]>,
    pub(super) hooks: Arc<[AnyHooks]>,
    pub(super) call: Box<dyn Fn(Run<S>) -> BoxFuture<'static, HandlerResult> + Send + Sync>,
}

impl<S: Store + ?Sized> AnyHandler<S> {
    /// Creates a handler without names, middleware and hooks.
    pub(super) fn new(
        options: JobOptions,
        concurrency: Option<u32>,
        call: impl Fn(Run<S>) -> BoxFuture<'static, HandlerResult> + Send + Sync + 'static,
    ) -> Self {
        let (types, call) = (Vec::new(), Box::new(call));
        Self { types, options, concurrency, layers: Arc::default(), hooks: Arc::default(), call }
    }

    /// Whether the handler runs jobs of this type.
    pub(super) fn runs(&self, job_type: &TypeName) -> bool {
        self.types.contains(job_type)
    }

    /// Checks that the options are usable.
    pub(super) fn check(&self) -> Result<()> {
        let JobOptions { lease, timeout, .. } = self.options;
        let renewal = self.options.renewal();
        let name = self.types.last().map(TypeName::as_str).unwrap_or_default();
        let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, format!("job type `{name}`: {why}")));
        if self.concurrency == Some(0) {
            return refuse("concurrency limit must be at least 1, got 0".to_owned());
        }
        if lease < Duration::from_millis(10) || lease > Duration::from_millis(DURATION_MAX_MS) {
            return refuse(format!("lease must be 10 ms to 100 years, got {lease:?}"));
        }
        if renewal < Duration::from_millis(1) || renewal > lease / 2 {
            return refuse(format!(
                "renewal interval must be 1 ms to half of the lease of {lease:?}, got {renewal:?}"
            ));
        }
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return refuse("timeout must be greater than 0: omit it for no timeout".to_owned());
        }
        Ok(())
    }
}
