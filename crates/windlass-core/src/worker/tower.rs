//! [`tower`](https://docs.rs/tower) layers as middleware.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use super::BoxError;
use super::any_attempt::AnyAttempt;
use super::ended::Ended;
use super::middleware::{Inner, Middleware};
use crate::error::Result;
use crate::store::BoxFuture;

/// A [`Middleware`] made from a [`tower_layer::Layer`], such as a `tower::ServiceBuilder`.
///
/// The layer wraps a [`RunAttempt`], a service that takes an [`AttemptRequest`] and returns how the attempt [`Ended`].
/// Layers of the `tower` crate work without changes: concurrency limits, timeouts, load shedding.
///
/// ```
/// use std::time::Duration;
/// use tower::ServiceBuilder;
/// use windlass::worker::TowerLayer;
/// use windlass::{Client, Ctx, Entry, Job, MemoryStore, Result, Worker};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
/// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
/// # impl Entry for Mail {}
/// # async fn send(_: Ctx<Mail>) -> Result<()> { Ok(()) }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # let client = Client::new(MemoryStore::new());
/// let stack = ServiceBuilder::new().concurrency_limit(2).timeout(Duration::from_secs(30));
/// let worker = Worker::new(&client).middleware(TowerLayer::new(stack)).handle(send).start().await?;
/// # let chain = client.start(Mail).await?;
/// # client.wait(chain).await?;
/// # worker.stop(Duration::from_secs(10)).await;
/// # Ok(()) }
/// ```
///
/// # Clones
///
/// The service is built once. Each attempt calls a clone of it, so the service must be [`Clone`]. State that clones
/// share, such as the permits of a concurrency limit, applies to the whole worker. Wrap a service that is not [`Clone`]
/// in a `tower::buffer::Buffer`.
///
/// # Waiting
///
/// An attempt waits until its service is ready (`poll_ready`) before its handler runs. Meanwhile it occupies a slot of
/// the worker, its lease is renewed, and this time counts towards the handler's timeout. If the attempt is asked to
/// stop, it stops waiting. If the worker is stopping, the job is requeued and the attempt does not count.
///
/// # Errors
///
/// If the service returns an error, the attempt fails and the job is retried after the backoff, unless the error is or
/// wraps [`Fatal`](crate::Fatal) or [`RetryAfter`](crate::RetryAfter). An error after the outcome has been stored
/// changes nothing; observers receive an event.
///
/// If a layer drops the future of the inner service, as a timeout does, the handler is dropped at its next `await`, and
/// its open transaction is rolled back. Once the handler has returned, its outcome is stored even if the future is
/// dropped.
///
/// A request cannot be cloned, so layers that send it twice, such as `tower::retry`, do not work. The worker itself
/// retries jobs.
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub struct TowerLayer<V> {
    /// Never called itself, only cloned. The lock makes it [`Sync`], which most services are not required to be.
    service: Mutex<V>,
}

impl<V> TowerLayer<V> {
    /// Builds the service of this layer.
    pub fn new<L: Layer<RunAttempt, Service = V>>(layer: L) -> Self {
        Self { service: Mutex::new(layer.layer(RunAttempt(()))) }
    }
}

impl<V> Middleware for TowerLayer<V>
where
    V: Service<AttemptRequest, Response = Ended> + Clone + Send + 'static,
    V::Error: Into<BoxError>,
    V::Future: Send,
{
    fn around<'a>(&'a self, attempt: AnyAttempt, inner: Inner) -> BoxFuture<'a, Result<Ended, BoxError>> {
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            tokio::select! {
                biased;
                ready = poll_fn(|context| service.poll_ready(context)) => ready.map_err(Into::into)?,
                reason = attempt.aborted().wait() => {
                    return Err(format!("asked to stop while waiting for a tower service: {reason:?}").into());
                }
            }
            service.call(AttemptRequest { attempt, inner }).await.map_err(Into::into)
        })
    }
}

impl<V> fmt::Debug for TowerLayer<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerLayer").finish_non_exhaustive()
    }
}

/// The request type of the services of a [`TowerLayer`]: an attempt to run.
#[derive(Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub struct AttemptRequest {
    attempt: AnyAttempt,
    inner: Inner,
}

impl AttemptRequest {
    /// Returns the attempt.
    #[must_use]
    pub const fn attempt(&self) -> &AnyAttempt {
        &self.attempt
    }

    /// Returns the attempt, for example to pass a value to the handler with [`AnyAttempt::insert`].
    pub const fn attempt_mut(&mut self) -> &mut AnyAttempt {
        &mut self.attempt
    }

    /// Splits the request into the attempt and the inner part of its pipeline. A service can then end the attempt
    /// without running it, with [`Inner::reschedule`] or [`Inner::fail`].
    pub fn into_parts(self) -> (AnyAttempt, Inner) {
        (self.attempt, self.inner)
    }
}

/// The innermost service of a [`TowerLayer`]: runs the attempt and returns how it ended, after the outcome has been
/// committed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub struct RunAttempt(());

impl Service<AttemptRequest> for RunAttempt {
    type Response = Ended;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Ended, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, AttemptRequest { attempt, inner }: AttemptRequest) -> Self::Future {
        Box::pin(async move { Ok(inner.run(attempt).await) })
    }
}
