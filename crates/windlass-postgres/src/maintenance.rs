//! Removes what commands leave behind in the small tables: rows of `lease` whose jobs have ended, rows of `tally` that can
//! be summed up, and dead rows.
//!
//! An acquire walks over the entries of dead rows in the index of `ready`. Autovacuum comes too late for a busy queue, so
//! one process of the cluster vacuums the table after some ten thousand jobs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use uuid::Uuid;
use windlass_core::Result;

use crate::floors::Floors;
use crate::provider::{Parameter, Provider, Row, SET_TIMEOUTS, Statement};
use crate::reply::{Values, corrupt};
use crate::statement::Names;

/// The interval at which a process checks for dead rows.
const INTERVAL: Duration = Duration::from_secs(1);
/// The number of acquired jobs after which it checks earlier.
const JOBS: u64 = 20_000;
/// The number of dead rows from which a table is vacuumed.
const DEAD_ROWS: i64 = 10_000;
/// The number of dead rows from which acquires skip them, because vacuuming seems to be impossible.
const TOO_MANY_DEAD_ROWS: i64 = 50_000;
/// The longest interval between two attempts to vacuum tables whose dead rows cannot be removed: an open transaction may
/// still see them, or the role may not vacuum.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// How long one process is the one that vacuums, in milliseconds.
const TERM: i64 = 30_000;
/// The largest number of rows of `lease` that one command visits.
const LEASES: i64 = 1_000;
/// How long one run visits them.
const TIDY_TIME: Duration = Duration::from_millis(200);
/// After this time, the statistics of any supported server are current.
const STATISTICS_DELAY: Duration = Duration::from_millis(600);

/// Runs [`Task`] in the background from time to time.
#[derive(Debug, Default)]
pub(crate) struct Maintenance {
    acquired: AtomicU64,
    running: AtomicBool,
    state: Mutex<State>,
    floors: Floors,
}

#[derive(Debug)]
struct State {
    next: Instant,
    next_vacuum: Instant,
    vacuum_interval: Duration,
    /// The last row of `lease` that was visited.
    visited: Option<i64>,
    /// Identifies this process among those that want to vacuum.
    token: Uuid,
}

impl Default for State {
    fn default() -> Self {
        let now = Instant::now();
        let (vacuum_interval, token) = (Duration::ZERO, Uuid::now_v7());
        Self { next: now + INTERVAL, next_vacuum: now, vacuum_interval, visited: None, token }
    }
}

/// The statements of the task.
#[derive(Clone, Debug)]
pub(crate) struct Task<P> {
    pub(crate) provider: Arc<P>,
    pub(crate) names: Names,
    pub(crate) tidy: Statement,
    pub(crate) leader_lock: Statement,
}

impl Maintenance {
    /// Counts acquired jobs. Starts the task if it is due.
    pub(crate) fn after<P: Provider>(this: &Arc<Self>, jobs: usize, task: impl FnOnce() -> Task<P>) {
        let jobs = u64::try_from(jobs).unwrap_or(u64::MAX);
        let is_due = this.acquired.fetch_add(jobs, Ordering::Relaxed) + jobs >= JOBS
            || Instant::now() >= this.state.lock().unwrap_or_else(PoisonError::into_inner).next;
        if !is_due || this.running.swap(true, Ordering::AcqRel) {
            return;
        }
        this.acquired.store(0, Ordering::Relaxed);
        let (this, task) = (Running(Arc::clone(this)), task());
        tokio::spawn(async move {
            if let Err(error) = task.run(&this.0).await {
                // The next run tries again. Commands work without it.
                tracing::debug!(%error, "the maintenance of the PostgreSQL store failed");
            }
        });
    }

    /// Returns where the scans of acquires begin.
    pub(crate) const fn floors(&self) -> &Floors {
        &self.floors
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Ends the run, even if the runtime drops the task.
struct Running(Arc<Maintenance>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.with(|state| state.next = Instant::now() + INTERVAL);
        self.0.running.store(false, Ordering::Release);
    }
}

impl<P: Provider> Task<P> {
    async fn run(self, maintenance: &Maintenance) -> Result<()> {
        self.tidy(maintenance).await?;
        let dead = self.dead_rows().await?;
        maintenance.floors.set_needed(dead.of_ready >= TOO_MANY_DEAD_ROWS);
        let may_vacuum = dead.may_vacuum && Instant::now() >= maintenance.with(|state| state.next_vacuum);
        if dead.most < DEAD_ROWS
            || !may_vacuum
            || !self.is_leader(maintenance.with(|state| state.token)).await?
        {
            return Ok(());
        }
        let vacuumed = self.provider.script(&self.names.render(VACUUM)).await;
        // Older servers publish the new numbers with a delay, during which more rows die.
        sleep(STATISTICS_DELAY).await;
        let is_clean = vacuumed.is_ok() && self.dead_rows().await?.most < TOO_MANY_DEAD_ROWS;
        maintenance.with(|state| {
            state.vacuum_interval = match is_clean {
                true => Duration::ZERO,
                false => (state.vacuum_interval * 2).clamp(INTERVAL, LONGEST_INTERVAL),
            };
            state.next_vacuum = Instant::now() + state.vacuum_interval;
        });
        vacuumed
    }

