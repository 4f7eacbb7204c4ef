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
    assert!(early.stderr.contains("`windlass wait --type shout 'a/b c'`"), "{early:?}");
    let job = &program.json(&["jobs", "--type", "shout", "a/b c"]).await[0];
    assert_eq!((&job["type"], &job["input"]), (&"shout".into(), &"hello".into()), "{job}");
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
    let (_, remedy) = ran.stderr.split_once("; `windlass ").unwrap();
    let remedy: Vec<_> = remedy.split_once('`').unwrap().0.split(' ').collect();
    assert_eq!(remedy[0], "retry", "{ran:?}");
    program.ok(&remedy).await;
    assert_eq!(program.json(&["jobs", "--type", "shout", "1"]).await[0]["status"], "pending");
}

#[tokio::test]
async fn a_job_is_enqueued_with_a_due_time_and_a_priority() {
    let program = Program::on_sqlite();
    let job = async |id: &str| program.json(&["jobs", "--type", "shout", id]).await.remove(0);
    program.ok(&["enqueue", "shout", "later", "--delay", "1h", "--priority", "-3"]).await;
    let later = job("later").await;
    assert_eq!((&later["state"], &later["priority"]), (&"scheduled".into(), &(-3).into()), "{later}");
    program.ok(&["enqueue", "shout", "once", "--at", "2999-01-01"]).await;
    assert_eq!(job("once").await["due_at"], "2999-01-01T00:00:00.000Z");
    let lines = "{\"id\": \"line\"}\n{\"id\": \"own\", \"at\": \"2998-01-01\", \"priority\": 7}\n";
    let ran = program.run_with(&["enqueue", "shout", "--delay", "1h", "--priority", "2"], lines).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let (line, own) = (job("line").await, job("own").await);
    assert_eq!((&line["state"], &line["priority"]), (&"scheduled".into(), &2.into()), "{line}");
    assert_eq!((&own["due_at"], &own["priority"]), (&"2998-01-01T00:00:00.000Z".into(), &7.into()), "{own}");
    for (arguments, line, problem) in [
        (&["--delay", "1h", "--at", "2999-01-01"][..], "", "cannot be used with"),
        (&[], "{\"id\": \"a\", \"delay\": \"soon\"}", "line 1: `delay`: invalid duration `soon`"),
        (&[], "{\"id\": \"a\", \"delay\": \"1s\", \"at\": \"2999-01-01\"}", "mutually exclusive"),
    ] {
        let ran = program.run_with(&[&["enqueue", "shout"], arguments].concat(), line).await;
        assert_eq!((ran.code, ran.stderr.contains(problem)), (2, true), "{ran:?}");
    }
    let now = program.run(&["enqueue", "shout", "now", "--wait", "--timeout", "50ms"]).await;
    assert_eq!((now.code, now.stderr.contains("no worker has acquired it")), (5, true), "{now:?}");
}
