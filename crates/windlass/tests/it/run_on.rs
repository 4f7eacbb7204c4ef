//! `windlass-test` on stores with transactions, with handlers that write rows.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Job};
use windlass_test::{Outcome, run_on};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = i64)]
struct Reserve {
    item: i64,
}

const TABLE: &str = "create table reserved (item bigint)";

/// Defines a handler that inserts a row and then fails for item 0, and the same tests of it for a store.
macro_rules! tests {
    ($store:ty, $database:ty, $insert:literal) => {
        async fn reserve(
            a: windlass::Attempt<Reserve, $store>,
        ) -> Result<windlass::Done<Reserve, $store>, BoxError> {
            let mut step = a.begin().await?;
            let insert = sqlx::query::<$database>($insert).bind(a.input().item);
            insert.execute(step.tx()).await?;
            if a.input().item == 0 {
                return Err("there is no item 0".into());
            }
            let count = sqlx::query_scalar("select count(*) from reserved");
            let count = count.fetch_one(step.tx()).await?;
            Ok(step.done(count)?)
        }

        async fn check(store: $store, pool: sqlx::Pool<$database>) {
            let store = Arc::new(store);
            sqlx::raw_sql(TABLE).execute(&pool).await.unwrap();
            let ran = run_on(Arc::clone(&store), reserve, Reserve { item: 7 }).await.unwrap();
            assert_eq!(*ran.output(), 1);
            let ran = run_on(Arc::clone(&store), reserve, Reserve { item: 0 }).await.unwrap();
            assert_eq!(ran.retried_with(), "there is no item 0");
            assert!(
                matches!(ran.outcome(), Outcome::Retried(_, delay) if *delay == Duration::from_secs(10)),
                "{ran:?}"
            );
            let ran = run_on(store, reserve, Reserve { item: 0 }).attempt(25).await.unwrap();
            assert_eq!(ran.failed_with(), "there is no item 0");
            let rows: i64 =
                sqlx::query_scalar("select count(*) from reserved").fetch_one(&pool).await.unwrap();
            assert_eq!(rows, 1, "the rows of failed attempts are rolled back");
        }
    };
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use windlass::sqlite::{Options, SqliteStore, Sqlx};
    use windlass::time::{Clock, ManualClock};

    use super::*;

    tests!(SqliteStore, sqlx::Sqlite, "insert into reserved (item) values (?)");

    #[tokio::test]
    async fn handlers_run_on_sqlite() {
        let directory = tempfile::tempdir().unwrap();
        let store = windlass::sqlite::open(directory.path().join("jobs.db")).await.unwrap();
        let pool = Sqlx::pool(store.provider()).clone();
        check(store, pool).await;
    }

    #[tokio::test]
    async fn the_clock_of_the_store_is_the_time_of_the_run() {
        async fn reserve(
            a: windlass::Attempt<Reserve, SqliteStore>,
        ) -> Result<windlass::Done<Reserve, SqliteStore>, BoxError> {
            let created_at = a.job().created_at.as_millis();
            Ok(a.begin().await?.done(created_at)?)
        }
        let directory = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let options = Options::new(directory.path().join("jobs.db")).clock(clock.clone());
        let store = Arc::new(SqliteStore::open(options).await.unwrap());
        for _ in 0..2 {
            let ran = run_on(Arc::clone(&store), reserve, Reserve { item: 7 }).await.unwrap();
            assert_eq!(*ran.output(), clock.now().as_millis());
            clock.advance(Duration::from_secs(86_400));
        }
    }

    #[tokio::test]
    async fn a_test_may_pass_its_store() {
        let directory = tempfile::tempdir().unwrap();
        let store = windlass::sqlite::open(directory.path().join("jobs.db")).await.unwrap();
        sqlx::raw_sql(TABLE).execute(Sqlx::pool(store.provider())).await.unwrap();
        let ran = run_on(store, reserve, Reserve { item: 7 }).await.unwrap();
        assert_eq!(*ran.output(), 1);
    }

    #[tokio::test]
    async fn a_handler_without_a_transaction_runs_on_the_store_of_a_test() {
        async fn reserve(job: windlass::Ctx<Reserve>) -> Result<i64, BoxError> {
            Ok(job.input().item)
        }
        let directory = tempfile::tempdir().unwrap();
        let store = windlass::sqlite::open(directory.path().join("jobs.db")).await.unwrap();
        let ran = run_on(store, reserve, Reserve { item: 7 }).await.unwrap();
        assert_eq!(*ran.output(), 7);
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use windlass::postgres::{PostgresStore, Sqlx};
    use windlass_testkit::PostgresServer;

    use super::*;

    tests!(PostgresStore, sqlx::Postgres, "insert into reserved (item) values ($1)");

    #[tokio::test]
    async fn handlers_run_on_postgresql() {
        let server = PostgresServer::start().await;
        let store = windlass::postgres::connect(&server.url()).await.unwrap();
        let pool = Sqlx::pool(store.provider()).clone();
        check(store, pool).await;
    }
}
