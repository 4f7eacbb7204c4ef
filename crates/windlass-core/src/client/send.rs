//! Sends the commands of a client to the store.
//!
//! Every try has a timeout. If a reply is lost, [`send`] repeats the command, provided that a repeat is safe.
//! [`BusyRetries`] limits the retries of a command that found a row locked by another transaction: about one
//! second.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::command::*;
use crate::error::{Error, ErrorKind, Result};
use crate::for_each_command;
use crate::store::{BoxFuture, Store};

/// The timeout of one try.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How often a command is repeated after a lost reply, and the delay before the first repeat. Later delays
/// are longer.
const REPEATS: u32 = 3;
const REPEAT_DELAY: Duration = Duration::from_millis(50);

/// How often a command is retried while another transaction has locked one of its rows, and the delay before
/// each retry.
const BUSY_TRIES: u32 = 20;
const BUSY_DELAY: Duration = Duration::from_millis(50);

/// Sends a command. Repeats it after a lost reply, if it is repeatable.
pub(super) async fn send<S: Store + ?Sized, R: Repeat>(store: &S, request: &R) -> Result<R::Reply> {
    let repeats = if request.is_repeatable() { REPEATS } else { 0 };
    repeat(store, request, repeats).await
}

/// Sends a command. Repeats it after a lost reply, even if the reply to the repeat may differ. For callers
/// that ignore the reply, and for commands of workers, which are all safe to repeat.
pub(crate) async fn send_repeatedly<S: Store + ?Sized, R: Sendable>(
    store: &S,
    request: &R,
) -> Result<R::Reply> {
    repeat(store, request, REPEATS).await
}

async fn repeat<S: Store + ?Sized, R: Sendable>(store: &S, request: &R, repeats: u32) -> Result<R::Reply> {
    let mut lost = None;
    for tries in 1..=repeats {
        match answered(request.clone().send(store)).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => lost = Some(error),
            answer => return answer.map_err(|error| in_doubt(error, lost)),
        }
        sleep(REPEAT_DELAY * tries).await;
    }
    answered(request.clone().send(store)).await.map_err(|error| in_doubt(error, lost))
}

/// Returns the error of a repeated command. If the repeat was denied, an earlier try may still have taken
/// effect, so the error must be of kind `Unavailable`.
pub(super) fn in_doubt(error: Error, lost: Option<Error>) -> Error {
    match lost {
        Some(lost) if error.kind() == ErrorKind::AccessDenied => after_lost(error, &lost),
        _ => error,
    }
}

/// Returns the error of a command whose earlier try may still take effect.
pub(super) fn after_lost(error: Error, lost: &Error) -> Error {
    Error::new(lost.kind(), format!("{lost}; then: {error}")).with_inner(error)
}

/// Awaits the store's reply to one try. Returns an error of kind `Unavailable` if there is none in time. The
/// command may still have taken effect.
pub(crate) async fn answered<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    answered_within(ANSWER_LIMIT, call).await
}

/// Awaits a call. If it is not answered immediately, calls `then` once it is on its way.
pub(crate) async fn once_sent<T>(call: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let mut call = pin!(call);
    // A store sends a command when its future is first polled.
    match poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
        Poll::Ready(answer) => answer,
        Poll::Pending => {
            then();
            call.await
        }
    }
}

/// Like [`answered`], with another timeout.
pub(crate) async fn answered_within<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, call).await.unwrap_or_else(|_| {
        let text = format!("the store did not answer within {limit:?}: check that it is reachable");
        Err(Error::new(ErrorKind::Unavailable, text))
    })
}

/// The remaining retries of a command that found a row locked by another transaction.
///
/// Stores do not wait for such rows themselves, or only briefly (PostgreSQL): other callers may share the command, and
/// would have to wait too.
#[derive(Debug)]
pub(crate) struct BusyRetries(u32);

impl BusyRetries {
    pub(crate) const fn new() -> Self {
        Self(BUSY_TRIES)
    }

    /// Waits before the next retry. Returns `false` immediately if no retry is left.
    pub(crate) async fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        sleep(BUSY_DELAY).await;
        true
    }
}

/// A command that can call its method of the store.
pub(crate) trait Sendable: Request<Reply: Send> + Clone + Send + Sync + 'static {
    fn send<S: Store + ?Sized>(self, store: &S) -> BoxFuture<'_, Result<Self::Reply>>;
}

