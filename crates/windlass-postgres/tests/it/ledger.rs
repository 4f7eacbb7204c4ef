//! A table of the application, written through each of the drivers.

use windlass_core::{BoxError, BoxFuture, Fence, Transactional};
use windlass_postgres::{PostgresStore, Sqlx};
use windlass_testkit::crash::{Effect, Ledger, Run};

/// Has no unique constraint, so that a test can detect duplicate rows.
pub(crate) const TABLE: &str =
    "create table ledger (chain uuid not null, job uuid not null, fence bigint not null)";

pub(crate) const ROW: &str = "insert into ledger (chain, job, fence) values ($1, $2, $3)";

pub(crate) struct SqlxTable;

impl Ledger for SqlxTable {
    type Store = PostgresStore<Sqlx>;

    fn write(
        tx: <Self::Store as Transactional>::Connection<'_>,
        effect: Effect,
    ) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async move {
            let Effect { chain, run: Run { job, fence: Fence(fence) } } = effect;
            // Not prepared: behind a pooler, the next transaction may run on another server connection.
            let row = sqlx::query(ROW).persistent(false).bind(chain.as_uuid()).bind(job.as_uuid());
            row.bind(i64::try_from(fence)?).execute(tx).await?;
            Ok(())
        })
    }
}

#[cfg(feature = "tokio-postgres")]
pub(crate) struct TokioPostgresTable;

#[cfg(feature = "tokio-postgres")]
impl Ledger for TokioPostgresTable {
    type Store = PostgresStore<windlass_postgres::TokioPostgres>;

    fn write(
        tx: <Self::Store as Transactional>::Connection<'_>,
        effect: Effect,
    ) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async move {
            let Effect { chain, run: Run { job, fence: Fence(fence) } } = effect;
            tx.execute_typed(
                ROW,
                &[
                    (chain.as_uuid(), tokio_postgres::types::Type::UUID),
                    (job.as_uuid(), tokio_postgres::types::Type::UUID),
                    (&i64::try_from(fence)?, tokio_postgres::types::Type::INT8),
                ],
            )
            .await?;
            Ok(())
        })
    }
}
