//! How soon a worker runs a job after the application has committed it by its own means.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::{interval, sleep, timeout};
use windlass_core::{ChainId, Client, Ctx, Entry, Job, Reach, Store, Transactional, Worker};

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
    /// The number of jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.sorted.len()
    }

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

/// When each chain was committed, or its job handled. Processes of one machine share its clock.
pub type Times = HashMap<ChainId, SystemTime>;

/// Commits jobs at a steady rate, in transactions that the client does not end. Returns when each commit had ended.
///
/// # Panics
///
/// Panics if the store fails.
pub async fn commit_jobs<S: Transactional>(application: &Client<S>, commits: usize) -> Times {
    let (store, mut committed) = (application.store(), Times::new());
    let mut ticks = interval(INTERVAL);
    for _ in 0..commits {
        ticks.tick().await;
        let mut tx = store.begin().await.expect("a transaction begins");
        let started = application.in_tx(S::tx_ref(&mut tx)).start(Timed {}).await;
        let chain = started.expect("the job starts").id();
        store.commit(tx).await.expect("the transaction commits");
        committed.insert(chain, SystemTime::now());
    }
    committed
}

/// Prints times for the process that measures the delays. It reads them with [`read_times`].
pub fn print_times(times: &Times) {
    for (chain, at) in times {
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        println!("{COMMITTED}{chain} {at}");
    }
}

/// Reads what [`print_times`] printed. Other lines are ignored.
#[must_use]
pub fn read_times(output: &str) -> Times {
    let read = |line: &str| {
        let (chain, at) = line.split_once(COMMITTED)?.1.split_once(' ')?;
        Some((chain.parse().ok()?, SystemTime::UNIX_EPOCH + Duration::from_micros(at.parse().ok()?)))
    };
    output.lines().filter_map(read).collect()
}

/// The beginning of a printed time. A test runner may print something before it.
const COMMITTED: &str = "committed ";

/// Runs the jobs that `commit` commits, usually in another process, with an idle worker of this client.
///
/// # Panics
///
/// Panics if the store fails, or if the jobs do not run.
pub async fn commit_to_handler<S: Store>(client: &Client<S>, commit: impl Future<Output = Times>) -> Delays {
    let handled = Arc::new(Mutex::new(Times::new()));
    let noted = Arc::clone(&handled);
    let handle = move |job: Ctx<Timed>| {
        let mut handled = noted.lock().unwrap_or_else(PoisonError::into_inner);
        handled.insert(job.job().chain, SystemTime::now());
        async { Ok::<_, windlass_core::BoxError>(()) }
    };
    let worker = Worker::new(client).concurrency(10).handle(handle).start().await.expect("the worker starts");
    until("notifications arrive", || matches!(client.reach(), Reach::Everywhere)).await;
    let committed = commit.await;
    let handled = || handled.lock().unwrap_or_else(PoisonError::into_inner);
    until("all jobs have run", || handled().len() >= committed.len()).await;
    let found_by_polling = worker.found_by_polling();
    worker.stop(PATIENCE).await;
    let handled = handled();
    let delay = |(chain, at): (&ChainId, &SystemTime)| {
        handled.get(chain).map(|handled| handled.duration_since(*at).unwrap_or_default())
    };
    let mut sorted: Vec<_> = committed.iter().filter_map(delay).collect();
    assert_eq!(sorted.len(), committed.len(), "a job that was not committed has run");
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
