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
    crew::{Crew, CrewLog},
    report::{Run, reporting},
};

/// Number of jobs started by one [`Voyage::load`].
pub const JOBS_PER_LOAD: usize = MUSTERS_PER_LOAD * (2 * HAULS_PER_MUSTER + 1);

/// Number of hauls that a muster waits for. Each haul is a chain of two jobs.
const HAULS_PER_MUSTER: usize = 12;
const MUSTERS_PER_LOAD: usize = 10;
/// Enough jobs to keep a few workers busy while one of them is paused.
const MUSTERS_PER_PAUSE: usize = 2;
/// After this time, other workers can take over the jobs of a killed worker.
const LEASE: Duration = Duration::from_secs(1);
/// Maximum number of pauses for each worker to be overtaken. A paused worker that holds a lock may keep its jobs.
const PAUSES_MAX: usize = 20;
const SLOTS: u32 = 8;
const POLL: Duration = Duration::from_millis(50);
/// How long the remaining work may take, including all restarts and lease expiries.
const PATIENCE: Duration = Duration::from_secs(600);

/// A table of the application, in the store's database.
pub trait Ledger: 'static {
    /// The store.
    type Store: Transactional;

    /// Writes a row in a transaction. The table must accept duplicates, so that effects applied twice show up.
    fn write(
        tx: &mut <Self::Store as Transactional>::Tx,
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

/// Creates a worker that handles all jobs of a [`Voyage`] and reports.
pub fn sailor<L: Ledger>(client: &Client<L::Store>) -> Worker<L::Store> {
    Worker::new(client)
        .concurrency(SLOTS)
        .poll(POLL)
        .middleware(reporting)
        .handle(haul::<L>)
        .handle(stow::<L>)
        .handle(muster::<L>)
}

/// The chains of a test: hauls, each followed by a stow, and musters that each wait for a dozen hauls. Every job writes
/// one row to a [`Ledger`].
#[derive(Debug)]
pub struct Voyage<'a, S: Store> {
    client: &'a Client<S>,
    /// Maximum duration of the work of a haul.
    work: Duration,
    hauls: Vec<ChainId>,
    musters: Vec<ChainId>,
}

impl<'a, S: Store> Voyage<'a, S> {
    /// Creates a voyage without chains. The work of a haul takes up to `work`.
    #[must_use]
    pub const fn new(client: &'a Client<S>, work: Duration) -> Self {
        Self { client, work, hauls: Vec::new(), musters: Vec::new() }
    }

    /// Starts more chains. The musters are attached while workers may already be running their hauls.
    ///
    /// # Panics
    ///
    /// Panics if the store does not accept them.
    pub async fn load(&mut self) {
        self.start(MUSTERS_PER_LOAD).await;
    }

    async fn start(&mut self, musters: usize) {
        let most = u64::try_from(self.work.as_millis()).expect("work is short");
        let hauls = (0..musters * HAULS_PER_MUSTER).map(|_| Haul { millis: fastrand::u64(..=most) });
        let hauls = self.client.start_many(hauls).await.expect("the store takes chains");
        let musters = hauls.chunks(HAULS_PER_MUSTER).map(|chains| plan(Muster).blocked_by(chains.to_vec()));
        let musters = self.client.start_many(musters).await.expect("the store takes chains");
        self.hauls.extend(hauls.iter().map(Chain::id));
        self.musters.extend(musters.iter().map(Chain::id));
    }

    /// Number of jobs that were started, including the continuations to come.
    #[must_use]
    pub fn jobs(&self) -> usize {
        2 * self.hauls.len() + self.musters.len()
    }

    /// Waits until all chains but those of the latest `loads` loads are closed.
    ///
    /// # Panics
    ///
    /// Panics after ten minutes.
    pub async fn wait_for_all_but(&self, loads: usize) {
        let done = self.musters.len().saturating_sub(loads * MUSTERS_PER_LOAD);
        // A muster is done only after its hauls.
        let musters = self.musters.get(..done).unwrap_or_default();
        wait_until_closed(self.client.store(), musters, PATIENCE).await;
    }

    /// Pauses workers until their jobs are taken over, then resumes them, until this has happened `times` times.
    ///
    /// # Panics
    ///
    /// Panics if the store does not answer, or if too few of the paused workers are overtaken.
    pub async fn overtake(&mut self, crew: &mut Crew, times: usize) {
        let wanted = crew.overtaken() + times;
        for _ in 0..PAUSES_MAX * times {
            self.start(MUSTERS_PER_PAUSE).await;
            crew.overtake_one(self.client.store()).await;
            if crew.overtaken() == wanted {
                return;
            }
        }
        panic!("{} workers were paused, and fewer than {times} overtaken", PAUSES_MAX * times);
    }

