use std::process::Stdio;

use crate::program::{Program, ended, objects};

#[tokio::test]
async fn lists_are_tables_or_json_lines() {
    let program = Program::on_sqlite();
    for (job_type, input) in [("mail", "1"), ("mail", "2"), ("print", "3")] {
        program.ok(&["start", job_type, input]).await;
    }
    program.drain(&["print"], "echo trouble >&2; exit 65").await;
    let table = program.ok(&["jobs"]).await;
    assert!(table.starts_with("ID ") && table.lines().count() == 4, "{table}");
    assert!(table.contains("trouble"), "{table}");
    assert_eq!(program.json(&["jobs", "--type", "mail"]).await.len(), 2);
    assert_eq!(program.json(&["jobs", "--status", "failed"]).await[0]["error"], "trouble");
    assert_eq!(program.json(&["chains", "--status", "pending", "--limit", "1"]).await.len(), 1);
    assert_eq!(program.json(&["chains", "--since", "2999-01-01"]).await.len(), 0);
    assert_eq!(program.json(&["chains", "--closed-since", "1h"]).await[0]["type"], "print");
    assert_eq!(program.json(&["jobs", "--closed-since", "1h"]).await[0]["type"], "print");
    assert_eq!(program.json(&["jobs", "--closed-until", "1h"]).await.len(), 0);
    program.ok(&["start", "mail", "4", "--key", "k"]).await;
    assert_eq!(program.json(&["chains", "--key", "k"]).await[0]["key"], "k");
    assert_eq!(program.json(&["chains", "--key", "none"]).await.len(), 0);
    program.ok(&["cancel", "--type", "mail", "k"]).await;
    assert!(program.ok(&["queues"]).await.contains("print"));
    assert!(program.ok(&["stats"]).await.contains("pending"));
    let stats = &program.json(&["stats"]).await[0];
    assert_eq!((&stats["pending"], &stats["failed"], &stats["types"]), (&2.into(), &1.into(), &2.into()));
}

#[tokio::test]
async fn a_job_is_shown_with_its_attempts_blockers_and_dependents() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "first"]).await;
    let chain = program.ok(&["start", "second", "--blocked-by", &blocker, "--max-attempts", "2"]).await;
    program.drain(&["first"], "echo done").await;
    program.drain(&["second"], "echo \"attempt $WINDLASS_ATTEMPT\" >&2; exit 1").await;
    program.drain(&["second"], "echo \"attempt $WINDLASS_ATTEMPT\" >&2; exit 1").await;
    let job = &program.json(&["jobs", &chain]).await[0];
    let attempts = job["attempts"].as_array().unwrap();
    let ends: Vec<_> = attempts.iter().map(|attempt| attempt["end"].as_str().unwrap()).collect();
    assert_eq!(ends, ["retried", "exhausted"]);
    assert_eq!((&attempts[0]["error"], &job["error"]), (&"attempt 1".into(), &"attempt 2".into()));
    assert_eq!(job["blockers"][0]["id"], blocker.as_str());
    let page = program.ok(&["jobs", &chain]).await;
    assert!(page.contains("attempts\n") && page.contains("blockers\n"), "{page}");
    let page = program.ok(&["chains", &blocker]).await;
    assert!(page.contains("dependents\n") && page.contains(&chain), "{page}");
}

#[tokio::test]
async fn live_workers_are_listed() {
    let program = Program::on_sqlite();
    program.ok(&["start", "mail"]).await;
    let command = "touch begun; until [ -e never ]; do sleep 0.02; done";
    let arguments = ["work", "mail", "--exec", command, "--name", "postman"];
    let worker = program.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    windlass_testkit::wait_until("the job runs", std::time::Duration::from_secs(60), async || {
        // The worker registers concurrently with its first job, so wait for both.
        program.directory().join("begun").exists() && !program.json(&["workers"]).await.is_empty()
    })
    .await;
    let workers = program.json(&["workers"]).await;
    assert_eq!((&workers[0]["name"], &workers[0]["types"][0]), (&"postman".into(), &"mail".into()));
    assert!(program.ok(&["workers"]).await.contains("postman"));
    // The command never ends. The first signal stops the worker gracefully, a second one terminates the command.
    crate::program::terminate(&worker).await;
    windlass_testkit::wait_until("the worker stops", std::time::Duration::from_secs(60), async || {
        crate::program::terminate(&worker).await;
        program.json(&["workers"]).await.is_empty()
    })
    .await;
    ended(worker).await;
    let job = &program.json(&["jobs"]).await[0];
    assert_eq!(
        (&job["status"], &job["attempt"]),
        (&"pending".into(), &0.into()),
        "requeued without counting the attempt"
    );
}

/// The note goes to standard error, so that the JSON on standard output stays intact.
#[tokio::test]
async fn a_cut_list_is_reported() {
    let program = Program::on_sqlite();
    let lines: String = (0..1_001).map(|n| format!("{{\"delay\": \"{}h\"}}\n", n % 2)).collect();
    program.run_with(&["start", "count", "--batch"], &lines).await;
    let scheduled = ["--status", "scheduled"];
    let cases: [(&[&str], usize, bool); 8] = [
        (&[], 50, true),
        (&["--limit", "1"], 1, true),
        (&["--limit", "1000"], 1_000, true),
        (&["--limit", "1001"], 1_001, false),
        (&["--limit", "2000"], 1_001, false),
        (&["--limit", "0"], 1_001, false),
        (&[&scheduled[..], &["--limit", "499"]].concat(), 499, true),
        (&[&scheduled[..], &["--limit", "500"]].concat(), 500, false),
    ];
    for rows in ["jobs", "chains"] {
        let note = |listed| {
            format!(
                "{rows} listed: {listed}, and there are more; pass --limit NUMBER to list more, or --limit 0 for all\n"
            )
        };
        for (arguments, listed, is_cut) in &cases {
            let ran = program.run(&[&[rows, "--json"], *arguments].concat()).await;
            assert_eq!((ran.code, objects(&ran.stdout).len()), (0, *listed), "{rows} {arguments:?}");
            let expected = if *is_cut { note(*listed) } else { String::new() };
            assert_eq!(ran.stderr, expected, "{rows} {arguments:?}");
        }
        let table = program.run(&[rows]).await;
        assert_eq!((table.stdout.lines().count(), table.stderr), (51, note(50)), "{}", table.stdout);
    }
}

#[tokio::test]
async fn a_closed_pipe_is_not_an_error() {
    let program = Program::on_sqlite();
    let lines: String = (0..3_000).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    program.run_with(&["start", "count", "--batch"], &lines).await;
    let program_path = env!("CARGO_BIN_EXE_windlass");
    let script = format!(
        "'{program_path}' jobs --json --limit 0 --store sqlite:jobs.db | head -n 1 | wc -l; echo ${{PIPESTATUS[0]}}"
    );
    let mut shell = tokio::process::Command::new("bash");
    shell
        .args(["-c", &script])
        .current_dir(program.directory())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let ran = crate::program::run(shell).await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("1\n0\n", ""));
}
