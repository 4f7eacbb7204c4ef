//! Makes the tables, and brings older ones up to date.

use std::time::{Duration, Instant};

use sqlx::sqlite::SqliteConnection;
use windlass_core::{Clock, Error, ErrorKind, Result};

use crate::sql::{Counted, Session, Statements, Value, Write, fill};

/// The steps from an empty file to the present layout, in order. A step that was published is never changed.
const MIGRATIONS: &[(&str, &str)] = &[("jobs", include_str!("../migrations/001_jobs.sql"))];

/// Turns the write-ahead log on, which the file remembers. SQLite looks at the file first, and if somebody else begins to
/// write before it does so itself it gives up at once, whatever the busy timeout is, so as not to wait for a reader that
/// waits for it. An empty transaction in between waits for whoever was first.
pub(crate) async fn log_ahead(
    connection: &mut SqliteConnection,
    statements: &Statements,
    busy_timeout: Duration,
) -> Result<()> {
    let (counted, mut failed) = (Counted::default(), false);
    let mut session = Session::new(connection, statements, &counted, &mut failed);
    let began_at = Instant::now();
    loop {
        let error = match session.run_all("pragma journal_mode = wal".to_owned()).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if error.kind() != ErrorKind::Busy || began_at.elapsed() >= busy_timeout {
            return Err(error);
        }
        session.run_all("begin exclusive; rollback".to_owned()).await?;
    }
}

/// Carries out the steps that the file lacks. Many may do so at once: the write lock lets one after the other look.
pub(crate) async fn migrate(
    connection: &mut SqliteConnection,
    statements: &Statements,
    prefix: &str,
    clock: &dyn Clock,
) -> Result<()> {
    let (counted, mut failed) = (Counted::default(), false);
    let mut write = Write::begin(connection, statements, &counted, &mut failed).await?;
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
