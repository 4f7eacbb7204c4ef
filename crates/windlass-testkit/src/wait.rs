//! Waiting for a condition.

use std::time::Duration;

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `predicate` says `true`, looking every few milliseconds, and at least once.
///
/// `what` completes the sentence "waited until …". The time is tokio's, so it also runs on a paused
/// clock. A predicate that hangs is given up at the timeout, too.
///
/// # Panics
///
/// Panics with `what` when `timeout` is over.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use windlass_testkit::wait_until;
///
/// let mut looks = 0;
/// wait_until("it was looked at twice", Duration::from_secs(1), async || {
///     looks += 1;
///     looks == 2
/// })
/// .await;
/// # }
/// ```
pub async fn wait_until(what: &str, timeout: Duration, mut predicate: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !predicate().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let seen = tokio::time::timeout(timeout, looking).await;
    assert!(seen.is_ok(), "waited for {timeout:?} in vain until {what}");
}

/// Repeats `attempt` until it has a result; `None` when `timeout` is over.
///
/// It takes no async closure: the future of one is not known to be `Send`, and servers are started in tasks.
pub(crate) async fn poll<T, F>(timeout: Duration, mut attempt: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    let looking = async {
        loop {
            if let Some(result) = attempt().await {
                return result;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(timeout, looking).await.ok()
}
