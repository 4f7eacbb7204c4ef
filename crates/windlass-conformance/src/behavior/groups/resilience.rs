//! Failing stores: no job is lost, and no job runs twice.

use std::collections::HashMap;

use windlass_core::{Attempt, Client, Done, JobId};

use super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "resilience.one_slot",
            "If store calls fail before or after their write, workers continue, and each job runs once.",
            ["BS-206", "never 1", "never 12"],
            |scene| faults(scene, 1, 1)
        ),
        behavior!(
            "resilience.several_slots",
            "The same holds for a worker with several slots.",
            ["BS-207", "never 1", "never 12"],
            |scene| faults(scene, 1, 5)
        ),
        behavior!(
            "resilience.several_workers",
            "The same holds for several workers.",
            ["BS-208", "never 1", "never 12"],
            |scene| faults(scene, 3, 2)
        ),
        behavior!(
            "resilience.outage.one_slot",
            "A worker survives broken connections.",
            ["BS-209"],
            [Need::Outage],
            |scene| outages(scene, 1, 1)
        ),
        behavior!(
            "resilience.outage.several_slots",
            "A worker with several slots survives broken connections.",
            ["BS-210"],
            [Need::Outage],
            |scene| outages(scene, 1, 5)
        ),
        behavior!(
            "resilience.outage.several_workers",
            "Several workers survive broken connections.",
            ["BS-211"],
            [Need::Outage],
            |scene| outages(scene, 3, 2)
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![behavior!(
        "resilience.transactions",
        "Writes in handlers' transactions are stored once although begins and commits fail.",
        ["BS-208", "never 3", "never 12"],
        transactions
    )]
}

job!(First { number: u32 } -> u32, then(Second));
job!(Second { number: u32 } -> u32);

const CHAINS: u32 = 20;
/// One in this many calls of a command fails. A worker makes fewer calls per iteration, so some iterations succeed.
const FAILING: usize = 5;
/// Minimum number of failed calls in a case. The more jobs share a call, the more rounds this takes.
const FAILURES_MIN: usize = 2;

/// Number of runs of each job.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<HashMap<JobId, u32>>>);

impl Runs {
    fn count(&self, job: JobId) {
        *self.0.lock().unwrap().entry(job).or_default() += 1;
    }

    fn check_once(&self) {
        let runs = self.0.lock().unwrap();
        assert_eq!(runs.len(), 2 * CHAINS as usize);
        assert!(runs.values().all(|runs| *runs == 1), "each job is run once: {:?}", *runs);
    }
}

/// Runs chains of two jobs on workers of this client, concurrently with `meanwhile`.
async fn run<S: Store, W: Store>(
    scene: &Scene<S>,
    client: &Client<W>,
    workers: usize,
    slots: u32,
    meanwhile: impl Future<Output = ()>,
) -> Runs {
    let runs = Runs::default();
    let mut running = Vec::new();
    for _ in 0..workers {
        let counts = runs.clone();
        let first = move |job: Ctx<First>| {
            counts.count(job.job().id);
            async move { Ok::<_, BoxError>(Next::then(Second { number: job.input().number + 1 })) }
        };
        let counts = runs.clone();
        let second = move |job: Ctx<Second>| {
            counts.count(job.job().id);
            async move { Ok::<_, BoxError>(job.input().number + 1) }
        };
        let worker = Worker::new(client).poll(POLL).concurrency(slots).handle(first).handle(second);
        running.push(worker.start().await.unwrap());
    }
    let chains = scene.other.start_many((0..CHAINS).map(|number| First { number })).await.unwrap();
    meanwhile.await;
    for (number, chain) in (2..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
    }
    scene.stop(running).await;
    runs
}

async fn faults<S: Store>(scene: Scene<S>, workers: usize, slots: u32) {
    let store = Faulty::new(&scene.store);
    store.fail_one_of(FAILING);
    let client = scene.client_on(store.clone());
    while store.failures() < FAILURES_MIN {
        run(&scene, &client, workers, slots, async {}).await.check_once();
    }
}

async fn outages<S: Store>(scene: Scene<S>, workers: usize, slots: u32) {
    let meanwhile = async {
        for done in 1..=3 {
            scene.break_connections().await;
            let completed = |event: &Event| matches!(event, Event::JobCompleted(..));
            scene.sees("jobs are processed", done, completed).await;
        }
    };
    run(&scene, &scene.client, workers, slots, meanwhile).await;
}

async fn transactions<S: Transactional>(scene: Scene<S>) {
    let store = Faulty::new(&scene.store);
    store.fail_one_of(FAILING);
    let client = scene.client_on(store.clone());
    let stage = scene.clone();
    let second = move |a: Attempt<Second, Faulty<S>>| {
        let stage = stage.clone();
        async move {
            let mut step = a.begin().await?;
            stage.mark(step.tx(), &format!("second {}", a.input().number)).await?;
            Ok::<Done<Second, _>, BoxError>(step.done(a.input().number)?)
        }
    };
    let worker = Worker::new(&client).poll(POLL).concurrency(3).handle(second).start().await.unwrap();
    let mut numbers = 0..CHAINS;
    while store.failures() < FAILURES_MIN {
        let chains = scene.other.start_many(numbers.clone().map(|number| Second { number })).await.unwrap();
        for (number, chain) in numbers.clone().zip(chains) {
            assert_eq!(scene.output(chain).await, number);
            assert!(scene.is_marked(&format!("second {number}")).await);
        }
        numbers = numbers.end..numbers.end + CHAINS;
    }
    scene.stop([worker]).await;
}
