//! Why a job makes no progress, and its state.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

use crate::program::Program;

#[tokio::test]
async fn a_paused_or_unhandled_type_is_a_reason() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "mail"]).await;
    check(&program, &chain, "no live worker handles `mail` (`windlass work mail --exec COMMAND`)").await;
    // The job was started a minute ago. A worker for a newer one may just be starting.
    let file = SqliteConnectOptions::new().filename(program.directory().join("jobs.db"));
    let mut connection = SqliteConnection::connect_with(&file).await.unwrap();
    sqlx::query("update windlass_job set due_at = due_at - 60000").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    check_doctor(&program, "no live worker handles them").await;
    program.ok(&["pause", "mail"]).await;
    check(&program, &chain, "`mail` is paused (`windlass resume mail`)").await;
    check_doctor(&program, "remedy: run `windlass resume mail`").await;
    program.ok(&["resume", "mail"]).await;
    program.drain(&["mail"], "true").await;
    assert_eq!(program.json(&["jobs", &chain]).await[0]["why"].as_array().unwrap().len(), 0);
    let ran = program.doctor(&[], |ran| ran.code == 0).await;
    assert!(ran.stdout.contains("work: ok"), "{ran:?}");
}

#[tokio::test]
async fn a_due_time_is_stated_once() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "send mail", "--at", "2999-01-01"]).await;
    let ran = program.run(&["wait", &chain, "--timeout", "50ms"]).await;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.stderr.contains("its job `send mail` is not due until 2999-01-01T00:00:00.000Z;"), "{ran:?}");
    assert_eq!(ran.stderr.matches("2999").count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("`windlass work 'send mail' --exec COMMAND`"), "{ran:?}");
    assert!(program.ok(&["jobs", &chain]).await.contains("it is due at 2999-01-01"));
}

#[tokio::test]
async fn a_blocker_is_a_reason() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    let chain = program.ok(&["start", "second", "--blocked-by", &blocker]).await;
    check(
        &program,
        &chain,
        &format!("it waits for chain {blocker}, whose job `first` is pending: no live worker"),
    )
    .await;
    program.drain(&["first"], "exit 65").await;
    check(&program, &chain, &format!("chain {blocker}, which failed (`windlass retry {blocker}`)")).await;
    check_doctor(&program, &format!("chain {blocker} is failed and blocks other jobs (1)")).await;
}

async fn check(program: &Program, chain: &str, why: &str) {
    for command in ["jobs", "chains"] {
        let page = program.ok(&[command, chain]).await;
        assert!(page.contains(why), "{page}");
        let printed = program.json(&[command, chain]).await[0]["why"].to_string();
        assert!(printed.contains(why), "{printed}");
    }
    let waited = program.run(&["wait", chain, "--timeout", "50ms"]).await;
    assert_eq!((waited.code, waited.stderr.lines().count()), (5, 1), "{waited:?}");
    assert!(waited.stderr.contains(why), "{waited:?}");
}

/// The doctor checks a limited number of chains, and reports if there are more.
#[tokio::test]
async fn the_doctor_reports_that_it_did_not_check_all_chains() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    program.ok(&["start", "second", "--blocked-by", &blocker]).await;
    program.run_with(&["start", "old", "--batch"], &"{}\n".repeat(100)).await;
    program.ok(&["cancel", "--type", "old", "--status", "pending"]).await;
    assert_eq!(program.run(&["doctor"]).await.stderr, "");
    program.ok(&["start", "old"]).await;
    program.ok(&["cancel", "--type", "old", "--status", "pending"]).await;
    let ran = program.run(&["doctor", "--json"]).await;
    assert!(
        ran.stderr.starts_with("checked only the newest 100 failed or cancelled chains")
            && ran.stderr.lines().count() == 1,
        "{ran:?}"
    );
}

async fn check_doctor(program: &Program, finding: &str) {
    let ran = program.run(&["doctor"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains(finding), "{ran:?}");
}

#[tokio::test]
async fn jobs_are_listed_by_state() {
    let program = Program::on_sqlite();
    let later = program.ok(&["start", "mail", "--delay", "1h"]).await;
    let failing = program.ok(&["start", "print", "--max-attempts", "2"]).await;
    let arguments = ["work", "print", "--exec", "exit 1", "--drain", "--backoff", "1h"];
    assert_eq!(program.run(&arguments).await.code, 0);
    let pending = program.ok(&["start", "mail"]).await;
    let listed = async |status: &str| -> Vec<String> {
        let chains = program.json(&["chains", "--oldest", "--status", status]).await;
        let jobs = program.json(&["jobs", "--oldest", "--status", status, "--limit", "7"]).await;
        let ids = |rows: &[serde_json::Value]| {
            rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&chains), ids(&jobs));
        ids(&jobs)
    };
    assert_eq!(listed("scheduled").await, [later.as_str()]);
    assert_eq!(listed("failing").await, [failing.as_str()]);
    assert_eq!(listed("stopping").await, [""; 0]);
    assert_eq!(listed("pending").await, [later, failing.clone(), pending]);
    let job = &program.json(&["jobs", &failing]).await[0];
    assert_eq!((&job["status"], &job["state"]), (&"pending".into(), &"failing".into()));
    assert_eq!(program.json(&["jobs", "--status", "pending", "--limit", "2"]).await.len(), 2);

    // Retrying resets the attempts, so the job is pending instead of failing.
    program.ok(&["trigger", &failing]).await;
    program.drain(&["print"], "exit 1").await;
    program.ok(&["retry", &failing]).await;
    let job = &program.json(&["jobs", &failing]).await[0];
    assert_eq!((&job["attempt"], &job["state"]), (&0.into(), &"pending".into()), "{job}");
}
