//! How much noticing the application's commits costs: commits per second with hints, and without.

use std::fmt;
use std::time::Instant;

use sqlx::PgPool;
use tokio::task::JoinSet;
use windlass::postgres::{Client, PostgresStore, Sqlx};
use windlass::{BoxError, Ctx, Worker};
use windlass_testkit::PostgresServer;

use crate::figure::median;
use crate::workload::{NoOp, Other};

/// The goal: the share of the commits per second without hints that is left with them.
pub const GOAL: f64 = 0.9;

/// The number of connections that commit at the same time.
const CONNECTIONS: u32 = 64;

/// Commits per second of each round, with hints and without.
#[derive(Clone, Debug, Default)]
pub struct Commits {
    /// With hints: the client notices the commits and wakes workers.
    pub with: Vec<f64>,
    /// Without: the client announces nothing.
    pub without: Vec<f64>,
}

impl Commits {
    /// Measures on a private server, in alternating rounds. Each round makes this number of commits, with a row of the
    /// application and a started job each.
    ///
    /// # Errors
    /// If the server or the store fails.
    pub async fn measure(durable: bool, rounds: u32, commits: u64) -> Result<Self, BoxError> {
        let setting = if durable { "on" } else { "off" };
        let server = PostgresServer::builder()
            .setting("synchronous_commit", setting)
            .setting("fsync", setting)
            .setting("max_wal_size", "8GB");
        let server = server.start().await;
        let pool = Sqlx::pool_options().max_connections(CONNECTIONS).min_connections(CONNECTIONS);
        let pool = pool.connect(&server.url()).await?;
        sqlx::raw_sql("create table orders (number bigint)").execute(&pool).await?;
        let client = Client::new(PostgresStore::open(pool.clone().into(), Default::default()).await?);
        // An idle worker of another client, which the hints reach.
        let other = Client::new(windlass::postgres::connect(&server.url()).await?);
        let worker = Worker::new(&other).handle(never).start().await?;
        let mut measured = Self::default();
        commit_all(&pool, &client, commits, true).await?; // to warm up
        for _ in 0..rounds {
            measured.without.push(commit_all(&pool, &client, commits, false).await?);
            measured.with.push(commit_all(&pool, &client, commits, true).await?);
        }
        worker.stop(std::time::Duration::from_secs(5)).await;
        Ok(measured)
    }

    /// Returns the median of the rounds' ratios.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let ratios: Vec<f64> =
            self.with.iter().zip(&self.without).map(|(with, without)| with / without).collect();
        median(&ratios)
    }
}

impl fmt::Display for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "commits/s, {CONNECTIONS} connections   without hints   with hints   ratio")?;
        for (round, (with, without)) in self.with.iter().zip(&self.without).enumerate() {
            writeln!(f, "round {:<24} {without:>13.0} {with:>12.0} {:>7.2}", round + 1, with / without)?;
        }
        writeln!(f, "median ratio {:.2}, goal {GOAL}", self.ratio())
    }
}

/// Handles jobs of a type that is not started.
async fn never(_: Ctx<Other>) -> Result<u64, BoxError> {
    Ok(0)
}

/// Returns the commits per second.
async fn commit_all(pool: &PgPool, client: &Client, commits: u64, hints: bool) -> Result<f64, BoxError> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for first in 0..u64::from(CONNECTIONS) {
        let (pool, client) = (pool.clone(), client.clone());
        tasks.spawn(async move {
            for number in (first..commits).step_by(CONNECTIONS as usize) {
                let mut tx = pool.begin().await?;
                let insert =
                    sqlx::query("insert into orders (number) values ($1)").bind(i64::try_from(number)?);
                insert.execute(&mut *tx).await?;
                let mut inside = client.in_tx(&mut tx);
                inside.start(NoOp { number }).await?;
                if !hints {
                    // Announcements that are dropped are never sent.
                    drop(inside.announcements());
                }
                tx.commit().await?;
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    #[expect(clippy::cast_precision_loss, reason = "a number of commits is far below 2^52")]
    let commits = commits as f64;
    Ok(commits / began.elapsed().as_secs_f64())
}
