//! Deduplication by key.

use std::time::Duration;

use windlass_core::command::Created;
use windlass_core::{Chain, KeyHold, Millis, Plan, Target, TypeName, plan};

use super::super::prelude::*;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!("keys.first", "While a chain is open, a start with its key returns it.", ["BS-042"], first),
        behavior!(
            "keys.hold",
            "A completed chain holds its key only if it was started with that option.",
            ["BS-043"],
            |scene| hold(scene, one_by_one)
        ),
        behavior!("keys.window", "A key is held no longer than its window.", ["BS-044"], |scene| window(
            scene, one_by_one
        )),
        behavior!("keys.types", "Two types may use the same key.", ["BS-045"], types),
        behavior!(
            "keys.batch.itself",
            "Starts with the same key in one batch become one chain.",
            ["BS-046"],
            batch_itself
        ),
        behavior!(
            "keys.batch.existing",
            "Starts of a batch whose key is held return the chain that holds it.",
            ["BS-047"],
            batch_existing
        ),
        behavior!(
            "keys.batch.hold",
            "In a batch, a completed chain holds its key only if it was started with that option.",
            ["BS-048"],
            |scene| hold(scene, together)
        ),
        behavior!(
            "keys.batch.window",
            "In a batch, a key is held no longer than its window.",
            ["BS-049"],
            |scene| window(scene, together)
        ),
        behavior!(
            "keys.replaces",
            "A chain takes over the key only from the chain that it names.",
            ["BS-050"],
            replaces
        ),
        behavior!("keys.batch.types", "In a batch, two types may use the same key.", ["BS-051"], batch_types),
        behavior!(
            "keys.continued",
            "A chain that continued holds its key until it closes.",
            ["A8.3"],
            continued
        ),
        behavior!(
            "keys.race",
            "If many callers in two processes start the same key concurrently, one chain is created and all get it.",
            ["A8.2", "never 6"],
            race
        ),
    ]
}

job!(Tell { text: String } -> String, then(Echo));
job!(Echo { text: String } -> String);

