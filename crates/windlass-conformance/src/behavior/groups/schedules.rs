//! Schedules: occurrences that start by themselves.

use std::collections::BTreeSet;

use windlass_core::command::{ListChains, Page};
use windlass_core::schedule::{Every, Once, Overlap, RunOutcome, Schedule, ScheduleDetails, ScheduleSpec};
use windlass_core::{Client, Data, Timestamp};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    exactly_once().into_iter().chain(policies()).collect()
}

/// Cases about occurrences that start once.
fn exactly_once<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "schedules.once_each",
            "With two workers, each occurrence starts one chain.",
            ["design 15"],
            once_each
        ),
        behavior!(
            "schedules.lost_reply",
            "An occurrence whose reply is lost starts one chain.",
            ["design 15", "never 12"],
            lost_reply
        ),
        behavior!(
            "schedules.suspended",
            "An occurrence that a suspended worker was about to start is started once, by another worker.",
            ["design 15"],
            suspended
        ),
        behavior!(
            "schedules.not_early",
            "An occurrence does not start before its time on the store's clock.",
            ["design 15"],
            not_early
        ),
        behavior!(
            "schedules.deleted_chain",
            "An occurrence whose chain was deleted does not start again, even if the schedule is edited.",
            ["design 15"],
            deleted_chain
        ),
        behavior!(
            "schedules.created_again",
            "A schedule that is deleted and created again does not meet the chains of the former one.",
            ["design 15"],
            created_again
        ),
    ]
}

/// Cases about the policies and the management of schedules.
fn policies<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "schedules.paused",
            "A paused schedule starts nothing, and drops the occurrences of its pause when it is resumed.",
            ["design 15"],
            paused
        ),
        behavior!(
            "schedules.run_now",
            "A schedule can be started by hand, even if it is paused.",
            ["design 15"],
            run_now
        ),
        behavior!(
            "schedules.overlap.wait",
            "An occurrence that waits for the previous chain starts when that chain closes.",
            ["design 15"],
            overlap_wait
        ),
        behavior!(
            "schedules.overlap.cancel",
            "An occurrence that cancels the previous chain asks it to stop, and starts when it has closed.",
            ["design 15"],
            [Need::Hints],
            overlap_cancel
        ),
        behavior!(
            "schedules.key_held",
            "An occurrence whose key is held is skipped and counted.",
            ["design 15"],
            key_held
        ),
        behavior!(
            "schedules.declared",
            "An unchanged declaration changes nothing: the schedule stays paused, and keeps its times and its history.",
            ["design 15"],
            declared
        ),
        behavior!(
            "schedules.last_success",
            "A handler learns its planned time and the latest occurrence that succeeded.",
            ["design 15"],
            last_success
        ),
        behavior!(
            "schedules.hinted",
            "A new schedule wakes a worker of another process.",
            ["design 15"],
            [Need::Hints],
            hinted
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![behavior!(
        "schedules.rolled_back",
        "A schedule that is put in a transaction exists once the transaction has committed.",
        ["design 15"],
        rolled_back
    )]
}

job!(Tick { text: String } -> ());
job!(Report {} -> ());

fn tick() -> Tick {
    Tick { text: "tick".to_owned() }
}

/// An interval that a busy machine can keep up with.
const INTERVAL: Duration = Duration::from_millis(100);

fn every() -> ScheduleSpec {
    Every::new(INTERVAL).unwrap()
}

/// Adds the planned time of each run.
async fn note(job: Ctx<Tick>, Data(lines): Data<Lines>) -> Result<()> {
    let occurrence = job.occurrence().ok_or("the chain was not started by a schedule")?;
    lines.add(occurrence.at.to_string());
    Ok(())
}

async fn get<S: Store>(client: &Client<S>, name: &str) -> Schedule {
    client.schedules().get(name).await.unwrap().expect("the schedule is stored")
}

async fn details<S: Store>(client: &Client<S>, name: &str) -> ScheduleDetails {
    get(client, name).await.details.expect("the schedule can be read")
}

/// Waits until the schedule satisfies the condition.
async fn until<S: Store>(
    scene: &Scene<S>,
    what: &str,
    is_so: impl Fn(&ScheduleDetails) -> bool + Send + Sync,
) {
    scene
        .soon(what, async {
            while !is_so(&details(&scene.client, "a").await) {
                tokio::time::sleep(POLL).await;
            }
        })
        .await;
}

