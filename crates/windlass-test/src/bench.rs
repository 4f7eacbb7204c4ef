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

use crate::look::{describe, jobs};

/// How many attempts one drain makes at most, unless said otherwise.
const ATTEMPTS_MAX: u32 = 1_000;
/// How long a drain waits for an attempt to end, unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often the worker looks by itself. It is told of all jobs; this is for those that start them behind the
/// client's back.
const POLL: Duration = Duration::from_millis(50);
/// How long a worker may take to appear in the store's registry, and how often to look for it there.
const REGISTERED_WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

/// A place to test job types together: a memory store, its client, a clock to turn, and your worker, which
/// runs only when it is told to.
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
/// use windlass_test::TestBench;
///
/// let bench = TestBench::new(|client| Worker::new(client).handle(send_mail));
/// let hour = Duration::from_secs(60 * 60);
/// let mail = bench.client().start(SendMail { to: "ada".into() }).after(hour).await?;
///
/// assert_eq!(bench.drain_until_idle().await?.completed, 0);
/// bench.advance(hour);
/// assert_eq!(bench.drain_until_idle().await?.completed, 1);
/// bench.output(mail);
/// # Ok(())
/// # }
/// ```
pub struct TestBench {
    client: Client<MemoryStore>,
    clock: Arc<ManualClock>,
    tally: Arc<Tally>,
    worker: StartWorker,
    concurrency: u32,
    attempts_max: u32,
    timeout: Duration,
}

/// Builds and starts the worker for a drain.
type StartWorker = Box<dyn Fn(&TestBench) -> BoxFuture<'static, Result<Running<MemoryStore>>> + Send + Sync>;

impl TestBench {
    /// A bench for this worker. It is built anew for each drain, from the bench's client: give the function
    /// that builds your application's.
    #[must_use]
    pub fn new<A, F>(worker: F) -> Self
    where
        A: Clone + Send + Sync + 'static,
        F: Fn(&Client<MemoryStore>) -> Worker<MemoryStore, A> + Send + Sync + 'static,
    {
        let (clock, tally) = (Arc::new(ManualClock::default()), Arc::new(Tally::default()));
        let store = MemoryStore::with_clock(Arc::<ManualClock>::clone(&clock));
        let client = Client::builder(store).observer(Counting(Arc::clone(&tally))).build();
        let worker = Box::new(move |bench: &Self| -> BoxFuture<'static, _> {
            Box::pin(worker(&bench.client).concurrency(bench.concurrency).poll(POLL).start())
        });
        Self { client, clock, tally, worker, concurrency: 1, attempts_max: ATTEMPTS_MAX, timeout: TIMEOUT }
    }

    /// How many attempts run at once, whatever the worker says; 1 unless said otherwise, so that the order is
    /// the same each time.
    #[must_use]
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.concurrency = slots;
        self
    }

    /// How many attempts one drain makes before it gives up; 1,000 unless said otherwise.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts;
        self
    }

    /// How long a drain waits for something to happen before it gives up; 10 s unless said otherwise.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The client, for what is to be tested.
    #[must_use]
    pub const fn client(&self) -> &Client<MemoryStore> {
        &self.client
    }

    /// The time on the bench's clock. It stands still until it is turned.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Turns the clock forward: delayed jobs and retries become due. They run with the next drain.
    ///
    /// # Panics
    ///
    /// If that is more than a hundred years.
    #[track_caller]
    pub fn advance(&self, by: Duration) {
        self.clock.advance(Millis::try_from(by).expect("a clock is turned by a hundred years at most"));
    }

    /// Turns the clock to the time at which the next job will be due, and gives how far that was; none if no
    /// job waits for its time.
    #[expect(clippy::must_use_candidate, reason = "that the clock was turned is what counts")]
    pub fn advance_to_next_due(&self) -> Option<Duration> {
        let pending = JobFilter { statuses: vec![Status::Pending], ..JobFilter::default() };
        let pending = jobs(self.client.store(), &pending).into_iter();
        let next = pending.map(|job| job.due_at).filter(|due_at| *due_at > self.now()).min()?;
        let by = next.since(self.now());
        self.advance(by);
        Some(by)
    }

    /// Runs everything that is due and has a handler, with what follows from it, until nothing is left to do
    /// at this time.
    ///
    /// It is an error if that has no end: after too many attempts, or if a handler hangs.
    pub async fn drain_until_idle(&self) -> Result<Drained> {
        self.tally.clear();
        let worker = (self.worker)(self).await?;
        let drained = self.until_idle(&worker).await;
        worker.stop(if drained.is_ok() { self.timeout } else { Duration::ZERO }).await;
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
            // On paused time this timeout comes at once; what counts for giving up is the time that people wait.
            if timeout(self.timeout, happened).await.is_ok() {
                waited_since = Instant::now();
            } else if waited_since.elapsed() >= self.timeout {
                return Err(self.stuck());
            }
        }
    }

    /// The types that the worker has handlers for, as it says itself.
    async fn types(&self, worker: &Running<MemoryStore>) -> Result<Types> {
        let begun = Instant::now();
        while begun.elapsed() < REGISTERED_WITHIN {
            let workers = self.client.store().list_workers(ListWorkers).await?.workers;
            if let Some(found) = workers.into_iter().find(|found| found.worker == worker.id()) {
                return Ok(Types::Only(found.types));
            }
            sleep(PAUSE).await;
        }
        Err(Error::new(ErrorKind::TimedOut, "the worker did not announce itself in the store"))
    }

    /// Whether nothing runs and nothing is due.
    async fn is_idle(&self, types: &Types) -> Result<bool> {
        let next = self.client.store().next_due(NextDue { types: types.clone() }).await?;
        Ok(next.lease_until.is_none() && next.due_at.is_none_or(|due_at| due_at > next.now))
    }

    fn stuck(&self) -> Error {
        let running = JobFilter { statuses: vec![Status::Running], ..JobFilter::default() };
        let running: Vec<_> = jobs(self.client.store(), &running).iter().map(describe).collect();
        let text = format!(
            "nothing has happened for {:?}; running: {}. Look what it waits for, or give the bench a longer `timeout` \
             or more `concurrency`",
            self.timeout,
            if running.is_empty() { "nothing".to_owned() } else { running.join(", ") },
        );
        Error::new(ErrorKind::TimedOut, text)
    }
}

impl fmt::Debug for TestBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestBench").field("now", &self.now()).finish_non_exhaustive()
    }
}
