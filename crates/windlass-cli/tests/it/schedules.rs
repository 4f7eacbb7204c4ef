//! `windlass schedules`.

use std::process::Stdio;
use std::time::Duration;

use windlass_testkit::wait_until;

use crate::program::{Program, ended, terminate};

async fn run_on(program: Program) {
    let put = ["schedules", "put", "tick", "greet", "\"Ada\"", "--every", "100ms"];
    let stored = program.ok(&put).await;
    assert!(stored.starts_with("tick: stored; next: "), "{stored}");
    let worker = program
        .command(&["work", "greet", "--exec", "cat"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    wait_until("two runs have completed", Duration::from_secs(60), async || {
        let shown = program.json(&["schedules", "tick"]).await;
        let runs = shown[0]["runs"].as_array().unwrap();
        runs.iter().filter(|run| run["outcome"] == "completed").count() >= 2
    })
    .await;
    assert_eq!(program.ok(&["schedules", "pause", "tick"]).await, "tick: paused");
    let page = program.ok(&["schedules", "tick"]).await;
    assert!(page.contains("tick (paused)") && page.contains("windlass schedules resume tick"), "{page}");
    let list = program.ok(&["schedules"]).await;
    assert!(list.contains("every 100ms") && list.contains("paused"), "{list}");
    let ran = program.ok(&["schedules", "run", "tick"]).await;
    let chain = ran.strip_prefix("tick: started chain ").unwrap();
    program.ok(&["wait", chain]).await;
    let page = program.ok(&["chains", chain]).await;
    assert!(page.contains("schedule `tick`, run by hand"), "{page}");
    assert_eq!(program.ok(&["schedules", "resume", "tick"]).await, "tick: resumed");
    assert_eq!(program.ok(&["schedules", "accept", "tick"]).await, "tick: has no declaration to accept");
    assert_eq!(program.ok(&["schedules", "delete", "tick"]).await, "tick: deleted");
    let worker = worker.unwrap();
    terminate(&worker).await;
    ended(worker).await;
}

#[tokio::test]
async fn schedules_run_on_sqlite() {
    run_on(Program::on_sqlite()).await;
}

#[tokio::test]
async fn schedules_run_on_files() {
    run_on(Program::on_file()).await;
}

#[tokio::test]
async fn schedules_run_on_postgres() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    run_on(program).await;
}

#[tokio::test]
async fn schedules_run_on_redis() {
    run_on(Program::on_redis().await).await;
}

#[tokio::test]
async fn the_doctor_knows_schedules() {
    let program = Program::on_sqlite();
    program.ok(&["schedules", "put", "late", "greet", "--once", "2020-01-01"]).await;
    program.ok(&["schedules", "put", "still", "greet", "--cron", "@daily"]).await;
    program.ok(&["schedules", "pause", "still"]).await;
    let ran = program.run(&["doctor"]).await;
    assert_eq!(ran.code, 1);
    for expected in [
        "schedules: schedule `late` has been due for",
        "schedule `late` starts jobs of type `greet`, which no live worker handles",
        "schedule `still` is paused\n  remedy: run `windlass schedules resume still`",
    ] {
        assert!(ran.stdout.contains(expected), "{ran:?}");
    }
    assert_eq!(program.json(&["schedules", "late"]).await[0]["state"], "overdue");
}

#[tokio::test]
async fn bad_schedules_are_refused() {
    let program = Program::on_sqlite();
    let long = "x".repeat(201);
    for (arguments, expected) in [
        (&["put", "a", "t", "--cron", "0 0 30 2 *"][..], "never fires"),
        (&["put", "a", "t", "--cron", "nonsense"], "`nonsense` is invalid"),
        (&["put", "a", "t", "--cron", "@daily", "--zone", "Mars/Base"], "`Mars/Base` is unknown"),
        (&["put", "a", "t", "--every", "0s"], "the interval is 0"),
        (&["put", "a", "t", "--every", "1m", "--missed", "some"], "invalid policy `some`"),
        (&["put", "a", "t", "--every", "1m", "--delay", "1m"], "has a due time"),
        (&["put", "a", "t", "{", "--every", "1m"], "not valid JSON"),
        (&["put", "", "t", "--every", "1m"], "the name is empty"),
        (&["put", &long, "t", "--every", "1m"], "longer than 200 bytes"),
        (&["put", "a", "t"], "--cron"),
    ] {
        let ran = program.run(&[&["schedules"], arguments].concat()).await;
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{arguments:?}: {ran:?}");
    }
    program.ok(&["schedules", "put", "a", "t", "--every", "1m"]).await;
    for action in ["pause", "resume", "run", "accept", "delete"] {
        let ran = program.run(&["schedules", action, "b"]).await;
        assert_eq!(ran.code, 3, "{action}: {ran:?}");
    }
}
