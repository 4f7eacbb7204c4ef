use crate::program::Program;

#[tokio::test]
async fn lines_become_chains() {
    let program = Program::on_sqlite();
    let lines: String = (0..2_500).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    let ran = program.run_with(&["start", "count", "--batch", "--priority", "5"], &lines).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 2_500), "{}", ran.stderr);
    assert!(ran.stderr.contains("2500 lines"), "{}", ran.stderr);
    let count = &program.json(&["queues", "count"]).await[0];
    assert_eq!(count["pending"], 2_500);
    assert_eq!(program.json(&["jobs", "--limit", "0"]).await.len(), 2_500);
}

#[tokio::test]
async fn a_line_may_differ_from_the_options() {
    let program = Program::on_sqlite();
    let lines = r#"{"input": 1}
        {"type": "other", "key": "k", "delay": "1h", "priority": 9, "max_attempts": 4}"#;
    let ran = program.run_with(&["start", "one", "--batch", "--priority", "5"], lines).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let jobs = program.json(&["jobs", "--oldest"]).await;
    assert_eq!((&jobs[0]["type"], &jobs[0]["priority"]), (&"one".into(), &5.into()));
    assert_eq!(
        (&jobs[1]["type"], &jobs[1]["priority"], &jobs[1]["max_attempts"]),
        (&"other".into(), &9.into(), &4.into())
    );
}

#[tokio::test]
async fn a_wrong_line_stops_its_thousand() {
    let program = Program::on_sqlite();
    let mut lines: Vec<_> = (0..1_500).map(|n| format!("{{\"input\": {n}}}")).collect();
    lines[1_200] = "{\"inputs\": 7}".to_owned();
    let ran = program.run_with(&["start", "count", "--batch"], &lines.join("\n")).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("nothing that follows line 1000 was sent"), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: line 1201: unknown field `inputs`"), "{}", ran.stderr);
    assert_eq!(program.json(&["queues"]).await[0]["pending"], 1_000);
}

#[tokio::test]
async fn a_refused_line_harms_no_other() {
    let program = Program::on_sqlite();
    let nobody = "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11";
    let lines = format!("{{}}\n{{\"blocked_by\": [\"{nobody}\"]}}\n{{}}\n");
    let ran = program.run_with(&["start", "one", "--batch"], &lines).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (2, 2), "{ran:?}");
    assert!(ran.stderr.contains("line 2 was refused: blocker chain"), "{ran:?}");
}
