//! Measures schedules on a store: how soon they start, what they cost while none is due, and how fast many start at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass_core::command::{
    Acquire, ChainFilter, ChangeSchedules, Command, DueSchedules, GetSchedules, ListChains, Page,
    PutSchedule, Quota, Reply, ScheduleAction, ScheduleChange, ScheduleChanged, ScheduleTarget,
};
use windlass_core::schedule::{Cron, Every, Once, Overlap, ScheduleName, ScheduleSpec};
use windlass_core::{
    BoxFuture, ChainRecord, Client, Decorator, Job, Millis, RequestId, Result, ScheduleId, Store, Timestamp,
    TypeName, Worker, WorkerId,
};

use crate::crash::{Tick, tick};
use crate::{is_full_run, print_figure, wait_until};

/// How many schedules one command creates.
const BATCH: usize = 100;
/// How long a measurement may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a measurement of time is repeated on a busy machine.
const TRIES: u32 = 5;
/// The longest time by which nearly all occurrences are late, and the longest that an acquire takes meanwhile.
const LATE: Duration = Duration::from_millis(100);
/// The longest time until many schedules have started. The bound of 5 s holds for optimized programs.
const AT_ONCE: Duration = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 5 });
/// The commands that schedules cause.
const COMMANDS: [&str; 5] =
    ["due_schedules", "list_schedules", "get_schedules", "change_schedules", "get_chains"];

/// Durations, of which percentiles are of interest.
#[derive(Clone, Debug, Default)]
struct Spread(Vec<Duration>);

impl Spread {
    fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self(durations)
    }

    /// Returns the duration that this share of them did not exceed.
    fn percentile(&self, share: f64) -> Duration {
        let at = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(at.saturating_sub(1)).copied().expect("there are durations")
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| self.percentile(share));
        write!(f, "p50 {p50:.1?}, p99 {p99:.1?}, longest {most:.1?} of {}", self.0.len())
    }
}

/// The result of [`many_at_once`].
#[derive(Clone, Debug)]
struct AtOnce {
    /// The time from the occurrence to the creation of the last chain, on the store's clock.
    took: Duration,
    /// The number of commands that started chains, and the largest number of schedules in one.
    commands: (usize, usize),
    /// How long an acquire of another type took before, and meanwhile.
    acquires: [Spread; 2],
}

impl fmt::Display for AtOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (commands, most) = self.commands;
        let [before, meanwhile] = &self.acquires;
        write!(
            f,
            "started within {:.1?}, in {commands} commands of up to {most} schedules; an acquire took {before} before, \
             and {meanwhile} meanwhile",
            self.took
        )
    }
}

/// Checks that an idle worker starts occurrences within a tenth of a second. `open` returns a new store, and what keeps it
/// open.
///
/// # Panics
///
/// Panics if it does not.
pub async fn check_lateness<G, S: Store>(name: &str, open: impl AsyncFn() -> (G, Arc<S>)) {
    let seconds = if is_full_run() { 60 } else { 5 };
    for tries in 1..=TRIES {
        let (_open, store) = open().await;
        let late = lateness(store, seconds).await;
        print_figure(name, format!("schedules start late by {late}"));
        if late.percentile(0.99) <= LATE {
            return;
        }
        assert!(tries < TRIES, "{late}");
    }
}

/// Checks that schedules that are not due cause less than one call a second.
///
/// # Panics
///
/// Panics if they cause more.
pub async fn check_idle_calls<S: Store>(name: &str, store: Arc<S>) {
    let (schedules, seconds) = if is_full_run() { (10_000, 60) } else { (1_000, 10) };
    let calls = idle_calls(store, schedules, seconds).await;
    print_figure(name, format!("{schedules} schedules that are not due: {calls:.2} calls a second"));
    assert!(calls < 1.0, "{calls}");
}

/// Checks that many schedules start at the same time, in bounded commands, without delaying an acquire.
///
/// # Panics
///
/// Panics if they do not.
pub async fn check_many_at_once<G, S: Store>(name: &str, open: impl AsyncFn() -> (G, Arc<S>)) {
    let schedules = if is_full_run() { 10_000 } else { 1_000 };
    for tries in 1..=TRIES {
        let (_open, store) = open().await;
        let at_once = many_at_once(store, schedules).await;
        print_figure(name, format!("{schedules} schedules at once: {at_once}"));
        assert!(at_once.commands.1 <= 100, "{at_once}");
        if at_once.took <= AT_ONCE && at_once.acquires[1].percentile(0.99) <= LATE {
            return;
        }
        assert!(tries < TRIES, "{at_once}");
    }
}