/// Asserts that no occurrence ran twice.
fn assert_once_each(lines: &Lines) {
    let lines = lines.all();
    let times: BTreeSet<_> = lines.iter().collect();
    assert_eq!(times.len(), lines.len(), "an occurrence ran twice: {lines:?}");
}

/// Returns the planned times of the chains that schedules have started, in order.
async fn started<S: Store>(scene: &Scene<S>) -> Vec<Timestamp> {
    let page = Page { max: 1_000, ..Page::default() };
    let request = ListChains { page, ..ListChains::default() };
    let chains = scene.client.list_chains(request).await.unwrap().chains;
    let mut times: Vec<_> = chains.iter().filter_map(|chain| Some(chain.id.occurrence()?.at)).collect();
    times.sort_unstable();
    times
}

/// Deletes the schedule, and asserts that every occurrence from `anchor` to the last one that was started has started one
/// chain. However long a step takes, an occurrence is started after all former ones, because none counts as missed within the
/// grace time.
async fn assert_all_started<S: Store>(scene: &Scene<S>, anchor: Timestamp) -> Vec<Timestamp> {
    scene.client.schedules().delete("a").await.unwrap();
    let started = started(scene).await;
    let expected: Vec<_> = (1..).map(|count| anchor + count * INTERVAL).take(started.len()).collect();
    assert_eq!(started, expected, "an occurrence is missing, or has started two chains");
    started
}

/// The same, and waits until every chain has run. Asserts that each has run once.
async fn assert_all_once<S: Store>(scene: &Scene<S>, lines: &Lines, anchor: Timestamp) {
    let started = assert_all_started(scene, anchor).await;
    scene.until("every chain has run", || lines.all().len() >= started.len()).await;
    let mut lines = lines.all();
    lines.sort_unstable();
    assert_eq!(lines, started.iter().map(ToString::to_string).collect::<Vec<_>>());
}

async fn once_each<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let workers = [
        scene.worker().data(lines.clone()).handle(note).start().await.unwrap(),
        scene.other_worker().data(lines.clone()).handle(note).start().await.unwrap(),
    ];
    scene.client.schedules().put("a", every().overlap(Overlap::Allow), tick()).await.unwrap();
    let anchor = details(&scene.client, "a").await.created_at;
    scene.until("eight occurrences have run", || lines.all().len() >= 8).await;
    assert_all_once(&scene, &lines, anchor).await;
    scene.stop(workers).await;
}

async fn lost_reply<S: Store>(scene: Scene<S>) {
    let faulty = Faulty::new(&scene.store);
    let client = scene.client_on(faulty.clone());
    scene.client.schedules().put("a", every().overlap(Overlap::Allow), tick()).await.unwrap();
    let anchor = details(&scene.client, "a").await.created_at;
    // The worker handles another type. So its changes of the schedule start occurrences, and do not record outcomes.
    let other = |_: Ctx<Report>| async { Ok::<_, BoxError>(()) };
    let worker = Worker::new(&client).poll(POLL).handle(other).start().await.unwrap();
    for round in 1..=4 {
        faulty.fault(&["change_schedules"], Fault::LosesReply, 1);
        let runs = 2 * round;
        until(&scene, "occurrences have started", |details| details.runs.len() >= runs).await;
        scene.until("a reply was lost", || faulty.failures() >= round).await;
    }
    assert_all_started(&scene, anchor).await;
    scene.stop([worker]).await;
}

async fn suspended<S: Store>(scene: Scene<S>) {
    let (lines, faulty) = (Lines::default(), Faulty::new(&scene.store));
    let client = scene.client_on(faulty.clone());
    let hold = faulty.hold("change_schedules");
    let stuck = Worker::new(&client).poll(POLL).data(lines.clone()).handle(note).start().await.unwrap();
    scene.client.schedules().put("a", every().overlap(Overlap::Allow), tick()).await.unwrap();
    let anchor = details(&scene.client, "a").await.created_at;
    scene.soon("a worker starts an occurrence", hold.begun()).await;
    let other = scene.other_worker().data(lines.clone()).handle(note).start().await.unwrap();
    scene.until("another worker has started it", || lines.all().len() >= 3).await;
    hold.let_go();
    let seen = lines.all().len();
    scene.until("both continue", || lines.all().len() >= seen + 3).await;
    assert_all_once(&scene, &lines, anchor).await;
    scene.stop([other]).await;
    scene.stop([stuck]).await;
}

