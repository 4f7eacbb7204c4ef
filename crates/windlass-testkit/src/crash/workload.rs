//! Jobs that record their effect in the transaction that completes them.

use std::{
    collections::{HashMap, HashSet},
    future::pending,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use windlass_core::{
    Attempt, Backoff, BoxError, BoxFuture, Chain, ChainId, Client, Done, Entry, Job, JobOptions, Store, Then,
    Transactional, Worker, plan,
};

use super::{
    audit::{Audit, audit, wait_until_closed},
    report::{Run, reporting},
    worker_group::{GroupLog, WorkerGroup},
};

/// Number of jobs started by one [`Workload::start_batch`].
pub const JOBS_PER_BATCH: usize = SUMMARIES_PER_BATCH * (2 * WRITES_PER_SUMMARY + 1);

/// Number of write chains that a summary waits for. Each has two jobs: a staged and an atomic write.
const WRITES_PER_SUMMARY: usize = 12;
const SUMMARIES_PER_BATCH: usize = 10;
/// Enough jobs to keep a few workers busy while one of them is paused.
const SUMMARIES_PER_PAUSE: usize = 2;
/// After this time, other workers can take over the jobs of a killed worker.
const LEASE: Duration = Duration::from_secs(1);
/// Maximum number of pauses for each worker to be overtaken. A paused worker that holds a lock may keep its jobs.
const PAUSES_MAX: usize = 20;
const SLOTS: u32 = 8;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the remaining work may take, including all restarts and lease expiries.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A table of the application, in the store's database.
pub trait Ledger: 'static {
    /// The store.
    type Store: Transactional;

    /// Writes a row in a transaction. The table must accept duplicates, so that effects applied twice show up.
    fn write(
        tx: <Self::Store as Transactional>::Connection<'_>,
        effect: Effect,
    ) -> BoxFuture<'_, Result<(), BoxError>>;
}

/// A row of the ledger, which identifies the attempt that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Effect {
    /// The chain of the job.
    pub chain: ChainId,
    /// The attempt.
    pub run: Run,
}

/// Creates a worker that handles all jobs of a [`Workload`] and reports.
pub fn ledger_worker<L: Ledger>(client: &Client<L::Store>) -> Worker<L::Store> {
    Worker::new(client)
        .concurrency(SLOTS)
        .poll(POLL_INTERVAL)
        .middleware(reporting)
        .handle(staged_write::<L>)
        .handle(atomic_write::<L>)
        .handle(summary::<L>)
}

/// The chains of a test: staged writes, each followed by an atomic write, and summaries that each wait for a dozen of
/// these chains. Every job writes one row to a [`Ledger`].
#[derive(Debug)]
pub struct Workload<'a, S: Store> {
    client: &'a Client<S>,
    /// Maximum duration of a staged write.
    work: Duration,
    writes: Vec<ChainId>,
    summaries: Vec<ChainId>,
}

impl<'a, S: Store> Workload<'a, S> {
    /// Creates a workload without chains. A staged write takes up to `work`.
    #[must_use]
    pub const fn new(client: &'a Client<S>, work: Duration) -> Self {
        Self { client, work, writes: Vec::new(), summaries: Vec::new() }
    }

    /// Starts more chains. The summaries are started while workers may already be running the writes they wait for.
    ///
    /// # Panics
    ///
    /// Panics if the store does not accept them.
    pub async fn start_batch(&mut self) {
        self.start(SUMMARIES_PER_BATCH).await;
    }

    async fn start(&mut self, summaries: usize) {
        let max = u64::try_from(self.work.as_millis()).expect("the work takes less than a century");
        let writes =
            (0..summaries * WRITES_PER_SUMMARY).map(|_| StagedWrite { millis: fastrand::u64(..=max) });
        let writes = self.client.start_many(writes).await.expect("the store creates chains");
        let summaries =
            writes.chunks(WRITES_PER_SUMMARY).map(|chains| plan(Summary).blocked_by(chains.to_vec()));
        let summaries = self.client.start_many(summaries).await.expect("the store creates chains");
        self.writes.extend(writes.iter().map(Chain::id));
        self.summaries.extend(summaries.iter().map(Chain::id));
    }

