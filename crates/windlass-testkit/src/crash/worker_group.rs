//! A group of worker processes, some of which are killed or paused.

use std::{
    collections::HashSet,
    fmt,
    future::ready,
    process::Command,
    time::{Duration, Instant},
};

use windlass_core::{
    AttemptEnd, AttemptRecord, JobRecord, Status, Store,
    command::{GetJobs, ListAttempts},
};

use super::{
    report::{Run, Transcript},
    worker_process::WorkerProcess,
};
use crate::wait::poll;

/// How long to wait for a worker that has an attempt running.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the other workers have to take over the jobs of a paused one. Longer than any lease in a test, and shorter
/// than SQLite waits for a lock that the paused process may hold.
const OVERTAKE_TIMEOUT: Duration = Duration::from_secs(8);

/// A group of worker processes. Dropping it kills them.
pub struct WorkerGroup {
    command: Box<dyn Fn() -> Command + Send>,
    workers: Vec<WorkerProcess>,
    log: GroupLog,
    began: Instant,
}

impl WorkerGroup {
    /// Starts `size` processes with this command. Returns when their workers have started.
    ///
    /// # Panics
    ///
    /// Panics as [`WorkerProcess::start`] does.
    pub async fn start(size: usize, command: impl Fn() -> Command + Send + 'static) -> Self {
        let mut workers = Vec::with_capacity(size);
        for _ in 0..size {
            workers.push(WorkerProcess::start(command()).await);
        }
        Self { command: Box::new(command), workers, log: GroupLog::default(), began: Instant::now() }
    }

    /// Kills a worker that has attempts running, and starts a replacement. Returns whether the kill counts: whether the
    /// store still has one of the killed worker's jobs running under the worker's fence.
    ///
    /// # Panics
    ///
    /// Panics if the store does not answer, or if the replacement does not start.
    pub async fn kill_one(&mut self, store: &dyn Store) -> bool {
        let Some(index) = self.find_busy().await else { return false };
        let transcript = self.workers.swap_remove(index).kill();
        let counts = !held(store, &transcript.running()).await.is_empty();
        self.log.transcripts.push(transcript);
        self.log.kills += usize::from(counts);
        self.log.idle_kills += usize::from(!counts);
        self.workers.push(WorkerProcess::start((self.command)()).await);
        counts
    }

    /// Pauses a worker that has attempts running until it no longer holds their jobs, then resumes it. The worker must
    /// notice the loss and change nothing; see [`GroupLog::stale_writes`]. Returns whether a job was taken from it.
    ///
    /// A worker that is paused in the middle of a transaction may hold locks that keep others from reaping some or all
    /// of its jobs. It is resumed after eight seconds in any case.
    ///
    /// # Panics
    ///
    /// Panics if the store does not answer.
    pub async fn overtake_one(&mut self, store: &dyn Store) -> bool {
        let Some(index) = self.find_busy().await else { return false };
        let Some(worker) = self.workers.get_mut(index) else { return false };
        worker.pause().await;
        let runs = held(store, &worker.transcript().running()).await;
        let _ = poll(OVERTAKE_TIMEOUT, || async { held(store, &runs).await.is_empty().then_some(()) }).await;
        let taken = taken(store, &runs).await;
        worker.resume();
        let counts = !taken.is_empty();
        self.log.overtaken += usize::from(counts);
        self.log.taken.extend(taken);
        counts
    }

    /// Asks all workers to stop, and returns the log once they have.
    ///
    /// # Panics
    ///
    /// Panics as [`WorkerProcess::stop`] does.
    pub async fn stop(mut self) -> GroupLog {
        for worker in self.workers.drain(..) {
            self.log.transcripts.push(worker.stop().await);
        }
        self.log.lasted = self.began.elapsed();
        self.log
    }

    /// Waits until a worker has attempts running. Returns whether one has within the timeout.
    pub async fn is_busy(&self) -> bool {
        self.find_busy().await.is_some()
    }

    /// Number of kills that count so far.
    #[must_use]
    pub const fn kills(&self) -> usize {
        self.log.kills
    }

