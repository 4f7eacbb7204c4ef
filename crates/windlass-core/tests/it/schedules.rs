//! Schedules over virtual years, on a store whose calls fail, and which are visited by several processes.
//!
//! The checks are checked: stores with a defect on purpose must be noticed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use windlass_core::command::{
    ChainFilter, ChangeSchedules, Command, Create, GetChains, ListChains, Page, Reply, ScheduleAction, Target,
};
use windlass_core::schedule::{Cron, Every, MissedRuns, Once, Overlap, ScheduleSpec};
use windlass_core::{
    BoxFuture, ChainId, ChainRecord, Client, Clock, Decorator, Entry, Error, ErrorKind, Job, ManualClock,
    MemoryStore, Millis, Result, ScheduleId, Store, Timestamp,
};

#[derive(Serialize, Deserialize)]
pub(crate) struct Tick;

impl Job for Tick {
    const NAME: &'static str = "tick";
    type Output = ();
    type Next = ();
    type Blockers = ();
}

impl Entry for Tick {}

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    /// After a lost reply, the occurrence is started again under another id.
    FiresTwice,
    /// A worker that is suspended writes the row, but not the chain.
    LosesOccurrence,
}

/// A store as one process sees it: some calls fail, before or after they take effect.
#[derive(Debug)]
struct Process {
    inner: Arc<MemoryStore>,
    bad: Option<Bad>,
    /// How many of a hundred calls fail.
    faults: u32,
    rng: Mutex<Rng>,
}

impl Process {
    fn percent(&self, chance: u32) -> bool {
        self.rng.lock().unwrap().u32(..100) < chance
    }

    async fn distort(&self, command: &mut Command) -> Result<()> {
        let Command::ChangeSchedules(ChangeSchedules { changes }) = command else { return Ok(()) };
        for change in changes {
            let ScheduleAction::Put(put) = &mut change.action else { continue };
            if self.bad == Some(Bad::LosesOccurrence) && self.percent(5) {
                put.chain = None;
            }
            if self.bad == Some(Bad::FiresTwice)
                && self.percent(5)
                && let Some(mut chain) = put.chain.clone()
            {
                chain.id = ChainId::new();
                self.inner.create(Create { chains: vec![chain] }).await?;
            }
        }
        Ok(())
    }
}

impl Decorator for Process {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, mut command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            let lost = || Err(Error::new(ErrorKind::Corrupt, "a fault of the simulation"));
            if self.percent(self.faults / 2) {
                return lost();
            }
            self.distort(&mut command).await?;
            let reply = self.forward(command).await?;
            if self.percent(self.faults / 2) {
                return lost();
            }
            Ok(reply)
        })
    }
}

struct Simulation {
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    processes: Vec<Client<Process>>,
    rng: Rng,
    specs: BTreeMap<ScheduleId, (ScheduleSpec, Timestamp)>,
}

impl Simulation {
    async fn new(seed: u64, bad: Option<Bad>, specs: Vec<ScheduleSpec>) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_790_000_000_123).unwrap()));
        let store = Arc::new(MemoryStore::with_clock(Arc::<ManualClock>::clone(&clock)));
        let mut rng = Rng::with_seed(seed);
        let processes = (0..3).map(|_| {
            let rng = Mutex::new(rng.fork());
            Client::new(Process { inner: Arc::clone(&store), bad, faults: 20, rng })
        });
        let processes = processes.collect();
        let (mut known, client) = (BTreeMap::new(), Client::<MemoryStore>::new(Arc::clone(&store)));
        for (number, spec) in specs.into_iter().enumerate() {
            let name = format!("schedule {number}");
            client.schedules().put(&name, spec.clone(), Tick).await.unwrap();
            let schedule = client.schedules().get(&name).await.unwrap().unwrap();
            known.insert(schedule.id, (schedule.details.unwrap().spec, clock.now()));
        }
        Self { store, clock, processes, rng, specs: known }
    }

    /// Advances the clock to `end` in steps. After each, random processes visit the schedules. Their calls may fail.
    async fn run(&mut self, end: Timestamp, step: Duration) {
        while self.clock.now() < end {
            let by = u64::try_from(step.as_millis()).unwrap();
            self.clock.advance(Millis::new(self.rng.u64(1..=by)).unwrap());
            for _ in 0..self.rng.usize(..3) {
                let process = self.rng.choice(&self.processes).unwrap();
                // A pass that fails is repeated by the next one.
                let _ = process.visit_schedules().await;
            }
        }
        let healthy = Client::<MemoryStore>::new(Arc::clone(&self.store));
        // A pass is bounded, and the faults have left many occurrences.
        for _ in 0..30 {
            healthy.visit_schedules().await.unwrap();
        }
    }

    async fn chains(&self) -> Vec<ChainRecord> {
        let filter = ChainFilter::default();
        let mut request = ListChains { filter, page: Page { max: 1_000, ..Page::default() } };
        let mut chains = Vec::new();
        loop {
            let reply = self.store.list_chains(request.clone()).await.unwrap();
            chains.extend(reply.chains);
            match reply.next {
                Some(next) => request.page.after = Some(next),
                None => return chains,
            }
        }
    }

    /// Returns what is wrong with the started chains: every occurrence must have started one, and not early.
    async fn problem(&self) -> Option<String> {
        let mut started: BTreeMap<ScheduleId, Vec<Timestamp>> = BTreeMap::new();
        for chain in self.chains().await {
            let Some(occurrence) = chain.id.occurrence() else {
                return Some(format!("{} was not started for an occurrence", chain.id));
            };
            if chain.created_at < occurrence.at {
                return Some(format!("{occurrence:?} was started early, at {}", chain.created_at));
            }
            started.entry(occurrence.schedule).or_default().push(occurrence.at);
        }
        for (id, (spec, since)) in &self.specs {
            let mut started = started.remove(id).unwrap_or_default();
            started.sort_unstable();
            let mut expected = spec.upcoming(*since, started.len() + 1).unwrap();
            expected.retain(|at| *at <= self.clock.now());
            if started != expected {
                let difference = started.iter().zip(&expected).find(|(one, other)| one != other);
                let (has, wants) = (started.len(), expected.len());
                return Some(format!(
                    "{}: {has} of {wants}, first difference {difference:?}",
                    spec.describe()
                ));
            }
        }
        None
    }
}