/// A key window that is meant to end soon.
const SOON: Duration = Duration::from_millis(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn tell(key: &str) -> Plan<Tell> {
    plan(Tell { text: key.to_owned() }).key(key)
}

/// Starts plans one after another.
async fn one_by_one<S: Store>(scene: Scene<S>, plans: Vec<Plan<Tell>>) -> Vec<Chain<Tell>> {
    let mut chains = Vec::new();
    for plan in plans {
        chains.extend(scene.client.start_many([plan]).await.unwrap());
    }
    chains
}

/// Starts plans with one command.
async fn together<S: Store>(scene: Scene<S>, plans: Vec<Plan<Tell>>) -> Vec<Chain<Tell>> {
    scene.client.start_many(plans).await.unwrap()
}

/// Runs chains until they complete.
async fn complete<S: Store>(scene: &Scene<S>, chains: &[Chain<Tell>]) {
    async fn tell(job: Ctx<Tell>) -> Result<String> {
        Ok(job.input().text.clone())
    }
    let worker = scene.worker().handle(tell).start().await.unwrap();
    for chain in chains {
        scene.output(*chain).await;
    }
    scene.stop([worker]).await;
}

async fn first<S: Store>(scene: Scene<S>) {
    let first = scene.client.start(Tell { text: "first".into() }).key("a").await.unwrap();
    for client in [&scene.client, &scene.other] {
        let found = client.start(Tell { text: "second".into() }).key("a").await.unwrap();
        assert!(found == first && !found.is_new());
    }
    complete(&scene, &[first]).await;
    assert_eq!(scene.output(first).await, "first");
}

async fn hold<S: Store, F>(scene: Scene<S>, start: fn(Scene<S>, Vec<Plan<Tell>>) -> F)
where
    F: Future<Output = Vec<Chain<Tell>>>,
{
    let plans =
        || vec![tell("open"), tell("completed").hold(KeyHold::Completed), tell("any").hold(KeyHold::Any)];
    let chains = start(scene.clone(), plans()).await;
    let found = start(scene.clone(), plans()).await;
    assert_eq!(found, chains, "all are held while the chains are open");
    complete(&scene, &chains).await;
    let found = start(scene.clone(), plans()).await;
    assert!(found[0] != chains[0] && found[0].is_new(), "the key is free");
    assert_eq!(found[1..], chains[1..]);
    assert_eq!(scene.output(found[1]).await, "completed", "its output is returned immediately");
}

async fn window<S: Store, F>(scene: Scene<S>, start: fn(Scene<S>, Vec<Plan<Tell>>) -> F)
where
    F: Future<Output = Vec<Chain<Tell>>>,
{
    let plans = || vec![tell("short").window(SOON), tell("long").window(HOUR)];
    let chains = start(scene.clone(), plans()).await;
    let created_at = scene.job(chains[0]).await.created_at;
    scene.past(created_at + Millis::try_from(SOON).unwrap()).await;
    let found = start(scene.clone(), plans()).await;
    assert!(found[0] != chains[0] && found[0].is_new(), "its window is over");
    assert_eq!(found[1], chains[1]);
    assert_eq!(scene.job(chains[0]).await.status, Status::Pending, "the first chain continues");
}

async fn types<S: Store>(scene: Scene<S>) {
    let first = scene.client.start(Tell { text: String::new() }).key("a").await.unwrap();
    let echoed = scene.client.start(Echo { text: String::new() }).key("a").await.unwrap();
    assert!(first.is_new() && echoed.is_new());
}

async fn batch_itself<S: Store>(scene: Scene<S>) {
    let chains = scene.client.start_many(["a", "a", "b", "a"].map(tell)).await.unwrap();
    assert_eq!(chains.iter().map(Chain::is_new).collect::<Vec<_>>(), [true, false, true, false]);
    assert!(chains[1] == chains[0] && chains[3] == chains[0]);
}

async fn batch_existing<S: Store>(scene: Scene<S>) {
    let held = scene.client.start(Tell { text: "held".into() }).key("b").await.unwrap();
    let chains = scene.other.start_many(["a", "b", "c"].map(tell)).await.unwrap();
    assert_eq!(chains.iter().map(Chain::is_new).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(chains[1], held);
}

async fn replaces<S: Store>(scene: Scene<S>) {
    let [first, other] = scene.client.start_many(["a", "b"].map(tell)).await.unwrap()[..] else {
        panic!("two were started")
    };
    let found = scene.client.start(Tell { text: "2".into() }).key("a").replaces(other).await.unwrap();
    assert_eq!(found, first, "the one that it names does not hold the key");
    let second = scene.client.start(Tell { text: "3".into() }).key("a").replaces(first).await.unwrap();
    assert!(second.is_new() && second != first);
    let found = scene.client.start(Tell { text: "4".into() }).key("a").replaces(first).await.unwrap();
    assert_eq!(found, second, "it is the successor's now");
    let key = windlass_core::Key::new("a").unwrap();
    let target = Target::Key(TypeName::new("Tell").unwrap(), key);
    assert_eq!(scene.client.chain(target).await.unwrap().unwrap().id, second.id());
}

async fn batch_types<S: Store>(scene: Scene<S>) {
    let echo = plan(Echo { text: String::new() }).key("a");
    let created = scene.client.create(vec![tell("a").build().unwrap(), echo.build().unwrap()]).await.unwrap();
    assert!(created.iter().all(|created| matches!(created, Created::New { .. })), "{created:?}");
}

async fn continued<S: Store>(scene: Scene<S>) {
    async fn tell(job: Ctx<Tell>) -> Result<Next<Tell>> {
        Ok(Next::then(Echo { text: job.input().text.clone() }))
    }
    async fn echo(job: Ctx<Echo>) -> Result<String> {
        Ok(job.input().text.clone())
    }
    let chain = scene.client.start(Tell { text: "first".into() }).key("a").await.unwrap();
    let worker = scene.worker().handle(tell).start().await.unwrap();
    scene.job_that("the chain continues", chain, |job| job.index == 1).await;
    let found = scene.client.start(Tell { text: "second".into() }).key("a").await.unwrap();
    assert_eq!(found, chain, "its first job is done, but not the chain");
    let other = scene.worker().handle(echo).start().await.unwrap();
    assert_eq!(scene.output(chain).await, "first");
    let found = scene.client.start(Tell { text: "third".into() }).key("a").await.unwrap();
    assert!(found != chain && found.is_new());
    scene.stop([worker, other]).await;
}

async fn race<S: Store>(scene: Scene<S>) {
    let mut starts = tokio::task::JoinSet::new();
    for index in 0..40 {
        let client = if index % 2 == 0 { scene.client.clone() } else { scene.other.clone() };
        let start = move || {
            let client = client.clone();
            async move { client.start(Tell { text: "once".into() }).key("a").await }
        };
        starts.spawn(unless_busy(start));
    }
    let chains = starts.join_all().await;
    assert_eq!(chains.iter().filter(|chain| chain.is_new()).count(), 1);
    assert!(chains.iter().all(|chain| *chain == chains[0]));
}
