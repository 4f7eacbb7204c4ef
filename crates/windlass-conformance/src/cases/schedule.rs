//! Schedules: rows that are compared, moved on and turned into chains.

use std::sync::Arc;

use windlass_core::{Occurrence, ScheduleId, ScheduleName, Timestamp};

use super::prelude::*;
use crate::at_once::at_once;

pub(super) const CASES: &[Case] = &[
    case!(
        "schedule.stored",
        "A schedule is returned by name and by id, exactly as it was written.",
        ["design 15"],
        [Schedules],
        stored
    ),
    case!(
        "schedule.absent",
        "A schedule that is expected not to be stored is created only if neither its name nor its id is stored.",
        ["design 15"],
        [Schedules],
        absent
    ),
    case!(
        "schedule.revision",
        "A change applies only to the revision that it expects, and only to the schedule with its id.",
        ["design 15"],
        [Schedules],
        revision
    ),
    case!(
        "schedule.repeated",
        "A repeated change is recognized by the revision that it writes, and creates no second chain.",
        ["never 12"],
        [Schedules],
        repeated
    ),
    case!(
        "schedule.deleted",
        "A deleted schedule is gone, its chains are kept, and deleting it again is recognized.",
        ["design 15"],
        [Schedules],
        deleted
    ),
    case!(
        "schedule.not_due",
        "A change is not applied before its time on the store's clock.",
        ["design 15"],
        [Schedules],
        not_due
    ),
    case!(
        "schedule.too_late",
        "A change is not applied after its latest time on the store's clock.",
        ["design 15"],
        [Schedules],
        too_late
    ),
    case!(
        "schedule.handled",
        "The last occurrence handled never decreases.",
        ["design 15"],
        [Schedules],
        handled
    ),
    case!(
        "schedule.fired",
        "A change creates its chain and writes the schedule in one step.",
        ["design 15"],
        [Schedules],
        fired
    ),
    case!(
        "schedule.key_held",
        "If another chain holds the key, the schedule is written with the other state.",
        ["design 15"],
        [Schedules],
        key_held
    ),
    case!(
        "schedule.refused",
        "If the chain is refused, the schedule is written with the other state.",
        ["design 15"],
        [Schedules],
        refused
    ),
    case!(
        "schedule.definition_kept",
        "A change without a definition keeps the stored one.",
        ["design 15"],
        [Schedules],
        definition_kept
    ),
    case!(
        "schedule.batch",
        "A later change of a batch sees the result of an earlier one, and a conflict does not affect the others.",
        ["contract"],
        [Schedules],
        batch
    ),
    case!(
        "schedule.due",
        "Due schedules are returned by due time and name, with the time of the next one.",
        ["design 15"],
        [Schedules],
        due
    ),
    case!(
        "schedule.due.skipped",
        "A query for due schedules skips the first ones and returns at most as many as requested.",
        ["design 15"],
        [Schedules],
        due_skipped
    ),
    case!(
        "schedule.listed",
        "Schedules are listed by name, in the order of its bytes.",
        ["design 15"],
        [Schedules],
        listed
    ),
    case!(
        "schedule.race",
        "Of concurrent changes that expect the same revision, one is applied, and one chain is created.",
        ["design 15"],
        [Schedules],
        race
    ),
    case!(
        "schedule.race.created",
        "Of concurrent creations of a schedule with the same name, one is applied.",
        ["design 15"],
        [Schedules],
        race_created
    ),
    case!(
        "schedule.limits",
        "A command with schedules above a limit is refused as a whole.",
        ["contract"],
        [Schedules],
        limits
    ),
    case!(
        "tx.schedule.rolled_back",
        "A schedule that is changed in a transaction is unchanged if the transaction is rolled back.",
        ["design 15"],
        [Schedules, Transactions],
        rolled_back
    ),
    case!(
        "tx.schedule.committed",
        "A schedule that is created and fired in a transaction is visible outside after the commit.",
        ["design 15"],
        [Schedules, Transactions],
        committed
    ),
];

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

fn time(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms).unwrap()
}

