//! `windlass schedules`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::command::{
    ChangeSchedules, GetSchedules, PutSchedule, ScheduleAction, ScheduleChange, ScheduleTarget,
};
use windlass::id::RequestId;
use windlass::schedule::{Cron, ScheduleName};
use windlass::{BoxError, Client, Ctx, Job, Store, Worker};
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
    let late = program.json(&["schedules", "late"]).await.remove(0);
    assert_eq!(late["state"], "overdue");
    let why = late["why"][0].as_str().unwrap();
    assert!(why.starts_with("it has been due for") && why.contains("start a worker on this store"), "{why}");
    let still = program.json(&["schedules", "still"]).await.remove(0);
    let why = still["why"][0].as_str().unwrap();
    assert!(why.contains("paused since") && why.contains("windlass schedules resume still"), "{why}");
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct Greet;

async fn greet(_: Ctx<Greet>) -> Result<(), BoxError> {
    Ok(())
}

/// Declares schedules as a program does. Then changes the notes of some of them, as if they were an hour old and, if
/// `is_marked`, as if a worker of the program had noticed that nobody declares them.
async fn declare(path: &Path, program: &str, names: &[&str], old: &[&str], is_marked: bool) {
    let client = Client::new(windlass::sqlite::open(path).await.unwrap());
    let daily = || Cron::new("@daily").unwrap();
    let worker = Worker::new(&client).program(program).handle(greet);
    let declare = |worker: Worker<_>, name: &&str| worker.schedule(*name, daily(), Greet);
    let worker = names.iter().fold(worker, declare).start().await.unwrap();
    wait_until("the schedules are declared", Duration::from_secs(60), async || {
        let schedules = client.schedules().list().await.unwrap();
        names.iter().all(|name| schedules.iter().any(|schedule| schedule.name.as_str() == *name))
    })
    .await;
    worker.stop(Duration::from_secs(10)).await;
    for name in old {
        let target = ScheduleTarget::Name(ScheduleName::new(name).unwrap());
        let reply = client.store().get_schedules(GetSchedules { schedules: vec![target] }).await.unwrap();
        let row = reply.schedules[0].clone().unwrap();
        let mut state: serde_json::Value = serde_json::from_str(&row.state).unwrap();
        let at = state["declared_at"].as_i64().unwrap();
        state["declared_at"] = (at - 60 * 60 * 1_000).into();
        if is_marked {
            state["declared_at"] = at.into();
            state["undeclared_at"] = at.into();
        }
        let put = PutSchedule {
            due_at: row.due_at,
            handled: row.handled,
            definition: None,
            state: state.to_string().into(),
            chain: None,
            state_if_not_created: "".into(),
        };
        let change = ScheduleChange {
            name: row.name,
            id: row.id,
            expected: Some(row.revision),
            revision: RequestId::new(),
            not_before: None,
            not_after: None,
            action: ScheduleAction::Put(put),
        };
        client.store().change_schedules(ChangeSchedules { changes: vec![change] }).await.unwrap();
    }
    client.close().await.unwrap();
}

#[tokio::test]
async fn declarations_that_are_gone_are_listed() {
    let program = Program::on_sqlite();
    program.ok(&["schedules", "put", "manual", "greet", "--cron", "@daily"]).await;
    declare(&program.directory().join("jobs.db"), "app", &["kept", "gone"], &["gone"], false).await;
    declare(&program.directory().join("jobs.db"), "third", &["marked"], &["marked"], true).await;
    declare(&program.directory().join("jobs.db"), "other", &["asleep"], &["asleep"], false).await;
    let ran = program.run(&["doctor"]).await;
    for expected in [
        "program `app` no longer declares schedule `gone`: it last did at",
        "run `windlass schedules delete gone`",
        "program `other` has not declared schedule `asleep` since",
        "program `third` no longer declares schedule `marked`: it last did at",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}: {ran:?}");
    }
    for absent in ["schedule `kept`: it", "schedule `kept` since", "declares schedule `manual`"] {
        assert!(!ran.stdout.contains(absent), "{absent}: {ran:?}");
    }
    for (name, state) in [
        ("gone", "undeclared"),
        ("marked", "undeclared"),
        ("asleep", "undeclared"),
        ("kept", "active"),
        ("manual", "active"),
    ] {
        let shown = program.json(&["schedules", name]).await.remove(0);
        assert_eq!(shown["state"], state, "{shown}");
    }
    let page = program.ok(&["schedules", "gone"]).await;
    assert!(page.contains("no program has declared it since"), "{page}");
}

/// The input is valid JSON, but not of the job's type. So only a worker can notice.
#[tokio::test]
async fn an_input_that_does_not_decode_is_shown() {
    let program = Program::on_sqlite();
    let put =
        ["schedules", "put", "bad", "greet", "{\"no\": 1}", "--once", "2020-01-01", "--max-attempts", "1"];
    program.ok(&put).await;
    let client = Client::new(windlass::sqlite::open(program.directory().join("jobs.db")).await.unwrap());
    let worker = Worker::new(&client).handle(greet).start().await.unwrap();
    wait_until("the run has failed", Duration::from_secs(60), async || {
        let shown = program.json(&["schedules", "bad"]).await;
        shown[0]["runs"][0]["outcome"] == "failed"
    })
    .await;
    worker.stop(Duration::from_secs(10)).await;
    client.close().await.unwrap();
    let shown = program.json(&["schedules", "bad"]).await.remove(0);
    let chain = shown["runs"][0]["chain"].as_str().unwrap();
    let why = shown["why"].to_string();
    assert!(
        why.contains("its latest run failed") && why.contains(&format!("windlass chains {chain}")),
        "{why}"
    );
    let page = program.ok(&["chains", chain]).await;
    assert!(page.contains("cannot decode the stored payload"), "{page}");
}

/// Another program may know a zone that this one does not.
#[tokio::test]
async fn the_doctor_reports_a_schedule_that_cannot_be_read() {
    let program = Program::on_sqlite();
    program.ok(&["schedules", "put", "a", "greet", "--cron", "@daily"]).await;
    let client = Client::new(windlass::sqlite::open(program.directory().join("jobs.db")).await.unwrap());
    let target = ScheduleTarget::Name(ScheduleName::new("a").unwrap());
    let reply = client.store().get_schedules(GetSchedules { schedules: vec![target] }).await.unwrap();
    let row = reply.schedules[0].clone().unwrap();
    let put = PutSchedule {
        due_at: row.due_at,
        handled: row.handled,
        definition: Some(row.definition.replace("\"UTC\"", "\"Mars/Base\"").into()),
        state: row.state,
        chain: None,
        state_if_not_created: "".into(),
    };
    let change = ScheduleChange {
        name: row.name,
        id: row.id,
        expected: Some(row.revision),
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(put),
    };
    client.store().change_schedules(ChangeSchedules { changes: vec![change] }).await.unwrap();
    client.close().await.unwrap();
    let ran = program.run(&["doctor"]).await;
    assert!(ran.stdout.contains("schedule `a` cannot be read: "), "{ran:?}");
    assert!(ran.stdout.contains("the time zone `Mars/Base` is unknown"), "{ran:?}");
    assert_eq!(program.json(&["schedules", "a"]).await[0]["state"], "unreadable");
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
