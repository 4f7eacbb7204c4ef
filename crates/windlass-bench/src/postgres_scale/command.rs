//! The cost of single commands, by what is stored.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::sleep;
use windlass::command::{Acquire, Acquired, Outcome, Quota, Settle, Settlement, Types};
use windlass::id::{RequestId, WorkerId};
use windlass::name::TypeName;
use windlass::postgres::PostgresStore;
use windlass::record::Payload;
use windlass::time::Millis;
use windlass::{BoxError, Client, Store};

use super::Plan;
use crate::figure::median;
use crate::subject::Postgres;
use crate::{meter, workload};

/// Jobs per command.
const BATCH: u32 = 100;

/// Batches before the first one that counts: a new connection prepares its statements and plans.
const WARM_UP: usize = 10;

/// Rows per statement that stores jobs.
const ROWS: u64 = 500_000;

/// The type of the jobs that are measured.
const TYPE: &str = "no-op";

/// The cost of commands in microseconds of the server's processor time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Point {
    /// What is stored.
    pub count: u64,
    /// Starting a job, in a batch of 100.
    pub start_us: f64,
    /// Acquiring a job, in a batch of 100.
    pub acquire_us: f64,
    /// Completing a job, in a batch of 100.
    pub settle_us: f64,
    /// Counting all jobs by type and status: the whole command.
    pub count_us: f64,
}

impl Point {
    /// Returns the cost of each command with its name.
    #[must_use]
    pub fn costs(&self) -> [(&'static str, f64); 4] {
        let Self { start_us, acquire_us, settle_us, count_us, .. } = *self;
        [("start", start_us), ("acquire", acquire_us), ("settle", settle_us), ("count", count_us)]
    }
}

/// What a curve stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Completed,
    Pending,
    Later,
    Types,
}

/// Measures the commands with each number of stored jobs, in ascending order.
pub(super) async fn curve(
    server: &mut Postgres,
    fill: Fill,
    counts: &[u64],
    plan: &Plan,
) -> Result<Vec<Point>, BoxError> {
    let probe = Probe::open(server).await?;
    let (mut points, mut stored) = (Vec::new(), 0);
    for &count in counts {
        probe.fill(fill, stored..count).await?;
        stored = count;
        let point = probe.measure(count, plan).await?;
        // A run takes minutes: print each figure to show progress.
        eprintln!("{fill:?}: {point:?}");
        points.push(point);
    }
    probe.client.store().close().await?;
    Ok(points)
}

/// A store with a single connection: all its commands run in one server process.
struct Probe {
    client: Client<PostgresStore>,
    /// Connections for other statements.
    pool: PgPool,
    schema: String,
    /// The server process of the store.
    process: u32,
    worker: WorkerId,
}

