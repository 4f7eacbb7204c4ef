use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use sqlx::SqliteConnection;
use tokio::sync::Mutex;
use windlass::sqlite::{Options, SqliteStore, Synchronous};
use windlass::{BoxError, Client};
use windlass_bench_harness::{Arguments, Candidate, Guard, Work, Workload};

use super::Open;
use crate::subject::bare_sqlite as bare;

/// When SQLite waits for the disk: as the other libraries on SQLite do by default.
const SYNCHRONOUS: Synchronous = Synchronous::Normal;

const UNFINISHED: &str = "select count(*) from job where status <> 'completed'";

pub(super) struct Store;

impl Open for Store {
    type Store = SqliteStore;

    async fn open(path: &str) -> Result<Client<SqliteStore>, BoxError> {
        Ok(Client::new(SqliteStore::open(Options::new(path).synchronous(SYNCHRONOUS)).await?))
    }

    async fn work_in_transactions(client: &Client<SqliteStore>, work: Work) -> Result<Guard, BoxError> {
        super::work_in_transactions(client, work).await
    }
}

/// A plain table and one connection, because SQLite has one writer.
pub(super) struct Bare {
    connection: Arc<Mutex<SqliteConnection>>,
}

impl Candidate for Bare {
    async fn open(arguments: &Arguments) -> Result<Self, BoxError> {
        if matches!(arguments.workload, Workload::Sustained | Workload::Latency | Workload::RoundTrip) {
            return Err(super::not_compared());
        }
        let connection = bare::connect(Path::new(&arguments.url), SYNCHRONOUS).await?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    async fn start(&self, _producer: u64, number: u64) -> Result<(), BoxError> {
        bare::insert_one(&mut *self.connection.lock().await, i64::try_from(number)?).await
    }

    async fn start_batch(&self, numbers: Range<u64>) -> Result<(), BoxError> {
        let numbers = i64::try_from(numbers.start)?..i64::try_from(numbers.end)?;
        bare::insert_many(&mut *self.connection.lock().await, numbers).await
    }

    async fn work(&self, work: Work) -> Result<Guard, BoxError> {
        let claimed = if work.in_transactions { 1 } else { work.slots };
        let connection = Arc::clone(&self.connection);
        Ok(Box::new(tokio::spawn(async move {
            let handle = |number| work.handler.call(number);
            while bare::work(&mut *connection.lock().await, claimed.into(), handle).await? {}
            Ok::<_, BoxError>(())
        })))
    }

    async fn unfinished(&self) -> Result<u64, BoxError> {
        let count: i64 = sqlx::query_scalar(UNFINISHED).fetch_one(&mut *self.connection.lock().await).await?;
        Ok(u64::try_from(count)?)
    }
}