    /// Number of jobs that were started, including the continuations to come.
    #[must_use]
    pub fn jobs(&self) -> usize {
        2 * self.writes.len() + self.summaries.len()
    }

    /// Waits until all chains but those of the latest `batches` batches are closed.
    ///
    /// # Panics
    ///
    /// Panics after ten minutes.
    pub async fn wait_for_all_but(&self, batches: usize) {
        let closed = self.summaries.len().saturating_sub(batches * SUMMARIES_PER_BATCH);
        // A summary completes only after the writes it waits for.
        let summaries = self.summaries.get(..closed).unwrap_or_default();
        wait_until_closed(self.client.store(), summaries, TIMEOUT).await;
    }

    /// Pauses workers until their jobs are taken over, then resumes them, until this has happened `times` times.
    ///
    /// # Panics
    ///
    /// Panics if the store does not answer, or if too few of the paused workers are overtaken.
    pub async fn overtake(&mut self, group: &mut WorkerGroup, times: usize) {
        let wanted = group.overtaken() + times;
        for _ in 0..PAUSES_MAX * times {
            self.start(SUMMARIES_PER_PAUSE).await;
            group.overtake_one(self.client.store()).await;
            if group.overtaken() == wanted {
                return;
            }
        }
        panic!("{} workers were paused, and fewer than {times} overtaken", PAUSES_MAX * times);
    }

    /// Checks the store and the ledger, once all chains are closed and the group has stopped.
    ///
    /// # Panics
    ///
    /// Panics if a chain was lost or left open, if a lease is held, if a row is missing or duplicated, or if an attempt
    /// wrote a row after it had lost its job.
    pub async fn check(&self, log: &GroupLog, ledger: &[Effect]) {
        let chains = [&self.writes[..], &self.summaries].concat();
        let found = audit(self.client.store(), &chains, &self.effects(ledger)).await;
        assert_eq!(found, Audit::default());
        assert_eq!(log.started_twice(), []);
        assert_eq!(log.stale_writes(), []);
        assert_eq!(stale_effects(log, ledger), []);
        assert_eq!(ledger.len(), self.jobs());
    }

    /// Returns how often the effect of each chain is in the ledger: 0 if one of its jobs has no row, the number of jobs
    /// if there are too many, otherwise the count of the job with the most rows. Chains without any row are absent.
    fn effects(&self, ledger: &[Effect]) -> HashMap<ChainId, usize> {
        let mut rows: HashMap<ChainId, HashMap<_, usize>> = HashMap::new();
        for Effect { chain, run } in ledger {
            *rows.entry(*chain).or_default().entry(run.job).or_default() += 1;
        }
        let writes: HashSet<_> = self.writes.iter().collect();
        let count = |(chain, jobs): (ChainId, HashMap<_, usize>)| {
            let expected = if writes.contains(&chain) { 2 } else { 1 };
            match jobs.len() {
                found if found < expected => (chain, 0),
                found if found > expected => (chain, found),
                _ => (chain, jobs.into_values().max().unwrap_or(0)),
            }
        };
        rows.into_iter().map(count).collect()
    }
}

/// Returns the rows of attempts that had lost their jobs before they wrote them.
#[must_use]
pub fn stale_effects(log: &GroupLog, ledger: &[Effect]) -> Vec<Effect> {
    ledger.iter().filter(|effect| log.taken.contains(&effect.run)).copied().collect()
}

/// A staged job: reads in one transaction, works outside any transaction, and writes in the transaction that completes
/// it.
#[derive(Serialize, Deserialize)]
struct StagedWrite {
    millis: u64,
}

impl Job for StagedWrite {
    const NAME: &'static str = "staged-write";
    type Output = u64;
    type Next = (AtomicWrite,);
    type Blockers = ();

    fn options() -> JobOptions {
        // Attempts fail while a server is down. Retry them soon.
        let backoff = Backoff {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(1),
            ..Backoff::default()
        };
        JobOptions { lease: Some(LEASE), backoff: Some(backoff), ..JobOptions::default() }
    }
}

impl Entry for StagedWrite {}
impl Then<AtomicWrite> for StagedWrite {}

/// An atomic job: one transaction from start to end.
#[derive(Serialize, Deserialize)]
struct AtomicWrite;