async fn not_early<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    scene
        .client
        .schedules()
        .put("far", Every::new(Duration::from_secs(90_000)).unwrap(), tick())
        .await
        .unwrap();
    let now = get(&scene.client, "far").await.now;
    let later = now + Duration::from_secs(10 * 60);
    scene.client.schedules().put("later", Once::at(later), tick()).await.unwrap();
    scene.client.schedules().put("now", Once::at(now), tick()).await.unwrap();
    let worker = scene.worker().data(lines.clone()).handle(note).start().await.unwrap();
    // The first pass of a worker visits all schedules. The next one queries for those that are due.
    scene.until("the schedule that is due has run", || !lines.all().is_empty()).await;
    scene.client.schedules().put("again", Once::at(now), tick()).await.unwrap();
    scene.until("the schedule that is due has run", || lines.all().len() >= 2).await;
    assert_eq!(lines.all(), [now.to_string(), now.to_string()]);
    let later = get(&scene.client, "later").await;
    assert_eq!((later.handled, later.details.unwrap().runs), (None, Vec::new()));
    scene.stop([worker]).await;
}

async fn deleted_chain<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let worker = scene.worker().data(lines.clone()).handle(note).start().await.unwrap();
    let past = Timestamp::from_millis(1_000).unwrap();
    scene.client.schedules().put("a", Once::at(past), tick()).await.unwrap();
    until(&scene, "the run has completed", |details| details.last_success == Some(past)).await;
    let chain = details(&scene.client, "a").await.runs[0].chain;
    scene.client.delete(vec![chain.into()]).await.unwrap();
    scene.client.schedules().put("a", Once::at(past), Tick { text: "edited".to_owned() }).await.unwrap();
    scene.client.schedules().put("b", Once::at(past), tick()).await.unwrap();
    scene.until("the other schedule has run", || lines.all().len() >= 2).await;
    scene.stop([worker]).await;
    assert_eq!(lines.all().len(), 2);
    assert_eq!(details(&scene.client, "a").await.runs.len(), 1);
}

async fn created_again<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let worker = scene.worker().data(lines.clone()).handle(note).start().await.unwrap();
    let past = Timestamp::from_millis(1_000).unwrap();
    for runs in 1..=2 {
        scene.client.schedules().put("a", Once::at(past), tick()).await.unwrap();
        scene.until("it has run", || lines.all().len() >= runs).await;
        assert!(scene.client.schedules().delete("a").await.unwrap());
    }
    assert!(!scene.client.schedules().delete("a").await.unwrap());
    scene.stop([worker]).await;
    assert_eq!(lines.all(), [past.to_string(), past.to_string()]);
}

async fn paused<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    scene.client.schedules().put("a", every().overlap(Overlap::Allow), tick()).await.unwrap();
    assert!(scene.client.schedules().pause("a").await.unwrap());
    assert!(!scene.client.schedules().pause("a").await.unwrap());
    let paused_at = details(&scene.client, "a").await.paused_at.unwrap();
    let worker = scene.worker().data(lines.clone()).handle(note).start().await.unwrap();
    let since = get(&scene.client, "a").await.now;
    scene.past(since + 4 * INTERVAL).await;
    assert_eq!(lines.all(), Vec::<String>::new());
    assert!(started(&scene).await.is_empty());
    assert!(details(&scene.client, "a").await.next.is_empty());
    assert!(scene.client.schedules().resume("a").await.unwrap());
    let resumed = get(&scene.client, "a").await.now;
    // A slow machine takes longer than the interval to pause the schedule. Then the newest occurrence from before the pause
    // starts, too.
    let later = |at: &Timestamp| *at > paused_at;
    until(&scene, "an occurrence after the pause has started", |details| {
        details.runs.iter().any(|run| later(&run.at))
    })
    .await;
    scene.client.schedules().pause("a").await.unwrap();
    scene.until("it has run", || lines.all().iter().any(|at| *at > paused_at.to_string())).await;
    scene.stop([worker]).await;
    let started = started(&scene).await;
    let first = started.iter().copied().find(later).unwrap();
    assert!(first >= since + 4 * INTERVAL, "dropped occurrences do not start: {started:?}");
    assert!(first <= resumed + INTERVAL, "the first one after the pause starts: {started:?}");
    assert!(details(&scene.client, "a").await.paused >= 3);
}

