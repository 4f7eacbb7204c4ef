use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use windlass_testkit::{PgBouncer, shared_postgres};

use crate::program::{Program, objects};

#[tokio::test]
async fn postgres_is_migrated_only_by_migrate() {
    let program = Program::on_postgres().await;
    let early = program.run(&["start", "mail"]).await;
    assert_eq!(early.code, 4, "{early:?}");
    assert!(early.stderr.contains("windlass migrate") && early.stderr.lines().count() == 1, "{early:?}");
    let doctor = program.run(&["doctor"]).await;
    assert_eq!(doctor.code, 4, "{doctor:?}");
    for what in ["there are no Windlass tables", "`windlass migrate` does this"] {
        assert!(doctor.stderr.contains(what), "{doctor:?}");
    }
    let status = program.run(&["migrate", "--status"]).await;
    assert_eq!((status.code, status.stdout.contains("is at version 0")), (1, true), "{status:?}");
    let sql = program.ok(&["migrate", "--sql"]).await;
    assert!(sql.contains("create table"), "{sql}");
    let nothing_new = program.ok(&["migrate", "--sql", "--from", "2"]).await;
    assert!(sql.contains("-- 2: ") && !nothing_new.contains("-- 2: "), "{nothing_new}");
    let future = program.run(&["migrate", "--sql", "--from", "9"]).await;
    assert!(future.stderr.contains("there is no version 9: the latest is 2"), "{future:?}");
    let roles = program.ok(&["migrate", "--roles"]).await;
    assert!(roles.contains("_worker") && !roles.contains("create table"), "{roles}");
    assert_eq!(program.ok(&["migrate"]).await, "the store is up to date");
    assert_eq!(program.ok(&["migrate", "--status"]).await, "the store is up to date");
    program.ok(&["start", "mail"]).await;
    assert_eq!(program.json(&["jobs"]).await.len(), 1);
}

/// Migrating does not help a program that is older than the schema, so no error suggests it.
#[tokio::test]
async fn a_newer_schema_is_an_error() {
    let program = Program::on_sqlite();
    program.ok(&["migrate"]).await;
    let file = SqliteConnectOptions::new().filename(program.directory().join("jobs.db"));
    let mut connection = SqliteConnection::connect_with(&file).await.unwrap();
    let newer = "insert into windlass_migration values (99, 'newer', 0)";
    sqlx::query(newer).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    for arguments in [&["jobs"][..], &["migrate"], &["migrate", "--status"]] {
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (4, ""), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("update this program"), "{arguments:?}: {ran:?}");
        assert!(!ran.stderr.contains("windlass migrate"), "{arguments:?}: {ran:?}");
    }
}

#[tokio::test]
async fn a_store_without_tables_has_nothing_to_migrate() {
    let program = Program::on_redis().await;
    assert_eq!(program.ok(&["migrate"]).await, "the store is up to date");
    let sql = program.run(&["migrate", "--sql"]).await;
    assert_eq!((sql.code, sql.stdout.as_str()), (2, ""), "{sql:?}");
    let roles = program.run(&["migrate", "--roles"]).await;
    assert_eq!((roles.code, roles.stdout.as_str()), (2, ""), "{roles:?}");
}

#[tokio::test]
async fn the_doctor_accepts_a_healthy_store() {
    let sqlite = Program::on_sqlite();
    sqlite.ok(&["migrate"]).await;
    let postgres = Program::on_postgres().await;
    postgres.ok(&["migrate"]).await;
    for program in [sqlite, postgres] {
        let checks = objects(&program.doctor(&["--json"], |ran| ran.code == 0).await.stdout);
        assert_eq!(checks.len(), 5, "{checks:?}");
        assert!(checks.iter().all(|check| check["ok"] == true), "{checks:?}");
        let ran = program.doctor(&[], |ran| ran.code == 0).await;
        assert!(ran.stdout.contains("notifier: ok"), "{ran:?}");
    }
}

/// The test server has no persistence.
#[tokio::test]
async fn the_doctor_reports_missing_persistence() {
    let ran = Program::on_redis().await.doctor(&[], |ran| ran.stdout.contains("notifier: ok")).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.stdout.contains("has no append-only file") && ran.stdout.contains("remedy: set `appendonly yes`"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn the_doctor_needs_a_store() {
    let program = Program::on_sqlite();
    assert_eq!(program.run(&["doctor"]).await.code, 4);
    std::fs::write(program.directory().join("jobs.db"), "not a database, but long enough to be read as one")
        .unwrap();
    let ran = program.run(&["doctor"]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
}

/// A pooler that assigns a connection per transaction passes on commands, but no hints.
#[tokio::test]
async fn the_doctor_reports_lost_notifications() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    let pooler = PgBouncer::start(shared_postgres().await.server()).await;
    let url = pooler.url();
    for _ in 0..3 {
        program.ok(&["start", "mail", "--store", &url, "--notifier", "none"]).await;
    }
    let ran = program.run(&["doctor", "--notifier", &url]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.stdout.contains("store: ok") && ran.stdout.contains("notifier: a notification did not arrive"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("behind a pooler in transaction mode, connect it directly"), "{ran:?}");
}