    /// Visits the rows of `lease`, as many as it can in a while. The next run continues.
    async fn tidy(&self, maintenance: &Maintenance) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < TIDY_TIME {
            let visited = maintenance.with(|state| state.visited);
            let parameters =
                vec![Parameter::Number(None), Parameter::Number(visited), Parameter::Number(Some(LEASES))];
            // Another session may be doing it, and there is no row then.
            let Some(row) = self.run_begun(&self.tidy, parameters).await?.into_iter().next() else { break };
            let visited = Values::from(row).maybe_number()?;
            maintenance.with(|state| state.visited = visited);
            if visited.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Runs a statement in a transaction that suits the store, whatever the defaults of the session are.
    async fn run_begun(&self, statement: &Statement, parameters: Vec<Parameter>) -> Result<Vec<Row>> {
        let mut tx = self.provider.begin_read_committed().await?;
        let rows = async {
            self.provider.script_in(P::tx_ref(&mut tx), SET_TIMEOUTS).await?;
            self.provider.run_in(P::tx_ref(&mut tx), statement, parameters).await
        };
        match rows.await {
            Ok(rows) => self.provider.commit(tx).await.map(|()| rows),
            Err(error) => {
                // If the rollback fails too, the connection is lost, and the server rolls back.
                let _ = self.provider.rollback(tx).await;
                Err(error)
            }
        }
    }

    /// Returns the number of dead rows, as far as the server knows.
    async fn dead_rows(&self) -> Result<DeadRows> {
        let statement = Statement::new(self.names.render(DEAD), false);
        let row = self.provider.run(&statement, Vec::new()).await?.into_iter().next();
        let mut values = Values::from(row.ok_or_else(|| corrupt("no number of dead rows"))?);
        Ok(DeadRows { of_ready: values.number()?, most: values.number()?, may_vacuum: values.flag()? })
    }

    /// Whether this process is the one that vacuums.
    async fn is_leader(&self, token: Uuid) -> Result<bool> {
        let parameters = vec![
            Parameter::Number(None),
            Parameter::Text(Some("windlass.vacuum".to_owned())),
            Parameter::Id(Some(token)),
            Parameter::Number(Some(TERM)),
        ];
        let rows = self.run_begun(&self.leader_lock, parameters).await?;
        let state = rows.into_iter().next().map(|row| Values::from(row).text()).transpose()?;
        Ok(state.as_deref() == Some("held"))
    }
}

/// The dead rows of the small tables.
struct DeadRows {
    of_ready: i64,
    /// Those of the table that has most.
    most: i64,
    /// Whether the role may remove them.
    may_vacuum: bool,
}

const DEAD: &str = "select 'dead', null::integer, null::uuid[], null::text[], array[d.ready, greatest(d.ready, \
    pg_stat_get_dead_tuples('windlass.lease'::regclass), pg_stat_get_dead_tuples('windlass.tally'::regclass)), \
    (select (pg_has_role(c.relowner, 'usage') or pg_has_role(b.datdba, 'usage') \
    or case when current_setting('server_version_num')::integer >= 170000 \
    then has_table_privilege(c.oid, 'maintain') else false end)::int \
    from pg_class c join pg_database b on b.datname = current_database() where c.oid = 'windlass.ready'::regclass)\
    ]::bigint[], null::bytea[] from (select pg_stat_get_dead_tuples('windlass.ready'::regclass) as ready) d";

/// Does not wait for a table that autovacuum or a migration has locked. Keeps empty pages at the end of the tables, which
/// are soon needed again: removing them needs a lock that commands wait for.
const VACUUM: &str = "vacuum (skip_locked, truncate false, index_cleanup on, parallel 0) \
    windlass.ready, windlass.lease, windlass.tally";