async fn run_now<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let never = Once::at(Timestamp::from_millis(253_000_000_000_000).unwrap());
    scene.client.schedules().put("a", never, tick()).await.unwrap();
    scene.client.schedules().pause("a").await.unwrap();
    let worker = scene.worker().data(lines.clone()).handle(note).start().await.unwrap();
    let first = scene.client.schedules().run_now("a").await.unwrap();
    let second = scene.client.schedules().run_now("a").await.unwrap();
    assert_ne!(first, second);
    scene.until("both have run", || lines.all().len() == 2).await;
    until(&scene, "both outcomes are known", |details| {
        details.runs.iter().filter(|run| run.outcome == Some(RunOutcome::Completed)).count() == 2
    })
    .await;
    assert!(details(&scene.client, "a").await.runs.iter().all(|run| run.is_manual));
    scene.stop([worker]).await;
    let unknown = scene.client.schedules().run_now("b").await.unwrap_err();
    assert_eq!(unknown.kind(), windlass_core::ErrorKind::NotFound);
}

/// Notes its planned time, and waits at the gate.
async fn gated(job: Ctx<Tick>, Data(lines): Data<Lines>, Data(gate): Data<Gate>) -> Result<()> {
    lines.add(job.occurrence().ok_or("no occurrence")?.at.to_string());
    tokio::select! {
        () = gate.pass() => Ok(()),
        _ = job.aborted().wait() => Err("asked to stop".into()),
    }
}

async fn overlap_wait<S: Store>(scene: Scene<S>) {
    let (lines, gate) = (Lines::default(), Gate::new());
    let worker = scene.worker().concurrency(4).data(lines.clone()).data(gate.clone()).handle(gated);
    let worker = worker.start().await.unwrap();
    scene.client.schedules().put("a", every().overlap(Overlap::Wait), tick()).await.unwrap();
    scene.until("the first one runs", || !lines.all().is_empty()).await;
    until(&scene, "one waits and others are skipped", |details| {
        details.waiting.is_some() && details.overlapped > 1
    })
    .await;
    assert_eq!(lines.all().len(), 1);
    let waiting = details(&scene.client, "a").await.waiting.unwrap();
    gate.open(1);
    scene.until("the waiting one runs", || lines.all().len() == 2).await;
    assert_eq!(lines.all()[1], waiting.to_string());
    scene.client.schedules().delete("a").await.unwrap();
    gate.open(10);
    scene.stop([worker]).await;
}

async fn overlap_cancel<S: Store>(scene: Scene<S>) {
    let (lines, gate) = (Lines::default(), Gate::new());
    let worker = scene.worker().concurrency(4).data(lines.clone()).data(gate.clone()).handle(gated);
    let worker = worker.start().await.unwrap();
    scene.client.schedules().put("a", every().overlap(Overlap::Cancel), tick()).await.unwrap();
    scene.until("three have run", || lines.all().len() >= 3).await;
    until(&scene, "the first was cancelled", |details| {
        details.runs.first().is_some_and(|run| run.outcome == Some(RunOutcome::Cancelled))
    })
    .await;
    scene.client.schedules().delete("a").await.unwrap();
    gate.open(10);
    scene.stop([worker]).await;
    assert_once_each(&lines);
}

async fn key_held<S: Store>(scene: Scene<S>) {
    let held = scene.client.start(tick()).key("one").await.unwrap();
    let lines = Lines::default();
    // This worker does not handle the job. A worker needs no handler to start it.
    let worker =
        scene.worker().handle(|_: Ctx<Report>| async { Ok::<_, BoxError>(()) }).start().await.unwrap();
    let job = windlass_core::plan(tick()).key("one");
    scene.client.schedules().put("a", every(), job).await.unwrap();
    until(&scene, "two are skipped", |details| details.key_held >= 2).await;
    assert_eq!(details(&scene.client, "a").await.runs, []);
    scene.client.delete(vec![held.into()]).await.unwrap();
    until(&scene, "one is started", |details| !details.runs.is_empty()).await;
    scene.stop([worker]).await;
    assert_eq!(lines.all(), Vec::<String>::new());
}

