//! Makes the tables, and brings older ones up to date.

use sqlx::sqlite::SqliteConnection;
use windlass_core::{Clock, Error, ErrorKind, Result};

use crate::sql::{Counted, Statements, Value, Write, fill};

/// The steps from an empty file to the present layout, in order. A step that was published is never changed.
const MIGRATIONS: &[(&str, &str)] = &[("jobs", include_str!("../migrations/001_jobs.sql"))];

/// Carries out the steps that the file lacks. Many may do so at once: the write lock lets one after the other look.
pub(crate) async fn migrate(
    connection: &mut SqliteConnection,
    statements: &Statements,
    prefix: &str,
    clock: &dyn Clock,
) -> Result<()> {
    let counted = Counted::default();
    let mut write = Write::begin(connection, statements, &counted).await?;
    let mut session = write.session();
    session.run(&statements.make_migration, Vec::new()).await?;
    let rows = session.rows(&statements.latest_migration, Vec::new()).await?;
    let done = rows.first().map_or(Ok(0), |row| row.number::<usize>("step"))?;
    if done > MIGRATIONS.len() {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!("the tables {prefix}* have step {done}, of a newer version: update this program"),
        ));
    }
    for (step, (name, text)) in (1_i64..).zip(MIGRATIONS).skip(done) {
        session.run_all(fill(text, prefix)).await?;
        let values = vec![step.into(), Value::Text((*name).to_owned()), clock.now().as_millis().into()];
        session.run(&statements.insert_migration, values).await?;
    }
    write.commit().await
}
