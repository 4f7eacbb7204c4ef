use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::BoxError;
use super::abort::Abort;
use super::attempt::{Attempt, Ctx, Done};
use super::next::{Next, complete, error_text};
use crate::client::Client;
use crate::command::{Acquired, Outcome, Request, Settle, SettleReply, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobOptions};
use crate::limit::DURATION_MAX_MS;
use crate::name::{ErrorText, TypeName};
use crate::store::{BoxFuture, Store, Transactional};
use crate::time::Millis;

/// The application's state, as a handler's second argument.
#[derive(Clone, Copy, Debug)]
pub struct State<A>(pub A);

/// An `async fn` that runs jobs of type `J`:
///
/// - `async fn(Ctx<J>) -> Result<J::Output, E>` or `-> Result<Next<J>, E>`, on any store;
/// - `async fn(Attempt<J, S>) -> Result<Done<J, S>, E>`, on a store with transactions;
/// - each with `State<A>` as a second argument, for a worker with that state.
///
/// `E` is any error; an attempt that ends with one is tried again after the type's backoff.
#[diagnostic::on_unimplemented(
    message = "this is not a handler of jobs",
    label = "not a handler for this worker",
    note = "a handler is an `async fn(Ctx<J>)` that returns `Result<J::Output, _>` or `Result<Next<J>, _>`, or an \
            `async fn(Attempt<J, S>)` that returns `Result<Done<J, S>, _>`, where `S` is the worker's store",
    note = "it may take `State<A>` as its second argument; call `.state(a)` on the worker before `.handle(…)`"
)]
pub trait Handler<J: Job, S: ?Sized, A, Marker>: Clone + Send + Sync + 'static {
    /// Runs one attempt.
    #[doc(hidden)]
    fn call(&self, run: Run<S>, app: A) -> BoxFuture<'static, Ending>;
}

/// What an attempt is run with.
#[doc(hidden)]
pub struct Run<S: ?Sized> {
    pub(super) client: Client<S>,
    pub(super) acquired: Acquired,
    pub(super) abort: Abort,
    pub(super) lease: Millis,
}

impl<S: ?Sized> fmt::Debug for Run<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").field("job", &self.acquired.job.id).finish_non_exhaustive()
    }
}

/// How a handler ended.
#[doc(hidden)]
pub enum Ending {
    /// With an outcome that the worker settles.
    Plain(Outcome),
    /// With a transaction in which this settles and commits.
    InTx(BoxFuture<'static, Result<SettleReply>>, Outcome),
    /// The job cannot be run by this code: it fails, with the reason.
    Unreadable(Error),
    /// With an error. What a step left behind is rolled back first.
    Failed(ErrorText, Option<BoxFuture<'static, Result<()>>>),
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::InTx(..) => "InTx",
            Self::Unreadable(_) => "Unreadable",
            Self::Failed(..) => "Failed",
        })
    }
}