    /// Number of workers overtaken so far.
    #[must_use]
    pub const fn overtaken(&self) -> usize {
        self.log.overtaken
    }

    async fn find_busy(&self) -> Option<usize> {
        let busy = || {
            let all = self.workers.iter().enumerate().filter(|(_, worker)| worker.is_busy());
            fastrand::choice(all.map(|(index, _)| index).collect::<Vec<_>>())
        };
        poll(BUSY_TIMEOUT, || ready(busy())).await
    }
}

impl fmt::Debug for WorkerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerGroup").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// Returns the attempts whose jobs still run under their fence.
async fn held(store: &dyn Store, runs: &[Run]) -> Vec<Run> {
    filter(store, runs, |run, job| job.fence == run.fence && job.status == Status::Running).await
}

/// Returns the attempts whose leases were reaped. The others are still held, or were settled by a command that was in
/// flight when their process was paused: completed, or rescheduled because another transaction held the job.
async fn taken(store: &dyn Store, runs: &[Run]) -> Vec<Run> {
    let mut taken = Vec::new();
    for run in runs {
        let reply = store.list_attempts(ListAttempts { job: run.job }).await.expect("the store answers");
        let is_reaped =
            |attempt: &AttemptRecord| attempt.fence == run.fence && attempt.end == AttemptEnd::Reaped;
        taken.extend(reply.attempts.iter().any(is_reaped).then_some(*run));
    }
    taken
}

async fn filter(store: &dyn Store, runs: &[Run], keep: impl Fn(&Run, &JobRecord) -> bool) -> Vec<Run> {
    let jobs = runs.iter().map(|run| run.job).collect();
    let reply = store.get_jobs(GetJobs { jobs }).await.expect("the store answers");
    let both = runs.iter().zip(&reply.jobs);
    both.filter(|(run, job)| job.as_ref().is_some_and(|job| keep(run, job))).map(|(run, _)| *run).collect()
}

/// The log of a [`WorkerGroup`]. Its `Display` is one line of figures.
#[derive(Clone, Debug, Default)]
pub struct GroupLog {
    /// The transcripts of all processes.
    pub transcripts: Vec<Transcript>,
    /// Number of kills of processes that had jobs running.
    pub kills: usize,
    /// Number of kills of processes whose last job had already ended.
    pub idle_kills: usize,
    /// Number of paused processes from which jobs were taken.
    pub overtaken: usize,
    /// The attempts that were taken from them.
    pub taken: HashSet<Run>,
    /// Time from the first start to the last stop.
    pub lasted: Duration,
}

impl GroupLog {
    /// Returns all reported effects.
    pub fn applied(&self) -> impl Iterator<Item = &str> {
        self.transcripts.iter().flat_map(|transcript| transcript.applied.iter().map(String::as_str))
    }

    /// Returns the attempts that were started more than once: two workers held the same job under the same fence.
    #[must_use]
    pub fn started_twice(&self) -> Vec<Run> {
        let mut seen = HashSet::new();
        let all = self.transcripts.iter().flat_map(|transcript| &transcript.started);
        all.filter(|run| !seen.insert(**run)).copied().collect()
    }

    /// Returns the attempts that were settled although their job had been taken from them: the store accepted a stale
    /// write.
    #[must_use]
    pub fn stale_writes(&self) -> Vec<Run> {
        let all = self.transcripts.iter().flat_map(|transcript| &transcript.settled);
        all.filter(|run| self.taken.contains(run)).copied().collect()
    }
}

impl fmt::Display for GroupLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |count: fn(&Transcript) -> usize| self.transcripts.iter().map(count).sum::<usize>();
        let Self { kills, idle_kills, overtaken, taken, lasted, transcripts } = self;
        write!(
            f,
            "{} worker processes, {kills} killed with jobs running ({idle_kills} without), {overtaken} paused and \
             overtaken in {} attempts; {} attempts started, {} settled, {} lost, {} cut off; {lasted:.1?}",
            transcripts.len(),
            taken.len(),
            sum(|transcript| transcript.started.len()),
            sum(|transcript| transcript.settled.len()),
            sum(|transcript| transcript.lost.len()),
            sum(|transcript| transcript.running().len()),
        )
    }
}
