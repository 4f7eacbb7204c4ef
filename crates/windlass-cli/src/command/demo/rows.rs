//! The shop's own table, in the same database as its jobs.

use sqlx::{AssertSqlSafe, Postgres, Row as _, Sqlite};
use windlass::Transactional;
use windlass::postgres::{self, PostgresStore};
use windlass::sqlite::{self, SqliteStore};
use windlass::store::BoxFuture;

/// A store whose database also contains the shop's table. Rows written in a transaction commit together with its jobs.
pub(super) trait Rows: Transactional {
    /// Runs the statement that creates the table.
    fn make_table(&self, statement: String) -> BoxFuture<'_, sqlx::Result<()>>;

    /// Runs a statement for one order in the given transaction.
    fn write_row(tx: Self::Connection<'_>, statement: String, order: u32) -> BoxFuture<'_, sqlx::Result<()>>;

    /// Runs a query that returns a count.
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
                tx: Self::Connection<'_>,
                statement: String,
                order: u32,
            ) -> BoxFuture<'_, sqlx::Result<()>> {
                // Not prepared: behind a pooler, the next transaction may run on another server connection.
                let query = sqlx::query::<$database>(AssertSqlSafe(statement)).persistent(false);
                Box::pin(async move { query.bind(i64::from(order)).execute(tx).await.map(drop) })
            }

            fn count_rows(&self, query: String) -> BoxFuture<'_, sqlx::Result<i64>> {
                let pool = <$driver>::pool(self.provider());
                let query = sqlx::raw_sql(AssertSqlSafe(query));
                Box::pin(async move { query.fetch_one(pool).await?.try_get(0) })
            }
        }
    };
}
rows!(SqliteStore, sqlite::Sqlx, Sqlite);
rows!(PostgresStore<postgres::Sqlx>, postgres::Sqlx, Postgres);
