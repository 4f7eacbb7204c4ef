//! The shop's own table, in the same database as its jobs.

use sqlx::{AssertSqlSafe, Postgres, Sqlite};
use windlass::postgres::{self, PostgresStore};
use windlass::sqlite::{self, SqliteStore};
use windlass::{BoxFuture, Transactional};

/// A store whose database has the shop's rows too: what is written with its transactions commits with the jobs.
pub(super) trait Rows: Transactional {
    /// Carries out the statement that makes the table.
    fn make_table(&self, statement: String) -> BoxFuture<'_, sqlx::Result<()>>;

    /// Carries out a statement about an order inside a transaction of the application.
    fn write_row(tx: &mut Self::Tx, statement: String, order: u32) -> BoxFuture<'_, sqlx::Result<()>>;

    /// Counts rows.
    fn count_rows(&self, query: String) -> BoxFuture<'_, sqlx::Result<i64>>;
}

macro_rules! rows {
    ($store:ty, $driver:ty, $database:ty) => {
        impl Rows for $store {
            fn make_table(&self, statement: String) -> BoxFuture<'_, sqlx::Result<()>> {
                let pool = <$driver>::pool(self.provider());
                Box::pin(async move { sqlx::raw_sql(AssertSqlSafe(statement)).execute(pool).await.map(drop) })
            }

            fn write_row(
                tx: &mut Self::Tx,
                statement: String,
                order: u32,
            ) -> BoxFuture<'_, sqlx::Result<()>> {
                let query = sqlx::query::<$database>(AssertSqlSafe(statement)).bind(i64::from(order));
                Box::pin(async move { query.execute(&mut **tx).await.map(drop) })
            }

            fn count_rows(&self, query: String) -> BoxFuture<'_, sqlx::Result<i64>> {
                let pool = <$driver>::pool(self.provider());
                let query = sqlx::query_scalar::<$database, i64>(AssertSqlSafe(query));
                Box::pin(async move { query.fetch_one(pool).await })
            }
        }
    };
}
rows!(SqliteStore, sqlite::Sqlx, Sqlite);
rows!(PostgresStore<postgres::Sqlx>, postgres::Sqlx, Postgres);