/// Every occurrence is started, however late: so the expected set is known.
fn all(spec: ScheduleSpec) -> ScheduleSpec {
    spec.overlap(Overlap::Allow).grace(Duration::from_secs(50 * 366 * 24 * 60 * 60)).missed(MissedRuns::Skip)
}

fn calendar() -> Vec<ScheduleSpec> {
    let zones = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];
    let daily = zones.map(|zone| Cron::new("30 2 * * *").unwrap().in_zone(zone));
    let quarters = zones.map(|zone| Cron::new("0 */6 * * *").unwrap().in_zone(zone));
    let others = [Cron::new("0 9 L * *").unwrap(), Every::new(Duration::from_secs(100_000)).unwrap()];
    daily.into_iter().chain(quarters).chain(others).map(all).collect()
}

#[tokio::test]
async fn every_occurrence_of_two_years_starts_once() {
    for seed in 0..2 {
        let mut simulation = Simulation::new(seed, None, calendar()).await;
        let end = simulation.clock.now() + Duration::from_secs(2 * 365 * 24 * 60 * 60);
        simulation.run(end, Duration::from_secs(2 * 24 * 60 * 60)).await;
        assert_eq!(simulation.problem().await, None, "seed {seed}");
        assert!(simulation.chains().await.len() > 10_000);
    }
}

#[tokio::test]
async fn defects_are_noticed() {
    for bad in [Bad::FiresTwice, Bad::LosesOccurrence] {
        let often = vec![all(Cron::new("*/10 * * * *").unwrap())];
        let mut simulation = Simulation::new(7, Some(bad), often).await;
        let end = simulation.clock.now() + Duration::from_secs(7 * 24 * 60 * 60);
        simulation.run(end, Duration::from_secs(3 * 60 * 60)).await;
        assert!(simulation.problem().await.is_some(), "{bad:?} was not noticed");
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_starts_nothing_twice() {
    let mut simulation =
        Simulation::new(1, None, vec![all(Every::new(Duration::from_secs(60)).unwrap())]).await;
    let begin = simulation.clock.now();
    simulation.run(begin + Duration::from_secs(3_600), Duration::from_secs(60)).await;
    let before = simulation.chains().await.len();
    simulation.clock.set(begin + Duration::from_secs(600));
    simulation.run(begin + Duration::from_secs(3_000), Duration::from_secs(60)).await;
    assert_eq!(simulation.chains().await.len(), before);
    simulation.run(begin + Duration::from_secs(7_200), Duration::from_secs(60)).await;
    assert_eq!(simulation.problem().await, None);
}

#[tokio::test(start_paused = true)]
async fn outcomes_outlive_their_chains() {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::with_clock(Arc::<ManualClock>::clone(&clock));
    let client = Client::new(store);
    let past = Timestamp::from_millis(0).unwrap();
    let keeps = Once::at(past).retention(Duration::from_secs(365 * 24 * 60 * 60));
    let brief = windlass_core::Retention::all(Duration::from_secs(600));
    client.schedules().put("a", keeps, windlass_core::plan(Tick).retention(brief)).await.unwrap();
    client.visit_schedules().await.unwrap();
    let chain = client.schedules().get("a").await.unwrap().unwrap().details.unwrap().runs[0].chain;
    // Closed by a process that ends before it records the outcome.
    let store = client.store();
    let record = store
        .get_chains(GetChains { chains: vec![Target::Chain(chain)] })
        .await
        .unwrap()
        .chains
        .remove(0)
        .unwrap();
    let step = windlass_core::command::Step::Complete {
        output: windlass_core::Payload::json("null").unwrap(),
        retention: None,
        create: Vec::new(),
    };
    let outside = windlass_core::command::CompleteFromOutside {
        request: windlass_core::RequestId::new(),
        job: record.latest.id,
        version: record.latest.version,
        steps: vec![step],
    };
    store.complete_from_outside(outside).await.unwrap();
    // Nobody visits it for days. Then a reaper removes expired chains, and visits it first.
    clock.advance(Millis::from_days(3));
    let reaper = windlass_core::Reaper::new(&client).start().await.unwrap();
    let removed = async {
        while client
            .store()
            .get_chains(GetChains { chains: vec![Target::Chain(chain)] })
            .await
            .unwrap()
            .chains[0]
            .is_some()
        {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), removed).await.expect("the chain is removed");
    reaper.stop().await;
    let details = client.schedules().get("a").await.unwrap().unwrap().details.unwrap();
    assert_eq!(details.last_success, Some(past));
    assert_eq!(details.runs[0].outcome, Some(windlass_core::schedule::RunOutcome::Completed));
}

/// A store that counts the commands that concern schedules.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    inner: MemoryStore,
    commands: Mutex<BTreeMap<&'static str, Vec<usize>>>,
}

impl Counted {
    pub(crate) fn clear(&self) {
        self.commands.lock().unwrap().clear();
    }

    /// Returns the number of calls, and the largest number of items in one.
    pub(crate) fn calls(&self, name: &str) -> (usize, usize) {
        let commands = self.commands.lock().unwrap();
        let sizes = commands.get(name).map(Vec::as_slice).unwrap_or_default();
        (sizes.len(), sizes.iter().copied().max().unwrap_or(0))
    }
}

impl Decorator for Counted {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        let items = if let Command::ChangeSchedules(request) = &command { request.changes.len() } else { 0 };
        self.commands.lock().unwrap().entry(command.name()).or_default().push(items);
        self.forward(command)
    }
}

