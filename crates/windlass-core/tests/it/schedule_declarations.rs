//! Schedules that programs declare: who declares them, and when nobody does any more.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, advance};
use windlass_core::command::{
    ChangeSchedules, GetSchedules, PutSchedule, ScheduleAction, ScheduleChange, ScheduleRecord,
    ScheduleTarget,
};
use windlass_core::schedule::{Cron, Every, ScheduleDetails, ScheduleName, ScheduleSpec};
use windlass_core::{ChainId, Client, RequestId, Running, ScheduleId, Store, Worker};

use crate::schedules::{Counted, Tick, tick, with_schedules};

const SECOND: Duration = Duration::from_secs(1);

fn yearly() -> ScheduleSpec {
    Cron::new("@yearly").unwrap()
}

/// Starts a worker of a program that declares these schedules.
async fn start(client: &Client<Counted>, program: &str, names: &[&str]) -> Running<Counted> {
    let worker = Worker::new(client).program(program).handle(tick);
    let declare = |worker: Worker<Counted>, name: &&str| worker.schedule(*name, yearly(), Tick);
    names.iter().fold(worker, declare).start().await.unwrap()
}

async fn details(client: &Client<Counted>, name: &str) -> ScheduleDetails {
    client.schedules().get(name).await.unwrap().unwrap().details.unwrap()
}

/// Returns the schedules that are marked as undeclared.
async fn undeclared(client: &Client<Counted>) -> BTreeSet<String> {
    let schedules = client.schedules().list().await.unwrap();
    let marked =
        schedules.iter().filter(|schedule| schedule.details.as_ref().unwrap().undeclared_at.is_some());
    marked.map(|schedule| schedule.name.to_string()).collect()
}

/// Lets time pass until this schedule is the only one that is marked. Returns how long that takes.
async fn until_undeclared(client: &Client<Counted>, name: &str) -> Duration {
    let begin = Instant::now();
    while undeclared(client).await.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(600), "`{name}` is not listed as undeclared");
        advance(SECOND).await;
    }
    assert_eq!(undeclared(client).await, [name.to_owned()].into());
    begin.elapsed()
}

