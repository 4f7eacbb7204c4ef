//! Ctrl-C and SIGTERM leave nothing half-done.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use windlass_testkit::wait_until;

use crate::program::{Program, ended, interrupt, terminate};

#[tokio::test]
async fn a_batch_stops_between_two_groups_and_reports_the_line() {
    let program = Program::on_sqlite();
    let mut child = program.command(&["start", "count", "--batch"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines: String = (0..1_500).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    stdin.write_all(lines.as_bytes()).await.unwrap();
    wait_until("the first thousand is stored", Duration::from_secs(60), async || {
        let ran = program.run(&["queues", "--json"]).await;
        ran.stdout.contains("\"pending\":1000")
    })
    .await;
    terminate(&child).await;
    let ran = ended(child).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (130, 1_000), "{}", ran.stderr);
    assert!(ran.stderr.contains("lines after line 1000 were not sent"), "{}", ran.stderr);
    assert_eq!(program.json(&["queues"]).await[0]["pending"], 1_000);
}

#[tokio::test]
async fn a_demo_removes_its_data() {
    let program = Program::on_sqlite();
    let mut child =
        program.bare(&["demo", "--orders", "1000"]).env("TMPDIR", program.directory()).spawn().unwrap();
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
    assert_eq!(last, "error: interrupted; the demo's data was removed");
    assert_eq!(ended(child).await.code, 130);
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "its directory is removed");
}

/// All commands end the same way, whether they wait for a chain, for their input or for a server.
#[tokio::test]
async fn waiting_commands_exit_with_code_130() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "mail"]).await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://{}/db", silent.local_addr().unwrap());
    let calls: [&[&str]; 4] = [
        &["wait", &chain],
        &["start", "mail", "--wait"],
        &["start", "mail", "-"],
        &["jobs", "--store", &url],
    ];
    for (signal, arguments) in calls.iter().enumerate() {
        let mut child = program.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let _kept_open = child.stdin.take();
        wait_until("the signal handlers are installed", Duration::from_secs(60), async || {
            handles_signals(child.id().unwrap())
        })
        .await;
        if signal % 2 == 0 {
            interrupt(&child).await;
        } else {
            terminate(&child).await;
        }
        let ran = ended(child).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (130, "error: interrupted\n"), "{arguments:?}: {ran:?}");
    }
}

/// Whether a process has handlers for SIGINT and SIGTERM.
fn handles_signals(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    let wanted = (1 << (2 - 1)) | (1 << (15 - 1));
    caught & wanted == wanted
}

#[tokio::test]
async fn a_worker_exits_with_code_0() {
    let program = Program::on_sqlite();
    let worker = program.command(&["work", "mail", "--exec", "true"]).spawn().unwrap();
    wait_until("the worker is listed", Duration::from_secs(60), async || {
        program.run(&["workers", "--json"]).await.stdout.contains("\"mail\"")
    })
    .await;
    interrupt(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
}
