//! Several worker processes, of which some are killed and some paused.

use std::{
    collections::HashSet,
    fmt,
    future::ready,
    process::Command,
    time::{Duration, Instant},
};

use windlass_core::{JobRecord, Status, Store, command::GetJobs};

use super::{
    report::{Run, Transcript},
    worker_process::WorkerProcess,
};
use crate::wait::poll;

/// So long a worker is waited for that has something to do.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// So long the others have to overtake one that is paused: longer than any lease in a test, and shorter than SQLite waits
/// for the lock that it may have.
const OVERTAKE_TIMEOUT: Duration = Duration::from_secs(8);

/// A number of worker processes. Dropping it kills them.
pub struct Crew {
    command: Box<dyn Fn() -> Command + Send>,
    workers: Vec<WorkerProcess>,
    log: CrewLog,
    began: Instant,
}

impl Crew {
    /// Starts so many processes by this command, and returns when their workers have started.
    ///
    /// # Panics
    ///
    /// Panics as [`WorkerProcess::start`] does.
    pub async fn start(size: usize, command: impl Fn() -> Command + Send + 'static) -> Self {
        let mut workers = Vec::with_capacity(size);
        for _ in 0..size {
            workers.push(WorkerProcess::start(command()).await);
        }
        Self { command: Box::new(command), workers, log: CrewLog::default(), began: Instant::now() }
    }

    /// Kills a worker that has attempts under way, and puts another in its place. Gives whether the kill counts: whether
    /// the store has one of its jobs running under the fence that it had.
    ///
    /// # Panics
    ///
    /// Panics when the store does not answer, or another worker does not start.
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

    /// Pauses a worker that has attempts under way until it holds none of their jobs any more, and lets it go on then:
    /// it must find out, and change nothing; see [`CrewLog::stale_writes`]. Gives whether a job was taken from it. One that
    /// was paused in the middle of a transaction may have locks that keep reapers away, from some of its jobs or from all;
    /// it goes on after eight seconds.
    ///
    /// # Panics
    ///
    /// Panics when the store does not answer.
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

    /// Asks all to stop, and gives what happened when they have.
    ///
    /// # Panics
    ///
    /// Panics as [`WorkerProcess::stop`] does.
    pub async fn stop(mut self) -> CrewLog {
        for worker in self.workers.drain(..) {
            self.log.transcripts.push(worker.stop().await);
        }
        self.log.lasted = self.began.elapsed();
        self.log
    }

    /// Waits until a worker has attempts under way, and gives whether one has.
    pub async fn is_busy(&self) -> bool {
        self.find_busy().await.is_some()
    }

    /// How many kills count up to now.
    #[must_use]
    pub const fn kills(&self) -> usize {
        self.log.kills
    }

    /// How many workers were overtaken up to now.
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

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// Those attempts whose jobs are still running under their fence.
async fn held(store: &dyn Store, runs: &[Run]) -> Vec<Run> {
    filter(store, runs, |run, job| job.fence == run.fence && job.status == Status::Running).await
}

/// Those attempts whose jobs were reaped: they wait, or were acquired since. What is left is held, or was completed by a
/// command that was on its way when its process was paused. (A retry on its way would look like a reap, so handlers of such
/// tests do not fail.)
async fn taken(store: &dyn Store, runs: &[Run]) -> Vec<Run> {
    filter(store, runs, |run, job| job.fence > run.fence || job.status == Status::Pending).await
}

async fn filter(store: &dyn Store, runs: &[Run], keep: impl Fn(&Run, &JobRecord) -> bool) -> Vec<Run> {
    let jobs = runs.iter().map(|run| run.job).collect();
    let reply = store.get_jobs(GetJobs { jobs }).await.expect("the store answers");
    let both = runs.iter().zip(&reply.jobs);
    both.filter(|(run, job)| job.as_ref().is_some_and(|job| keep(run, job))).map(|(run, _)| *run).collect()
}

/// What happened to a [`Crew`]. It prints as a line of figures.
#[derive(Clone, Debug, Default)]
pub struct CrewLog {
    /// Of every process that there was.
    pub transcripts: Vec<Transcript>,
    /// Kills of processes that had jobs running.
    pub kills: usize,
    /// Kills of processes whose last job had ended by the time.
    pub idle_kills: usize,
    /// Paused processes from which jobs were taken.
    pub overtaken: usize,
    /// What was taken from them.
    pub taken: HashSet<Run>,
    /// From the first start to the last stop.
    pub lasted: Duration,
}

impl CrewLog {
    /// All effects that were reported.
    pub fn applied(&self) -> impl Iterator<Item = &str> {
        self.transcripts.iter().flat_map(|transcript| transcript.applied.iter().map(String::as_str))
    }

    /// Attempts that were started more than once: two workers held the same job under the same fence.
    #[must_use]
    pub fn started_twice(&self) -> Vec<Run> {
        let mut seen = HashSet::new();
        let all = self.transcripts.iter().flat_map(|transcript| &transcript.started);
        all.filter(|run| !seen.insert(**run)).copied().collect()
    }

    /// Attempts that wrote their end though their job had been taken from them: the store let a stale attempt change
    /// something.
    #[must_use]
    pub fn stale_writes(&self) -> Vec<Run> {
        let all = self.transcripts.iter().flat_map(|transcript| &transcript.settled);
        all.filter(|run| self.taken.contains(run)).copied().collect()
    }
}

impl fmt::Display for CrewLog {
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