async fn pass(time: Duration) {
    for _ in 0..time.as_secs() {
        advance(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_declaration_that_is_gone_is_noticed_within_two_minutes() {
    for crashes in [false, true] {
        let client = with_schedules(&yearly(), 0).await;
        let old = start(&client, "app", &["kept", "gone"]).await;
        let new = start(&client, "app", &["kept"]).await;
        pass(Duration::from_secs(1_500)).await;
        assert_eq!(undeclared(&client).await, BTreeSet::new(), "an old worker still declares it");
        if crashes {
            drop(old);
        } else {
            old.stop(SECOND).await;
        }
        let took = until_undeclared(&client, "gone").await;
        assert!(took <= Duration::from_secs(120), "{took:?}");
        pass(Duration::from_secs(1_500)).await;
        assert_eq!(undeclared(&client).await, ["gone".to_owned()].into());
        let again = start(&client, "app", &["kept", "gone"]).await;
        assert_eq!(undeclared(&client).await, BTreeSet::new(), "it is declared again");
        new.stop(SECOND).await;
        again.stop(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_declaration_of_a_program_that_is_gone_is_noticed() {
    let client = with_schedules(&yearly(), 1).await;
    start(&client, "other", &["others"]).await.stop(SECOND).await;
    start(&client, "app", &["gone"]).await.stop(SECOND).await;
    let new = start(&client, "app", &[]).await;
    let took = until_undeclared(&client, "gone").await;
    assert!(took <= Duration::from_secs(120), "{took:?}");
    pass(Duration::from_secs(600)).await;
    assert_eq!(undeclared(&client).await, ["gone".to_owned()].into(), "the other program does not run");
    new.stop(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn workers_that_start_and_stop_declare_without_a_gap() {
    let client = with_schedules(&yearly(), 0).await;
    let mut latest = start(&client, "app", &["a", "b"]).await;
    for round in 0..20 {
        let next = start(&client, "app", &["a", "b"]).await;
        pass(Duration::from_secs(round * 7)).await;
        latest.stop(SECOND).await;
        latest = next;
        assert_eq!(undeclared(&client).await, BTreeSet::new(), "round {round}");
    }
    // Every worker is known by its notes. They cost no writes while their worker is alive.
    pass(Duration::from_secs(60)).await;
    client.store().clear();
    pass(Duration::from_secs(500)).await;
    assert!(client.store().calls("change_schedules").0 <= 1, "{:?}", client.store());
    latest.stop(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn an_edit_of_an_operator_stays_until_the_declaration_changes() {
    let client = with_schedules(&yearly(), 0).await;
    start(&client, "app", &["a"]).await.stop(SECOND).await;
    client.schedules().put("a", Cron::new("@daily").unwrap(), Tick).await.unwrap();
    start(&client, "app", &["a"]).await.stop(SECOND).await;
    assert_eq!(details(&client, "a").await.spec.describe(), "@daily (UTC)");
    let worker = Worker::new(&client).program("app").handle(tick);
    let worker = worker.schedule("a", Cron::new("@hourly").unwrap(), Tick).start().await.unwrap();
    worker.stop(SECOND).await;
    assert_eq!(details(&client, "a").await.spec.describe(), "@hourly (UTC)");
}

async fn row(client: &Client<Counted>, name: &str) -> ScheduleRecord {
    let schedules = vec![ScheduleTarget::Name(ScheduleName::new(name).unwrap())];
    let mut reply = client.store().get_schedules(GetSchedules { schedules }).await.unwrap();
    reply.schedules.remove(0).unwrap()
}

/// Writes a row as another program could.
async fn write(client: &Client<Counted>, row: &ScheduleRecord, is_new: bool) {
    let put = PutSchedule {
        due_at: row.due_at,
        handled: row.handled,
        definition: Some(row.definition.clone()),
        state: row.state.clone(),
        chain: None,
        state_if_not_created: "{}".into(),
    };
    let change = ScheduleChange {
        name: row.name.clone(),
        id: row.id,
        expected: (!is_new).then_some(row.revision),
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(put),
    };
    let request = ChangeSchedules { changes: vec![change] };
    client.store().change_schedules(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_declaration_that_breaks_a_limit_does_not_affect_its_page() {
    let client = with_schedules(&yearly(), 1).await;
    let template = row(&client, "schedule 0").await;
    // Its text is so long that a note does not fit.
    let older: Vec<_> = (0..1_675).map(|_| format!("\"{}\"", ChainId::new())).collect();
    let state = format!("{{\"older\":[{}]}}", older.join(","));
    let (name, id) = (ScheduleName::new("full").unwrap(), ScheduleId::new());
    write(&client, &ScheduleRecord { name, id, state: state.into(), ..template }, true).await;
    client.store().clear();
    let mut worker = Worker::new(&client).program("app").handle(tick).schedule("full", yearly(), Tick);
    for number in 1..100 {
        worker = worker.schedule(format!("declared {number}"), yearly(), Tick);
    }
    let worker = worker.start().await.unwrap();
    let calls = (client.store().calls("get_schedules").0, client.store().calls("change_schedules"));
    assert_eq!(calls, (1, (1, 99)));
    assert!(details(&client, "declared 99").await.declared_at.is_some());
    assert_eq!(details(&client, "full").await.declared_at, None);
    worker.stop(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_computes_stored_times_again_when_it_starts() {
    // As if a program with other time-zone data had stored it.
    let client = with_schedules(&yearly(), 1).await;
    let stored = row(&client, "schedule 0").await;
    let due_at = stored.due_at.unwrap();
    let wrong = ScheduleRecord { due_at: Some(due_at + Duration::from_secs(3_600)), ..stored };
    write(&client, &wrong, false).await;
    let worker = start(&client, "app", &[]).await;
    let begin = Instant::now();
    while row(&client, "schedule 0").await.due_at != Some(due_at) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the due time is not computed again");
        advance(Duration::from_millis(10)).await;
    }
    worker.stop(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_schedule_with_an_unknown_zone_or_expression_stays_unchanged() {
    let client = with_schedules(&Cron::new("* * * * * *").unwrap(), 2).await;
    let mut unknown = Vec::new();
    for (name, from, to) in [
        ("schedule 0", "\"UTC\"", "\"Mars/Base\""),
        ("schedule 1", "* * * * * *", "* * * * * * of a newer cron"),
    ] {
        let stored = row(&client, name).await;
        let definition = stored.definition.replace(from, to).into();
        write(&client, &ScheduleRecord { definition, ..stored }, false).await;
        unknown.push(row(&client, name).await);
    }
    client.schedules().put("known", Every::new(SECOND).unwrap(), Tick).await.unwrap();
    let worker = start(&client, "app", &[]).await;
    let begin = Instant::now();
    while details(&client, "known").await.runs.len() < 5 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the other schedule does not start");
        advance(Duration::from_millis(100)).await;
    }
    worker.stop(SECOND).await;
    for before in unknown {
        assert_eq!(row(&client, before.name.as_str()).await, before);
    }
    let shown = client.schedules().get("schedule 0").await.unwrap().unwrap();
    assert!(shown.details.as_ref().unwrap_err().contains("the time zone `Mars/Base` is unknown"));
    assert!(shown.overdue_by().is_some());
}
