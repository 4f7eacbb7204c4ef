use std::time::Duration;

use windlass_testkit::wait_until;

use crate::program::{Program, ended, run, terminate};

#[tokio::test]
async fn a_chain_is_cancelled_and_retried() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "mail", "--key", "ada"]).await;
    assert!(program.ok(&["cancel", "--type", "mail", "ada"]).await.ends_with("cancelled"));
    assert_eq!(program.run(&["cancel", &chain]).await.code, 1, "it is closed");
    let waited = program.run(&["wait", &chain]).await;
    assert_eq!(waited.code, 1);
    assert!(waited.stderr.contains("was cancelled"), "{waited:?}");
    assert!(program.ok(&["retry", &chain]).await.ends_with("pending"));
    let again = program.run(&["retry", &chain]).await;
    assert_eq!(
        (again.code, again.stdout.contains("only failed or cancelled chains")),
        (1, true),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_job_is_triggered() {
    let program = Program::on_sqlite();
    let later = program.ok(&["start", "mail", "--delay", "1h"]).await;
    assert!(program.ok(&["trigger", &later]).await.ends_with("due now"));
    program.drain(&["mail"], "true").await;
    let refused = program.run(&["trigger", &later]).await;
    assert_eq!(
        (refused.code, refused.stdout.contains("it is completed, and only pending jobs")),
        (1, true),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_chain_is_deleted_with_its_blockers() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    let blocked = program.ok(&["start", "second", "--blocked-by", &blocker]).await;
    let refused = program.run(&["delete", &blocker]).await;
    assert_eq!((refused.code, refused.stderr.contains("depends on chain")), (1, true), "{refused:?}");
    assert_eq!(program.ok(&["delete", &blocked, "--cascade"]).await.lines().count(), 2);
    assert!(program.json(&["chains"]).await.is_empty());
}

#[tokio::test]
async fn a_running_chain_is_deleted_only_with_running() {
    let program = Program::on_sqlite();
    let running = program.ok(&["start", "slow"]).await;
    let waiting = program.ok(&["start", "later", "--blocked-by", &running]).await;
    let command = "touch begun; until [ -e never ]; do sleep 0.02; done";
    let worker = program.command(&["work", "slow", "--exec", command, "--lease", "10s"]).spawn().unwrap();
    wait_until("the command runs", Duration::from_secs(60), async || {
        program.directory().join("begun").exists()
    })
    .await;
    for arguments in [&["delete", &running][..], &["delete", &waiting, "--cascade"]] {
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1), "{ran:?}");
        assert!(ran.stderr.contains(&format!("chain {running} is running; use --running")), "{ran:?}");
    }
    let deleted = program.json(&["delete", &waiting, "--cascade", "--running"]).await;
    assert_eq!(deleted.len(), 2, "{deleted:?}");
    assert!(program.json(&["chains"]).await.is_empty());
    terminate(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
}

#[tokio::test]
async fn a_closed_pipe_does_not_stop_a_change() {
    let program = Program::on_sqlite();
    let mut chains = Vec::new();
    for _ in 0..3 {
        chains.push(program.ok(&["start", "mail"]).await);
    }
    let windlass =
        format!("'{}' cancel --store sqlite:jobs.db {}", env!("CARGO_BIN_EXE_windlass"), chains.join(" "));
    // The reader exits without reading anything.
    let mut shell = tokio::process::Command::new("bash");
    shell
        .args(["-c", &format!("{windlass} > >(exec true); echo $? > code")])
        .current_dir(program.directory());
    run(shell).await;
    assert_eq!(std::fs::read_to_string(program.directory().join("code")).unwrap(), "0\n");
    assert_eq!(program.json(&["chains", "--status", "cancelled"]).await.len(), 3);
}

#[tokio::test]
async fn a_type_is_paused_and_resumed() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "mail"]).await;
    assert_eq!(program.ok(&["pause", "mail"]).await, "mail  paused");
    assert_eq!(program.ok(&["pause", "mail"]).await, "mail  already paused");
    assert_eq!(program.json(&["queues"]).await[0]["paused"], true);
    assert_eq!(program.drain(&["mail"], "true").await.code, 0);
    assert_eq!(program.json(&["jobs", &chain]).await[0]["status"], "pending");
    assert_eq!(program.ok(&["resume", "mail"]).await, "mail  resumed");
    program.drain(&["mail"], "true").await;
    assert_eq!(program.json(&["jobs", &chain]).await[0]["status"], "completed");
}

#[tokio::test]
async fn a_job_is_completed_from_outside() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "approval", "--key", "order-7"]).await;
    program.ok(&["complete", "--type", "approval", "order-7", "--then", "ship", "{\"order\": 7}"]).await;
    assert_eq!(program.json(&["chains", &chain]).await[0]["job_type"], "ship");
    assert_eq!(program.json(&["jobs", &chain]).await[0]["max_attempts"], 25);
    program.ok(&["complete", &chain, "\"by hand\""]).await;
    assert_eq!(program.ok(&["wait", &chain]).await, "\"by hand\"");
    let closed = program.run(&["complete", &chain, "1"]).await;
    assert_eq!((closed.code, closed.stderr.contains("is already completed")), (1, true), "{closed:?}");

    let other = program.ok(&["start", "approval"]).await;
    program.ok(&["complete", &other, "--fail", "refused by Ada"]).await;
    let waited = program.run(&["wait", &other]).await;
    assert_eq!((waited.code, waited.stderr.contains("refused by Ada")), (1, true), "{waited:?}");
}