async fn declared<S: Store>(scene: Scene<S>) {
    let lines = Lines::default();
    let declare = |spec: ScheduleSpec| {
        let worker = scene.worker().program("app").data(lines.clone()).handle(note);
        worker.schedule("a", spec, tick())
    };
    let worker = declare(every()).start().await.unwrap();
    scene.until("it has run", || lines.all().len() >= 2).await;
    scene.client.schedules().pause("a").await.unwrap();
    scene.stop([worker]).await;
    let before = get(&scene.client, "a").await;
    let worker = declare(every()).start().await.unwrap();
    let now = get(&scene.client, "a").await.now;
    scene.past(now + 2 * INTERVAL).await;
    scene.stop([worker]).await;
    let after = get(&scene.client, "a").await;
    assert_eq!((before.id, before.handled), (after.id, after.handled));
    let (before, after) = (before.details.unwrap(), after.details.unwrap());
    assert_eq!((before.paused_at, before.spec), (after.paused_at, after.spec));
    assert_eq!((before.runs.len(), after.program.as_deref()), (after.runs.len(), Some("app")));

    let other = Every::new(2 * INTERVAL).unwrap();
    let worker = declare(other.clone()).start().await.unwrap();
    let is_other = |details: &ScheduleDetails| details.spec.describe() == other.describe();
    until(&scene, "new content is applied", is_other).await;
    scene.stop([worker]).await;
    assert!(details(&scene.client, "a").await.paused_at.is_some());
    let worker = declare(every()).start().await.unwrap();
    until(&scene, "superseded content is refused", |details| details.refused_program.is_some()).await;
    scene.stop([worker]).await;
    let refused = details(&scene.client, "a").await;
    assert_eq!(refused.spec.describe(), other.describe(), "superseded content does not return by itself");
    assert_eq!(refused.refused_program.as_deref(), Some("app"));
    assert!(scene.client.schedules().accept("a").await.unwrap());
    assert_eq!(details(&scene.client, "a").await.spec.describe(), every().describe());
}

async fn last_success<S: Store>(scene: Scene<S>) {
    async fn since(job: Ctx<Tick>, Data(lines): Data<Lines>) -> Result<()> {
        let planned = job.occurrence().ok_or("no occurrence")?.at;
        let last = job.last_success().await?.map(|last| last.to_string()).unwrap_or_default();
        lines.add(format!("{last} -> {planned}"));
        Ok(())
    }
    let lines = Lines::default();
    let worker = scene.worker().data(lines.clone()).handle(since).start().await.unwrap();
    scene.client.schedules().put("a", Every::new(3 * INTERVAL).unwrap(), tick()).await.unwrap();
    scene.until("three have run", || lines.all().len() >= 3).await;
    // Not deleted: a fourth run that has begun could not learn of the third one.
    scene.client.schedules().pause("a").await.unwrap();
    scene.stop([worker]).await;
    let lines = lines.all();
    assert!(lines[0].starts_with(" -> "), "{lines:?}");
    for (former, line) in lines.iter().zip(&lines[1..]) {
        let planned = former.split(" -> ").nth(1).unwrap();
        assert!(line.starts_with(planned), "{lines:?}");
    }
}

async fn hinted<S: Store>(scene: Scene<S>) {
    scene.connect().await;
    let lines = Lines::default();
    let worker = Worker::new(&scene.other).data(lines.clone()).handle(note).start().await.unwrap();
    // The worker polls rarely. If it has just queried the store, only a hint wakes it in time for all of these.
    for runs in 1..=3 {
        let now = get_now(&scene).await;
        let name = format!("hinted {runs}");
        scene.client.schedules().put(&name, Once::at(now), tick()).await.unwrap();
        scene.until("it has run", || lines.all().len() >= runs).await;
    }
    scene.stop([worker]).await;
    assert_eq!(lines.all().len(), 3);
}

/// Returns the store's time.
async fn get_now<S: Store>(scene: &Scene<S>) -> Timestamp {
    let reply = scene.store.due_schedules(windlass_core::command::DueSchedules { skip: 0, max: 1 }).await;
    reply.unwrap().now
}

async fn rolled_back<S: Transactional>(scene: Scene<S>) {
    let past = Timestamp::from_millis(1_000).unwrap();
    for commits in [false, true] {
        let mut tx = scene.client.begin().await.unwrap();
        tx.schedules().put("a", Once::at(past), tick()).await.unwrap();
        assert!(tx.schedules().get("a").await.unwrap().is_some());
        assert!(scene.other.schedules().get("a").await.unwrap().is_none());
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!(scene.other.schedules().get("a").await.unwrap().is_some(), commits);
    }
    let lines = Lines::default();
    let worker = scene.worker().data(lines.clone()).handle(note).start().await.unwrap();
    scene.until("it has run", || lines.all().len() == 1).await;
    scene.stop([worker]).await;
}
