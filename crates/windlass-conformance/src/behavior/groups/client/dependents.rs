//! Dependents: the jobs that wait or waited for a chain.

use windlass_core::command::{ListDependents, Order, Page};
use windlass_core::{Chain, ChainId, ErrorKind, JobId, JobRecord};

use super::super::prelude::*;
use super::LISTS;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "dependents.none",
            "A chain without dependents, or that is not stored, has an empty list of dependents.",
            ["BS-146"],
            [LISTS],
            none
        ),
        behavior!(
            "dependents.all",
            "All jobs that wait or waited for a chain are its dependents.",
            ["BS-147"],
            [LISTS],
            all
        ),
        behavior!(
            "dependents.pages",
            "Dependents are listed in pages and in both orders.",
            ["BS-148"],
            [LISTS],
            pages
        ),
        behavior!(
            "dependents.typed",
            "The input of a dependent is decoded as its type.",
            ["BS-149"],
            [LISTS],
            typed
        ),
        behavior!(
            "dependents.mismatch",
            "Listing dependents with a handle of the wrong type is an error.",
            ["BS-150"],
            [LISTS],
            mismatch
        ),
        behavior!(
            "dependents.oldest",
            "Dependents are listed oldest first by default.",
            ["BS-151"],
            [LISTS],
            oldest
        ),
    ]
}

job!(Base {} -> u32);
job!(Tower { height: u32 } -> u32, blocked_by (Base,));

/// Starts a chain and `count` chains that wait for it.
async fn towers<S: Store>(scene: &Scene<S>, count: u32) -> (Chain<Base>, Vec<JobId>) {
    let base = scene.client.start(Base {}).await.unwrap();
    let mut jobs = Vec::new();
    for height in 0..count {
        let tower = scene.client.start(Tower { height }).blocked_by((base,)).await.unwrap();
        jobs.push(tower.id().first_job());
    }
    (base, jobs)
}

fn ids(jobs: &[JobRecord]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

async fn none<S: Store>(scene: Scene<S>) {
    let base = scene.client.start(Base {}).await.unwrap();
    assert_eq!(scene.client.dependents(base).await.unwrap(), []);
    assert_eq!(scene.client.dependents(ChainId::new()).await.unwrap(), []);
}

async fn all<S: Store>(scene: Scene<S>) {
    async fn build(_: Ctx<Base>) -> Result<u32> {
        Ok(1)
    }
    let (base, jobs) = towers(&scene, 2).await;
    towers(&scene, 1).await;
    let dependents = scene.client.dependents(base).await.unwrap();
    assert_eq!(ids(&dependents), jobs);
    assert!(dependents.iter().all(|job| job.status == Status::Blocked));
    let worker = scene.worker().handle(build).start().await.unwrap();
    scene.output(base).await;
    scene.stop([worker]).await;
    let dependents = scene.client.dependents(base).await.unwrap();
    assert_eq!(ids(&dependents), jobs, "they waited for it");
    assert!(dependents.iter().all(|job| job.status == Status::Pending));
}

async fn pages<S: Store>(scene: Scene<S>) {
    let (base, mut jobs) = towers(&scene, 5).await;
    for order in [Order::Oldest, Order::Newest] {
        let mut list = ListDependents { chain: base.id(), page: Page { order, after: None, max: 2 } };
        let mut found = Vec::new();
        loop {
            let reply = scene.other.store().list_dependents(list.clone()).await.unwrap();
            assert!(reply.jobs.len() <= 2);
            found.extend(ids(&reply.jobs));
            list.page.after = reply.next;
            if list.page.after.is_none() {
                break;
            }
        }
        assert_eq!(found, jobs);
        jobs.reverse();
    }
}

async fn typed<S: Store>(scene: Scene<S>) {
    let (base, _) = towers(&scene, 2).await;
    let dependents = scene.client.dependents(base).await.unwrap();
    let input = scene.client.input::<Tower>(dependents[1].id).await.unwrap().unwrap();
    assert_eq!(input.height, 1);
}

async fn mismatch<S: Store>(scene: Scene<S>) {
    let (base, _) = towers(&scene, 1).await;
    let error = scene.client.dependents(Chain::<Tower>::from_id(base.id())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`Base`, expected `Tower`"), "{error}");
}

async fn oldest<S: Store>(scene: Scene<S>) {
    let (base, jobs) = towers(&scene, 4).await;
    assert_eq!(ids(&scene.client.dependents(base).await.unwrap()), jobs);
}
