//! Announces the changes of transactions that the application commits itself.
//!
//! The application commits with its own driver, so nothing here is called at the commit. A task asks the store
//! whether the transactions have ended, and then which of their changes are stored. It announces those. The
//! others were rolled back, with the transaction or to a savepoint.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::send::send;
use super::{Announcements, Client, announce};
use crate::command::{
    Cancelled, CompleteFromOutsideReply, Created, DeleteReply, GetJobs, Reply, Retried, ScheduleChanged,
    TriggerReply,
};
use crate::error::{ErrorKind, Result};
use crate::id::{JobId, Version};
use crate::record::{JobRecord, Status};
use crate::store::{Transactional, TxEnd, TxId};
use crate::time::Timestamp;

/// The maximum number of watched transactions. Beyond it the oldest are forgotten: workers and waits find their
/// changes by polling.
const WATCHED_MAX: usize = 10_000;

/// How often to ask whether transactions have ended, by the age of the youngest. Most end within milliseconds.
const INTERVALS: [(Duration, Duration); 2] = [
    (Duration::from_secs(1), Duration::from_millis(20)),
    (Duration::from_secs(10), Duration::from_millis(100)),
];

/// The interval if even the youngest transaction is older than that.
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// The timeout of one query to the store.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The delay before a failed query is repeated.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The number of jobs in one query. Their inputs and outputs come with them.
const QUERY_MAX: usize = 50;

/// A write of a command. It is compared with the store later, to find out whether it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The job was created.
    Created(JobId),
    /// The job was left in this state.
    Changed(JobId, JobState),
    /// The job was deleted.
    Deleted(JobId),
}

/// The part of a job's state by which a change is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobState {
    version: Version,
    status: Status,
    due_at: Timestamp,
}

impl JobState {
    pub(super) const fn of(job: &JobRecord) -> Self {
        Self { version: job.version, status: job.status, due_at: job.due_at }
    }
}

/// Whether a write is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stored,
    Lost,
    Unknown,
}

impl Written {
    const fn job(self) -> JobId {
        match self {
            Self::Created(job) | Self::Changed(job, _) | Self::Deleted(job) => job,
        }
    }

    /// Compares the write with the job as it is stored after the end of the transaction.
    ///
    /// Another client may have changed the job since. If the job has a higher version, or a changed job is no longer
    /// stored, the write may have been committed or not: its fate is unknown. If another client has deleted a created
    /// chain, or created a deleted one again, that looks the same as a rollback to a savepoint. Such a rollback is far more
    /// common, so the write counts as lost.
    fn fate(self, stored: Option<JobState>) -> Fate {
        match (self, stored) {
            (Self::Created(_), Some(_)) | (Self::Deleted(_), None) => Fate::Stored,
            (Self::Created(_), None) | (Self::Deleted(_), Some(_)) => Fate::Lost,
            (Self::Changed(..), None) => Fate::Unknown,
            (Self::Changed(_, written), Some(stored)) => match stored.version.cmp(&written.version) {
                Ordering::Less => Fate::Lost,
                Ordering::Equal if stored == written => Fate::Stored,
                Ordering::Equal => Fate::Lost,
                Ordering::Greater => Fate::Unknown,
            },
        }
    }
}

/// One job that a command has written. If the job was changed, its version has to be queried.
pub(super) enum WrittenJob {
    Created(JobId),
    Changed(JobId),
    Deleted(JobId),
}

pub(super) fn written(reply: &Reply) -> Option<WrittenJob> {
    match reply {
        Reply::Create(reply) => reply.chains.iter().find_map(|created| match created {
            Created::New { job, repeated: false } => Some(WrittenJob::Created(job.job)),
            _ => None,
        }),
        Reply::CompleteFromOutside(CompleteFromOutsideReply::Applied(applied)) => {
            Some(WrittenJob::Changed(applied.latest.job))
        }
        Reply::Cancel(reply) => reply.chains.iter().find_map(|cancelled| match cancelled {
            Cancelled::Cancelled { job, .. } | Cancelled::Asked { job, .. } => {
                Some(WrittenJob::Changed(*job))
            }
            _ => None,
        }),
        Reply::Trigger(TriggerReply::Triggered(jobs)) => {
            jobs.first().map(|triggered| WrittenJob::Changed(triggered.job.job))
        }
        Reply::Retry(reply) => reply.chains.iter().find_map(|retried| match retried {
            Retried::Retried { job, .. } => Some(WrittenJob::Changed(job.job)),
            _ => None,
        }),
        Reply::Delete(DeleteReply::Deleted(deleted)) => {
            deleted.chains.first().map(|chain| WrittenJob::Deleted(chain.chain.first_job()))
        }
        // A change without a chain leaves no job to look for.
        Reply::ChangeSchedules(reply) => reply.changes.iter().find_map(|changed| match changed {
            ScheduleChanged::Applied { created: Some(Created::New { job, repeated: false }) } => {
                Some(WrittenJob::Created(job.job))
            }
            _ => None,
        }),
        _ => None,
    }
}

