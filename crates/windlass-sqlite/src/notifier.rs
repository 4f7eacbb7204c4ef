//! Hints between processes that have one file open.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, MissedTickBehavior, interval};
use windlass_core::{
    BoxFuture, ChainId, Fence, Hint, InProcessNotifier, JobId, Notifier, Result, Subscription, Topic,
    TypeName, WorkerId,
};

use crate::provider::{Provider, Statement};
use crate::row::hex;
use crate::session::{Reading, Session};
use crate::sqlx::Sqlx;
use crate::statement::set;
use crate::store::SqliteStore;

/// How often the file is looked at while somebody waits.
const TICK: Duration = Duration::from_millis(10);

/// How often running jobs are looked at, at most: there may be many.
const STOPPING_EVERY: Duration = Duration::from_millis(50);

/// For how many ticks a change of the file is looked after.
const LOOKED_AFTER_TICKS: u32 = 256;

/// The most chains that are looked up at once.
const CHAINS_AT_ONCE: usize = 1_000;

/// Hints inside this process, and what other processes on the file do: jobs that they schedule and chains that they close
/// are noticed within 50 ms, and running jobs that they ask to stop within 100.
///
/// While somebody waits, the write-ahead log's size and time are looked at every 10 ms, which costs a system call; if
/// they have changed, statements look for due jobs of the types, for ends of the chains and for requests to stop that are
/// waited for. Events are told inside the process only, and so are attempts that lost their job in another way than by a
/// request: a worker elsewhere learns of that when it renews.
///
/// ```no_run
/// # async fn example() -> windlass_core::Result<()> {
/// use std::sync::Arc;
/// use windlass_core::Client;
/// use windlass_sqlite::{Options, SqliteNotifier, SqliteStore};
///
/// let store = Arc::new(SqliteStore::open(Options::new("jobs.db")).await?);
/// let client = Client::<SqliteStore>::builder(store.clone()).notifier(SqliteNotifier::new(store)).build();
/// # let _ = client; Ok(())
/// # }
/// ```
pub struct SqliteNotifier<P: Provider = Sqlx> {
    inside: InProcessNotifier,
    watch: Arc<Watch<P>>,
}

struct Watch<P: Provider> {
    inside: InProcessNotifier,
    store: Arc<SqliteStore<P>>,
    awaited: Mutex<Awaited>,
}

/// What somebody waits for.
#[derive(Default)]
struct Awaited {
    /// Types that somebody has subscribed to, since the beginning: they are few, and the same ones come again.
    types: BTreeSet<TypeName>,
    chains: HashSet<ChainId>,
    workers: HashSet<WorkerId>,
    /// Attempts that were told to stop.
    stopping: HashSet<(JobId, Fence)>,
    /// The job of each type that was due first when the file was looked at, so that each is told once.
    heads: HashMap<TypeName, Head>,
    /// Types that this process has told of since.
    told: HashSet<TypeName>,
    /// Whether a task looks at the file.
    watching: bool,
}

/// What a look says of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    /// It was told of.
    Known,
    /// It was not there at the look before.
    Found,
    /// It was there, and nobody has told of it.
    Confirmed,
}

/// The first due job of a type.
struct Head {
    job: i64,
    told: bool,
}

impl<P: Provider> SqliteNotifier<P> {
    /// Hints for the clients and workers of this process, and from others on the store's file.
    #[must_use]
    pub fn new(store: Arc<SqliteStore<P>>) -> Self {
        Self::over(InProcessNotifier::new(), store)
    }

    /// The same with a notifier that others in this process use too.
    #[must_use]
    pub fn over(inside: InProcessNotifier, store: Arc<SqliteStore<P>>) -> Self {
        let watch = Watch { inside: inside.clone(), store, awaited: Mutex::default() };
        Self { inside, watch: Arc::new(watch) }
    }
}

impl<P: Provider> Notifier for SqliteNotifier<P> {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        if let Hint::Scheduled { job_type, .. } = &hint {
            self.watch.awaited().tell(job_type);
        }
        self.inside.publish(hint)
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            let subscription = self.inside.subscribe(topics.clone()).await?;
            if self.watch.awaited().add(topics) {
                tokio::spawn(watch(Arc::downgrade(&self.watch)));
            }
            Ok(subscription)
        })
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        self.inside.claim_wake(job_type)
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        self.inside.is_awaited(chain)
    }

    fn is_watched(&self) -> bool {
        self.inside.is_watched()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        *self.watch.awaited() = Awaited::default();
        self.inside.close()
    }
}

impl Awaited {
    /// Adds topics. Says whether somebody must begin to look at the file.
    fn add(&mut self, topics: Vec<Topic>) -> bool {
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
        let begins = !self.watching && self.is_needed();
        self.watching |= begins;
        begins
    }

    /// Whether anybody waits for anything.
    fn is_needed(&self) -> bool {
        !self.types.is_empty() || !self.chains.is_empty() || !self.workers.is_empty()
    }

    /// This process tells of jobs of this type.
    fn tell(&mut self, job_type: &TypeName) {
        if self.types.contains(job_type) {
            self.told.insert(job_type.clone());
        }
    }

    /// Whether this job, the first due one of its type, is news. It is told of if it was there at the look before, and this
    /// process has not told of it since its commit. What comes behind it is told when it is taken.
    fn news(&mut self, job_type: &TypeName, job: i64) -> News {
        let told = self.told.remove(job_type);
        match self.heads.get_mut(job_type) {
            Some(head) if head.job == job => {
                let told = std::mem::replace(&mut head.told, true) || told;
                if told { News::Known } else { News::Confirmed }
            }
            _ => {
                self.heads.insert(job_type.clone(), Head { job, told });
                if told { News::Known } else { News::Found }
            }
        }
    }
}

