//! How a command reaches the store.
//!
//! Every command of a client comes through [`send`]: each try has a time limit, a lost reply is followed by
//! another try, and a command that found a row locked by another transaction is tried again for about a
//! second.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::command::*;
use crate::error::{Error, ErrorKind, Result};
use crate::for_each_command;
use crate::store::{BoxFuture, Store};

/// How long the store may take to answer one try.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How often a command is repeated after a lost reply, and the pause before the first repeat; later pauses
/// are longer.
const REPEATS: u32 = 3;
const REPEAT_DELAY: Duration = Duration::from_millis(50);

/// How often a command is tried again while another transaction holds one of its rows, and the pause before
/// each try.
const BUSY_TRIES: u32 = 20;
const BUSY_DELAY: Duration = Duration::from_millis(50);

/// Sends a command, and repeats it after a lost reply if it can be repeated.
pub(super) async fn send<S: Store + ?Sized, R: Repeat>(store: &S, request: &R) -> Result<R::Reply> {
    let repeats = if request.is_repeatable() { REPEATS } else { 0 };
    repeat(store, request, repeats).await
}

/// Sends a command, and repeats it after a lost reply. For callers that ignore what a repeated reply may
/// lack.
pub(super) async fn send_repeatedly<S: Store + ?Sized, R: Sendable>(
    store: &S,
    request: &R,
) -> Result<R::Reply> {
    repeat(store, request, REPEATS).await
}

async fn repeat<S: Store + ?Sized, R: Sendable>(store: &S, request: &R, repeats: u32) -> Result<R::Reply> {
    for tries in 1..=repeats {
        match answered(request.clone().send(store)).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => sleep(REPEAT_DELAY * tries).await,
            answer => return answer,
        }
    }
    answered(request.clone().send(store)).await
}

/// Awaits the store's answer to one try. Returns an error of kind `Unavailable` if none comes in time; the
/// command may have been carried out.
pub(crate) async fn answered<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(ANSWER_LIMIT, call).await.unwrap_or_else(|_| {
        let text = format!("the store has not answered for {ANSWER_LIMIT:?}: check that it is reachable");
        Err(Error::new(ErrorKind::Unavailable, text))
    })
}

/// The tries that are left for a command whose rows another transaction holds.
///
/// Stores do not wait for such rows: other callers may share the command, and would wait too.
#[derive(Debug)]
pub(crate) struct BusyRetries(u32);

impl BusyRetries {
    pub(crate) const fn new() -> Self {
        Self(BUSY_TRIES)
    }

    /// Pauses before the next try. Returns `false`, at once, when no try is left.
    pub(crate) async fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        sleep(BUSY_DELAY).await;
        true
    }
}

/// A command that finds its method of the store.
pub(super) trait Sendable: Request<Reply: Send> + Clone + Send + Sync + 'static {
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

/// When a command of a client is sent again.
pub(super) trait Repeat: Sendable {
    /// Whether the command may be repeated after a lost reply: the repeat does no more than the first try,
    /// and its reply says what the first one said.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// Whether the command did nothing because another transaction holds a row.
    fn is_busy(_: &Self::Reply) -> bool {
        false
    }
}

macro_rules! queries {
    ($($request:ident,)*) => { $(impl Repeat for $request {})* };
}
queries! { Count, GetChains, GetJobs, ListAttempts, ListChains, ListDependents, ListJobs, ListWorkers, }

/// Its items may be busy one by one: `commands::create` retries those.
impl Repeat for Create {}

impl Repeat for CompleteFromOutside {
    fn is_busy(reply: &CompleteFromOutsideReply) -> bool {
        matches!(reply, CompleteFromOutsideReply::Busy)
    }
}

impl Repeat for Cancel {
    /// By the time of the repeat a key may point at another chain.
    fn is_repeatable(&self) -> bool {
        !self.chains.iter().any(is_key)
    }

    fn is_busy(reply: &CancelReply) -> bool {
        matches!(reply.chains[..], [Cancelled::Busy])
    }
}

impl Repeat for Trigger {
    /// The repeat might be refused, because a worker has taken the job.
    fn is_repeatable(&self) -> bool {
        false
    }

    fn is_busy(reply: &TriggerReply) -> bool {
        matches!(reply, TriggerReply::Refused(whys) if whys.contains(&Some(Untriggerable::Busy)))
    }
}

impl Repeat for Retry {
    fn is_busy(reply: &RetryReply) -> bool {
        matches!(reply.chains[..], [Retried::Busy])
    }
}

impl Repeat for Delete {
    /// The repeat would not name what the first try removed.
    fn is_repeatable(&self) -> bool {
        false
    }

    fn is_busy(reply: &DeleteReply) -> bool {
        matches!(reply, DeleteReply::Busy)
    }
}

impl Repeat for SetRetention {
    /// By the time of the repeat a key may point at another chain.
    fn is_repeatable(&self) -> bool {
        !self.chains.iter().any(is_key)
    }

    /// All of it is set again: a retention counts from now.
    fn is_busy(reply: &SetRetentionReply) -> bool {
        reply.chains.contains(&RetentionSet::Busy)
    }
}

impl Repeat for Pause {
    /// The repeat would say that the type was paused before.
    fn is_repeatable(&self) -> bool {
        false
    }
}

fn is_key(target: &Target) -> bool {
    matches!(target, Target::Key(..))
}
