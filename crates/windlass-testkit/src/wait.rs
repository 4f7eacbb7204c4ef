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
    let seen = poll(timeout, async || predicate().await.then_some(())).await;
    assert!(seen.is_some(), "waited for {timeout:?} in vain until {what}");
}

/// Repeats `attempt` until it has a result; `None` when `timeout` is over.
pub(crate) async fn poll<T>(timeout: Duration, mut attempt: impl AsyncFnMut() -> Option<T>) -> Option<T> {
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
