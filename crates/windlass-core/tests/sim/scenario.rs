//! One simulation from start to end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use windlass_core::command::{JobFilter, ListJobs, Page};
use windlass_core::limit::PAGE_MAX;
use windlass_core::{
    Client, HandlerOptions, InProcessNotifier, JobRecord, Running, Status, Store, Worker, seed_ids,
};

use super::bad::Bad;
use super::caller::{Caller, Promises};
use super::check;
use super::dispatch::{SimNotifier, SimObserver};
use super::invariant::Invariant;
use super::jobs::{App, Gather, Lenient, Plain, Strict, Timed, hop, pay, plain};
use super::schedules::{self, Exact};
use super::settings::Settings;
use super::store::SimStore;
use super::world::{NodeId, Report, World, pass};

const SECOND: Duration = Duration::from_secs(1);

/// How much longer than its deadline a stop may take. A stop makes a few last calls, each with its own
/// timeout.
const STOP_GRACE: Duration = Duration::from_secs(12);

/// The time after the last fault within which all work must be finished.
const DRAINED_WITHIN: Duration = Duration::from_secs(60 * 60);

/// The time after that within which all waits must be answered. A query hangs for at most a minute.
const ANSWERED_WITHIN: Duration = Duration::from_secs(80);

/// Runs the simulation of a seed. The same seed produces the same simulation, to the last line of the trace.
/// The report contains the last `shown` lines of the trace.
pub(crate) fn run(seed: u64, bad: Option<Bad>, shown: usize) -> Report {
    seed_ids(seed);
    fastrand::seed(seed);
    let settings = Settings::choose(seed);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(seed, settings, bad, shown);
        tokio::select! {
            biased;
            () = world.broken.notified() => {}
            () = Scenario::new(&world).run() => {}
        }
        world.report()
    })
}

struct Scenario {
    world: Arc<World>,
    store: SimStore,
    notifier: InProcessNotifier,
    promises: Arc<Mutex<Promises>>,
    schedules: Vec<Exact>,
    workers: Vec<Member>,
    stops: JoinSet<()>,
}

/// A worker and the process it runs in.
struct Member {
    node: NodeId,
    running: Running<SimStore>,
}

impl Scenario {
    fn new(world: &Arc<World>) -> Self {
        let (notifier, promises) = (InProcessNotifier::new(), Arc::default());
        let store = SimStore::new(world, world.join());
        let (workers, stops) = (Vec::new(), JoinSet::new());
        let schedules = Vec::new();
        Self { world: Arc::clone(world), store, notifier, promises, schedules, workers, stops }
    }

    async fn run(mut self) {
        self.schedules = schedules::create(&self.world, self.store.truth()).await;
        for _ in 0..self.world.settings.workers {
            self.start_worker().await;
        }
        let mut callers = JoinSet::new();
        for _ in 0..self.world.settings.clients {
            callers.spawn(self.caller().run());
        }
        for _ in 0..self.world.settings.disturbances {
            pass(self.world.between(Duration::ZERO, 12 * SECOND)).await;
            self.disturb().await;
        }
        while callers.join_next().await.is_some() {}
        self.world.heal();
        self.start_worker().await;
        self.drain().await;
        while let Some(member) = self.workers.pop() {
            self.stop(member, 5 * SECOND);
        }
        while self.stops.join_next().await.is_some() {}
        check::everything(&self.world, self.store.truth(), &self.promises, &self.schedules).await;
    }

    /// Creates a client in its own process.
    fn client(&self) -> (NodeId, Client<SimStore>) {
        let (node, world) = (self.world.join(), Arc::clone(&self.world));
        let notifier = SimNotifier { world: Arc::clone(&world), node, inner: self.notifier.clone() };
        let client = Client::builder(self.store.at(node)).notifier(notifier);
        (node, client.observer(SimObserver { world, node }).build())
    }

    fn caller(&self) -> Caller {
        let (_, client) = self.client();
        Caller { world: Arc::clone(&self.world), client, promises: Arc::clone(&self.promises) }
    }

    async fn start_worker(&mut self) {
        let (node, client) = self.client();
        let world = &self.world;
        let app = App { world: Arc::clone(world), node };
        let slots = u32::try_from(1 + world.below(8)).unwrap();
        let worker = Worker::new(&client)
            .data(app)
            .concurrency(slots)
            .poll(world.between(SECOND, 20 * SECOND))
            .handle(plain::<Plain>)
            .handle(plain::<Timed>)
            .handle(plain::<Gather>)
            .handle(plain::<Lenient>)
            .handle(plain::<Strict>)
            .handle(hop);
        let worker = if world.percent(30) {
            worker.handle_with(HandlerOptions::new().concurrency(1), pay)
        } else {
            worker.handle(pay)
        };
        let running = worker.start().await.unwrap();
        world.trace(Some(node), format_args!("a worker of {slots} slots"));
        self.workers.push(Member { node, running });
    }

