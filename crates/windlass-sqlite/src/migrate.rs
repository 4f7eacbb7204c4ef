//! Creates the tables and migrates older ones.

use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use windlass_core::{Error, ErrorKind, Result};

use crate::error::from_sqlite;
use crate::options::Options;
use crate::statement::fill;
use crate::views::expand;

/// The name of a migration step, and its statements.
pub(crate) type Migration = (&'static str, &'static str);

/// The steps from an empty file to the current schema, in order. A published step never changes.
pub(crate) const MIGRATIONS: &[Migration] = &[
    ("jobs", include_str!("../migrations/001_jobs.sql")),
    ("registry", include_str!("../migrations/002_registry.sql")),
    ("views", include_str!("../migrations/003_views.sql")),
];

/// Delay before the switch of the journal mode is retried.
const RETRY: Duration = Duration::from_millis(5);

/// Switches the file to a write-ahead log; the file keeps this setting. The switch needs an exclusive lock, and SQLite
/// fails immediately instead of waiting if another connection writes.
pub(crate) fn log_ahead(connection: &Connection, write_timeout: Duration) -> Result<()> {
    let began_at = Instant::now();
    loop {
        let switched = connection.execute_batch("pragma journal_mode = wal");
        match switched.map_err(|error| from_sqlite(&error)) {
            Err(error) if error.kind() == ErrorKind::Busy && began_at.elapsed() < write_timeout => {
                std::thread::sleep(RETRY);
            }
            done => return done,
        }
    }
}

/// Applies the steps that the file lacks. Several processes may do so at the same time: each reads the latest step while
/// it holds the write lock, so no step is applied twice.
pub(crate) fn migrate(connection: &Connection, options: &Options, migrations: &[Migration]) -> Result<()> {
    let run = |text: &str| connection.execute_batch(text).map_err(|error| from_sqlite(&error));
    run("begin immediate")?;
    let migrated = apply(connection, options, migrations);
    run(if migrated.is_ok() { "commit" } else { "rollback" })?;
    migrated
}

fn apply(connection: &Connection, options: &Options, migrations: &[Migration]) -> Result<()> {
    let prefix = options.table_prefix();
    let run = |text: &str| connection.execute_batch(text).map_err(|error| from_sqlite(&error));
    run(&fill(include_str!("../sql/make_migration.sql"), prefix))?;
    let latest = fill("select coalesce(max(step), 0) from {prefix}migration", prefix);
    let done: usize =
        connection.query_row(&latest, [], |row| row.get(0)).map_err(|error| from_sqlite(&error))?;
    if done > migrations.len() {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "the tables {prefix}* are at version {done}, but this program supports versions up to {}: update this \
                 program",
                migrations.len()
            ),
        ));
    }
    if done < migrations.len() && !options.may_migrate() {
        let missing = if done == 0 { "there are no Windlass tables: " } else { "" };
        return Err(Error::new(
            ErrorKind::Outdated,
            format!(
                "{missing}the tables {prefix}* are at version {done}, but this program requires version {}: run the migrations, or \
                 let the store run them",
                migrations.len()
            ),
        ));
    }
    for (step, (name, text)) in (1_i64..).zip(migrations).skip(done) {
        run(&fill(&expand(text), prefix))?;
        let now = options.store_clock().now().as_millis();
        let insert =
            fill("insert into {prefix}migration (step, name, applied_at) values (?1, ?2, ?3)", prefix);
        connection.execute(&insert, params![step, name, now]).map_err(|error| from_sqlite(&error))?;
    }
    Ok(())
}

/// Returns the steps after the first `done` as one SQL script.
pub(crate) fn sql(prefix: &str, migrations: &[Migration], done: usize) -> String {
    let table = fill(include_str!("../sql/make_migration.sql"), prefix);
    let mut all = format!("begin immediate;\n\n{table};\n");
    for (step, (name, text)) in (1..).zip(migrations).skip(done) {
        let step = format!(
            "\n-- {step}: {name}\n{}\ninsert into {prefix}migration (step, name, applied_at)\n\
             values ({step}, '{name}', unixepoch('subsec') * 1000);\n",
            fill(&expand(text), prefix)
        );
        all.push_str(&step);
    }
    all.push_str("\ncommit;\n");
    all
}

#[cfg(test)]
mod tests {
    use windlass_core::command::{Acquire, Create, NewChain, NewJob, Outcome, Quota, Settle, Settlement};
    use windlass_core::{ChainId, Millis, Payload, RequestId, Store, TypeName, WorkerId};

    use super::*;
    use crate::SqliteStore;

    /// A step as a later version may add it. Steps only add, so the version before keeps working on the new schema.
    const LATER: Migration = (
        "later",
        "alter table {prefix}job add column later text; create index {prefix}job_later on {prefix}job (later);",
    );

    /// Runs one job from creation to completion.
    async fn work(store: &SqliteStore) -> Result<()> {
        let job_type = TypeName::new("t").unwrap();
        let job = NewJob::new(job_type.clone(), Payload::json("1").unwrap());
        store.create(Create { chains: vec![NewChain::new(ChainId::new(), job)] }).await?;
        let quota = Quota { job_type, max: 1, lease: Millis::from_secs(60) };
        let acquire = Acquire {
            request: RequestId::new(),
            worker: WorkerId::new(),
            worker_name: None,
            types: vec![quota],
            max: 1,
        };
        let job = store.acquire(acquire).await?.jobs.remove(0).job;
        let outcome =
            Outcome::Complete { output: Payload::json("2").unwrap(), retention: None, create: Vec::new() };
        let settlements = vec![Settlement { job: job.id, fence: job.fence, outcome }];
        store.settle(Settle { settlements }).await.map(drop)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_older_version_survives_a_migration_but_cannot_start_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        let options = Options::new(&path);
        let older = SqliteStore::open(options.clone()).await.unwrap();
        work(&older).await.unwrap();

        let steps = [MIGRATIONS, &[LATER]].concat();
        let connection = Connection::open(&path).unwrap();
        let migrating = tokio::task::spawn_blocking(move || {
            connection.busy_timeout(options.write_timeout()).unwrap();
            migrate(&connection, &options, &steps).unwrap();
            options
        });
        // The older version works before, during and after the new step.
        while !migrating.is_finished() {
            work(&older).await.unwrap();
        }
        let options = migrating.await.unwrap();
        work(&older).await.unwrap();

        let error = SqliteStore::open(options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        let text = format!("version {}, but this program supports versions up to", MIGRATIONS.len() + 1);
        assert!(error.to_string().contains(&text), "{error}");
    }

    #[tokio::test]
    async fn without_migrate_missing_steps_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        let options = Options::new(&path);
        let older = SqliteStore::open(options.clone()).await.unwrap();
        let steps = [MIGRATIONS, &[LATER]].concat();
        let connection = Connection::open(&path).unwrap();
        let error = migrate(&connection, &options.migrate(false), &steps).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Outdated);
        assert!(error.to_string().contains("run the migrations"), "{error}");
        work(&older).await.unwrap();
    }
}