    /// Checks the store and the ledger, when all chains are closed and the crew has stopped.
    ///
    /// # Panics
    ///
    /// Panics if a chain was lost or left open, if a lease is held, if a row is missing or duplicated, or if an attempt
    /// wrote a row after it had lost its job.
    pub async fn check(&self, log: &CrewLog, ledger: &[Effect]) {
        let chains = [&self.hauls[..], &self.musters].concat();
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
        let hauls: HashSet<_> = self.hauls.iter().collect();
        let count = |(chain, jobs): (ChainId, HashMap<_, usize>)| {
            let expected = if hauls.contains(&chain) { 2 } else { 1 };
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
pub fn stale_effects(log: &CrewLog, ledger: &[Effect]) -> Vec<Effect> {
    ledger.iter().filter(|effect| log.taken.contains(&effect.run)).copied().collect()
}

/// A staged job: reads in one transaction, works outside any transaction, and writes in the transaction that completes
/// it.
#[derive(Serialize, Deserialize)]
struct Haul {
    millis: u64,
}

impl Job for Haul {
    const NAME: &'static str = "haul";
    type Output = u64;
    type Next = (Stow,);
    type Blockers = ();

    fn options() -> JobOptions {
        // Attempts fail while a server is down. Retry them soon.
        let backoff = Backoff {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(1),
            ..Backoff::default()
        };
        JobOptions { lease: LEASE, backoff, ..JobOptions::default() }
    }
}

impl Entry for Haul {}
impl Then<Stow> for Haul {}

/// An atomic job: one transaction from start to end.
#[derive(Serialize, Deserialize)]
struct Stow;

impl Job for Stow {
    const NAME: &'static str = "stow";
    type Output = u64;
    type Next = ();
    type Blockers = ();

    fn options() -> JobOptions {
        Haul::options()
    }
}

/// Waits for hauls and counts them.
#[derive(Serialize, Deserialize)]
struct Muster;

impl Job for Muster {
    const NAME: &'static str = "muster";
    type Output = u64;
    type Next = ();
    type Blockers = Vec<Haul>;

    fn options() -> JobOptions {
        Haul::options()
    }
}

impl Entry for Muster {}

async fn haul<L: Ledger>(a: Attempt<Haul, L::Store>) -> Result<Done<Haul, L::Store>, BoxError> {
    let mut prepare = a.prepare().await?;
    prepare.client().job(a.job().id).await?.ok_or("a job that runs is stored")?;
    prepare.commit().await?;
    // Simulate work. Ignore the abort signal: an attempt that has lost its job must get as far as its write.
    let _ = timeout(Duration::from_millis(a.input().millis), pending::<()>()).await;
    let mut step = a.finish().await?;
    L::write(step.tx(), effect(&a)).await?;
    Ok(step.then(Stow)?)
}

async fn stow<L: Ledger>(a: Attempt<Stow, L::Store>) -> Result<Done<Stow, L::Store>, BoxError> {
    let mut step = a.atomic().await?;
    L::write(step.tx(), effect(&a)).await?;
    Ok(step.done(1)?)
}

async fn muster<L: Ledger>(a: Attempt<Muster, L::Store>) -> Result<Done<Muster, L::Store>, BoxError> {
    let stowed: u64 = a.blockers().iter().sum();
    let mut step = a.atomic().await?;
    if stowed != HAULS_PER_MUSTER as u64 {
        return Ok(step.fail(format!("a muster ran with {stowed} of {HAULS_PER_MUSTER} hauls"))?);
    }
    L::write(step.tx(), effect(&a)).await?;
    Ok(step.done(stowed)?)
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

    /// Returns how often the effect of a haul or a muster is counted, given the jobs of its rows.
    fn counted(is_haul: bool, jobs: &[JobId]) -> Option<usize> {
        let (client, chain) = (Client::new(MemoryStore::new()), ChainId::new());
        let mut voyage = Voyage::new(&client, Duration::ZERO);
        if is_haul { &mut voyage.hauls } else { &mut voyage.musters }.push(chain);
        let ledger: Vec<_> = jobs.iter().map(|job| row(chain, *job)).collect();
        voyage.effects(&ledger).get(&chain).copied()
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
        let log = CrewLog { taken: [row(chain, job).run].into(), ..CrewLog::default() };
        let later = Effect { chain, run: Run { job, fence: Fence(2) } };
        assert_eq!(stale_effects(&log, &[row(chain, job), later]), [row(chain, job)]);
    }
}
