//! Signals that end a process.

/// Completes when the process is asked to end: at SIGTERM or SIGINT (Ctrl-C), or at Ctrl-C alone where there are no
/// Unix signals. Pass it to [`Worker::run_until`](crate::Worker::run_until) or to the graceful shutdown of an HTTP
/// server. Several parts of a program may each await a signal of their own.
///
/// Once it has been polled, these signals no longer end the process by themselves, not even a second Ctrl-C.
///
/// # Panics
///
/// Panics outside a tokio runtime whose I/O is enabled.
pub async fn shutdown_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};

        let mut received = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
        let [terminate, interrupt] = &mut received;
        match (terminate, interrupt) {
            (Ok(terminate), Ok(interrupt)) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            // Without handlers the signals end the process, as they would without this call.
            _ => std::future::pending().await,
        }
    }
    #[cfg(not(unix))]
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
