use crate::program::Program;

#[tokio::test]
async fn a_job_is_queued_once_and_its_result_cached() {
    let program = Program::on_sqlite();
    assert_eq!(program.ok(&["enqueue", "shout", "a/b c", "\"hello\""]).await, "queued");
    assert_eq!(program.ok(&["enqueue", "shout", "a/b c", "\"again\""]).await, "duplicate queued");
    let json = &program.json(&["enqueue", "shout", "a/b c"]).await[0];
    assert_eq!((&json["outcome"], &json["state"]), (&"duplicate".into(), &"queued".into()));
    let early = program.run(&["result", "shout", "a/b c"]).await;
    assert_eq!((early.code, early.stderr.contains("is pending")), (5, true), "{early:?}");
    program.drain(&["shout"], "tr a-z A-Z").await;
    assert_eq!(program.ok(&["result", "shout", "a/b c"]).await, "\"HELLO\"");
    assert_eq!(program.ok(&["enqueue", "shout", "a/b c"]).await, "completed \"HELLO\"");
    let json = &program.json(&["enqueue", "shout", "a/b c"]).await[0];
    assert_eq!((&json["outcome"], &json["result"]), (&"completed".into(), &"HELLO".into()));
    assert_eq!(program.ok(&["enqueue", "shout", "a/b c", "\"again\"", "--wait"]).await, "\"HELLO\"");
    assert_eq!(program.ok(&["wait", "--type", "shout", "a/b c"]).await, "\"HELLO\"");
    assert_eq!(program.run(&["result", "shout", "other"]).await.code, 3);
}

#[tokio::test]
async fn lines_become_jobs_of_a_queue() {
    let program = Program::on_sqlite();
    program.ok(&["enqueue", "shout", "7"]).await;
    let lines: String = (0..1_100).map(|n| format!("{{\"id\": \"{n}\", \"payload\": {n}}}\n")).collect();
    let ran = program.run_with(&["enqueue", "shout", "--json"], &lines).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 1_100), "{}", ran.stderr);
    let seventh = r#"{"id":"7","outcome":"duplicate","state":"queued","result":null}"#;
    assert!(ran.stdout.contains(seventh), "{}", ran.stdout);
    assert_eq!(program.json(&["queues"]).await[0]["pending"], 1_100);
    let wrong = program.run_with(&["enqueue", "shout"], "{\"payload\": 1}\n").await;
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.stderr.contains("line 1: missing field `id`"), "{wrong:?}");
}

#[tokio::test]
async fn a_failed_job_is_an_error() {
    let program = Program::on_sqlite();
    program.ok(&["enqueue", "shout", "1", "--max-attempts", "1"]).await;
    program.drain(&["shout"], "echo too quiet >&2; exit 1").await;
    let ran = program.run(&["result", "shout", "1"]).await;
    assert_eq!((ran.code, ran.stderr.contains("too quiet")), (1, true), "{ran:?}");
}
