mod assert;
mod drained;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use windlass_core::command::{JobFilter, ListWorkers, NextDue, Types};
use windlass_core::{
    BoxFuture, Client, Clock, Error, ErrorKind, ManualClock, MemoryStore, Millis, Result, Running, Status,
    Store, Timestamp, Worker,
};

pub use drained::Drained;
use drained::{Counting, Tally};

use crate::query::{describe, jobs, next_starts};

/// Default limit of attempts per drain.
const ATTEMPTS_MAX: u32 = 1_000;
/// Default time that a drain waits for the next event.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Poll interval of the worker. The client notifies the worker of the jobs it starts; polling covers jobs that are
/// written to the store directly.
const WORKER_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The timeout for a worker to appear in the store's registry.
const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the registry is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A harness for testing several job types together: a memory store, its client, a manual clock, and your worker. The
/// worker runs only during a drain.
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use windlass::{BoxError, Ctx, Job, Worker};
/// # #[derive(Serialize, Deserialize, Job)]
/// # #[job(entry)]
/// # struct SendMail { to: String }
/// # async fn send_mail(_: Ctx<SendMail>) -> Result<(), BoxError> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// use std::time::Duration;
/// use windlass_test::TestHarness;
///
/// let harness = TestHarness::new(|client| Worker::new(client).handle(send_mail));
/// let hour = Duration::from_secs(60 * 60);
/// let mail = harness.client().start(SendMail { to: "ada".into() }).after(hour).await?;
///
/// assert_eq!(harness.drain_until_idle().await?.completed, 0);
/// harness.advance(hour);
/// assert_eq!(harness.drain_until_idle().await?.completed, 1);
/// harness.output(mail);
/// # Ok(())
/// # }
/// ```
pub struct TestHarness {
    client: Client<MemoryStore>,
    clock: Arc<ManualClock>,
    tally: Arc<Tally>,
    worker: StartWorker,
    concurrency: u32,
    attempts_max: u32,
    timeout: Duration,
}

/// Builds and starts the worker for a drain.
type StartWorker =
    Box<dyn Fn(&TestHarness) -> BoxFuture<'static, Result<Running<MemoryStore>>> + Send + Sync>;

