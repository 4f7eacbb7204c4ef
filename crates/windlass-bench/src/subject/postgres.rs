pub(crate) mod bare;

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgPool};
use windlass::client::ClientBuilder;
use windlass::notifier::InProcessNotifier;
use windlass::postgres::{Options, PostgresNotifier, PostgresStore, Sqlx};
use windlass::{BoxError, Client};
use windlass_testkit::PostgresServer;

use super::{Bare, Goal, ResourceUsage, Subject};
use crate::{meter, workload};

/// Size of the application's connection pool.
const CONNECTIONS: u32 = 50;

/// A PostgreSQL server with the default durability. Its buffers and WAL limit are large, so that the results do not
/// depend on checkpoints or on a small cache.
#[derive(Debug)]
pub struct Postgres {
    server: PostgresServer,
    /// The application's connections. Each store gets new ones, without prepared statements of the previous store.
    pool: PgPool,
    schemas: u32,
}

impl Postgres {
    /// Starts the server. Unless it is durable, it does not wait for the disk: fit to check that the workloads run, but
    /// not to measure them.
    pub async fn start(durable: bool) -> Result<Self, BoxError> {
        let durable = if durable { "on" } else { "off" };
        let server = PostgresServer::builder()
            .setting("synchronous_commit", durable)
            .setting("fsync", durable)
            .setting("shared_buffers", "1GB")
            .setting("max_wal_size", "8GB");
        let server = server.start().await;
        let pool = connect(&server).await?;
        Ok(Self { server, pool, schemas: 0 })
    }

    pub(crate) fn schema(&self) -> String {
        format!("windlass_{}", self.schemas)
    }

    /// Returns the application's connections.
    pub(crate) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Returns the version of the server, and its settings.
    pub(crate) async fn version(&self) -> Result<String, BoxError> {
        let text = "select current_setting('server_version') || ', `fsync ' || current_setting('fsync')
            || '`, `synchronous_commit ' || current_setting('synchronous_commit') || '`'";
        let version: String = sqlx::query_scalar(text).fetch_one(&self.pool).await?;
        Ok(format!("PostgreSQL {version}"))
    }

    /// Returns a client of an empty store with a single connection, and this connection.
    pub(crate) async fn open_single(&mut self) -> Result<(Client<PostgresStore<Sqlx>>, PgPool), BoxError> {
        let options = self.empty().await?;
        let single = Sqlx::pool_options().max_connections(1).connect(&self.server.url()).await?;
        let store = PostgresStore::open(Sqlx::from(single.clone()), options).await?;
        Ok((Client::builder(store).notifier(InProcessNotifier::new()).build(), single))
    }

    /// Returns a client of an empty store that connects with the privileges of a worker, and does not own the tables.
    pub(crate) async fn open_as_worker(&mut self) -> Result<Client<PostgresStore<Sqlx>>, BoxError> {
        let options = self.empty().await?;
        PostgresStore::open(Sqlx::from(self.pool.clone()), options.clone()).await?;
        let (role, group) = (format!("app_{}", self.schemas), format!("{}_worker", self.schema()));
        let roles = format!("{}; create role {role} login; grant {group} to {role}", options.roles_sql()?);
        sqlx::raw_sql(AssertSqlSafe(roles)).execute(&self.pool).await?;
        let connect = PgConnectOptions::from_str(&self.server.url())?.username(&role);
        let pool = Sqlx::pool_options().max_connections(CONNECTIONS).connect_with(connect).await?;
        Ok(Client::new(PostgresStore::open(Sqlx::from(pool), options.migrate(false)).await?))
    }

    /// Removes the previous store. Returns the options of the next one.
    async fn empty(&mut self) -> Result<Options, BoxError> {
        // Closing waits for statements of the previous store, which could deadlock with the removal of its schema.
        self.pool.close().await;
        self.pool = connect(&self.server).await?;
        let old = format!("drop schema if exists {} cascade; checkpoint", self.schema());
        sqlx::raw_sql(AssertSqlSafe(old)).execute(&self.pool).await?;
        self.schemas += 1;
        Ok(Options::default().schema(self.schema()))
    }
}

