use std::fs;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use windlass_testkit::wait_until;

use crate::program::{Program, ended, interrupt, run};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn it_runs_on_sqlite_and_cleans_up() {
    let program = Program::on_sqlite();
    let mut command = program.bare(&["demo", "--orders", "14"]);
    command.env("TMPDIR", program.directory());
    let ran = run(command).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let checks: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with('✓')).collect();
    assert_eq!(checks.len(), 8, "{ran:?}");
    assert!(ran.stdout.contains("all checks passed"), "{ran:?}");
    assert!(
        ran.stderr.contains("running a shop on SQLite: 14 orders, 1 of them rolled back on purpose"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("chains left by orders that were rolled back on purpose (1)"), "{ran:?}");
    assert!(ran.stderr.contains(" s: "), "plain lines without a terminal: {ran:?}");
    assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "no colors: {ran:?}");
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "its directory is removed");
}

#[tokio::test]
async fn it_leaves_other_jobs_alone() {
    let program = Program::on_sqlite();
    program.ok(&["start", "mine"]).await;
    let summary = &program.json(&["demo", "--orders", "8"]).await[0];
    assert_eq!(summary["ok"], true, "{summary}");
    assert_eq!(summary["checks"].as_array().unwrap().len(), 8);
    assert_eq!(program.json(&["jobs"]).await.len(), 1, "only what was there before");
    let file = SqliteConnectOptions::new().filename(program.directory().join("jobs.db"));
    let mut connection = SqliteConnection::connect_with(&file).await.unwrap();
    let left = "select name from sqlite_schema where name like 'windlass_demo_%'";
    let left: Vec<String> = sqlx::query_scalar(left).fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    assert_eq!(left, [""; 0], "the tables and views of the demo are dropped");
}

#[tokio::test]
async fn it_runs_on_postgres_with_transactions() {
    let program = Program::on_postgres().await;
    let summary = &program.json(&["demo", "--orders", "8"]).await[0];
    assert_eq!(summary["ok"], true, "{summary}");
    assert_eq!(summary["checks"].as_array().unwrap().len(), 8);
    let left = windlass_testkit::shared_postgres()
        .await
        .server()
        .query("select count(*) from pg_namespace where nspname like 'windlass_demo_%'");
    assert_eq!(left.trim(), "0");
}

#[tokio::test]
async fn it_runs_on_redis_without_transactions() {
    let summary = &Program::on_redis().await.json(&["demo", "--orders", "8"]).await[0];
    assert_eq!((&summary["ok"], summary["checks"].as_array().unwrap().len()), (&true.into(), 5), "{summary}");
}

#[tokio::test]
async fn it_runs_without_transactions_on_the_memory_store() {
    let program = Program::on_sqlite();
    let ran = run(program.bare(&["demo", "--orders", "8", "--json", "--store", "memory:"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let summary: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&summary["ok"], summary["checks"].as_array().unwrap().len()), (&true.into(), 5));
}

#[tokio::test]
async fn it_serves_a_dashboard_until_it_is_interrupted() {
    let program = Program::on_sqlite();
    let mut command = program.bare(&["demo", "--serve", "--listen", "127.0.0.1:0"]);
    command.env("TMPDIR", program.directory());
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut url = String::new();
    timeout(LIMIT, stdout.read_line(&mut url)).await.expect("it listens in time").unwrap();
    let address = url.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    // Work appears, and goes on: chains of a second kind are started every few seconds.
    for wanted in ["take-order", "refund"] {
        wait_until(wanted, LIMIT, async || page(&address, "/types").await.contains(wanted)).await;
    }
    assert!(page(&address, "/schedules").await.contains("count-stock"));
    interrupt(&child).await;
    let ran = ended(child).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "its directory is removed");
    for arguments in [&["demo", "--serve", "--orders", "3"][..], &["demo", "--listen", "127.0.0.1:0"]] {
        assert_eq!(run(program.bare(arguments)).await.code, 2, "{arguments:?}");
    }
    let open = run(program.bare(&["demo", "--serve", "--listen", "0.0.0.0:0"])).await;
    assert!(open.code == 2 && open.stderr.contains("loopback"), "{open:?}");
}

async fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, stream.read_to_string(&mut answer)).await.expect("an answer in time").unwrap();
    answer
}
