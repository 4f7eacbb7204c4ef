//! The hook that runs after the execution of a job and may change its result.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Item, Shared, positive};
use crate::error::{Error, Result};
use crate::name::ErrorText;
use crate::observer::Event;
use crate::store::BoxFuture;
use crate::time::Millis;
use crate::worker::{BoxError, catch_panic, error_text};

/// The timeout of a hook. A hook that hangs must not lose completed work.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a hook after the attempt is aborted. Soon afterwards the attempt can no longer be settled.
const TIMEOUT_AFTER_ABORT: Duration = Duration::from_millis(50);

pub(super) type Hook<P, O> =
    Box<dyn Fn(Executed<P, O>) -> BoxFuture<'static, Result<Executed<P, O>, BoxError>> + Send + Sync>;

/// A job whose handler succeeded or failed permanently. A hook may change the result, the error and the TTL; the value
/// that it returns is stored.
///
/// ```
/// # use std::time::Duration;
/// # use windlass::{BoxError, Client, MemoryStore};
/// use windlass::queue::Executed;
///
/// # let client = Client::new(MemoryStore::new());
/// let shorten = |mut executed: Executed<String, String>| async move {
///     if executed.result.as_ref().is_ok_and(|page| page.len() > 100_000) {
///         executed.ttl = Duration::from_secs(60);        // large pages are kept for a minute only
///     }
///     Ok::<_, BoxError>(executed)
/// };
/// let pages = client.queue::<String, String>("pages").after_execution(shorten);
/// # assert!(pages.build().is_ok());
/// ```
///
/// A hook has no effect if it:
///
/// - returns an error or panics;
/// - runs for more than 10 s, or continues after the attempt is aborted;
/// - returns a TTL of zero or of more than 100 years;
/// - returns a result that cannot be encoded;
/// - turns a success into a failure, or vice versa.
///
/// In these cases the job ends as if there were no hook, and the observers receive an event. A hook never causes a
/// handler that succeeded to run again.
///
/// There are three cases in which the last attempt of a job fails and the hook does not run for the failure. If the
/// payload could not be decoded, there is no value to pass to the hook. If the worker crashed, a reaper fails the job,
/// and it may not know this queue. If the handler ended the job in a transaction and the commit failed, the hook has
/// already run with the handler's result.
#[derive(Debug)]
#[non_exhaustive]
pub struct Executed<P, O> {
    /// The job.
    pub item: Item<P>,
    /// The result of the handler, or its error.
    pub result: Result<O, String>,
    /// How long the result or error will be kept.
    pub ttl: Duration,
    /// How long the handler ran.
    pub took: Duration,
}

/// The values that a hook wants to store.
pub(super) struct Changed<O> {
    pub(super) result: Result<O, String>,
    /// The TTL, if it differs from the one that the job was enqueued with.
    pub(super) ttl: Option<Millis>,
}

impl<P: Send + Sync + 'static, O: Send + 'static> Shared<P, O> {
    /// Runs the hook. Returns `None` if there is no hook, or if it fails, which is reported to the observers.
    pub(super) async fn after(
        &self,
        item: &Item<P>,
        result: Result<O, String>,
        took: Duration,
    ) -> Option<Changed<O>> {
        let hook = self.hook.as_ref()?;
        let (is_ok, ttl) =
            (result.is_ok(), if result.is_ok() { item.result_ttl() } else { item.error_ttl() });
        let executed = Executed { item: item.clone(), result, ttl, took };
        let aborted = async {
            item.aborted().wait().await;
            sleep(TIMEOUT_AFTER_ABORT).await;
        };
        let hooked = tokio::select! {
            biased;
            hooked = timeout(TIMEOUT, catch_panic("hook", async { hook(executed).await })) => hooked.ok(),
            () = aborted => None,
        };
        let changed = match hooked {
            Some(Ok(Ok(executed))) => changed(executed, is_ok, ttl),
            Some(Ok(Err(error))) => Err(error_text(&error)),
            Some(Err(panic)) => Err(panic),
            None => Err(ErrorText::new("the hook timed out")),
        };
        changed.map_err(|error| self.hook_failed(item, error)).ok()
    }

    pub(super) fn hook_failed(&self, item: &Item<P>, error: ErrorText) {
        let dispatcher = &self.client.shared.dispatcher;
        dispatcher.observe(&Event::HookFailed(item.any().about(dispatcher.now()), error));
    }
}

fn changed<P, O>(executed: Executed<P, O>, is_ok: bool, before: Duration) -> Result<Changed<O>, ErrorText> {
    let text = |error: Error| ErrorText::new(error.to_string());
    if executed.result.is_ok() != is_ok {
        let text = "a hook cannot turn a result into an error, or an error into a result";
        return Err(ErrorText::new(text));
    }
    let ttl = positive(executed.ttl).map_err(text)?;
    Ok(Changed { result: executed.result, ttl: (executed.ttl != before).then_some(ttl) })
}