macro_rules! sendable {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        $(impl Sendable for $request {
            fn send<S: Store + ?Sized>(self, store: &S) -> BoxFuture<'_, Result<$reply>> {
                store.$method(self)
            }
        })*
    };
}
for_each_command!(sendable);

/// Decides when a command of a client is sent again.
pub(super) trait Repeat: Sendable {
    /// Returns the number of items in the request.
    fn items(&self) -> usize {
        1
    }

    /// Whether the command can be repeated after a lost reply. The repeat must have no further effect, and
    /// must get the same reply as the first try.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// Whether the command should be retried because another transaction has locked a row.
    fn is_busy(_: &Self::Reply) -> bool {
        false
    }
}

macro_rules! queries {
    ($($request:ident,)*) => { $(impl Repeat for $request {})* };
}
queries! {
    Count, GetChains, GetJobs, ListAttempts, ListChains, ListDependents, ListJobs, ListWorkers, NextDue,
}

/// Single items may be busy: `start::create` retries only those.
impl Repeat for Create {
    fn items(&self) -> usize {
        self.chains.len()
    }
}

impl Repeat for CompleteFromOutside {
    fn is_busy(reply: &CompleteFromOutsideReply) -> bool {
        matches!(reply, CompleteFromOutsideReply::Busy)
    }
}

impl Repeat for Cancel {
    fn items(&self) -> usize {
        self.chains.len()
    }

    /// By the time of the repeat a key may point at another chain.
    fn is_repeatable(&self) -> bool {
        !self.chains.iter().any(is_key)
    }

    fn is_busy(reply: &CancelReply) -> bool {
        matches!(reply.chains[..], [Cancelled::Busy])
    }
}

impl Repeat for Trigger {
    fn items(&self) -> usize {
        self.jobs.len()
    }

    /// The repeat might be refused, because a worker has acquired the job by then.
    fn is_repeatable(&self) -> bool {
        false
    }

    fn is_busy(reply: &TriggerReply) -> bool {
        matches!(reply, TriggerReply::Refused(whys) if whys.contains(&Some(Untriggerable::Busy)))
    }
}

impl Repeat for Retry {
    fn items(&self) -> usize {
        self.chains.len()
    }

    fn is_busy(reply: &RetryReply) -> bool {
        matches!(reply.chains[..], [Retried::Busy])
    }
}

impl Repeat for Delete {
    fn items(&self) -> usize {
        self.chains.len()
    }

    /// The reply to the repeat would not list the chains that the first try removed.
    fn is_repeatable(&self) -> bool {
        false
    }

    fn is_busy(reply: &DeleteReply) -> bool {
        matches!(reply, DeleteReply::Busy)
    }
}

impl Repeat for SetRetention {
    fn items(&self) -> usize {
        self.chains.len()
    }

    /// By the time of the repeat a key may point at another chain.
    fn is_repeatable(&self) -> bool {
        !self.chains.iter().any(is_key)
    }

    /// The retry sets all chains again, including those already set. This only moves their retention by the
    /// delay.
    fn is_busy(reply: &SetRetentionReply) -> bool {
        reply.chains.contains(&RetentionSet::Busy)
    }
}

impl Repeat for Pause {
    fn items(&self) -> usize {
        self.types.len()
    }

    /// The reply to the repeat would report the state that the first try set, not the state before it.
    fn is_repeatable(&self) -> bool {
        false
    }
}

/// A change is recognized by the revision that it writes.
impl Repeat for ChangeSchedules {}

impl Repeat for GetSchedules {}

impl Repeat for ListSchedules {}

impl Repeat for DueSchedules {}

fn is_key(target: &Target) -> bool {
    matches!(target, Target::Key(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_repeat_leaves_the_result_in_doubt() {
        let [lost, denied] = [ErrorKind::Unavailable, ErrorKind::AccessDenied]
            .map(|kind| Error::new(kind, format!("{kind:?}")));
        assert_eq!(in_doubt(denied.clone(), None).kind(), ErrorKind::AccessDenied);
        let error = in_doubt(denied, Some(lost));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.to_string(), "Unavailable; then: AccessDenied");
    }
}