impl Ending {
    fn of(outcome: Result<Outcome>) -> Self {
        match outcome {
            Ok(outcome) => Self::Plain(outcome),
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
            fn call(&self, run: Run<S>, _: A) -> BoxFuture<'static, Ending> {
                let ctx = match Ctx::new(run.acquired, run.abort) {
                    Ok(ctx) => ctx,
                    Err(error) => return Box::pin(async { Ending::Unreadable(error) }),
                };
                let handling = self(ctx);
                Box::pin(async move {
                    match handling.await {
                        Ok($value) => Ending::of($outcome),
                        Err(error) => Ending::Failed(error_text(&error.into()), None),
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
            fn call(&self, run: Run<S>, app: A) -> BoxFuture<'static, Ending> {
                let ctx = match Ctx::new(run.acquired, run.abort) {
                    Ok(ctx) => ctx,
                    Err(error) => return Box::pin(async { Ending::Unreadable(error) }),
                };
                let handling = self(ctx, State(app));
                Box::pin(async move {
                    match handling.await {
                        Ok($value) => Ending::of($outcome),
                        Err(error) => Ending::Failed(error_text(&error.into()), None),
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
    fn call(&self, run: Run<S>, _: A) -> BoxFuture<'static, Ending> {
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
    fn call(&self, run: Run<S>, app: A) -> BoxFuture<'static, Ending> {
        in_tx(run, |attempt| self(attempt, State(app)))
    }
}

fn in_tx<J, S, Fut, E>(run: Run<S>, call: impl FnOnce(Attempt<J, S>) -> Fut) -> BoxFuture<'static, Ending>
where
    J: Job,
    S: Transactional,
    Fut: Future<Output = Result<Done<J, S>, E>> + Send + 'static,
    E: Into<BoxError>,
{
    let Run { client, acquired, abort, lease } = run;
    let (job, fence) = (acquired.job.id, acquired.job.fence);
    let ctx = match Ctx::new(acquired, abort) {
        Ok(ctx) => ctx,
        Err(error) => return Box::pin(async { Ending::Unreadable(error) }),
    };
    let parked = Arc::new(Mutex::new(None));
    let handling = call(Attempt::new(ctx, client.clone(), lease, Arc::clone(&parked)));
    Box::pin(async move {
        let (mut tx, outcome) = match handling.await {
            Ok(done) => done.take(),
            Err(error) => {
                let left = parked.lock().unwrap_or_else(PoisonError::into_inner).take();
                let undo = left.map(|tx| -> BoxFuture<'static, Result<()>> {
                    Box::pin(async move { client.store().rollback(tx).await })
                });
                return Ending::Failed(error_text(&error.into()), undo);
            }
        };
        let settled = outcome.clone();
        let finish = async move {
            let settlement = Settlement { job, fence, outcome };
            let reply = run_in(&client, &mut tx, Settle { settlements: vec![settlement] }).await?;
            if matches!(reply.settled.first(), Some(Settled::Applied(_))) {
                client.store().commit(tx).await?;
            } else {
                client.store().rollback(tx).await?;
            }
            Ok(reply)
        };
        Ending::InTx(Box::pin(finish), settled)
    })
}

async fn run_in<S: Transactional, R: Request>(
    client: &Client<S>,
    tx: &mut S::Tx,
    request: R,
) -> Result<R::Reply> {
    client.store().run_in(tx, request).await
}

/// A handler of some job type.
pub(super) struct AnyHandler<S: ?Sized> {
    pub(super) names: Vec<&'static str>,
    pub(super) options: JobOptions,
    pub(super) concurrency: Option<u32>,
    pub(super) call: Box<dyn Fn(Run<S>) -> BoxFuture<'static, Ending> + Send + Sync>,
}

impl<S: Store + ?Sized> AnyHandler<S> {
    pub(super) fn new<J: Job, A: Clone + Send + Sync + 'static, M>(
        handler: impl Handler<J, S, A, M>,
        app: A,
    ) -> Self {
        let names = J::ALIASES.iter().copied().chain([J::NAME]).collect();
        let call = Box::new(move |run: Run<S>| handler.call(run, app.clone()));
        Self { names, options: J::options(), concurrency: None, call }
    }

    /// Refuses options that cannot work.
    pub(super) fn check(&self) -> Result<()> {
        self.names.iter().try_for_each(|name| TypeName::new(name).map(drop))?;
        let JobOptions { lease, timeout, .. } = self.options;
        let renewal = self.options.renewal();
        let name = self.names.last().copied().unwrap_or_default();
        let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, format!("job type `{name}` {why}")));
        if self.concurrency == Some(0) {
            return refuse("may run at most 0 times at once: give it a slot or no handler".to_owned());
        }
        if lease < Duration::from_millis(10) || lease > Duration::from_millis(DURATION_MAX_MS) {
            return refuse(format!("has a lease of {lease:?}: give it 10 ms to a hundred years"));
        }
        if renewal < Duration::from_millis(1) || renewal > lease / 2 {
            return refuse(format!(
                "renews its lease of {lease:?} each {renewal:?}: renew at least twice in a lease"
            ));
        }
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return refuse("has a timeout of no time: give it some or none".to_owned());
        }
        Ok(())
    }
}
