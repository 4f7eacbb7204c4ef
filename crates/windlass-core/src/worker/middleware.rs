//! Middleware: code that runs around attempts.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::ended::Ended;
use super::failure::error_text;
use crate::command::{DueTime, Outcome};
use crate::error::Result;
use crate::store::BoxFuture;
use crate::time::Millis;

/// Code that runs around attempts.
///
/// Code before `inner.run(…)` runs before the handler. Code after it runs once the outcome of the attempt has
/// been committed, and receives that outcome.
///
/// An async function can be a middleware:
///
/// ```
/// use windlass::BoxError;
/// use windlass::worker::{AnyAttempt, Ended, Inner};
///
/// async fn timing(attempt: AnyAttempt, inner: Inner) -> Result<Ended, BoxError> {
///     let (job_type, began) = (attempt.job().job_type.clone(), std::time::Instant::now());
///     let ended = inner.run(attempt).await;
///     println!("{job_type}: {ended:?} after {:?}", began.elapsed());
///     Ok(ended)
/// }
/// ```
///
/// If a middleware fails or panics before `inner`, the attempt fails as if the handler had failed: the job is
/// retried, unless the error is or wraps [`Fatal`](crate::Fatal). If a middleware fails after `inner`, the outcome
/// does not change; observers receive an event.
///
/// The first middleware added is the outermost. While the code after `inner` runs, the attempt still occupies its slot,
/// unless the store settled it and acquired another job for the slot in one call (`Capability::Exchange`).
pub trait Middleware: Send + Sync + 'static {
    /// Runs an attempt with `inner`, or ends it without running it.
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

/// The part of an attempt that a middleware wraps: inner middleware, the handler and the settlement.
#[must_use = "the attempt fails unless it is run"]
pub struct Inner {
    pub(super) pipeline: Arc<dyn Pipeline>,
    pub(super) layer: usize,
}

impl Inner {
    /// Runs the attempt. Returns how it ended, after the outcome has been committed.
    pub async fn run(self, attempt: AnyAttempt) -> Ended {
        self.pipeline.run_layer(self.layer, attempt).await
    }

    /// Skips the handler and runs the job again after this delay. The attempt does not count.
    ///
    /// # Errors
    ///
    /// An error if the delay is too long to be stored.
    pub async fn reschedule(self, delay: Duration) -> Result<Ended> {
        let schedule = DueTime::After(Millis::try_from(delay)?);
        Ok(self.pipeline.settle(Outcome::Reschedule { schedule, error: None }).await)
    }

    /// Skips the handler and fails the job and its chain, without further attempts.
    pub async fn fail(self, error: impl Into<BoxError>) -> Ended {
        let error = error_text(&error.into());
        self.pipeline.settle(Outcome::Fail { error, retention: None }).await
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("layer", &self.layer).finish_non_exhaustive()
    }
}

/// An attempt that passes through its middleware, with an erased store type.
pub(super) trait Pipeline: Send + Sync {
    /// Runs the attempt, starting at this layer of middleware.
    fn run_layer(self: Arc<Self>, layer: usize, attempt: AnyAttempt) -> BoxFuture<'static, Ended>;

    /// Settles the attempt with this outcome, without running it.
    fn settle(self: Arc<Self>, outcome: Outcome) -> BoxFuture<'static, Ended>;
}
