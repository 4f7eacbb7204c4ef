use std::fs;
use std::process::Stdio;

use crate::program::{Program, run};

#[tokio::test]
async fn lines_become_chains() {
    let program = Program::on_sqlite();
    let lines: String = (0..2_500).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    let ran = program.run_with(&["start", "count", "--batch", "--priority", "5"], &lines).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, 2_500), "{}", ran.stderr);
    assert!(ran.stderr.contains("lines sent: 2500"), "{}", ran.stderr);
    let count = &program.json(&["queues", "count"]).await[0];
    assert_eq!(count["pending"], 2_500);
    assert_eq!(program.json(&["jobs", "--limit", "0"]).await.len(), 2_500);
}

#[tokio::test]
async fn fields_of_a_line_override_the_options() {
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
async fn an_invalid_line_stops_the_batch_before_its_group() {
    let program = Program::on_sqlite();
    let mut lines: Vec<_> = (0..1_500).map(|n| format!("{{\"input\": {n}}}")).collect();
    lines[1_200] = "{\"inputs\": 7}".to_owned();
    let ran = program.run_with(&["start", "count", "--batch"], &lines.join("\n")).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("lines after line 1000 were not sent"), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: line 1201: unknown field `inputs`"), "{}", ran.stderr);
    assert_eq!(program.json(&["queues"]).await[0]["pending"], 1_000);
}

/// A reader that closes the pipe after the first line must not stop the batch.
#[tokio::test]
async fn a_closed_pipe_does_not_stop_a_batch() {
    let program = Program::on_sqlite();
    let lines: String = (0..3_000).map(|n| format!("{{\"id\": \"{n}\"}}\n")).collect();
    fs::write(program.directory().join("jobs"), &lines).unwrap();
    fs::write(program.directory().join("chains"), lines.replace("id", "key")).unwrap();
    for call in ["start count --batch < chains", "enqueue queue < jobs"] {
        let windlass = format!("'{}' --store sqlite:jobs.db {call}", env!("CARGO_BIN_EXE_windlass"));
        let script = format!("{windlass} | head -n 1 | wc -l; echo ${{PIPESTATUS[0]}}");
        let mut shell = tokio::process::Command::new("bash");
        shell
            .args(["-c", &script])
            .current_dir(program.directory())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ran = run(shell).await;
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("1\n0\n", "lines sent: 3000\n"));
    }
    for row in program.json(&["queues"]).await {
        assert_eq!(row["pending"], 3_000, "{row}");
    }
}

#[tokio::test]
async fn errors_name_the_line() {
    let program = Program::on_sqlite();
    let large = format!("{{}}\n{{\"input\": \"{}\"}}\n", "x".repeat(4 * 1024 * 1024));
    let endless = format!("{{}}\n{}", "x".repeat(5 * 1024 * 1024));
    let cases = [
        (
            "{}\n{\"delay\": \"1m\", \"at\": \"2026-11-15\"}",
            "line 2: `delay` and `at` are mutually exclusive: remove one",
        ),
        ("{\"delay\": \"soon\"}", "line 1: `delay`: invalid duration `soon`: use a form like"),
        ("\n{\"at\": \"soon\"}", "line 2: `at`: invalid time `soon`: use RFC 3339 in UTC, like"),
        ("{\"blocked_by\": [\"x\"]}", "line 1: `blocked_by`: invalid id `x`"),
        ("{\"priority\": 1000}", "line 1: invalid value: integer `1000`"),
        ("{\"max_attempts\": 0}", "line 1: max attempts must be at least 1, got 0"),
        ("hello", "line 1: expected value at column 1; expected an object like"),
        (large.as_str(), "line 2: the input is larger than 4 MiB"),
        (endless.as_str(), "line 2: the line is larger than 4 MiB"),
    ];
    for (lines, what) in cases {
        let ran = program.run_with(&["start", "one", "--batch"], lines).await;
        assert_eq!(
            (ran.code, ran.stderr.lines().count(), ran.stdout.as_str()),
            (2, 1, ""),
            "{what}: {ran:?}"
        );
        assert!(ran.stderr.starts_with(&format!("error: {what}")), "{what}: {ran:?}");
    }
}

#[tokio::test]
async fn a_refused_line_does_not_affect_the_others() {
    let program = Program::on_sqlite();
    let unknown = "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11";
    let lines = format!("{{}}\n{{\"blocked_by\": [\"{unknown}\"]}}\n{{}}\n");
    let ran = program.run_with(&["start", "one", "--batch"], &lines).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (2, 2), "{ran:?}");
    assert!(ran.stderr.contains("line 2 was refused: blocker chain"), "{ran:?}");
}
