//! Declarations, pauses, edits and manual runs of schedules, on a store on which others interfere.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    CancelMode, ChainFilter, ChangeSchedules, Command, ListChains, Page, PutSchedule, Reply, ScheduleAction,
    ScheduleChange, ScheduleChanged,
};
use windlass_core::schedule::{
    Cron, Every, MissedRuns, Once, Overlap, RunOutcome, ScheduleDetails, ScheduleName,
};
use windlass_core::{
    BoxFuture, ChainId, Client, Clock, Ctx, Decorator, Entry, Error, ErrorKind, Job, ManualClock,
    MemoryStore, Millis, RequestId, Result, ScheduleId, Store, Worker, plan,
};

#[derive(Serialize, Deserialize)]
struct Tick(String);

impl Job for Tick {
    const NAME: &'static str = "tick";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Tick {}

async fn tick(_: Ctx<Tick>) -> Result<(), windlass_core::BoxError> {
    Ok(())
}

fn job() -> Tick {
    Tick(String::new())
}

/// What happens at the next change, once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Normal,
    /// The reply is lost.
    LoseReply,
    /// The reply is lost, and others change the schedule before the repeat.
    LoseReplyAndChange,
    /// Before the change, others delete the schedule and create it again.
    CreateAgain,
    /// A transaction has locked the schedule `a`, and ends after the change: `a` is deleted. Meanwhile, a minute passes.
    Lock,
    /// Queries for due schedules fail, always.
    NoDue,
    /// The process is suspended for ten minutes before the change reaches the store.
    Suspend,
    /// Before the change, others change the schedule.
    Change,
}

#[derive(Debug)]
struct Staged {
    inner: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    stage: Mutex<Stage>,
}

impl Staged {
    fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap() = stage;
    }

    fn others(&self) -> Client<MemoryStore> {
        Client::new(Arc::clone(&self.inner))
    }

    async fn change(&self, mut request: ChangeSchedules) -> Result<Reply> {
        let stage = std::mem::take(&mut *self.stage.lock().unwrap());
        let lost = || Err(Error::new(ErrorKind::Unavailable, "the reply is lost"));
        if stage == Stage::CreateAgain {
            self.others().schedules().delete("a").await?;
            self.others().schedules().put("a", Cron::new("@daily")?, job()).await?;
        }
        if stage == Stage::Change {
            self.others().schedules().pause("a").await?;
            self.others().schedules().resume("a").await?;
        }
        if stage == Stage::Suspend {
            self.clock.advance(Millis::from_secs(600));
        }
        let is_locked = |change: &ScheduleChange| stage == Stage::Lock && change.name.as_str() == "a";
        let places: Vec<_> = request.changes.iter().map(is_locked).collect();
        request.changes.retain(|change| !is_locked(change));
        let mut reply = self.inner.change_schedules(request).await?;
        for (place, _) in places.iter().enumerate().filter(|(_, is_locked)| **is_locked) {
            reply.changes.insert(place, ScheduleChanged::Busy);
        }
        match stage {
            Stage::LoseReply => return lost(),
            Stage::LoseReplyAndChange => {
                self.others().schedules().pause("a").await?;
                self.others().schedules().resume("a").await?;
                return lost();
            }
            Stage::Lock => {
                self.others().schedules().delete("a").await?;
                self.clock.advance(Millis::from_secs(60));
            }
            _ => {}
        }
        Ok(Reply::ChangeSchedules(reply))
    }
}

impl Decorator for Staged {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            let is_blind = *self.stage.lock().unwrap() == Stage::NoDue;
            match command {
                Command::ChangeSchedules(request) => self.change(request).await,
                Command::DueSchedules(_) if is_blind => Err(Error::new(ErrorKind::Corrupt, "a fault")),
                command => self.forward(command).await,
            }
        })
    }
}

fn staged() -> (Client<Staged>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let inner = Arc::new(MemoryStore::with_clock(Arc::<ManualClock>::clone(&clock)));
    let stage = Mutex::default();
    (Client::new(Staged { inner, clock: Arc::clone(&clock), stage }), clock)
}

async fn chains(client: &Client<Staged>) -> Vec<ChainId> {
    let request = ListChains { filter: ChainFilter::default(), page: Page { max: 1_000, ..Page::default() } };
    let reply = client.store().list_chains(request).await.unwrap();
    reply.chains.iter().map(|chain| chain.id).collect()
}

