//! Waiting for a condition.

use std::time::Duration;

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `predicate` returns `true`. Checks every few milliseconds, and at least once.
///
/// `what` completes the sentence "waiting until …". The timeout uses tokio's clock, so this works on a paused clock too.
/// The timeout also ends a predicate that hangs.
///
/// # Panics
///
/// Panics with `what` if `timeout` expires.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use windlass_testkit::wait_until;
///
/// let mut checks = 0;
/// wait_until("the condition was checked twice", Duration::from_secs(1), async || {
///     checks += 1;
///     checks == 2
/// })
/// .await;
/// # }
/// ```
pub async fn wait_until(what: &str, timeout: Duration, mut predicate: impl AsyncFnMut() -> bool) {
    let polling = async {
        while !predicate().await {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let done = tokio::time::timeout(timeout, polling).await;
    assert!(done.is_ok(), "timed out after {timeout:?} waiting until {what}");
}

/// Repeats `attempt` until it returns a result. Returns `None` if `timeout` expires.
///
/// Does not take an async closure: its future is not known to be `Send`, and servers are started in tasks.
pub(crate) async fn poll<T, F>(timeout: Duration, mut attempt: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    let polling = async {
        loop {
            if let Some(result) = attempt().await {
                return result;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(timeout, polling).await.ok()
}
