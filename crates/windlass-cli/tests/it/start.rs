use crate::program::Program;

#[tokio::test]
async fn a_job_runs_from_start_to_result() {
    check_round(&Program::on_sqlite()).await;
}

#[tokio::test]
async fn a_job_runs_from_start_to_result_on_postgres() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    check_round(&program).await;
}

async fn check_round(program: &Program) {
    let chain = program.ok(&["start", "double", r#"{"n": 21}"#]).await;
    assert_eq!(program.drain(&["double"], "cat").await.code, 0);
    assert_eq!(program.ok(&["wait", &chain]).await, r#"{"n": 21}"#);
    let found = &program.json(&["chains", &chain]).await[0];
    assert_eq!((&found["status"], &found["output"]["n"]), (&"completed".into(), &21.into()));
}

#[tokio::test]
async fn a_job_runs_from_start_to_result_on_redis() {
    check_round(&Program::on_redis().await).await;
}

#[tokio::test]
async fn start_waits_for_a_worker_in_another_process() {
    check_wait(&Program::on_sqlite()).await;
}

/// A hint must arrive even though the process that published it has ended. The worker polls only after an hour.
#[tokio::test]
async fn start_waits_for_a_worker_in_another_process_on_postgres() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    check_wait(&program).await;
}

#[tokio::test]
async fn start_waits_for_a_worker_in_another_process_on_redis() {
    check_wait(&Program::on_redis().await).await;
}

async fn check_wait(program: &Program) {
    program.ok(&["start", "first"]).await;
    let arguments = ["work", "first", "greet", "--exec", "echo hello", "--poll", "1h"];
    let worker = program.command(&arguments).spawn().unwrap();
    assert_eq!(program.ok(&["start", "greet", "--wait"]).await, "\"hello\"");
    // The program waits only a moment for the delivery of its hint, so a hint may be lost on a slow machine.
    let mut waited = String::new();
    for _ in 0..5 {
        let later = program.ok(&["start", "greet"]).await;
        waited = program.run(&["wait", &later]).await.stdout;
        if !waited.is_empty() {
            break;
        }
    }
    assert_eq!(waited, "\"hello\"\n", "one of five hints arrives");
    crate::program::terminate(&worker).await;
    assert_eq!(crate::program::ended(worker).await.code, 0);
}

#[tokio::test]
async fn a_held_key_returns_its_chain() {
    let program = Program::on_sqlite();
    let first = program.ok(&["start", "mail", "1", "--key", "ada"]).await;
    let again = program.run(&["start", "mail", "2", "--key", "ada"]).await;
    assert_eq!((again.code, again.stdout.trim()), (0, first.as_str()));
    assert!(again.stderr.contains("no chain was started"), "{again:?}");
    let json = &program.json(&["start", "mail", "3", "--key", "ada"]).await[0];
    assert_eq!((&json["chain"], &json["new"]), (&first.into(), &false.into()));
    assert_eq!(program.json(&["chains"]).await.len(), 1);
}

#[tokio::test]
async fn options_are_stored() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    let options = ["--delay", "1h", "--priority", "-3", "--max-attempts", "2", "--blocked-by", &blocker];
    let chain = program.ok(&[&["start", "second", "[1]"], &options[..]].concat()).await;
    let job = &program.json(&["jobs", &chain]).await[0];
    assert_eq!(
        (&job["priority"], &job["max_attempts"], &job["status"]),
        (&(-3).into(), &2.into(), &"blocked".into())
    );
    assert_eq!(job["blocked_by"][0], blocker.as_str());
    let at = program.ok(&["start", "third", "--at", "2999-01-01T00:00:00Z"]).await;
    assert_eq!(program.json(&["jobs", &at]).await[0]["due_at"], "2999-01-01T00:00:00.000Z");
    assert!(program.ok(&["jobs", "--type", "third"]).await.contains("scheduled"));
}

#[tokio::test]
async fn input_is_read_from_standard_input() {
    let program = Program::on_sqlite();
    let ran = program.run_with(&["start", "mail", "-"], "{\n  \"to\": \"ada\"\n}\n").await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(program.json(&["chains"]).await[0]["input"]["to"], "ada");
}