/// Returns how late an idle worker starts occurrences, on the store's clock: 20 schedules with an occurrence each second,
/// at different times.
async fn lateness<S: Store>(store: Arc<S>, seconds: u64) -> Spread {
    let client = Client::<S>::new(store);
    let worker = Worker::new(&client).concurrency(10).handle(tick).start().await.expect("the worker starts");
    let every = Every::new(Duration::from_secs(1)).expect("a valid interval").overlap(Overlap::Allow);
    let mut begin = Timestamp::default();
    for number in 0..20_u64 {
        let spec = every.clone().anchor(Timestamp::default() + Duration::from_millis(number * 50));
        client.schedules().put(format!("late-{number}"), spec, Tick).await.expect("the schedule is stored");
        begin = now(client.store()).await;
    }
    let end = begin + Duration::from_secs(seconds);
    let expected = 20 * usize::try_from(seconds).expect("a short time");
    let is_over =
        async || now(client.store()).await > end && late(&client, begin, end).await.len() >= expected;
    wait_until("each occurrence has started a chain", PATIENCE, is_over).await;
    for number in 0..20 {
        client.schedules().delete(format!("late-{number}")).await.expect("the schedule is deleted");
    }
    worker.stop(Duration::from_secs(30)).await;
    let late = late(&client, begin, end).await;
    assert_eq!(late.len(), expected, "each occurrence has started one chain");
    Spread::new(late)
}

/// Returns how late the chains of the occurrences in this time were created.
async fn late<S: Store>(client: &Client<S>, begin: Timestamp, end: Timestamp) -> Vec<Duration> {
    let late = |chain: &ChainRecord| {
        let at = chain.id.occurrence()?.at;
        (begin < at && at <= end).then(|| chain.created_at.since(at))
    };
    chains(client).await.iter().filter_map(late).collect()
}

/// Returns how many calls a second schedules cause that are not due.
async fn idle_calls<S: Store>(store: Arc<S>, schedules: usize, seconds: u64) -> f64 {
    let client = Client::new(Counted::new(store));
    fill(client.store(), "idle", &Cron::new("@yearly").expect("a valid expression"), schedules).await;
    let worker = Worker::new(&client).handle(tick).start().await.expect("the worker starts");
    // The first pass visits all of them.
    wait_until("the first pass is over", PATIENCE, async || client.store().calls("due_schedules").0 > 0)
        .await;
    client.store().commands().clear();
    sleep(Duration::from_secs(seconds)).await; // tidy: the calls in this time are counted
    let calls: usize = COMMANDS.iter().map(|command| client.store().calls(command).0).sum();
    worker.stop(Duration::from_secs(30)).await;
    calls as f64 / seconds as f64
}

/// Starts many schedules at the same time.
async fn many_at_once<S: Store>(store: Arc<S>, schedules: usize) -> AtOnce {
    let client = Client::new(Counted::new(store));
    // Enough time to store them, and to acquire for a while before they are due.
    let at = now(&*client.store().inner).await + Duration::from_secs(10 + schedules as u64 / 250);
    fill(client.store(), "burst", &Once::at(at), schedules).await;
    let worker = Worker::new(&client).concurrency(50).handle(tick).start().await.expect("the worker starts");
    wait_until("the first pass is over", PATIENCE, async || client.store().calls("due_schedules").0 > 0)
        .await;
    let begin = now(&*client.store().inner).await;
    assert!(begin < at, "the schedules were stored too slowly");
    let before = acquires(client.store(), async || now(&*client.store().inner).await >= at).await;
    client.store().commands().clear();
    let is_over = async || next_due(client.store()).await.is_none_or(|due| due > at);
    let meanwhile = acquires(client.store(), is_over).await;
    let commands = client.store().calls("change_schedules");
    let started = chains(&client).await;
    worker.stop(Duration::from_secs(60)).await;
    let started: Vec<_> =
        started.iter().filter(|chain| chain.id.occurrence().is_some_and(|of| of.at == at)).collect();
    assert_eq!(started.len(), schedules, "each schedule has started one chain");
    let last = started.iter().map(|chain| chain.created_at).max().unwrap_or(at);
    AtOnce { took: last.since(at), commands, acquires: [before, meanwhile] }
}