fn put(state: &str) -> PutSchedule {
    PutSchedule {
        due_at: None,
        handled: None,
        definition: None,
        state: state.into(),
        chain: None,
        state_if_not_created: "not created".into(),
    }
}

/// A change that creates a schedule.
fn new(text: &str) -> ScheduleChange {
    ScheduleChange {
        name: name(text),
        id: ScheduleId::new(),
        expected: None,
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(PutSchedule { definition: Some("a definition".into()), ..put("new") }),
    }
}

/// A change that follows another one.
fn after(change: &ScheduleChange, put: PutSchedule) -> ScheduleChange {
    ScheduleChange {
        expected: Some(change.revision),
        revision: RequestId::new(),
        action: ScheduleAction::Put(put),
        ..change.clone()
    }
}

async fn change(s: &Subject, change: &ScheduleChange) -> ScheduleChanged {
    s.run(ChangeSchedules { changes: vec![change.clone()] }).await.changes.remove(0)
}

async fn apply(s: &Subject, item: &ScheduleChange) -> Option<Created> {
    match change(s, item).await {
        ScheduleChanged::Applied { created } => created,
        other => panic!("expected the change to apply, got {other:?}"),
    }
}

/// Repeats a change while a row is busy.
async fn settled(s: &Subject, item: &ScheduleChange) -> ScheduleChanged {
    loop {
        match change(s, item).await {
            ScheduleChanged::Busy => tokio::task::yield_now().await,
            other => return other,
        }
    }
}

async fn get(s: &Subject, text: &str) -> Option<ScheduleRecord> {
    s.run(GetSchedules { schedules: vec![ScheduleTarget::Name(name(text))] }).await.schedules.remove(0)
}

async fn state(s: &Subject, text: &str) -> Arc<str> {
    get(s, text).await.expect("the schedule is stored").state
}

async fn stored(s: Subject) {
    let texts = ["a", "a: {b}'\"%_\\ — ü", "*"];
    for text in texts {
        let mut item = new(text);
        let content = PutSchedule {
            due_at: Some(time(5)),
            handled: Some(time(4)),
            definition: Some("{\"ä\": 1}\n'".into()),
            ..put("state \\ \u{1F600}")
        };
        item.action = ScheduleAction::Put(content);
        assert_eq!(apply(&s, &item).await, None);
        let expected = ScheduleRecord {
            name: name(text),
            id: item.id,
            revision: item.revision,
            due_at: Some(time(5)),
            handled: Some(time(4)),
            definition: "{\"ä\": 1}\n'".into(),
            state: "state \\ \u{1F600}".into(),
        };
        let targets = vec![
            ScheduleTarget::Id(item.id),
            ScheduleTarget::Name(name("nobody")),
            ScheduleTarget::Name(name(text)),
            ScheduleTarget::Id(ScheduleId::new()),
        ];
        let reply = s.through_other().run(GetSchedules { schedules: targets }).await;
        assert_eq!(reply.schedules, [Some(expected.clone()), None, Some(expected), None]);
        assert_eq!(reply.now, s.now());
    }
}

async fn absent(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    assert_eq!(change(&s, &new("a")).await, ScheduleChanged::Conflict);
    assert_eq!(change(&s, &ScheduleChange { id: first.id, ..new("b") }).await, ScheduleChanged::Conflict);
    assert_eq!(get(&s, "b").await, None);
    assert_eq!(get(&s, "a").await.unwrap().revision, first.revision);
    let missing = ScheduleChange { expected: Some(RequestId::new()), ..new("c") };
    assert_eq!(change(&s, &missing).await, ScheduleChanged::Conflict);
    assert_eq!(get(&s, "c").await, None);
}

async fn revision(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let second = after(&first, put("second"));
    apply(&s, &second).await;
    assert_eq!(change(&s, &after(&first, put("late"))).await, ScheduleChanged::Conflict);
    let other = ScheduleChange { id: ScheduleId::new(), ..after(&second, put("of another schedule")) };
    assert_eq!(change(&s, &other).await, ScheduleChanged::Conflict);
    assert_eq!(&*state(&s, "a").await, "second");
}