    /// Injects a random disturbance.
    async fn disturb(&mut self) {
        let world = Arc::clone(&self.world);
        let until = Instant::now() + world.between(SECOND, 20 * SECOND);
        let is_calm = world.settings.fault_permille == 0;
        let what = match world.below(8) {
            0 | 1 if !self.workers.is_empty() => {
                let member = self.some_worker();
                let deadline = world.between(Duration::ZERO, 6 * SECOND);
                self.stop(member, deadline);
                "stop"
            }
            2 | 3 if !self.workers.is_empty() && !is_calm => {
                let member = self.some_worker();
                world.crash(member.node);
                self.store.disconnect(Some(member.node));
                "crash"
            }
            4 if !self.workers.is_empty() && !is_calm => {
                let member = self.some_worker();
                world.ending(member.node);
                "dropped worker"
            }
            5 if !is_calm => {
                world.outage(until);
                "outage"
            }
            6 if !self.workers.is_empty() && !is_calm => {
                let index = usize::try_from(world.below(self.workers.len() as u64)).unwrap();
                world.cut_off(self.workers[index].node, until);
                "cut off"
            }
            7 if !is_calm => {
                self.store.disconnect(None);
                world.outage(Instant::now() + world.between(Duration::ZERO, 2 * SECOND));
                "store restart"
            }
            _ => {
                self.start_worker().await;
                "another worker"
            }
        };
        world.count(format!("disturbance {what}"));
        world.trace(None, format_args!("disturbance: {what}"));
    }

    fn some_worker(&mut self) -> Member {
        let index = usize::try_from(self.world.below(self.workers.len() as u64)).unwrap();
        self.workers.remove(index)
    }

    /// Stops a worker in the background and checks what it leaves behind.
    fn stop(&mut self, Member { node, running }: Member, deadline: Duration) {
        let world = Arc::clone(&self.world);
        let (worker, store) = (running.id(), self.store.clone());
        world.ending(node);
        let now = world.percent(50);
        self.stops.spawn(async move {
            let how = if now { "stops now, within" } else { "stops within" };
            world.trace(Some(node), format_args!("{how} {deadline:?}"));
            let before = Instant::now();
            if world.bad == Some(Bad::StopForgets) {
                drop(running);
            } else if now {
                running.stop_now(deadline).await;
            } else {
                running.stop(deadline).await;
            }
            let took = before.elapsed();
            world.trace(Some(node), format_args!("stopped after {took:?}"));
            if took > deadline + STOP_GRACE {
                world.violate(Invariant::StopsEnd, format!("a stop within {deadline:?} took {took:?}"));
            }
            let held = world.state().journal.held_by(worker);
            if !held.is_empty() && world.was_untroubled_since(node, before) {
                let what = format!("a stopped worker still holds {} jobs", held.len());
                world.violate(Invariant::StopsGiveBack, what);
            }
            // Its process is gone: what it left behind belongs to no one.
            world.crash(node);
            store.disconnect(Some(node));
        });
    }

    /// Waits until all work that can finish is finished.
    async fn drain(&self) {
        let until = Instant::now() + DRAINED_WITHIN;
        let caller = self.caller();
        loop {
            let left = unfinished(&self.store).await;
            let handled = left.iter().filter(|job| job.job_type.as_str() != "approval").count();
            for job in left.iter().filter(|job| job.job_type.as_str() == "approval") {
                let _ = caller.complete(job.chain).await;
            }
            if left.is_empty() && schedules::is_over(self.store.truth(), &self.schedules).await {
                break;
            }
            if Instant::now() > until {
                let what = format!("{handled} jobs are pending or running an hour after the last fault");
                self.world.violate(Invariant::NothingIsStuck, what);
                break;
            }
            pass(SECOND).await;
        }
        // Waits poll the store from time to time, unless their previous query hangs.
        let waiting =
            || self.promises.lock().unwrap().waits.iter().any(|(_, waiting)| !waiting.is_finished());
        let until = Instant::now() + ANSWERED_WITHIN;
        while waiting() && Instant::now() < until {
            pass(SECOND).await;
        }
    }
}

/// Returns the jobs that a worker or a completion from outside still has to end.
async fn unfinished(store: &SimStore) -> Vec<JobRecord> {
    let filter = JobFilter { statuses: vec![Status::Pending, Status::Running], ..JobFilter::default() };
    let page = Page { max: u32::try_from(PAGE_MAX).unwrap(), ..Page::default() };
    store.truth().list_jobs(ListJobs { filter, page }).await.unwrap().jobs
}
