//! Signals that end a process.

/// Completes when the process is asked to terminate: on SIGTERM or SIGINT (Ctrl-C), or only on Ctrl-C if there are no
/// Unix signals. Pass it to [`Worker::run_until`](crate::Worker::run_until) or to the graceful shutdown of an HTTP
/// server.
///
/// The call installs the signal handlers, so a signal that arrives before the first poll is not lost. From then on,
/// these signals no longer terminate the process.
///
/// While a worker stops, further signals have no effect. To exit immediately on a second signal, wait for it while the
/// worker stops:
///
/// ```no_run
/// # use std::time::Duration;
/// # use windlass::{Running, MemoryStore, shutdown_signal};
/// # async fn stop(worker: Running<MemoryStore>) {
/// shutdown_signal().await;
/// tokio::select! {
///     () = worker.stop(Duration::from_secs(15)) => {}
///     () = shutdown_signal() => std::process::exit(1),
/// }
/// # }
/// ```
///
/// # Panics
///
/// Panics outside a tokio runtime whose I/O is enabled.
#[cfg(unix)]
pub fn shutdown_signal() -> impl Future<Output = ()> + Send + 'static {
    use tokio::signal::unix::{SignalKind, signal};

    let received = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async {
        let [terminate, interrupt] = received;
        match (terminate, interrupt) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            // The other one has no handler, so it still ends the process.
            (Ok(mut only), Err(_)) | (Err(_), Ok(mut only)) => drop(only.recv().await),
            (Err(_), Err(_)) => std::future::pending().await,
        }
    }
}

/// Completes when the process is asked to terminate by Ctrl-C. Pass it to
/// [`Worker::run_until`](crate::Worker::run_until) or to the graceful shutdown of an HTTP server.
///
/// # Panics
///
/// Panics outside a tokio runtime whose I/O is enabled.
#[cfg(not(unix))]
pub fn shutdown_signal() -> impl Future<Output = ()> + Send + 'static {
    async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