impl Subject for Postgres {
    type Store = PostgresStore<Sqlx>;

    async fn builder(&mut self) -> Result<ClientBuilder<Self::Store>, BoxError> {
        let options = self.empty().await?;
        let store = PostgresStore::open(Sqlx::from(self.pool.clone()), options.clone()).await?;
        let notifier = PostgresNotifier::new(Sqlx::from(self.pool.clone()), &options)?;
        Ok(Client::builder(store).notifier(notifier))
    }

    async fn drain_in_transactions(
        &self,
        client: &Client<Self::Store>,
        jobs: u64,
        slots: u32,
    ) -> Result<(), BoxError> {
        workload::drain_in_transactions(client, jobs, slots).await
    }

    fn bare(&self) -> Vec<(Bare, &'static str)> {
        vec![
            (Bare::InsertOne, "bare: insert one, 16 clients"),
            (Bare::InsertMany, "bare: insert 1,000, 2 clients"),
            (Bare::ClaimMany, "bare: claim and complete 100, 4 clients"),
            (Bare::ClaimOne, "bare: claim and complete one, 50 clients"),
        ]
    }

    async fn run_bare(&mut self, bare: Bare, jobs: u64) -> Result<Duration, BoxError> {
        bare::run(&self.server.url(), bare, jobs).await
    }

    fn goals(&self) -> Vec<Goal> {
        vec![
            Goal { workload: "start, 16 producers", bare: Bare::InsertOne, at_least: Some(2.0) },
            Goal { workload: "start, batches of 1000", bare: Bare::InsertMany, at_least: None },
            Goal { workload: "drain, 100 slots", bare: Bare::ClaimMany, at_least: Some(0.6) },
            Goal { workload: "drain in transactions, 100 slots", bare: Bare::ClaimOne, at_least: Some(1.0) },
        ]
    }

    async fn usage(&self) -> Result<ResourceUsage, BoxError> {
        let position = "select (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint";
        let position: i64 = sqlx::query_scalar(position).fetch_one(&self.pool).await?;
        let server_cpu = self.server.pid().map(meter::cpu_time_of_family);
        Ok(ResourceUsage { log_bytes: Some(u64::try_from(position)?), server_cpu })
    }

    async fn buffers_per_acquire(
        &self,
        _client: &Client<Self::Store>,
        jobs: u32,
    ) -> Option<Result<f64, BoxError>> {
        Some(explained_buffers(&self.pool, &self.schema(), jobs).await)
    }
}

async fn connect(server: &PostgresServer) -> Result<PgPool, BoxError> {
    Ok(Sqlx::pool_options().max_connections(CONNECTIONS).connect(&server.url()).await?)
}

/// Returns the number of buffers that one acquire touches, once its statements are planned on the connection. Rolls the
/// acquire back.
async fn explained_buffers(pool: &PgPool, schema: &str, jobs: u32) -> Result<f64, BoxError> {
    let acquire = format!(
        "explain (analyze, buffers, format json) select * from {schema}.acquire_v1(null, gen_random_uuid(), \
         gen_random_uuid(), null, '{{no-op}}', '{{{jobs}}}', '{{60000}}', {jobs}, null, null, null, false, false)"
    );
    let mut tx = pool.begin().await?;
    let mut plan = String::new();
    for _ in 0..2 {
        sqlx::raw_sql("savepoint before").execute(&mut *tx).await?;
        let rows = sqlx::raw_sql(AssertSqlSafe(acquire.clone())).fetch_one(&mut *tx).await?;
        plan = sqlx::Row::try_get_unchecked(&rows, 0)?;
        sqlx::raw_sql("rollback to savepoint before").execute(&mut *tx).await?;
    }
    tx.rollback().await?;
    let plan: serde_json::Value = serde_json::from_str(&plan)?;
    let count = |name: &str| plan.pointer(&format!("/0/Plan/{name}")).and_then(serde_json::Value::as_f64);
    let touched = count("Shared Hit Blocks").zip(count("Shared Read Blocks"));
    touched.map(|(hit, read)| hit + read).ok_or_else(|| format!("no buffers in {plan}").into())
}