/// Acquires jobs of a type without jobs, until the condition is true. Returns how long each call took.
async fn acquires<S: Store>(store: &S, is_over: impl AsyncFn() -> bool) -> Spread {
    let (worker, mut took) = (WorkerId::new(), Vec::new());
    let job_type = TypeName::new("no-jobs").expect("a valid name");
    let types = vec![Quota { job_type, max: 10, lease: Millis::from_secs(60) }];
    while !is_over().await {
        let (request, types) = (RequestId::new(), types.clone());
        let acquire = Acquire { request, worker, worker_name: None, types, max: 10 };
        let begin = Instant::now();
        store.acquire(acquire).await.expect("the store answers");
        took.push(begin.elapsed());
        sleep(Duration::from_millis(5)).await; // tidy: a worker does not acquire without a pause
    }
    Spread::new(took)
}

/// Stores many schedules in few commands: copies of one that the client stores.
async fn fill<S: Store>(store: &Counted<S>, prefix: &str, spec: &ScheduleSpec, count: usize) {
    let template = format!("{prefix}-template");
    let client = Client::<S>::new(Arc::clone(&store.inner));
    client.schedules().put(&template, spec.clone(), Tick).await.expect("the schedule is stored");
    let schedules = vec![ScheduleTarget::Name(name(&template))];
    let row = store.inner.get_schedules(GetSchedules { schedules }).await.expect("the store answers");
    let row = row.schedules.into_iter().next().flatten().expect("the schedule is stored");
    client.schedules().delete(&template).await.expect("the schedule is deleted");
    let copy = |number| ScheduleChange {
        name: name(&format!("{prefix}-{number}")),
        id: ScheduleId::new(),
        expected: None,
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(PutSchedule {
            due_at: row.due_at,
            handled: row.handled,
            definition: Some(Arc::clone(&row.definition)),
            state: Arc::clone(&row.state),
            chain: None,
            state_if_not_created: Arc::clone(&row.state),
        }),
    };
    let changes: Vec<_> = (0..count).map(copy).collect();
    for changes in changes.chunks(BATCH) {
        let request = ChangeSchedules { changes: changes.to_vec() };
        let reply = store.inner.change_schedules(request).await.expect("the store answers");
        let is_applied = |changed: &ScheduleChanged| matches!(changed, ScheduleChanged::Applied { .. });
        assert!(reply.changes.iter().all(is_applied), "{reply:?}");
    }
}

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).expect("a valid name")
}

async fn now<S: Store>(store: &S) -> Timestamp {
    store.due_schedules(DueSchedules { skip: 0, max: 1 }).await.expect("the store answers").now
}

/// Returns when the first schedule is due.
async fn next_due<S: Store>(store: &Counted<S>) -> Option<Timestamp> {
    let reply = store.inner.due_schedules(DueSchedules { skip: 0, max: 1 }).await.expect("the store answers");
    reply.schedules.first().map_or(reply.next_due, |row| row.due_at)
}

async fn chains<S: Store>(client: &Client<S>) -> Vec<ChainRecord> {
    let filter = ChainFilter {
        types: vec![TypeName::new(Tick::NAME).expect("a valid name")],
        ..ChainFilter::default()
    };
    let mut request = ListChains { filter, page: Page { max: 1_000, ..Page::default() } };
    let mut chains = Vec::new();
    loop {
        let reply = client.list_chains(request.clone()).await.expect("the store answers");
        chains.extend(reply.chains);
        match reply.next {
            Some(next) => request.page.after = Some(next),
            None => return chains,
        }
    }
}

/// A store that counts commands, and the items of changes.
#[derive(Debug)]
struct Counted<S> {
    inner: Arc<S>,
    commands: Mutex<BTreeMap<&'static str, Vec<usize>>>,
}

impl<S> Counted<S> {
    fn new(inner: Arc<S>) -> Self {
        Self { inner, commands: Mutex::default() }
    }

    fn commands(&self) -> MutexGuard<'_, BTreeMap<&'static str, Vec<usize>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of calls, and the largest number of items in one.
    fn calls(&self, name: &str) -> (usize, usize) {
        let commands = self.commands();
        let sizes = commands.get(name).map(Vec::as_slice).unwrap_or_default();
        (sizes.len(), sizes.iter().copied().max().unwrap_or(0))
    }
}

impl<S: Store> Decorator for Counted<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        let items = if let Command::ChangeSchedules(request) = &command { request.changes.len() } else { 0 };
        self.commands().entry(command.name()).or_default().push(items);
        self.forward(command)
    }
}