impl Probe {
    async fn open(server: &mut Postgres) -> Result<Self, BoxError> {
        let (client, own) = server.open_single().await?;
        let process: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&own).await?;
        let (pool, schema) = (server.pool().clone(), server.schema());
        Ok(Self { client, pool, schema, process: u32::try_from(process)?, worker: WorkerId::new() })
    }

    /// Stores the jobs with these numbers.
    async fn fill(&self, fill: Fill, numbers: std::ops::Range<u64>) -> Result<(), BoxError> {
        let count = numbers.end - numbers.start;
        match fill {
            Fill::Completed => {
                for from in (numbers.start..numbers.end).step_by(usize::try_from(ROWS)?) {
                    self.insert(COMPLETED, from, numbers.end.min(from + ROWS)).await?;
                }
            }
            Fill::Pending => drop(workload::start_all(&self.client, count, 1_000).await?),
            Fill::Later => workload::start_for_later(&self.client, count).await?,
            Fill::Types => self.insert(TYPES, numbers.start, numbers.end).await?,
        }
        Ok(())
    }

    async fn insert(&self, text: &str, from: u64, to: u64) -> Result<(), BoxError> {
        let text = AssertSqlSafe(text.replace("{}", &self.schema));
        sqlx::query(text).bind(i64::try_from(from)?).bind(i64::try_from(to)?).execute(&self.pool).await?;
        Ok(())
    }

    /// Runs the commands, and returns the median cost of each.
    async fn measure(&self, count: u64, plan: &Plan) -> Result<Point, BoxError> {
        let batches = plan.batches;
        let mut costs: [Vec<f64>; 4] = Default::default();
        let [starts, acquires, settles, counts] = &mut costs;
        for batch in 0..=WARM_UP + batches {
            if batch == WARM_UP + batches {
                // The batch after this pause makes the store sum up the changes of its counts. Otherwise the cost of a
                // count would depend on how many commands the last second had.
                sleep(plan.pause).await;
            }
            let jobs = u64::from(BATCH);
            self.add(starts, async || workload::start_all(&self.client, jobs, jobs).await.map(drop)).await?;
            let mut acquired = Vec::new();
            acquires.push({
                let before = self.processor_time();
                acquired.extend(self.acquire().await?);
                self.micros_since(before)
            });
            self.add(settles, async || self.complete(&acquired).await).await?;
        }
        sleep(plan.pause).await;
        for _ in 0..WARM_UP + batches {
            self.add(counts, async || Ok(self.client.count(Types::All).await.map(drop)?)).await?;
        }
        let of =
            |costs: &[f64], jobs: u32| median(costs.get(WARM_UP..).unwrap_or_default()) / f64::from(jobs);
        Ok(Point {
            count,
            start_us: of(starts, BATCH),
            acquire_us: of(acquires, BATCH),
            settle_us: of(settles, BATCH),
            count_us: of(counts, 1),
        })
    }

    async fn add(
        &self,
        costs: &mut Vec<f64>,
        run: impl AsyncFnOnce() -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        let before = self.processor_time();
        run().await?;
        costs.push(self.micros_since(before));
        Ok(())
    }

    async fn acquire(&self) -> Result<Vec<Acquired>, BoxError> {
        let quota = Quota { job_type: TypeName::new(TYPE)?, max: BATCH, lease: Millis::from_secs(60) };
        let (request, types) = (RequestId::new(), vec![quota]);
        let acquire = Acquire { request, worker: self.worker, worker_name: None, types, max: BATCH };
        let jobs = self.client.store().acquire(acquire).await?.jobs;
        if jobs.len() == BATCH as usize { Ok(jobs) } else { Err("an acquire found too few jobs".into()) }
    }

    async fn complete(&self, jobs: &[Acquired]) -> Result<(), BoxError> {
        let output = Payload::encode(&1)?;
        let settlement = |acquired: &Acquired| Settlement {
            job: acquired.job.id,
            fence: acquired.job.fence,
            outcome: Outcome::Complete { output: output.clone(), retention: None, create: Vec::new() },
        };
        let settlements = jobs.iter().map(settlement).collect();
        self.client.store().settle(Settle { settlements }).await?;
        Ok(())
    }

    fn processor_time(&self) -> Duration {
        meter::precise_cpu_time_of(self.process)
    }

    fn micros_since(&self, before: Duration) -> f64 {
        self.processor_time().saturating_sub(before).as_secs_f64() * 1e6
    }
}

/// Stores completed jobs, as the store leaves them.
const COMPLETED: &str = "
with stored as (
  insert into {}.job (id, chain, type, chain_type, status, priority, due_at, fence, version, attempt, ended,
    on_blocker_failure, created_at, started_at, closed_at, input_codec, input, output_codec, output, keep_completed,
    keep_failed, keep_cancelled, chain_closed_at, closed_as, retain_until)
  select i, i, 'no-op', 'no-op', 'completed', 0, 0, 1, 2, 1, 'completed', 'wait', 0, 0, 0, 'json', '{\"number\":1}', 'json',
    '1', 1, 1, 1, 0, 'completed', 9000000000000
  from (select lpad(to_hex(n), 32, '0')::uuid as i from generate_series($1, $2 - 1) n) rows
  returning id, seq
), leaving as (
  insert into {}.leaving (leaves_at, chains)
  select 9000000000000, array_agg(id) from stored group by seq / 102400
)
insert into {}.tally (jobs, type, status) select count(*), 'no-op', 'completed' from stored";

/// Stores 100 pending jobs of each of some types.
const TYPES: &str = "
with stored as (
  insert into {}.job (id, chain, type, chain_type, status, priority, due_at, fence, on_blocker_failure, created_at,
    input_codec, input, keep_completed, keep_failed, keep_cancelled)
  select i, i, 'type-' || n, 'type-' || n, 'pending', 0, 0, 0, 'wait', 0, 'json', '{\"number\":1}', 1, 1, 1
  from (select n, gen_random_uuid() as i from generate_series($1, $2 - 1) n, generate_series(1, 100)) rows
  returning id, seq, due_at, type, priority
), ready as (
  insert into {}.ready (seq, due_at, job, priority, has_blockers, bytes, type)
  select seq, due_at, id, priority, false, 12, type from stored
)
insert into {}.tally (jobs, type, status) select count(*), type, 'pending' from stored group by type";
