use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::ended::Ended;
use super::next::error_text;
use crate::command::{Outcome, Schedule};
use crate::error::Result;
use crate::store::BoxFuture;
use crate::time::Millis;

/// Wraps attempts: what it does before `inner.run(…)` comes before the handler, and what it does after it
/// comes after the attempt's end is committed, with that end in its hands.
///
/// An async function is one:
///
/// ```
/// use windlass_core::{AnyAttempt, BoxError, Ended, Inner};
///
/// async fn timing(attempt: AnyAttempt, inner: Inner) -> Result<Ended, BoxError> {
///     let (job_type, began) = (attempt.job().job_type.clone(), std::time::Instant::now());
///     let ended = inner.run(attempt).await;
///     println!("{job_type}: {ended:?} after {:?}", began.elapsed());
///     Ok(ended)
/// }
/// ```
///
/// One that fails or panics before `inner` fails the attempt, which is tried again after its backoff. One
/// that fails after it changes nothing any more; the observer is told. The first that is added is the
/// outermost. While it works after `inner`, its slot is still taken.
pub trait Middleware: Send + Sync + 'static {
    /// Runs an attempt by `inner`, or refuses to.
    fn around<'a>(&'a self, attempt: AnyAttempt, inner: Inner) -> BoxFuture<'a, Result<Ended, BoxError>>;
}

impl<F, Fut, E> Middleware for F
where
    F: Fn(AnyAttempt, Inner) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Ended, E>> + Send + 'static,
    E: Into<BoxError>,
{
    fn around<'a>(&'a self, attempt: AnyAttempt, inner: Inner) -> BoxFuture<'a, Result<Ended, BoxError>> {
        let around = self(attempt, inner);
        Box::pin(async move { around.await.map_err(Into::into) })
    }
}

/// What a middleware is wrapped around: further middleware, the handler, and the writing of its end.
#[must_use = "an attempt that is not run fails"]
pub struct Inner {
    pub(super) course: Arc<dyn Course>,
    pub(super) layer: usize,
}

impl Inner {
    /// Runs the attempt, and gives how it ended when that is committed.
    pub async fn run(self, attempt: AnyAttempt) -> Ended {
        self.course.pass(self.layer, attempt).await
    }

    /// Does not run the handler: the job is run again after this delay, and the attempt does not count.
    pub async fn reschedule(self, delay: Duration) -> Result<Ended> {
        let schedule = Schedule::After(Millis::try_from(delay)?);
        Ok(self.course.settle(Outcome::Reschedule { schedule, error: None }).await)
    }

    /// Does not run the handler: the job fails for good.
    pub async fn fail(self, error: impl Into<BoxError>) -> Ended {
        let error = error_text(&error.into());
        self.course.settle(Outcome::Fail { error, retention: None }).await
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// One attempt on its way through its middleware.
pub(super) trait Course: Send + Sync {
    /// Runs the attempt from this layer of middleware on.
    fn pass(self: Arc<Self>, layer: usize, attempt: AnyAttempt) -> BoxFuture<'static, Ended>;

    /// Ends it so.
    fn settle<'a>(&'a self, outcome: Outcome) -> BoxFuture<'a, Ended>;
}