fn fire(s: &Subject, item: &ScheduleChange, at: i64) -> (ScheduleChange, ChainId) {
    let chain = Occurrence { schedule: item.id, at: time(at), is_manual: false }.chain();
    let mut new = s.start("a").build();
    new.id = chain;
    (after(item, PutSchedule { handled: Some(time(at)), chain: Some(new), ..put("fired") }), chain)
}

async fn repeated(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    assert_eq!(change(&s, &first).await, ScheduleChanged::Repeated);
    let (fired, _) = fire(&s, &first, 7);
    apply(&s, &fired).await;
    assert_eq!(change(&s.through_other(), &fired).await, ScheduleChanged::Repeated);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn deleted(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let (fired, chain) = fire(&s, &first, 7);
    apply(&s, &fired).await;
    let deletion = ScheduleChange { action: ScheduleAction::Delete, ..after(&fired, put("")) };
    let early = ScheduleChange { action: ScheduleAction::Delete, ..after(&first, put("")) };
    assert_eq!(change(&s, &early).await, ScheduleChanged::Conflict);
    apply(&s, &deletion).await;
    assert_eq!(get(&s, "a").await, None);
    assert_eq!(change(&s, &deletion).await, ScheduleChanged::Repeated);
    let never = ScheduleChange { action: ScheduleAction::Delete, ..new("never stored") };
    assert_eq!(change(&s, &never).await, ScheduleChanged::Repeated);
    assert_eq!(s.chain(chain).await.id, chain);
    let again = new("a");
    apply(&s, &again).await;
    assert_eq!(change(&s, &deletion).await, ScheduleChanged::Conflict, "another schedule has the name");
    assert_eq!(get(&s, "a").await.unwrap().id, again.id);
    let by_id = GetSchedules { schedules: vec![ScheduleTarget::Id(first.id)] };
    assert_eq!(s.run(by_id).await.schedules, [None]);
    assert_eq!(s.run(ListSchedules { after: None, max: 10 }).await.schedules.len(), 1);
}

async fn not_due(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let (fired, chain) = fire(&s, &first, 7);
    let fired = ScheduleChange { not_before: Some(s.now() + millis(1_000)), ..fired };
    assert_eq!(change(&s, &fired).await, ScheduleChanged::NotDue);
    s.advance(999);
    assert_eq!(change(&s, &fired).await, ScheduleChanged::NotDue);
    assert_eq!((s.find_chain(Target::Chain(chain)).await, &*state(&s, "a").await), (None, "new"));
    s.advance(1);
    apply(&s, &fired).await;
    assert_eq!(&*state(&s, "a").await, "fired");
}

async fn too_late(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let (fired, chain) = fire(&s, &first, 7);
    let latest = s.now() + millis(1_000);
    s.advance(1_001);
    let late = ScheduleChange { not_after: Some(latest), ..fired.clone() };
    assert_eq!(change(&s, &late).await, ScheduleChanged::TooLate);
    let deletion = ScheduleChange { action: ScheduleAction::Delete, ..late.clone() };
    assert_eq!(change(&s, &deletion).await, ScheduleChanged::TooLate);
    assert_eq!((s.find_chain(Target::Chain(chain)).await, &*state(&s, "a").await), (None, "new"));
    let in_time = ScheduleChange { not_after: Some(s.now()), ..fired };
    apply(&s, &in_time).await;
    s.advance(1);
    assert_eq!(change(&s, &in_time).await, ScheduleChanged::Repeated, "it was applied in time");
    assert_eq!(change(&s, &late).await, ScheduleChanged::Repeated, "it has the same revision");
    let conflict = ScheduleChange { not_after: Some(latest), ..after(&first, put("late")) };
    assert_eq!(change(&s, &conflict).await, ScheduleChanged::Conflict, "a conflict is reported first");
}

async fn handled(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let (fired, _) = fire(&s, &first, 7);
    apply(&s, &fired).await;
    let (again, early) = fire(&s, &fired, 6);
    assert_eq!(change(&s, &again).await, ScheduleChanged::Conflict);
    assert_eq!(s.find_chain(Target::Chain(early)).await, None);
    assert_eq!(change(&s, &after(&fired, put("none"))).await, ScheduleChanged::Conflict);
    let same = after(&fired, PutSchedule { handled: Some(time(7)), ..put("edited") });
    apply(&s, &same).await;
    assert_eq!((get(&s, "a").await.unwrap().handled, &*state(&s, "a").await), (Some(time(7)), "edited"));
}

async fn fired(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let (fired, chain) = fire(&s, &first, 7);
    let created = apply(&s, &fired).await.expect("a chain");
    assert_eq!(summary(&created).chain, chain);
    assert_eq!(&*state(&s, "a").await, "fired");
    let attempt = s.acquire_one("a").await;
    assert_eq!(attempt.job.chain, chain);
    s.complete(&attempt, "done").await;
    s.expect_status(chain, Status::Completed).await;
    let late = after(&first, PutSchedule { chain: Some(s.start("a").build()), ..put("late") });
    assert_eq!(change(&s, &late).await, ScheduleChanged::Conflict);
    s.expect_none_due("a").await;
}

async fn key_held(s: Subject) {
    let holder = s.start("a").key("one").build();
    s.create(vec![holder.clone()]).await;
    let first = new("a");
    apply(&s, &first).await;
    let chain = s.start("a").key("one").build();
    let fired =
        after(&first, PutSchedule { handled: Some(time(7)), chain: Some(chain.clone()), ..put("fired") });
    let created = apply(&s, &fired).await.expect("a result for the chain");
    assert_eq!(existing(created).chain, holder.id);
    let row = get(&s, "a").await.unwrap();
    assert_eq!((&*row.state, row.handled, row.revision), ("not created", Some(time(7)), fired.revision));
    assert_eq!(s.find_chain(Target::Chain(chain.id)).await, None);
}

async fn refused(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let mut invalid = s.start("a").build();
    invalid.job.max_attempts = Some(0);
    let fired = after(&first, PutSchedule { chain: Some(invalid), ..put("fired") });
    assert_eq!(apply(&s, &fired).await, Some(Created::Refused(Refusal::NoAttempts)));
    assert_eq!(&*state(&s, "a").await, "not created");
    let taken = s.start("b").build();
    s.create(vec![taken.clone()]).await;
    let mut other = s.start("a").build();
    other.id = taken.id;
    let fired =
        after(&fired, PutSchedule { chain: Some(other), state_if_not_created: "taken".into(), ..put("") });
    assert_eq!(apply(&s, &fired).await, Some(Created::Refused(Refusal::IdTaken)));
    assert_eq!(&*state(&s, "a").await, "taken");
}

async fn definition_kept(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let second = after(&first, put("second"));
    apply(&s, &second).await;
    assert_eq!(&*get(&s, "a").await.unwrap().definition, "a definition");
    apply(&s, &after(&second, PutSchedule { definition: Some("another".into()), ..put("third") })).await;
    assert_eq!(&*get(&s, "a").await.unwrap().definition, "another");
}

async fn batch(s: Subject) {
    let (a, b) = (new("a"), new("b"));
    let next = after(&a, PutSchedule { due_at: Some(time(9)), ..put("next") });
    let deletion = ScheduleChange { action: ScheduleAction::Delete, ..after(&next, put("")) };
    let changes = vec![a.clone(), next.clone(), after(&a, put("late")), b.clone(), new("b"), deletion];
    let reply = s.run(ChangeSchedules { changes }).await;
    let applied = ScheduleChanged::Applied { created: None };
    let conflict = ScheduleChanged::Conflict;
    let expected = [applied.clone(), applied.clone(), conflict.clone(), applied.clone(), conflict, applied];
    assert_eq!(reply.changes, expected);
    assert_eq!(reply.now, s.now());
    assert_eq!((get(&s, "a").await, get(&s, "b").await.unwrap().revision), (None, b.revision));
    assert_eq!(s.run(DueSchedules { skip: 0, max: 10 }).await.schedules, []);
    assert_eq!(s.run(ChangeSchedules { changes: Vec::new() }).await.changes, []);
}

async fn put_due(s: &Subject, text: &str, due_at: Option<Timestamp>) -> ScheduleChange {
    let item = ScheduleChange { action: ScheduleAction::Put(PutSchedule { due_at, ..put("") }), ..new(text) };
    apply(s, &item).await;
    item
}

fn names(schedules: &[ScheduleRecord]) -> Vec<&str> {
    schedules.iter().map(|row| row.name.as_str()).collect()
}

async fn due(s: Subject) {
    assert_eq!(s.run(DueSchedules { skip: 0, max: 10 }).await.next_due, None);
    let soon = s.now() + millis(1_000);
    put_due(&s, "c", Some(soon)).await;
    put_due(&s, "never", None).await;
    put_due(&s, "b", Some(soon)).await;
    let later = put_due(&s, "a", Some(soon + millis(1))).await;
    let reply = s.run(DueSchedules { skip: 0, max: 10 }).await;
    assert_eq!((names(&reply.schedules), reply.next_due), (vec![], Some(soon)));
    s.advance(1_000);
    let reply = s.run(DueSchedules { skip: 0, max: 10 }).await;
    assert_eq!((names(&reply.schedules), reply.next_due), (vec!["b", "c"], Some(soon + millis(1))));
    assert_eq!(reply.now, s.now());
    apply(&s, &after(&later, put("not due any more"))).await;
    s.advance(10);
    let reply = s.run(DueSchedules { skip: 0, max: 10 }).await;
    assert_eq!((names(&reply.schedules), reply.next_due), (vec!["b", "c"], None));
}

async fn due_skipped(s: Subject) {
    for text in ["a", "b", "c", "d"] {
        put_due(&s, text, Some(s.now())).await;
    }
    let reply = s.run(DueSchedules { skip: 0, max: 2 }).await;
    assert_eq!((names(&reply.schedules), reply.next_due), (vec!["a", "b"], Some(s.now())));
    let reply = s.run(DueSchedules { skip: 1, max: 3 }).await;
    assert_eq!((names(&reply.schedules), reply.next_due), (vec!["b", "c", "d"], None));
    let reply = s.run(DueSchedules { skip: 4, max: 3 }).await;
    assert_eq!((names(&reply.schedules), reply.next_due), (vec![], None));
}

async fn listed(s: Subject) {
    for text in ["ä", "b", "B", "a b", "a", "a-b", "_"] {
        apply(&s, &new(text)).await;
    }
    let all = s.run(ListSchedules { after: None, max: 100 }).await;
    assert_eq!(names(&all.schedules), ["B", "_", "a", "a b", "a-b", "b", "ä"]);
    assert_eq!(all.now, s.now());
    let page = s.run(ListSchedules { after: Some(name("a")), max: 2 }).await;
    assert_eq!(names(&page.schedules), ["a b", "a-b"]);
    let page = s.run(ListSchedules { after: Some(name("c")), max: 2 }).await;
    assert_eq!(names(&page.schedules), ["ä"]);
}

async fn race(s: Subject) {
    let mut latest = new("a");
    apply(&s, &latest).await;
    for round in 1..=10 {
        let fires: Vec<_> = (0..6).map(|_| fire(&s, &latest, round)).collect();
        let results = at_once(&s, fires.len(), |s, turn| {
            let item = fires[turn].0.clone();
            async move { settled(&s, &item).await }
        })
        .await;
        let applied = results.iter().filter(|result| matches!(result, ScheduleChanged::Applied { .. }));
        assert_eq!(applied.count(), 1, "{results:?}");
        let stored = get(&s, "a").await.unwrap().revision;
        latest = fires.into_iter().map(|(item, _)| item).find(|item| item.revision == stored).unwrap();
        assert_eq!(s.acquire("a", 10).await.len(), 1);
    }
}

async fn race_created(s: Subject) {
    for round in 0..10 {
        let items: Vec<_> = (0..6).map(|_| new(&format!("a{round}"))).collect();
        let results = at_once(&s, items.len(), |s, turn| {
            let item = items[turn].clone();
            async move { settled(&s, &item).await }
        })
        .await;
        let applied = results.iter().filter(|result| matches!(result, ScheduleChanged::Applied { .. }));
        assert_eq!(applied.count(), 1, "{results:?}");
    }
}

async fn limits(s: Subject) {
    let long: Arc<str> = "x".repeat(limit::SCHEDULE_TEXT_MAX_BYTES + 1).into();
    let first = new("a");
    for content in [
        PutSchedule { definition: Some(Arc::clone(&long)), ..put("") },
        PutSchedule { state: Arc::clone(&long), ..put("") },
        PutSchedule { state_if_not_created: long, ..put("") },
        put("a\0b"),
    ] {
        let item = ScheduleChange { action: ScheduleAction::Put(content), ..new("b") };
        assert_eq!(s.error(ChangeSchedules { changes: vec![first.clone(), item] }).await, ErrorKind::Invalid);
    }
    let blocker = s.start("a").build();
    let blocked = PutSchedule { chain: Some(s.start("a").blocked_by([blocker.id]).build()), ..put("") };
    let item = ScheduleChange { action: ScheduleAction::Put(blocked), ..new("b") };
    assert_eq!(s.error(ChangeSchedules { changes: vec![first.clone(), item] }).await, ErrorKind::Invalid);
    assert_eq!(get(&s, "a").await, None);
    let most = "x".repeat(limit::SCHEDULE_TEXT_MAX_BYTES);
    apply(&s, &ScheduleChange { action: ScheduleAction::Put(put(&most)), ..new("b") }).await;
    assert_eq!(*state(&s, "b").await, *most);
    let too_many = u32::try_from(limit::SCHEDULE_PAGE_MAX).unwrap() + 1;
    for max in [0, too_many] {
        assert_eq!(s.error(ListSchedules { after: None, max }).await, ErrorKind::Invalid);
        assert_eq!(s.error(DueSchedules { skip: 0, max }).await, ErrorKind::Invalid);
    }
    let targets = vec![ScheduleTarget::Name(name("a")); limit::SCHEDULE_PAGE_MAX + 1];
    assert_eq!(s.error(GetSchedules { schedules: targets }).await, ErrorKind::Invalid);
}

async fn rolled_back(s: Subject) {
    let first = new("a");
    apply(&s, &first).await;
    let mut tx = s.begin().await;
    let (fired, chain) = fire(&s, &first, 7);
    for item in [fired, new("b")] {
        let reply = tx.run(ChangeSchedules { changes: vec![item] }).await.unwrap();
        assert!(matches!(reply.changes[0], ScheduleChanged::Applied { .. }), "{reply:?}");
    }
    let seen = GetSchedules { schedules: vec![ScheduleTarget::Name(name("a"))] };
    let seen = tx.run(seen).await.unwrap().schedules.remove(0).unwrap();
    assert_eq!(&*seen.state, "fired", "a transaction sees its own changes");
    assert_eq!(&*state(&s, "a").await, "new", "others do not");
    tx.rollback().await.unwrap();
    assert_eq!((&*state(&s, "a").await, get(&s, "b").await), ("new", None));
    assert_eq!(s.find_chain(Target::Chain(chain)).await, None);
    let (fired, _) = fire(&s, &first, 7);
    assert!(matches!(settled(&s, &fired).await, ScheduleChanged::Applied { .. }));
}

async fn committed(s: Subject) {
    let mut tx = s.begin().await;
    let first = new("a");
    tx.run(ChangeSchedules { changes: vec![first.clone()] }).await.unwrap();
    let (fired, chain) = fire(&s, &first, 7);
    tx.run(ChangeSchedules { changes: vec![fired] }).await.unwrap();
    assert_eq!(get(&s, "a").await, None);
    tx.commit().await.unwrap();
    assert_eq!(&*state(&s.through_other(), "a").await, "fired");
    assert_eq!(s.acquire_one("a").await.job.chain, chain);
}
