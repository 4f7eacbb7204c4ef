use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// What a worker calls for each job.
#[derive(Clone, Debug)]
pub struct Handler {
    calls: Arc<AtomicU64>,
    /// Number of calls after which to report.
    all: u64,
    /// Whether each call is reported.
    each: bool,
    reports: UnboundedSender<Call>,
}

/// A call of the handler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) at: Instant,
}

impl Handler {
    /// Records that the job with this number runs.
    pub fn call(&self, number: u64) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if self.each || calls == self.all {
            // There is no receiver for the report of a job that runs again after the end of the workload.
            let _ = self.reports.send(Call { number, at: Instant::now() });
        }
    }

    /// Creates a handler that reports only the last of this many calls.
    pub(crate) fn counting(all: u64) -> (Self, UnboundedReceiver<Call>) {
        Self::new(all, false)
    }

    /// Creates a handler that reports each call.
    pub(crate) fn reporting() -> (Self, UnboundedReceiver<Call>) {
        Self::new(u64::MAX, true)
    }

    fn new(all: u64, each: bool) -> (Self, UnboundedReceiver<Call>) {
        let (reports, receiver) = mpsc::unbounded_channel();
        (Self { calls: Arc::default(), all, each, reports }, receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_call_of_a_backlog_is_reported() {
        let (handler, mut reports) = Handler::counting(2);
        handler.call(7);
        assert!(reports.try_recv().is_err());
        handler.clone().call(8);
        assert_eq!(reports.try_recv().unwrap().number, 8);
        let (handler, mut reports) = Handler::reporting();
        handler.call(7);
        assert_eq!(reports.try_recv().unwrap().number, 7);
    }
}