/// The transactions of a client that the application ends itself.
#[derive(Default)]
pub(crate) struct Watcher {
    state: Mutex<State>,
    /// Notified when the task that asks for the ends of the transactions has ended.
    idle: Notify,
}

#[derive(Default)]
struct State {
    watched: VecDeque<Watched>,
    /// The number of transactions that were ever watched.
    added: u64,
    /// The runtimes with a task that asks for the ends of the transactions. It ends when there are none. A runtime that is
    /// not driven must not delay the others, so each has its own task for all transactions.
    running: Vec<Id>,
}

impl State {
    /// Notes that the task of a runtime has ended.
    fn ended(&mut self, runtime: Id) {
        self.running.retain(|running| *running != runtime);
    }
}

struct Watched {
    tx: TxId,
    /// Its number among all transactions that were ever watched.
    number: u64,
    since: Instant,
    announcements: Announcements,
}

impl Watcher {
    /// Waits until the changes of all transactions that have ended are announced, at most for `limit`.
    pub(super) async fn flush(&self, limit: Duration) {
        let _ = timeout(limit, async {
            loop {
                let idle = self.idle.notified();
                if self.state().running.is_empty() {
                    return;
                }
                idle.await;
            }
        })
        .await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics in the middle of a change under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the transactions that have ended, in the order in which they were added. Those that were
    /// added after the question may have the id of one that has ended: on some stores all ids are equal.
    fn take(&self, asked: u64, ends: &HashMap<TxId, TxEnd>) -> Vec<(Watched, TxEnd)> {
        let mut state = self.state();
        let (mut ended, mut open) = (Vec::new(), VecDeque::new());
        for watched in state.watched.drain(..) {
            match ends.get(&watched.tx).copied().unwrap_or(TxEnd::Open) {
                end if end != TxEnd::Open && watched.number <= asked => ended.push((watched, end)),
                _ => open.push_back(watched),
            }
        }
        state.watched = open;
        ended
    }
}

/// Watches a transaction until it has ended, and announces its changes if they were committed.
pub(super) fn watch<S: Transactional>(client: &Client<S>, tx: TxId, announcements: Announcements) {
    let watcher = &client.shared.watcher;
    let runtime = {
        let mut state = watcher.state();
        if state.watched.len() >= WATCHED_MAX {
            state.watched.pop_front();
        }
        state.added += 1;
        let number = state.added;
        state.watched.push_back(Watched { tx, number, since: Instant::now(), announcements });
        // Outside a runtime there is no task. The next transaction inside one starts it.
        match Handle::try_current() {
            Ok(runtime) if !state.running.contains(&runtime.id()) => {
                state.running.push(runtime.id());
                Some(runtime)
            }
            _ => None,
        }
    };
    if let Some(runtime) = runtime {
        let running = Running { watcher: Arc::clone(watcher), runtime: runtime.id(), is_over: false };
        // Without the lock: a runtime that has stopped drops the task at once, and with it `running`.
        runtime.spawn(Asking { client: client.clone(), running }.run());
    }
}

/// Ends the task's turn, also if it panics or its runtime stops. The next transaction then starts another one.
struct Running {
    watcher: Arc<Watcher>,
    runtime: Id,
    /// Whether the task has ended its turn itself. Another task may run since then.
    is_over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.watcher.state().ended(self.runtime);
        }
        self.watcher.idle.notify_waiters();
    }
}

/// The task that asks for the ends of transactions.
struct Asking<S: Transactional> {
    client: Client<S>,
    running: Running,
}

