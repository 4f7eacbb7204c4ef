//! Notifies processes that share one file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use rusqlite::Connection;
use tokio::time::{Instant, MissedTickBehavior, interval};
use windlass_core::model::Rows as _;
use windlass_core::{
    BoxFuture, ChainId, EventFiles, Hint, InProcessNotifier, Notifier, Reach, RequestId, Result,
    Subscription, Timestamp, Topic, TypeName, WorkerId,
};

use crate::connection::Readers;
use crate::provider::Provider;
use crate::rows::SqliteRows;
use crate::session::{Attempt, Base, Recording};
use crate::store::SqliteStore;

/// How often the log file is checked while there are subscriptions.
const TICK_INTERVAL: Duration = Duration::from_millis(10);

/// Minimum interval between queries for the running jobs of this process.
const RUNNING_INTERVAL: Duration = Duration::from_millis(50);

/// For how many ticks after a change of the log the queries are repeated.
const QUERY_TICKS_MAX: u32 = 256;

/// A notifier for this process that also detects changes that other processes make to the same file. It detects
/// scheduled jobs, closed chains and changed schedules within 50 ms. Within 100 ms, it detects that a worker was asked to stop a job, or
/// has lost the job because it was completed from outside or deleted.
///
/// While there are subscriptions, it checks the size and modification time of the write-ahead log every 10 ms, which
/// costs one system call. If they changed, it queries for due jobs of the subscribed types, for the end of the
/// subscribed chains, for the schedule that is due first, and for the running jobs of the subscribed workers.
///
/// Events reach other processes through files in the folder `<database>-<prefix>events`, which exists while there are
/// subscribers to events.
///
/// Clients of a [`SqliteStore`] use it by default. Clones share everything.
#[derive(Clone)]
pub struct SqliteNotifier {
    inside: InProcessNotifier,
    events: EventFiles,
    watch: Arc<Watch>,
}

struct Watch {
    inside: InProcessNotifier,
    base: Arc<Base>,
    readers: Arc<Readers>,
    /// The database and the prefix of the tables.
    namespace: (PathBuf, String),
    /// The write-ahead log.
    log: PathBuf,
    awaited: Mutex<Awaited>,
}

/// The topics that have subscribers, and what they were notified of.
#[derive(Default)]
struct Awaited {
    /// All types ever subscribed to. They are few, and the same ones are subscribed to again.
    types: BTreeSet<TypeName>,
    chains: HashSet<ChainId>,
    workers: HashSet<WorkerId>,
    /// Attempts whose worker was notified of a stop request.
    stopping: HashSet<Attempt>,
    /// The first job of each type at the last query, so that each is announced once.
    heads: HashMap<TypeName, Head>,
    /// The schedules around the time of the last query.
    schedules: Vec<(Timestamp, RequestId)>,
    /// Types for which this process has published a hint since the last query.
    announced: HashSet<TypeName>,
    /// Held while a task is watching the file. The task compares the attempts that the store records with the file.
    watching: Option<Recording>,
}

/// How the first job of a type compares with the last query.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadState {
    /// It was announced already.
    Known,
    /// It is new since the last query.
    Found,
    /// It was there at the last query, and was not announced since.
    Confirmed,
}

/// The pending job of a type with the earliest due time.
struct Head {
    job: i64,
    announced: bool,
}

impl SqliteNotifier {
    /// Creates a notifier for the store's file, on top of an in-process notifier that other parts of this process may
    /// also use.
    #[must_use]
    pub fn over<P: Provider>(inside: InProcessNotifier, store: &SqliteStore<P>) -> Self {
        store.notifier.on(inside)
    }

    pub(crate) fn new(base: Arc<Base>, readers: Arc<Readers>, file: &Path, prefix: &str) -> Self {
        Self::watching(InProcessNotifier::new(), base, readers, (file.to_owned(), prefix.to_owned()))
    }

    fn watching(
        inside: InProcessNotifier,
        base: Arc<Base>,
        readers: Arc<Readers>,
        (file, prefix): (PathBuf, String),
    ) -> Self {
        let mut log = file.clone().into_os_string();
        log.push("-wal");
        let mut folder = file.clone().into_os_string();
        folder.push(format!("-{prefix}events"));
        let events = EventFiles::new(inside.clone(), folder.into(), file.clone());
        let (log, awaited) = (log.into(), Mutex::default());
        let watch = Watch { inside: inside.clone(), base, readers, namespace: (file, prefix), log, awaited };
        Self { inside, events, watch: Arc::new(watch) }
    }

