//! Workers under conditions that could slow them down.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sqlx::Connection;
use tokio::time::{MissedTickBehavior, interval, sleep_until};
use windlass::{BoxError, Client, Ctx, Data, Store, Worker};

use super::Plan;
use crate::figure::median;
use crate::subject::{Postgres, Subject};
use crate::suite::percentile;
use crate::workload::{self, NoOp, STOP};

/// Slots of each worker.
const SLOTS: u32 = 100;

/// Jobs per call when jobs are started.
const BATCH: u64 = 1_000;

/// Calls per second that start jobs while a snapshot is open.
const TICKS: u64 = 20;

/// The rate of many workers on one type compared with that of one worker, in jobs per second by round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SharedQueue {
    /// The number of workers.
    pub workers: u32,
    /// The rate of one worker.
    pub one: Vec<f64>,
    /// The rate of all workers together.
    pub many: Vec<f64>,
}

impl SharedQueue {
    /// Returns the median of the ratios of the rounds.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(&self.many.iter().zip(&self.one).map(|(many, one)| many / one).collect::<Vec<_>>())
    }
}

/// Drains jobs with one worker and with many, in turns.
pub(super) async fn share_queue(server: &mut Postgres, plan: &Plan) -> Result<SharedQueue, BoxError> {
    let mut shared = SharedQueue { workers: plan.workers, one: Vec::new(), many: Vec::new() };
    for _ in 0..plan.rounds {
        for (workers, rates) in [(1, &mut shared.one), (plan.workers, &mut shared.many)] {
            let client = server.open().await?;
            workload::start_all(&client, plan.drained, BATCH).await?;
            let began = Instant::now();
            workload::drain_by(&client, plan.drained, SLOTS, workers).await?;
            rates.push(rate(plan.drained, began.elapsed()));
            eprintln!("{workers} workers: {:.0} jobs/s", rates.last().copied().unwrap_or_default());
            client.store().close().await?;
        }
    }
    Ok(shared)
}

/// The role that a client connects as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Owns the tables, and vacuums them.
    Owner,
    /// Has the privileges of a worker, and may not vacuum the tables.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "owner of the tables",
            Self::Worker => "role of a worker, which may not vacuum",
        })
    }
}

/// The median latency of single jobs in a fresh namespace, and after many jobs have passed through it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AfterBacklog {
    /// The role of the client.
    pub role: String,
    /// The number of jobs.
    pub passed: u64,
    /// The latency in a fresh namespace in microseconds, by round.
    pub fresh_us: Vec<f64>,
    /// The latency right after the last of the jobs was completed.
    pub after_us: Vec<f64>,
}

impl AfterBacklog {
    /// Returns the median of the ratios of the rounds.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(
            &self.after_us.iter().zip(&self.fresh_us).map(|(after, fresh)| after / fresh).collect::<Vec<_>>(),
        )
    }
}

/// Measures the latency of single jobs before and after a backlog.
pub(super) async fn after_backlog(
    server: &mut Postgres,
    plan: &Plan,
    role: Role,
) -> Result<AfterBacklog, BoxError> {
    let mut measured = AfterBacklog {
        role: role.to_string(),
        passed: plan.passed,
        fresh_us: Vec::new(),
        after_us: Vec::new(),
    };
    for _ in 0..plan.rounds {
        let client = match role {
            Role::Owner => server.open().await?,
            Role::Worker => server.open_as_worker().await?,
        };
        measured.fresh_us.push(latency(&client, plan.single).await?);
        workload::start_all(&client, plan.passed, BATCH).await?;
        workload::drain_all(&client, plan.passed, SLOTS).await?;
        measured.after_us.push(latency(&client, plan.single).await?);
        eprintln!("latency as the {role}: {measured:?}");
        client.store().close().await?;
    }
    Ok(measured)
}

async fn latency<S: Store>(client: &Client<S>, jobs: u64) -> Result<f64, BoxError> {
    Ok(percentile(&workload::latency(client, jobs).await?, 50))
}

/// A minute under load, while a snapshot is open.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Minute {
    /// Its number, from 1.
    pub minute: u32,
    /// The number of jobs that were completed.
    pub jobs: u64,
    /// Processor time of the whole server per job, in microseconds.
    pub server_us: f64,
    /// The time from the start of a job to its handler in microseconds.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
}

/// Returns the cost of the last minute divided by that of the first, or `None` without a measurement.
pub(super) fn snapshot_growth(minutes: &[Minute]) -> Option<f64> {
    Some(minutes.last()?.server_us / minutes.first()?.server_us)
}

/// Starts and drains jobs at a constant rate, while a transaction keeps a snapshot open from the beginning.
pub(super) async fn with_snapshot(server: &mut Postgres, plan: &Plan) -> Result<Vec<Minute>, BoxError> {
    let client = server.open().await?;
    let mut held = server.pool().acquire().await?.detach();
    let mut snapshot = held.begin().await?;
    sqlx::raw_sql("set transaction isolation level repeatable read; select count(*) from pg_class")
        .execute(&mut *snapshot)
        .await?;
    let seen = Arc::new(Seen { began: Instant::now(), delays: Mutex::default(), count: AtomicU64::new(0) });
    let worker =
        Worker::new(&client).concurrency(SLOTS).data(Arc::clone(&seen)).handle(arrive).start().await?;
    let producer = tokio::spawn(produce(client.clone(), Arc::clone(&seen), plan.rate / TICKS));
    let (count, length) = plan.snapshot;
    let mut minutes = Vec::new();
    for minute in 1..=count {
        let (before, done) = (server.usage().await?.server_cpu, seen.count.load(Ordering::Relaxed));
        sleep_until((seen.began + length * minute).into()).await;
        let (after, jobs) = (server.usage().await?.server_cpu, seen.count.load(Ordering::Relaxed) - done);
        let used = after.zip(before).map_or(Duration::ZERO, |(after, before)| after.saturating_sub(before));
        let delays = std::mem::take(&mut *seen.delays.lock().unwrap_or_else(PoisonError::into_inner));
        let (p50_us, p99_us) = (percentile(&delays, 50), percentile(&delays, 99));
        let minute = Minute { minute, jobs, server_us: 1e6 / rate(jobs, used), p50_us, p99_us };
        eprintln!("{minute:?}");
        minutes.push(minute);
        if producer.is_finished() {
            return Err("starting jobs failed".into());
        }
    }
    producer.abort();
    worker.stop(STOP).await;
    snapshot.rollback().await?;
    client.store().close().await?;
    Ok(minutes)
}

/// Starts jobs until it is aborted.
async fn produce<S: Store>(client: Client<S>, seen: Arc<Seen>, batch: u64) -> Result<(), BoxError> {
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(TICKS)?);
    // After a stall, the jobs that were not started are started, so that the rate stays the same.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        ticks.tick().await;
        let number = seen.now()?;
        client.start_many((0..batch).map(|_| NoOp { number })).await?;
    }
}

struct Seen {
    began: Instant,
    delays: Mutex<Vec<Duration>>,
    count: AtomicU64,
}

impl Seen {
    /// Returns the microseconds since the beginning.
    fn now(&self) -> Result<u64, BoxError> {
        Ok(u64::try_from(self.began.elapsed().as_micros())?)
    }
}

async fn arrive(job: Ctx<NoOp>, Data(seen): Data<Arc<Seen>>) -> Result<u64, BoxError> {
    let delay = Duration::from_micros(seen.now()? - job.input().number);
    seen.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
    seen.count.fetch_add(1, Ordering::Relaxed);
    Ok(0)
}

#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
fn rate(jobs: u64, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64()
}