impl<S: Transactional> Asking<S> {
    async fn run(mut self) {
        loop {
            let Some((asked, transactions, youngest)) = self.open() else { return };
            match self.ends(transactions).await {
                Ok(ends) => {
                    let ended = self.running.watcher.take(asked, &ends);
                    if !ended.is_empty() && self.announce(ended).await.is_err() {
                        return self.forget();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Closed => return self.forget(),
                Err(_) => sleep(RETRY_DELAY).await,
            }
            let interval = INTERVALS.iter().find(|(age, _)| youngest < *age);
            sleep(interval.map_or(LONGEST_INTERVAL, |(_, interval)| *interval)).await;
        }
    }

    /// Returns the transactions to ask for, the number of the last one, and the age of the youngest. `None` if there
    /// are none: then the task has ended, so that the next transaction starts another one.
    fn open(&mut self) -> Option<(u64, Vec<TxId>, Duration)> {
        let mut state = self.running.watcher.state();
        let Some(last) = state.watched.back() else {
            // Under the same lock, so that no transaction is added in between without a task.
            state.ended(self.running.runtime);
            self.running.is_over = true;
            return None;
        };
        let (asked, youngest) = (last.number, last.since.elapsed());
        let mut transactions: Vec<_> = state.watched.iter().map(|watched| watched.tx).collect();
        transactions.sort_unstable();
        transactions.dedup();
        Some((asked, transactions, youngest))
    }

    async fn ends(&self, transactions: Vec<TxId>) -> Result<HashMap<TxId, TxEnd>> {
        let ends = timeout(QUERY_TIMEOUT, self.client.store().ends(transactions.clone())).await;
        let ends = ends.unwrap_or_else(|_| Ok(vec![TxEnd::Open; transactions.len()]))?;
        Ok(transactions.into_iter().zip(ends).collect())
    }

    /// Forgets all transactions: the store is closed.
    fn forget(&self) {
        self.running.watcher.state().watched.clear();
    }

    /// Announces the changes that are stored, then runs the hooks. They run on a separate thread, so that a slow
    /// one does not delay the next announcements.
    ///
    /// # Errors
    ///
    /// An error means that the store is closed. Other errors are retried.
    async fn announce(&self, ended: Vec<(Watched, TxEnd)>) -> Result<()> {
        let written = ended.iter().flat_map(|(watched, _)| watched.announcements.written());
        let jobs = self.states(written.map(Written::job).collect()).await?;
        let fate = |written: Written| written.fate(jobs.get(&written.job()).copied());
        let dispatcher = &self.client.shared.dispatcher;
        let hooks =
            ended.into_iter().flat_map(|(watched, end)| watched.announcements.end_by(end, fate, dispatcher));
        let hooks: Vec<_> = hooks.collect();
        if !hooks.is_empty() {
            spawn_blocking(|| hooks.into_iter().for_each(announce::run));
        }
        Ok(())
    }

    /// Returns the states of the jobs that are stored.
    async fn states(&self, jobs: Vec<JobId>) -> Result<HashMap<JobId, JobState>> {
        let mut states = HashMap::with_capacity(jobs.len());
        for part in jobs.chunks(QUERY_MAX) {
            let found = loop {
                match send(self.client.store(), &GetJobs { jobs: part.to_vec() }).await {
                    Ok(reply) => break reply.jobs,
                    Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
                    Err(_) => sleep(RETRY_DELAY).await,
                }
            };
            states.extend(found.iter().flatten().map(|job| (job.id, JobState::of(job))));
        }
        Ok(states)
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("watched", &self.state().watched.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod bound {
    use super::*;
    use crate::memory::MemoryStore;

    /// Outside a runtime, so that no task asks for the ends.
    #[test]
    fn beyond_the_limit_the_oldest_transactions_are_forgotten() {
        let client = Client::new(MemoryStore::new());
        let count = u64::try_from(WATCHED_MAX).unwrap() + 3;
        for tx in 1..=count {
            watch(&client, TxId(tx), Announcements::default());
        }
        let state = client.shared.watcher.state();
        let watched = |watched: Option<&Watched>| watched.map(|watched| watched.tx);
        assert_eq!(state.watched.len(), WATCHED_MAX);
        assert_eq!(watched(state.watched.front()), Some(TxId(4)));
        assert_eq!(watched(state.watched.back()), Some(TxId(count)));
    }
}