    /// Returns a notifier for the same file, on top of another one.
    fn on(&self, inside: InProcessNotifier) -> Self {
        let Watch { base, readers, namespace, .. } = &*self.watch;
        Self::watching(inside, Arc::clone(base), Arc::clone(readers), namespace.clone())
    }
}

impl Notifier for SqliteNotifier {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        let mut sent = Ok(());
        match &hint {
            // Record this first: the watch task may already see the job in the file, and would announce it again.
            Hint::Scheduled { job_type, .. } => self.watch.awaited().record_hint(job_type),
            Hint::Event(event) => sent = self.events.send(event),
            _ => {}
        }
        Box::pin(async {
            self.inside.publish(hint).await?;
            sent
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            // Subscribe before adding the topics: the watch task drops chains and workers without a subscriber, and
            // would drop these if it ran in between.
            let subscription = self.inside.subscribe(topics.clone()).await?;
            if topics.contains(&Topic::Events) {
                self.events.receive();
            }
            let begins = self.watch.awaited().add(topics, &self.watch.base);
            if begins {
                let weak = Arc::downgrade(&self.watch);
                tokio::spawn(watch(weak.clone(), Watching(weak)));
            }
            Ok(subscription)
        })
    }

    fn reach(&self) -> Reach {
        if self.watch.awaited().watching.is_some() { Reach::Everywhere } else { Reach::Process }
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        self.inside.claim_wake(job_type)
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        self.inside.is_awaited(chain)
    }

    fn is_watched(&self) -> Option<bool> {
        Some(self.events.is_watched())
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        *self.watch.awaited() = Awaited::default();
        self.events.close();
        self.inside.close()
    }
}

impl Awaited {
    /// Adds topics. Returns whether the caller must start the watch task.
    fn add(&mut self, topics: Vec<Topic>, store: &Arc<Base>) -> bool {
        for topic in topics {
            match topic {
                Topic::Scheduled(job_type) => {
                    self.types.insert(job_type);
                }
                Topic::ChainClosed(chain) => {
                    self.chains.insert(chain);
                }
                Topic::OwnershipLost(worker) => {
                    self.workers.insert(worker);
                }
                _ => {}
            }
        }
        let begins = self.watching.is_none() && self.is_needed();
        if begins {
            self.watching = Some(Recording::start(store));
        }
        begins
    }

    /// Whether any topic has a subscriber.
    fn is_needed(&self) -> bool {
        !self.types.is_empty() || !self.chains.is_empty() || !self.workers.is_empty()
    }

    /// Records that this process has published a hint for jobs of this type.
    fn record_hint(&mut self, job_type: &TypeName) {
        if self.types.contains(job_type) {
            self.announced.insert(job_type.clone());
        }
    }

    /// Compares the first job of a type with the one at the last query.
    ///
    /// A new job may come from this process, which publishes its own hint shortly after its commit. So a job is
    /// announced only if it is still there, and without a hint, at the next query. Jobs behind it are announced when
    /// they become the first, after it is acquired.
    fn compare_head(&mut self, job_type: &TypeName, job: i64) -> HeadState {
        let announced = self.announced.remove(job_type);
        match self.heads.get_mut(job_type) {
            Some(head) if head.job == job => {
                let announced = std::mem::replace(&mut head.announced, true) || announced;
                if announced { HeadState::Known } else { HeadState::Confirmed }
            }
            _ => {
                self.heads.insert(job_type.clone(), Head { job, announced });
                if announced { HeadState::Known } else { HeadState::Found }
            }
        }
    }
}

/// Ends the watch if its task is dropped with its runtime, so that the next subscription starts another one.
struct Watching(Weak<Watch>);

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(watch) = self.0.upgrade() {
            watch.awaited().watching = None;
        }
    }
}

/// Watches the file until there are no subscriptions left.
async fn watch(watch: Weak<Watch>, watching: Watching) {
    let mut ticks = interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut seen, mut quiet_ticks, mut again) = (None, 0_u32, false);
    let (mut changed, mut running_at) = (false, Instant::now());
    loop {
        ticks.tick().await;
        let Some(watch) = watch.upgrade() else { return };
        if !watch.is_watching() {
            // A later subscription starts another task.
            std::mem::forget(watching);
            return;
        }
        let found = state(&watch.log);
        quiet_ticks = if found == seen { quiet_ticks.saturating_add(1) } else { 0 };
        seen = found;
        // An error only delays notifications: workers and waiting callers also poll the store.
        if again || is_query_due(quiet_ticks) {
            again = watch.query().await.unwrap_or_default();
            changed = true;
        }
        if changed && Instant::now() >= running_at {
            changed = watch.query_running().await.is_err();
            running_at = Instant::now() + RUNNING_INTERVAL;
        }
    }
}