impl TestHarness {
    /// Creates a harness. `worker` builds your application's worker from the harness's client. It is called once for
    /// each drain.
    #[must_use]
    pub fn new<F>(worker: F) -> Self
    where
        F: Fn(&Client<MemoryStore>) -> Worker<MemoryStore> + Send + Sync + 'static,
    {
        let (clock, tally) = (Arc::new(ManualClock::default()), Arc::new(Tally::default()));
        let store = MemoryStore::with_clock(Arc::<ManualClock>::clone(&clock));
        let client = Client::builder(store).observer(Counting(Arc::clone(&tally))).build();
        let worker = Box::new(move |harness: &Self| -> BoxFuture<'static, _> {
            Box::pin(
                worker(&harness.client)
                    .concurrency(harness.concurrency)
                    .poll(WORKER_POLL_INTERVAL)
                    .without_jitter()
                    .start(),
            )
        });
        Self { client, clock, tally, worker, concurrency: 1, attempts_max: ATTEMPTS_MAX, timeout: TIMEOUT }
    }

    /// Sets how many attempts run concurrently (default: 1). Overrides the worker's own setting.
    ///
    /// With the default, attempts run in the same order each time.
    #[must_use]
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.concurrency = slots;
        self
    }

    /// Sets how many attempts one drain may make before it returns an error (default: 1,000).
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts;
        self
    }

    /// Sets how long a drain waits for the next event before it returns an error (default: 10 s).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the client, for use by the code under test.
    #[must_use]
    pub const fn client(&self) -> &Client<MemoryStore> {
        &self.client
    }

    /// Returns the time on the harness's clock, which changes only when the test advances it.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the clock: delayed jobs and retries become due. They run in the next drain.
    ///
    /// # Panics
    ///
    /// If `by` is more than a hundred years.
    #[track_caller]
    pub fn advance(&self, by: Duration) {
        self.clock.advance(Millis::try_from(by).expect("a duration of at most 100 years"));
    }

    /// Advances the clock to the time at which the next job or the next occurrence of a schedule is due, and returns by
    /// how much. Returns `None` if there is none.
    #[expect(clippy::must_use_candidate, reason = "advancing the clock is the purpose")]
    pub fn advance_to_next_due(&self) -> Option<Duration> {
        let pending = JobFilter { statuses: vec![Status::Pending], ..JobFilter::default() };
        let pending = jobs(self.client.store(), &pending).into_iter();
        let scheduled = next_starts(self.client.store());
        let next =
            pending.map(|job| job.due_at).chain(scheduled).filter(|due_at| *due_at > self.now()).min()?;
        let by = next.since(self.now());
        self.advance(by);
        Some(by)
    }

    /// Runs all due jobs that have a handler, and the jobs that follow from them, until none is left at the current
    /// time of the harness.
    ///
    /// # Errors
    ///
    /// If the worker cannot start, if the drain makes more than [`attempts_max`](Self::attempts_max()) attempts, or if
    /// nothing happens for [`timeout`](Self::timeout()), for example because a handler hangs.
    pub async fn drain_until_idle(&self) -> Result<Drained> {
        self.tally.clear();
        let worker = (self.worker)(self).await?;
        let drained = self.until_idle(&worker).await;
        match drained {
            Ok(_) => worker.stop(self.timeout).await,
            Err(_) => worker.stop_now(Duration::ZERO).await,
        }
        drained.map(|()| self.tally.drained())
    }

    async fn until_idle(&self, worker: &Running<MemoryStore>) -> Result<()> {
        let types = self.types(worker).await?;
        let mut waited_since = Instant::now();
        loop {
            let happened = self.tally.happened();
            if self.is_idle(&types).await? {
                return Ok(());
            }
            if self.tally.attempts() > self.attempts_max {
                return Err(self.tally.endless(self.attempts_max));
            }
            // With tokio's paused time this timeout fires immediately, so measure real time before giving up.
            if timeout(self.timeout, happened).await.is_ok() {
                waited_since = Instant::now();
            } else if waited_since.elapsed() >= self.timeout {
                return Err(self.stuck());
            }
        }
    }

    /// Returns the types that the worker handles, as registered in the store.
    async fn types(&self, worker: &Running<MemoryStore>) -> Result<Types> {
        let begun = Instant::now();
        while begun.elapsed() < REGISTER_TIMEOUT {
            let workers = self.client.store().list_workers(ListWorkers).await?.workers;
            if let Some(found) = workers.into_iter().find(|found| found.worker == worker.id()) {
                return Ok(Types::Only(found.types));
            }
            sleep(POLL_INTERVAL).await;
        }
        Err(Error::new(ErrorKind::TimedOut, "the worker did not register in the store"))
    }

    /// Starts the occurrences of schedules that are due. Returns whether no job of these types is running or due.
    async fn is_idle(&self, types: &Types) -> Result<bool> {
        self.client.visit_schedules().await?;
        let next = self.client.store().next_due(NextDue { types: types.clone() }).await?;
        Ok(next.lease_until.is_none() && next.due_at.is_none_or(|due_at| due_at > next.now))
    }

    fn stuck(&self) -> Error {
        let running = JobFilter { statuses: vec![Status::Running], ..JobFilter::default() };
        let running: Vec<_> = jobs(self.client.store(), &running).iter().map(describe).collect();
        let text = format!(
            "nothing has happened for {:?}; running: {}: check what the handler waits for, or increase `timeout` or \
             `concurrency`",
            self.timeout,
            if running.is_empty() { "nothing".to_owned() } else { running.join(", ") },
        );
        Error::new(ErrorKind::TimedOut, text)
    }
}

impl fmt::Debug for TestHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestHarness").field("now", &self.now()).finish_non_exhaustive()
    }
}
