use crate::program::Program;

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
    assert_eq!((again.code, again.stdout.contains("only what failed")), (1, true), "{again:?}");
}

#[tokio::test]
async fn a_job_is_triggered() {
    let program = Program::on_sqlite();
    let later = program.ok(&["start", "mail", "--delay", "1h"]).await;
    assert!(program.ok(&["trigger", &later]).await.ends_with("due now"));
    program.drain(&["mail"], "true").await;
    let refused = program.run(&["trigger", &later]).await;
    assert_eq!(
        (refused.code, refused.stdout.contains("completed: only a pending job")),
        (1, true),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_chain_is_deleted_with_what_it_waits_for() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    let blocked = program.ok(&["start", "second", "--blocked-by", &blocker]).await;
    let refused = program.run(&["delete", &blocker]).await;
    assert_eq!((refused.code, refused.stderr.contains("depends on chain")), (1, true), "{refused:?}");
    assert_eq!(program.ok(&["delete", &blocked, "--cascade"]).await.lines().count(), 2);
    assert!(program.json(&["chains"]).await.is_empty());
}

#[tokio::test]
async fn a_type_is_paused_and_resumed() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "mail"]).await;
    assert_eq!(program.ok(&["pause", "mail"]).await, "mail  paused");
    assert_eq!(program.ok(&["pause", "mail"]).await, "mail  paused before");
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
    program.ok(&["complete", &chain, "\"by hand\""]).await;
    assert_eq!(program.ok(&["wait", &chain]).await, "\"by hand\"");
    let closed = program.run(&["complete", &chain, "1"]).await;
    assert_eq!((closed.code, closed.stderr.contains("was not touched")), (1, true), "{closed:?}");

    let other = program.ok(&["start", "approval"]).await;
    program.ok(&["complete", &other, "--fail", "refused by Ada"]).await;
    let waited = program.run(&["wait", &other]).await;
    assert_eq!((waited.code, waited.stderr.contains("refused by Ada")), (1, true), "{waited:?}");
}