/// Whether to query this many ticks after the log last changed. One query is not enough: a writer appends to the log
/// before it syncs, and its commit is visible only later; also, file times are coarse. So the queries are repeated at
/// growing intervals.
const fn is_query_due(quiet_ticks: u32) -> bool {
    quiet_ticks <= 1 || quiet_ticks.is_power_of_two() && quiet_ticks <= QUERY_TICKS_MAX
}

/// Returns the size and modification time of the log, which change with each commit.
fn state(path: &Path) -> Option<(u64, SystemTime)> {
    let found = path.metadata().ok()?;
    Some((found.len(), found.modified().ok()?))
}

impl Watch {
    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets chains and workers without a subscription. Returns whether any topic is left. If not, clears `watching`
    /// under the same lock, so that a later subscription starts a new task.
    fn is_watching(&self) -> bool {
        let mut awaited = self.awaited();
        awaited.chains.retain(|chain| self.inside.is_awaited(*chain));
        awaited.workers.retain(|worker| self.inside.is_subscribed(&Topic::OwnershipLost(*worker)));
        if !awaited.is_needed() {
            awaited.watching = None;
        }
        awaited.watching.is_some()
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let result = self.readers.run(work).await;
        self.base.counted.round_trip();
        result
    }

    /// Announces jobs and closed chains that have subscribers. Returns whether it found a new job, which the next query
    /// announces.
    async fn query(&self) -> Result<bool> {
        let (types, chains) = {
            let awaited = self.awaited();
            let chains: Vec<_> = awaited.chains.iter().copied().collect();
            (awaited.types.iter().cloned().collect::<Vec<_>>(), chains)
        };
        let (base, has_schedules) = (Arc::clone(&self.base), self.inside.is_subscribed(&Topic::Schedules));
        let read = move |connection: &Connection| {
            let mut rows = SqliteRows::new(connection, &base.texts);
            let schedules = if has_schedules { rows.next_schedules(base.clock.now())? } else { Vec::new() };
            let mut heads = Vec::new();
            for job_type in types {
                heads.extend(rows.head(&job_type)?.map(|(due_at, seq)| (job_type, due_at, seq)));
            }
            let mut closed = Vec::new();
            for chain in chains {
                if rows.chain(chain)?.is_some_and(|row| row.closed.is_some()) {
                    closed.push(chain);
                }
            }
            Ok((heads, closed, schedules))
        };
        let (heads, closed, schedules) = self.read(read).await?;
        // Workers know when the next schedule is due. A change behind it can wait until then.
        let is_changed = self.awaited().schedules != schedules;
        if is_changed {
            self.awaited().schedules = schedules;
            self.inside.publish(Hint::SchedulesChanged).await?;
        }
        let mut found = false;
        for (job_type, due_at, seq) in heads {
            let head = self.awaited().compare_head(&job_type, seq);
            found |= head == HeadState::Found;
            if head == HeadState::Confirmed {
                self.inside.publish(Hint::Scheduled { job_type, count: 1, due_at }).await?;
            }
        }
        for chain in closed {
            self.inside.publish(Hint::ChainClosed(chain)).await?;
        }
        Ok(found)
    }

    /// Notifies workers of running jobs that they were asked to stop, or that are no longer theirs.
    ///
    /// A job that the worker settled in a transaction is no longer running either. The hint for it is harmless: the
    /// worker no longer has a slot for the job, or renews its lease once too often.
    async fn query_running(&self) -> Result<()> {
        let base = Arc::clone(&self.base);
        let mut held = base.held.attempts();
        // Attempts of other workers belong to another notifier on the same store.
        held.retain(|_, worker| self.awaited().workers.contains(worker));
        self.awaited().stopping.retain(|attempt| held.contains_key(attempt));
        if held.is_empty() {
            return Ok(());
        }
        let read = move |connection: &Connection| {
            let mut rows = SqliteRows::new(connection, &base.texts);
            let state = |(attempt, worker)| Ok((attempt, worker, rows.running(attempt)?));
            held.into_iter().map(state).collect::<Result<Vec<_>>>()
        };
        for (attempt, worker, state) in self.read(read).await? {
            let is_new = match state {
                None => {
                    self.base.held.forget(&attempt);
                    self.awaited().stopping.remove(&attempt);
                    true
                }
                Some(false) => false,
                Some(true) => self.awaited().stopping.insert(attempt),
            };
            if is_new {
                self.inside.publish(Hint::OwnershipLost { worker, job: attempt.0 }).await?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SqliteNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteNotifier").field("log", &self.watch.log).finish_non_exhaustive()
    }
}