pub(crate) async fn tick(_: windlass_core::Ctx<Tick>) -> Result<(), windlass_core::BoxError> {
    Ok(())
}

pub(crate) async fn with_schedules(spec: &ScheduleSpec, count: usize) -> Client<Counted> {
    let clock = Arc::new(crate::faults::RuntimeClock::default());
    let store = Counted { inner: MemoryStore::with_clock(clock), ..Counted::default() };
    let client = Client::new(store);
    for number in 0..count {
        client.schedules().put(format!("schedule {number}"), spec.clone(), Tick).await.unwrap();
    }
    client.store().commands.lock().unwrap().clear();
    client
}

#[tokio::test(start_paused = true)]
async fn idle_schedules_cost_less_than_a_call_per_second() {
    let client = with_schedules(&Cron::new("@yearly").unwrap(), 10_000).await;
    let worker = windlass_core::Worker::new(&client).handle(tick).start().await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    // The first pass reads all of them.
    while client.store().calls("due_schedules").0 == 0 {
        tokio::task::yield_now().await;
    }
    client.store().commands.lock().unwrap().clear();
    for _ in 0..600 {
        tokio::time::advance(Duration::from_millis(100)).await;
        tokio::task::yield_now().await;
    }
    let calls = ["due_schedules", "list_schedules", "get_schedules", "change_schedules", "get_chains"]
        .map(|name| client.store().calls(name).0);
    assert!((5..60).contains(&calls.iter().sum::<usize>()), "{calls:?} in a minute");
    worker.stop(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn many_declarations_take_few_commands() {
    let client = Client::new(Counted::default());
    for (round, changes) in [(1, 3), (2, 0)] {
        let mut worker = windlass_core::Worker::new(&client).handle(tick);
        for number in 0..250 {
            worker = worker.schedule(format!("schedule {number}"), Cron::new("@yearly").unwrap(), Tick);
        }
        worker.start().await.unwrap().stop(Duration::from_secs(1)).await;
        assert_eq!(client.schedules().list().await.unwrap().len(), 250);
        let (reads, writes) =
            (client.store().calls("get_schedules"), client.store().calls("change_schedules"));
        assert_eq!((reads.0, writes.0), (3, changes), "round {round}");
        client.store().commands.lock().unwrap().clear();
    }
}

#[tokio::test(start_paused = true)]
async fn many_due_schedules_start_in_bounded_commands() {
    let past = Timestamp::from_millis(1_000).unwrap();
    let client = with_schedules(&Once::at(past), 10_000).await;
    client.visit_schedules().await.unwrap();
    let (calls, most) = client.store().calls("change_schedules");
    assert!(calls <= 101 && most <= 100, "{calls} commands with up to {most} items");
    let (calls, _) = client.store().calls("due_schedules");
    assert!(calls <= 102, "{calls} queries");
}

#[tokio::test(start_paused = true)]
async fn a_due_schedule_starts_in_time() {
    let client = with_schedules(&Every::new(Duration::from_millis(1_700)).unwrap(), 3).await;
    let worker = windlass_core::Worker::new(&client).handle(tick).start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await; // tidy: virtual time
    worker.stop(Duration::from_secs(1)).await;
    let mut runs = 0;
    for schedule in client.schedules().list().await.unwrap() {
        for run in schedule.details.unwrap().runs {
            assert!(run.started_at.since(run.at) <= Duration::from_millis(100), "{run:?}");
            runs += 1;
        }
    }
    assert_eq!(runs, 60, "the last 20 runs of each");
}
