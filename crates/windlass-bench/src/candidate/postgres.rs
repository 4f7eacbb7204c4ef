use std::ops::Range;
use std::sync::Arc;

use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::sync::Mutex;
use uuid::Uuid;
use windlass::postgres::{PostgresStore, Sqlx};
use windlass::{BoxError, Client};
use windlass_bench_harness::{Arguments, Candidate, Guard, Handler, Work, Workload};

use super::Open;
use crate::subject::bare_postgres as bare;

/// Connections of the application, as for every library.
const CONNECTIONS: u32 = 50;

/// Connections that insert jobs.
const PRODUCERS: usize = 16;

/// Clients that claim and complete many jobs at a time.
const CLIENTS: u32 = 4;

/// Clients that claim and complete one job at a time.
const SINGLE_CLIENTS: u32 = 50;

const UNFINISHED: &str = "select count(*) from bare_job where status <> 'completed'";

const INSERT_AND_NOTIFY: &str = "with job as (
  insert into bare_job (id, type, due_at, input) values ($1, 'no-op', 0, $2)
) select pg_notify('bare_job', '')";

const COMPLETE_AND_NOTIFY: &str = "with job as (
  update bare_job set status = 'completed', output = $2 where id = $1 and status = 'running' returning id
) select pg_notify('bare_done', id::text) from job";

const READ: &str = "select output from bare_job where id = $1 and status = 'completed'";

pub(super) struct Store;

impl Open for Store {
    type Store = PostgresStore<Sqlx>;

    async fn open(url: &str) -> Result<Client<Self::Store>, BoxError> {
        let pool = Sqlx::pool_options().max_connections(CONNECTIONS).connect(url).await?;
        Ok(Client::new(PostgresStore::open(Sqlx::from(pool), Default::default()).await?))
    }

    async fn work_in_transactions(client: &Client<Self::Store>, work: Work) -> Result<Guard, BoxError> {
        super::work_in_transactions(client, work).await
    }
}

/// A plain table with hand-written statements.
pub(super) struct Bare {
    url: String,
    producers: Vec<Mutex<PgConnection>>,
    pool: PgPool,
    /// Whether a worker listens.
    notifies: bool,
    /// Receives the ids of completed jobs.
    completed: Mutex<PgListener>,
}

impl Candidate for Bare {
    async fn open(arguments: &Arguments) -> Result<Self, BoxError> {
        if arguments.workload == Workload::Sustained {
            return Err(super::not_compared());
        }
        let url = arguments.url.clone();
        let pool = Sqlx::pool_options().max_connections(CONNECTIONS).connect(&url).await?;
        sqlx::raw_sql(bare::TABLE).execute(&pool).await?;
        let mut producers = Vec::new();
        for _ in 0..PRODUCERS {
            producers.push(Mutex::new(PgConnection::connect(&url).await?));
        }
        let mut completed = PgListener::connect(&url).await?;
        completed.listen("bare_done").await?;
        let notifies = matches!(arguments.workload, Workload::Latency | Workload::RoundTrip);
        Ok(Self { url, producers, pool, notifies, completed: Mutex::new(completed) })
    }

    async fn start(&self, producer: u64, number: u64) -> Result<(), BoxError> {
        if self.notifies {
            return self.insert_and_notify(number).await.map(drop);
        }
        let producer = self.producers.get(usize::try_from(producer)?).ok_or("there are 16 producers")?;
        bare::insert_one(&mut *producer.lock().await, i64::try_from(number)?).await
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result<(), BoxError> {
        let producer = self.producers.first().ok_or("there are 16 producers")?;
        let numbers = i64::try_from(numbers.start)?..i64::try_from(numbers.end)?;
        bare::insert_many(&mut *producer.lock().await, numbers).await
    }

    async fn work(&self, work: Work) -> Result<Guard, BoxError> {
        if self.notifies {
            return self.listen(work.handler).await;
        }
        let (clients, claimed) =
            if work.in_transactions { (SINGLE_CLIENTS, 1) } else { (CLIENTS, work.slots) };
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(PgConnection::connect(&self.url).await?);
        }
        for mut connection in connections {
            let handler = work.handler.clone();
            tokio::spawn(async move {
                while bare::work(&mut connection, claimed.into(), |number| handler.call(number)).await? {}
                Ok::<_, BoxError>(())
            });
        }
        Ok(Box::new(()))
    }

    async fn unfinished(&self) -> Result<u64, BoxError> {
        let count: i64 = sqlx::query_scalar(UNFINISHED).fetch_one(&self.pool).await?;
        Ok(u64::try_from(count)?)
    }

    async fn round_trip(&self, number: u64) -> Result<(), BoxError> {
        let mut completed = self.completed.lock().await;
        let id = self.insert_and_notify(number).await?;
        while completed.recv().await?.payload() != id.to_string() {}
        let mut connection = self.first().await?;
        let output: Vec<u8> = sqlx::query_scalar(READ).bind(id).fetch_one(&mut *connection).await?;
        if bare::number(&output) == Some(number) { Ok(()) } else { Err("the result of another job".into()) }
    }
}

impl Bare {
    async fn first(&self) -> Result<tokio::sync::MutexGuard<'_, PgConnection>, BoxError> {
        Ok(self.producers.first().ok_or("there are 16 producers")?.lock().await)
    }

    async fn insert_and_notify(&self, number: u64) -> Result<Uuid, BoxError> {
        let id = Uuid::now_v7();
        let insert = sqlx::query(INSERT_AND_NOTIFY).bind(id).bind(bare::input(i64::try_from(number)?));
        insert.execute(&mut *self.first().await?).await?;
        Ok(id)
    }

    /// Claims and completes one job after each notification.
    async fn listen(&self, handler: Handler) -> Result<Guard, BoxError> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let mut listener = PgListener::connect(&self.url).await?;
        listener.listen("bare_job").await?;
        let handler = Arc::new(handler);
        Ok(Box::new(tokio::spawn(async move {
            loop {
                listener.recv().await?;
                for (id, input) in bare::claim(&mut connection, 1).await? {
                    handler.call(bare::number(&input).unwrap_or_default());
                    let complete = sqlx::query(COMPLETE_AND_NOTIFY).bind(id).bind(input);
                    complete.execute(&mut connection).await?;
                }
            }
            #[expect(unreachable_code, reason = "names the error of the task")]
            Ok::<_, BoxError>(())
        })))
    }
}
