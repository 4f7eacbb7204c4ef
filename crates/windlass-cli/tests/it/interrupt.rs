//! Ctrl-C and SIGTERM leave nothing half-done.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use windlass_testkit::wait_until;

use crate::program::{Program, ended, terminate};

#[tokio::test]
async fn a_batch_ends_between_two_commands_and_says_where() {
    let program = Program::on_sqlite();
    let mut child = program.command(&["start", "count", "--batch"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines: String = (0..1_500).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    stdin.write_all(lines.as_bytes()).await.unwrap();
    wait_until("the first thousand is stored", Duration::from_secs(30), async || {
        let ran = program.run(&["queues", "--json"]).await;
        ran.stdout.contains("\"pending\":1000")
    })
    .await;
    terminate(&child).await;
    let ran = ended(child).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (130, 1_000), "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing that follows line 1000 was sent"), "{}", ran.stderr);
    assert_eq!(program.json(&["queues"]).await[0]["pending"], 1_000);
}

#[tokio::test]
async fn a_demo_removes_what_it_made() {
    let program = Program::on_sqlite();
    let mut child =
        program.bare(&["demo", "--orders", "1000"]).env("TMPDIR", program.folder()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains(" s: ") {
            break;
        }
    }
    terminate(&child).await;
    let mut last = String::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        last = line;
    }
    assert_eq!(last, "error: interrupted: what it made is removed");
    assert_eq!(ended(child).await.code, 130);
    assert_eq!(fs::read_dir(program.folder()).unwrap().count(), 0, "its folder is gone");
}