impl Job for AtomicWrite {
    const NAME: &'static str = "atomic-write";
    type Output = u64;
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        StagedWrite::options()
    }
}

/// Waits for write chains and counts them.
#[derive(Serialize, Deserialize)]
struct Summary;

impl Job for Summary {
    const NAME: &'static str = "summary";
    type Output = u64;
    type Next = ();
    type Blockers = Vec<StagedWrite>;

    fn options() -> JobOptions {
        StagedWrite::options()
    }
}

impl Entry for Summary {}

async fn staged_write<L: Ledger>(
    a: Attempt<StagedWrite, L::Store>,
) -> Result<Done<StagedWrite, L::Store>, BoxError> {
    let mut prepare = a.prepare().await?;
    prepare.client().job(a.job().id).await?.ok_or("the running job is not stored")?;
    prepare.commit().await?;
    // Simulate work. Ignore the abort signal: an attempt that has lost its job must get as far as its write.
    let _ = timeout(Duration::from_millis(a.input().millis), pending::<()>()).await;
    let mut step = a.begin().await?;
    L::write(step.tx(), effect(&a)).await?;
    Ok(step.then(AtomicWrite)?)
}

async fn atomic_write<L: Ledger>(
    a: Attempt<AtomicWrite, L::Store>,
) -> Result<Done<AtomicWrite, L::Store>, BoxError> {
    let mut step = a.atomic().await?;
    L::write(step.tx(), effect(&a)).await?;
    Ok(step.done(1)?)
}

async fn summary<L: Ledger>(a: Attempt<Summary, L::Store>) -> Result<Done<Summary, L::Store>, BoxError> {
    let written: u64 = a.blockers().iter().sum();
    let mut step = a.atomic().await?;
    if written != WRITES_PER_SUMMARY as u64 {
        return Ok(step.fail(format!("a summary ran after {written} of {WRITES_PER_SUMMARY} write chains"))?);
    }
    L::write(step.tx(), effect(&a)).await?;
    Ok(step.done(written)?)
}

fn effect<J: Job, S: Transactional>(a: &Attempt<J, S>) -> Effect {
    let job = a.job();
    Effect { chain: job.chain, run: Run { job: job.id, fence: job.fence } }
}

#[cfg(test)]
mod tests {
    use windlass_core::{Fence, JobId, MemoryStore};

    use super::*;

    fn row(chain: ChainId, job: JobId) -> Effect {
        Effect { chain, run: Run { job, fence: Fence(1) } }
    }

    /// Returns how often the effect of a write chain or a summary is counted, given the jobs of its rows.
    fn counted(is_write: bool, jobs: &[JobId]) -> Option<usize> {
        let (client, chain) = (Client::new(MemoryStore::new()), ChainId::new());
        let mut workload = Workload::new(&client, Duration::ZERO);
        if is_write { &mut workload.writes } else { &mut workload.summaries }.push(chain);
        let ledger: Vec<_> = jobs.iter().map(|job| row(chain, *job)).collect();
        workload.effects(&ledger).get(&chain).copied()
    }

    #[test]
    fn each_job_of_a_chain_has_one_row() {
        let [one, two, three] = [JobId::new(), JobId::new(), JobId::new()];
        assert_eq!(counted(true, &[one, two]), Some(1));
        assert_eq!(counted(false, &[one]), Some(1));
        // Missing rows.
        assert_eq!(counted(true, &[]), None);
        assert_eq!(counted(true, &[one]), Some(0));
        assert_eq!(counted(true, &[one, one]), Some(0));
        // Duplicate rows, and a second continuation.
        assert_eq!(counted(true, &[one, two, two]), Some(2));
        assert_eq!(counted(true, &[one, two, three]), Some(3));
        assert_eq!(counted(false, &[one, one]), Some(2));
    }

    #[test]
    fn rows_of_attempts_that_had_lost_their_jobs_are_stale() {
        let (chain, job) = (ChainId::new(), JobId::new());
        let log = GroupLog { taken: [row(chain, job).run].into(), ..GroupLog::default() };
        let later = Effect { chain, run: Run { job, fence: Fence(2) } };
        assert_eq!(stale_effects(&log, &[row(chain, job), later]), [row(chain, job)]);
    }
}