/// Looks at the file until nobody waits any more.
async fn watch<P: Provider>(watch: Weak<Watch<P>>) {
    let Some(path) = wal_path(&watch).await else { return };
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut seen, mut quiet_ticks, mut again) = (None, 0_u32, false);
    let (mut changed, mut stopping_at) = (false, Instant::now());
    loop {
        ticks.tick().await;
        let Some(watch) = watch.upgrade() else { return };
        if !watch.goes_on() {
            return;
        }
        let found = state(&path);
        quiet_ticks = if found == seen { quiet_ticks.saturating_add(1) } else { 0 };
        seen = found;
        // A hint that is lost costs latency: polling does the work.
        if again || is_looked_after(quiet_ticks) {
            again = watch.look().await.unwrap_or_default();
            changed = true;
        }
        if changed && Instant::now() >= stopping_at {
            let _ = watch.look_for_stopping().await;
            (changed, stopping_at) = (false, Instant::now() + STOPPING_EVERY);
        }
    }
}

/// Whether a change of the log is looked after, so many ticks since. A writer changes the log first and then waits for the
/// disk, and nobody sees what it wrote before that; and times of files are coarse. So one looks again, ever less often.
const fn is_looked_after(quiet_ticks: u32) -> bool {
    quiet_ticks <= 1 || quiet_ticks.is_power_of_two() && quiet_ticks <= LOOKED_AFTER_TICKS
}

/// The write-ahead log of the store's file.
async fn wal_path<P: Provider>(watch: &Weak<Watch<P>>) -> Option<PathBuf> {
    let watch = watch.upgrade()?;
    let statement = Statement::new("select file from pragma_database_list where name = 'main'");
    let path = watch.store.provider().run(&statement, Vec::new()).await;
    let path = path.ok().and_then(|rows| Some(format!("{}-wal", rows.first()?.maybe_text("file").ok()??)));
    if path.is_none() {
        watch.awaited().watching = false;
    }
    path.map(PathBuf::from)
}

/// What changes with each commit.
fn state(path: &Path) -> Option<(u64, SystemTime)> {
    let found = path.metadata().ok()?;
    Some((found.len(), found.modified().ok()?))
}

impl<P: Provider> Watch<P> {
    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets chains and workers that nobody is subscribed to any more. Whether anybody waits for anything.
    fn goes_on(&self) -> bool {
        let mut awaited = self.awaited();
        awaited.chains.retain(|chain| self.inside.is_awaited(*chain));
        awaited.workers.retain(|worker| self.inside.is_subscribed(&Topic::OwnershipLost(*worker)));
        awaited.watching = awaited.is_needed();
        awaited.watching
    }

    /// Tells of due jobs and closed chains that somebody waits for. Says whether it found a job for the first time, which
    /// the next look tells of.
    async fn look(&self) -> Result<bool> {
        let (types, chains) = {
            let awaited = self.awaited();
            let chains: Vec<_> = awaited.chains.iter().map(|chain| hex(chain.as_uuid())).collect();
            (awaited.types.iter().map(ToString::to_string).collect::<Vec<_>>(), chains)
        };
        let mut connection = Reading(self.store.provider());
        let mut session = Session::new(&mut connection, self.store.base());
        let mut found = false;
        for row in session.rows(&session.statements.due_types, vec![set(&types)?]).await? {
            let (job_type, due_at) = (row.type_name("type")?, row.time("due_at")?);
            let news = self.awaited().news(&job_type, row.number("seq")?);
            found |= news == News::Found;
            if news == News::Confirmed {
                self.inside.publish(Hint::Scheduled { job_type, count: 1, due_at }).await?;
            }
        }
        for chains in chains.chunks(CHAINS_AT_ONCE) {
            for row in session.rows(&session.statements.closed_chains, vec![set(chains)?]).await? {
                self.inside.publish(Hint::ChainClosed(ChainId::from_uuid(row.uuid("id")?))).await?;
            }
        }
        Ok(found)
    }

    /// Tells workers of running jobs that are asked to stop, of each once.
    async fn look_for_stopping(&self) -> Result<()> {
        let workers: Vec<_> = self.awaited().workers.iter().map(|worker| hex(worker.as_uuid())).collect();
        if workers.is_empty() {
            return Ok(());
        }
        let mut connection = Reading(self.store.provider());
        let mut session = Session::new(&mut connection, self.store.base());
        let mut stopping = HashMap::new();
        for row in session.rows(&session.statements.stopping_jobs, vec![set(&workers)?]).await? {
            let attempt = (JobId::from_uuid(row.uuid("id")?), Fence(row.number("fence")?));
            stopping.insert(attempt, WorkerId::from_uuid(row.uuid("worker")?));
        }
        let told = std::mem::replace(&mut self.awaited().stopping, stopping.keys().copied().collect());
        for ((job, _), worker) in stopping.into_iter().filter(|(attempt, _)| !told.contains(attempt)) {
            self.inside.publish(Hint::OwnershipLost { worker, job }).await?;
        }
        Ok(())
    }
}

impl<P: Provider> fmt::Debug for SqliteNotifier<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteNotifier").field("store", &self.watch.store).finish_non_exhaustive()
    }
}
