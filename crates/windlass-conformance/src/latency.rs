//! How soon a worker runs a job after the application has committed it by its own means.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, interval, sleep, timeout};
use windlass_core::{ChainId, Client, Ctx, Entry, Job, Reach, Transactional, Worker};

/// Time between two commits.
const INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait for the notifier to connect, and for the last job.
const PATIENCE: Duration = Duration::from_secs(60);

/// The delays between commits and handlers.
#[derive(Clone, Debug)]
pub struct Delays {
    sorted: Vec<Duration>,
    /// How many jobs the worker found by polling.
    pub found_by_polling: u64,
}

impl Delays {
    /// Returns the delay that this share of the jobs did not exceed.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Duration {
        let at = (self.sorted.len() as f64 * share).ceil() as usize;
        self.sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99) = (self.percentile(0.5), self.percentile(0.99));
        let (jobs, polled) = (self.sorted.len(), self.found_by_polling);
        write!(f, "from commit to handler: p50 {p50:.1?}, p99 {p99:.1?}, {polled} of {jobs} found by polling")
    }
}

#[derive(Serialize, Deserialize)]
struct Timed {}

impl Job for Timed {
    const NAME: &'static str = "timed";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Timed {}

type Times = Arc<Mutex<HashMap<ChainId, Instant>>>;

/// Commits jobs at a steady rate in transactions that the client does not end, and runs them with an idle worker of
/// another client, which stands for another process.
///
/// # Panics
///
/// Panics if the store fails, or if the jobs do not run.
pub async fn commit_to_handler<S: Transactional>(
    application: &Client<S>,
    other: &Client<S>,
    commits: usize,
) -> Delays {
    let (committed, handled) = (Times::default(), Times::default());
    let note = |times: &Times, chain| {
        times.lock().unwrap_or_else(PoisonError::into_inner).insert(chain, Instant::now());
    };
    let noted = Arc::clone(&handled);
    let handle = move |job: Ctx<Timed>| {
        note(&noted, job.job().chain);
        async { Ok::<_, windlass_core::BoxError>(()) }
    };
    let worker = Worker::new(other).concurrency(10).handle(handle).start().await.expect("the worker starts");
    until("notifications arrive", || matches!(other.reach(), Reach::Everywhere)).await;
    let mut ticks = interval(INTERVAL);
    for _ in 0..commits {
        ticks.tick().await;
        let store = application.store();
        let mut tx = store.begin().await.expect("a transaction begins");
        let started = application.in_tx(S::tx_ref(&mut tx)).start(Timed {}).await;
        let chain = started.expect("the job starts").id();
        store.commit(tx).await.expect("the transaction commits");
        note(&committed, chain);
    }
    let count = || handled.lock().unwrap_or_else(PoisonError::into_inner).len();
    until("all jobs have run", || count() == commits).await;
    let found_by_polling = worker.found_by_polling();
    worker.stop(PATIENCE).await;
    let handled = handled.lock().unwrap_or_else(PoisonError::into_inner);
    let committed = committed.lock().unwrap_or_else(PoisonError::into_inner);
    let delay = |(chain, at): (&ChainId, &Instant)| {
        handled.get(chain).map(|handled| handled.saturating_duration_since(*at))
    };
    let mut sorted: Vec<_> = committed.iter().filter_map(delay).collect();
    sorted.sort_unstable();
    Delays { sorted, found_by_polling }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "after {PATIENCE:?} still not true: {what}");
}
