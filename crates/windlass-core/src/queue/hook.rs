use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Item, Shared, positive};
use crate::error::{Error, Result};
use crate::name::ErrorText;
use crate::observer::Event;
use crate::store::BoxFuture;
use crate::time::Millis;
use crate::worker::{BoxError, catch_panic, error_text};

/// How long a hook may take. One that hangs must not cost the work that is done.
const LONGEST: Duration = Duration::from_secs(10);

/// How long it may take once the attempt is to stop: soon nothing can be written for it any more.
const AFTER_ABORT: Duration = Duration::from_millis(50);

pub(super) type Hook<P, O> =
    Box<dyn Fn(Executed<P, O>) -> BoxFuture<'static, Result<Executed<P, O>, BoxError>> + Send + Sync>;

/// A job that has been executed: with success, or with the failure of its last attempt. A hook may change the
/// result, the error and the TTL; what it gives back is stored.
///
/// ```
/// # use std::time::Duration;
/// # use windlass_core::{BoxError, Client, MemoryStore};
/// use windlass_core::queue::Executed;
///
/// # let client = Client::new(MemoryStore::new());
/// let pages = client.queue::<String, String>("pages").after_execution(|mut executed: Executed<String, String>| async move {
///     if executed.result.as_ref().is_ok_and(|page| page.len() > 100_000) {
///         executed.ttl = Duration::from_secs(60);        // large ones are kept for a minute only
///     }
///     Ok::<_, BoxError>(executed)
/// });
/// # assert!(pages.build().is_ok());
/// ```
///
/// A hook that fails, panics, takes more than 10 s or goes on when the attempt is to stop, gives a TTL of no
/// time or turns a success into a failure (or the other way round) changes nothing: the job ends as if there
/// were no hook, and the observers are told. A handler that succeeded is never run again because of it.
///
/// Two ends have no hook. A job whose payload cannot be read fails before there is anything to give to one. A
/// job whose last attempt ended with its worker is ended by whoever reaps it, who may know nothing of this
/// queue.
#[derive(Debug)]
#[non_exhaustive]
pub struct Executed<P, O> {
    /// The job.
    pub item: Item<P>,
    /// What the handler gave, or why it failed.
    pub result: Result<O, String>,
    /// How long that will be kept.
    pub ttl: Duration,
    /// How long the handler took.
    pub took: Duration,
}

/// What a hook wants stored.
pub(super) struct Changed<O> {
    pub(super) result: Result<O, String>,
    /// If other than the job was enqueued with.
    pub(super) ttl: Option<Millis>,
}

impl<P: Send + Sync + 'static, O: Send + 'static> Shared<P, O> {
    /// What the hook makes of it; none if there is no hook, or it failed, which is told.
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
            sleep(AFTER_ABORT).await;
        };
        let hooked = tokio::select! {
            biased;
            hooked = timeout(LONGEST, catch_panic("hook", async { hook(executed).await })) => hooked.ok(),
            () = aborted => None,
        };
        let changed = match hooked {
            Some(Ok(Ok(executed))) => changed(executed, is_ok, ttl),
            Some(Ok(Err(error))) => Err(error_text(&error)),
            Some(Err(panic)) => Err(panic),
            None => Err(ErrorText::new("the hook took longer than it may")),
        };
        changed.map_err(|error| self.hook_failed(item, error)).ok()
    }

    pub(super) fn hook_failed(&self, item: &Item<P>, error: ErrorText) {
        self.client.shared.teller.observe(&Event::HookFailed(item.any().about(), error));
    }
}

fn changed<P, O>(executed: Executed<P, O>, is_ok: bool, before: Duration) -> Result<Changed<O>, ErrorText> {
    let text = |error: Error| ErrorText::new(error.to_string());
    if executed.result.is_ok() != is_ok {
        let text = "a hook changes a result or an error, not the one into the other";
        return Err(ErrorText::new(text));
    }
    let ttl = positive(executed.ttl).map_err(text)?;
    Ok(Changed { result: executed.result, ttl: (executed.ttl != before).then_some(ttl) })
}