async fn details(client: &Client<Staged>, name: &str) -> ScheduleDetails {
    client.schedules().get(name).await.unwrap().unwrap().details.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_declared_single_time_does_not_start_again() {
    let (client, clock) = staged();
    let once = Once::at(clock.now() + Duration::from_secs(10));
    let declare = || async {
        let worker = Worker::new(&client).handle(tick).schedule("a", once.clone(), job());
        worker.start().await.unwrap().stop(Duration::from_secs(1)).await;
    };
    declare().await;
    clock.advance(Millis::from_secs(10));
    client.visit_schedules().await.unwrap();
    assert_eq!(chains(&client).await.len(), 1);
    assert!(client.schedules().delete("a").await.unwrap());
    clock.advance(Millis::from_days(1));
    declare().await;
    assert_eq!(client.schedules().get("a").await.unwrap(), None);
    client.visit_schedules().await.unwrap();
    assert_eq!(chains(&client).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_declaration_that_fails_does_not_stop_the_others() {
    let (client, clock) = staged();
    let put = PutSchedule {
        due_at: None,
        handled: None,
        definition: Some("{}".into()),
        state: "{}".into(),
        chain: None,
        state_if_not_created: "{}".into(),
    };
    let newer = ScheduleChange {
        name: ScheduleName::new("newer").unwrap(),
        id: ScheduleId::new(),
        expected: None,
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(put),
    };
    client.store().change_schedules(ChangeSchedules { changes: vec![newer] }).await.unwrap();
    let every = Every::new(Duration::from_secs(1)).unwrap();
    let worker = Worker::new(&client)
        .handle(tick)
        .schedule("newer", every.clone(), job())
        .schedule("other", every, job())
        .start()
        .await
        .unwrap();
    assert!(client.schedules().get("other").await.unwrap().is_some());
    clock.advance(Millis::from_secs(1));
    let started = async {
        while chains(&client).await.is_empty() {
            tokio::time::advance(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), started).await.expect("the other schedule starts its job");
    worker.stop(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_declaration_that_no_store_accepts_is_refused_at_the_start() {
    let (client, _) = staged();
    let large = Tick("x".repeat(70_000));
    let worker = Worker::new(&client).handle(tick).schedule("a", Cron::new("@daily").unwrap(), large);
    let error = worker.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("the schedule `a` takes"), "{error}");
}

#[tokio::test]
async fn a_name_that_is_declared_twice_is_refused_at_the_start() {
    let (client, _) = staged();
    let daily = || Cron::new("@daily").unwrap();
    let worker =
        Worker::new(&client).handle(tick).schedule("a", daily(), job()).schedule("a", daily(), job());
    let error = worker.start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("the schedule `a` is declared twice: keep one"), "{error}");
}

#[tokio::test]
async fn a_single_time_during_a_pause_is_dropped() {
    let (client, clock) = staged();
    client.schedules().put("a", Once::at(clock.now() + Duration::from_secs(10)), job()).await.unwrap();
    client.schedules().pause("a").await.unwrap();
    clock.advance(Millis::from_secs(20));
    assert!(client.schedules().resume("a").await.unwrap());
    client.visit_schedules().await.unwrap();
    assert_eq!(chains(&client).await, []);
    let details = details(&client, "a").await;
    assert_eq!((details.paused, details.missed), (1, 0));
    assert!(details.ended_at.is_some());
}

#[tokio::test]
async fn an_occurrence_before_a_pause_or_an_edit_is_kept() {
    let (client, clock) = staged();
    let minute = Duration::from_secs(60);
    let due = clock.now() + minute * 2;
    client.schedules().put("a", Every::new(minute).unwrap(), job()).await.unwrap();
    // No worker runs. Two occurrences are due before the pause, and five during the pause.
    clock.advance(Millis::from_secs(125));
    client.schedules().pause("a").await.unwrap();
    clock.advance(Millis::from_secs(300));
    client.schedules().resume("a").await.unwrap();
    client.visit_schedules().await.unwrap();
    let details = self::details(&client, "a").await;
    assert_eq!((details.paused, details.missed, details.waiting), (5, 1, None));
    assert_eq!(details.runs.iter().map(|run| run.at).collect::<Vec<_>>(), [due]);

    let edited = clock.now() + minute;
    client.schedules().put("b", Every::new(minute).unwrap(), job()).await.unwrap();
    clock.advance(Millis::from_secs(61));
    client.schedules().put("b", Cron::new("@yearly").unwrap(), job()).await.unwrap();
    client.visit_schedules().await.unwrap();
    let details = self::details(&client, "b").await;
    assert_eq!(details.runs.iter().map(|run| run.at).collect::<Vec<_>>(), [edited]);
    assert_eq!(details.missed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_manual_run_starts_once_after_a_lost_reply() {
    for stage in [Stage::LoseReply, Stage::LoseReplyAndChange] {
        let (client, _) = staged();
        client.schedules().put("a", Cron::new("@yearly").unwrap(), job()).await.unwrap();
        client.store().set(stage);
        let chain = client.schedules().run_now("a").await.unwrap();
        assert_eq!(chains(&client).await, [chain], "{stage:?}");
        let again = client.schedules().run_now("a").await.unwrap();
        assert_ne!(again, chain);
    }
    // Another chain holds the key.
    let (client, _) = staged();
    let held = client.start(job()).key("k").await.unwrap();
    client.schedules().put("a", Cron::new("@yearly").unwrap(), plan(job()).key("k")).await.unwrap();
    client.store().set(Stage::LoseReply);
    assert_eq!(client.schedules().run_now("a").await.unwrap(), held.id());
    assert_eq!(chains(&client).await, [held.id()]);
}

#[tokio::test]
async fn a_deletion_leaves_a_schedule_that_was_created_after_it() {
    let (client, _) = staged();
    client.schedules().put("a", Cron::new("@yearly").unwrap(), job()).await.unwrap();
    client.store().set(Stage::CreateAgain);
    assert!(client.schedules().delete("a").await.unwrap());
    assert!(client.schedules().get("a").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn chains_expire_although_schedules_cannot_be_read() {
    let (client, clock) = staged();
    let chain = client.start(job()).await.unwrap();
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    clock.advance(Millis::from_days(100));
    client.store().set(Stage::NoDue);
    let reaper = windlass_core::Reaper::new(&client).start().await.unwrap();
    let removed = async {
        while !chains(&client).await.is_empty() {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), removed).await.expect("the chain is removed");
    reaper.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retried_run_is_noticed() {
    let (client, _) = staged();
    client.schedules().put("a", Cron::new("@yearly").unwrap(), job()).await.unwrap();
    let chain = client.schedules().run_now("a").await.unwrap();
    let outcome = async |expected: Option<RunOutcome>| {
        let changed = async {
            while details(&client, "a").await.runs[0].outcome != expected {
                tokio::time::advance(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), changed).await.expect("the outcome is recorded");
    };
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    outcome(Some(RunOutcome::Cancelled)).await;
    client.retry(chain).await.unwrap();
    outcome(None).await;
}

#[tokio::test]
async fn a_suspended_worker_does_not_start_a_missed_occurrence() {
    let (client, clock) = staged();
    let minute = Duration::from_secs(60);
    let every = Every::new(minute).unwrap().overlap(Overlap::Allow);
    let planned: Vec<_> = (1..=11).map(|count| clock.now() + minute * count).collect();
    client.schedules().put("a", every.missed(MissedRuns::Skip), job()).await.unwrap();
    clock.advance(Millis::from_secs(60));
    client.store().set(Stage::Suspend);
    client.visit_schedules().await.unwrap();
    // The first nine were missed during the suspension. The last two are due within the grace time.
    let details = details(&client, "a").await;
    assert_eq!(details.runs.iter().map(|run| run.at).collect::<Vec<_>>(), planned[9..]);
    assert_eq!((chains(&client).await.len(), details.missed), (2, 9));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_recorded_despite_a_conflict() {
    let (client, _) = staged();
    client.schedules().put("a", Cron::new("@yearly").unwrap(), job()).await.unwrap();
    let chain = client.schedules().run_now("a").await.unwrap();
    client.store().set(Stage::Change);
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    // The store's clock stands still, so no check of the schedule is due.
    let recorded = async {
        while details(&client, "a").await.runs[0].outcome != Some(RunOutcome::Cancelled) {
            tokio::time::advance(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), recorded).await.expect("the outcome is recorded");
    assert_eq!(*client.store().stage.lock().unwrap(), Stage::Normal, "others have changed the schedule");
}

#[tokio::test]
async fn a_locked_schedule_hides_no_other() {
    let (client, clock) = staged();
    // When the lock is released, `c` is due, before the next check of `b`. So it takes the place of `a` in the query.
    for (name, delay_ms) in [("a", 0), ("b", 0), ("c", 500)] {
        let at = clock.now() + Duration::from_millis(delay_ms);
        client.schedules().put(name, Once::at(at), job()).await.unwrap();
    }
    client.store().set(Stage::Lock);
    client.visit_schedules().await.unwrap();
    for name in ["b", "c"] {
        assert_eq!(details(&client, name).await.runs.len(), 1, "{name}");
    }
}
