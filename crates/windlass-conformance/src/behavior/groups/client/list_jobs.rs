//! Lists of the jobs of all chains, and of one chain.

use windlass_core::command::{JobFilter, ListJobs, Order, Page};
use windlass_core::{Chain, ChainId, ErrorKind, JobId, JobRecord, Timestamp, TypeName};

use super::super::prelude::*;
use super::LISTS;

#[expect(clippy::too_many_lines, reason = "a list of cases")]
pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "list.jobs.none",
            "The list of jobs is empty if none is stored.",
            ["BS-124"],
            [LISTS],
            none
        ),
        behavior!("list.jobs.all", "The jobs of all chains are listed.", ["BS-125"], [LISTS], all),
        behavior!("list.jobs.types", "Jobs are listed by type.", ["BS-126"], [LISTS], types),
        behavior!(
            "list.jobs.chain_types",
            "Jobs are listed by the type of their chain.",
            ["BS-127"],
            [LISTS],
            chain_types
        ),
        behavior!("list.jobs.chain", "The jobs of one chain are listed.", ["BS-128"], [LISTS], of_chain),
        behavior!("list.jobs.statuses", "Jobs are listed by their status.", ["BS-129"], [LISTS], statuses),
        behavior!(
            "list.jobs.oldest",
            "Jobs are listed newest first, or oldest first.",
            ["BS-130"],
            [LISTS],
            oldest
        ),
        behavior!(
            "list.jobs.pages",
            "The pages of a list of jobs contain each job once, in order.",
            ["BS-131"],
            [LISTS],
            pages
        ),
        behavior!(
            "list.jobs.created",
            "Jobs are listed by creation time, with both ends of the range included.",
            ["BS-132"],
            [LISTS],
            created
        ),
        behavior!(
            "list.jobs.records",
            "Listed jobs equal those that single queries return.",
            ["BS-133"],
            [LISTS],
            records
        ),
        behavior!(
            "list.chain_jobs.unknown",
            "A chain that is not stored has an empty list of jobs.",
            ["BS-134"],
            [LISTS],
            chain_unknown
        ),
        behavior!(
            "list.chain_jobs",
            "The jobs of a chain are listed in order, without jobs of other chains.",
            ["BS-135", "BS-138"],
            [LISTS],
            chain_jobs
        ),
        behavior!(
            "list.chain_jobs.newest",
            "The jobs of a chain can be listed latest first.",
            ["BS-136"],
            [LISTS],
            chain_newest
        ),
        behavior!(
            "list.chain_jobs.pages",
            "The jobs of a chain are listed in pages.",
            ["BS-137"],
            [LISTS],
            chain_pages
        ),
        behavior!(
            "list.chain_jobs.typed",
            "The inputs of a chain's jobs are decoded as their types.",
            ["BS-139"],
            [LISTS],
            chain_typed
        ),
        behavior!(
            "list.chain_jobs.mismatch",
            "Listing jobs with a handle of the wrong type is an error.",
            ["BS-140"],
            [LISTS],
            chain_mismatch
        ),
    ]
}

job!(Step { left: u32 } -> u32, then(Step, Last));
job!(Last {} -> u32);

async fn step(job: Ctx<Step>) -> Result<Next<Step>> {
    Ok(match job.input().left {
        0 => Next::then(Last {}),
        left => Next::then(Step { left: left - 1 }),
    })
}

/// Starts chains and runs this many jobs of each. The job after them has no handler, so each chain stays open.
async fn chains<S: Store>(scene: &Scene<S>, steps: &[u32]) -> Vec<Chain<Step>> {
    let worker = scene.worker().handle(step).start().await.unwrap();
    let mut chains = Vec::new();
    for steps in steps {
        let chain = scene.client.start(Step { left: steps - 1 }).await.unwrap();
        scene.job_that("the chain is at its end", chain, |job| job.index == *steps).await;
        chains.push(chain);
    }
    scene.stop([worker]).await;
    chains
}

fn oldest_first(max: u32) -> Page {
    Page { order: Order::Oldest, after: None, max }
}

/// Returns all pages of a list.
pub(super) async fn listed<S: Store>(scene: &Scene<S>, filter: JobFilter, page: Page) -> Vec<JobRecord> {
    let mut list = ListJobs { filter, page };
    let mut jobs = Vec::new();
    loop {
        let reply = scene.other.list_jobs(list.clone()).await.unwrap();
        assert!(reply.jobs.len() <= list.page.max as usize);
        jobs.extend(reply.jobs);
        let Some(next) = reply.next else { return jobs };
        list.page.after = Some(next);
    }
}

/// Returns the type, chain and index of all jobs of a list, oldest first.
async fn found<S: Store>(scene: &Scene<S>, filter: JobFilter) -> Vec<(String, ChainId, u32)> {
    let jobs = listed(scene, filter, oldest_first(50)).await;
    jobs.into_iter().map(|job| (job.job_type.to_string(), job.chain, job.index)).collect()
}

fn ids(jobs: &[JobRecord]) -> Vec<JobId> {
    jobs.iter().map(|job| job.id).collect()
}

fn job(name: &str, chain: Chain<Step>, index: u32) -> (String, ChainId, u32) {
    (name.to_owned(), chain.id(), index)
}

async fn none<S: Store>(scene: Scene<S>) {
    let reply = scene.client.list_jobs(ListJobs::default()).await.unwrap();
    assert_eq!((reply.jobs, reply.next), (Vec::new(), None));
}

async fn all<S: Store>(scene: Scene<S>) {
    let chains = chains(&scene, &[2, 1]).await;
    let expected = [
        job("Step", chains[0], 0),
        job("Step", chains[0], 1),
        job("Last", chains[0], 2),
        job("Step", chains[1], 0),
        job("Last", chains[1], 1),
    ];
    assert_eq!(found(&scene, JobFilter::default()).await, expected);
}

async fn types<S: Store>(scene: Scene<S>) {
    let chains = chains(&scene, &[2, 1]).await;
    let types = vec![TypeName::new("Last").unwrap()];
    let found = found(&scene, JobFilter { types, ..JobFilter::default() }).await;
    assert_eq!(found, [job("Last", chains[0], 2), job("Last", chains[1], 1)]);
}

async fn chain_types<S: Store>(scene: Scene<S>) {
    let chain = chains(&scene, &[1]).await[0];
    let alone = scene.client.start(Last {}).await.unwrap();
    let of = |name: &str| {
        let chain_types = vec![TypeName::new(name).unwrap()];
        found(&scene, JobFilter { chain_types, ..JobFilter::default() })
    };
    assert_eq!(of("Step").await, [job("Step", chain, 0), job("Last", chain, 1)]);
    assert_eq!(of("Last").await, [("Last".to_owned(), alone.id(), 0)]);
}

async fn of_chain<S: Store>(scene: Scene<S>) {
    let chains = chains(&scene, &[1, 1]).await;
    let filter = JobFilter { chain: Some(chains[1].id()), ..JobFilter::default() };
    assert_eq!(found(&scene, filter).await, [job("Step", chains[1], 0), job("Last", chains[1], 1)]);
    let filter = JobFilter { chain: Some(ChainId::new()), ..JobFilter::default() };
    assert_eq!(found(&scene, filter).await, []);
}

async fn statuses<S: Store>(scene: Scene<S>) {
    let chain = chains(&scene, &[2]).await[0];
    let of = |statuses: &[Status]| {
        found(&scene, JobFilter { statuses: statuses.to_vec(), ..JobFilter::default() })
    };
    assert_eq!(of(&[Status::Completed]).await, [job("Step", chain, 0), job("Step", chain, 1)]);
    assert_eq!(of(&[Status::Pending]).await, [job("Last", chain, 2)]);
    assert_eq!(of(&[Status::Failed, Status::Cancelled]).await, []);
    assert_eq!(of(&[Status::Completed, Status::Pending]).await.len(), 3);
}

async fn oldest<S: Store>(scene: Scene<S>) {
    chains(&scene, &[3]).await;
    let forth = listed(&scene, JobFilter::default(), oldest_first(50)).await;
    assert_eq!(forth.iter().map(|job| job.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let mut back = listed(&scene, JobFilter::default(), Page::default()).await;
    back.reverse();
    assert_eq!(back, forth);
}

async fn pages<S: Store>(scene: Scene<S>) {
    chains(&scene, &[2, 3]).await;
    let jobs = listed(&scene, JobFilter::default(), oldest_first(50)).await;
    assert_eq!(jobs.len(), 7);
    for max in [1, 3, 7] {
        assert_eq!(listed(&scene, JobFilter::default(), oldest_first(max)).await, jobs);
        let back = Page { order: Order::Newest, ..oldest_first(max) };
        let mut back = ids(&listed(&scene, JobFilter::default(), back).await);
        back.reverse();
        assert_eq!(back, ids(&jobs));
    }
}

async fn created<S: Store>(scene: Scene<S>) {
    let mut jobs: Vec<JobRecord> = Vec::new();
    for _ in 0..3 {
        // Create each job in a different millisecond.
        if let Some(last) = jobs.last() {
            scene.past(last.created_at).await;
        }
        let chain = scene.client.start(Last {}).await.unwrap();
        jobs.push(scene.job(chain).await);
    }
    let between = async |from: Option<Timestamp>, to: Option<Timestamp>| {
        let types = vec![TypeName::new("Last").unwrap()];
        let filter = JobFilter { types, created_from: from, created_to: to, ..JobFilter::default() };
        listed(&scene, filter, oldest_first(50)).await
    };
    assert_eq!(between(Some(jobs[1].created_at), None).await, jobs[1..]);
    assert_eq!(between(None, Some(jobs[1].created_at)).await, jobs[..2]);
    assert_eq!(between(Some(jobs[1].created_at), Some(jobs[1].created_at)).await, jobs[1..2]);
}

async fn records<S: Store>(scene: Scene<S>) {
    chains(&scene, &[2, 1]).await;
    for job in listed(&scene, JobFilter::default(), oldest_first(50)).await {
        assert_eq!(scene.client.job(job.id).await.unwrap(), Some(job));
    }
}

async fn chain_unknown<S: Store>(scene: Scene<S>) {
    assert_eq!(scene.client.chain_jobs(ChainId::new()).await.unwrap(), []);
}

async fn chain_jobs<S: Store>(scene: Scene<S>) {
    let chains = chains(&scene, &[3, 2]).await;
    for (chain, length) in chains.into_iter().zip([4, 3]) {
        let jobs = scene.client.chain_jobs(chain).await.unwrap();
        assert_eq!(jobs.iter().map(|job| job.index).collect::<Vec<_>>(), (0..length).collect::<Vec<_>>());
        assert!(jobs.iter().all(|job| job.chain == chain.id()));
    }
}

async fn chain_newest<S: Store>(scene: Scene<S>) {
    let chain = chains(&scene, &[3, 1]).await[0];
    let filter = JobFilter { chain: Some(chain.id()), ..JobFilter::default() };
    let jobs = listed(&scene, filter, Page::default()).await;
    assert_eq!(jobs.iter().map(|job| job.index).collect::<Vec<_>>(), [3, 2, 1, 0]);
}

async fn chain_pages<S: Store>(scene: Scene<S>) {
    let chain = chains(&scene, &[4, 2]).await[0];
    let filter = JobFilter { chain: Some(chain.id()), ..JobFilter::default() };
    let jobs = scene.client.chain_jobs(chain).await.unwrap();
    assert_eq!(listed(&scene, filter, oldest_first(2)).await, jobs);
}

async fn chain_typed<S: Store>(scene: Scene<S>) {
    let chain = chains(&scene, &[2]).await[0];
    let jobs = scene.client.chain_jobs(chain).await.unwrap();
    assert_eq!(scene.client.input::<Step>(jobs[1].id).await.unwrap().unwrap().left, 0);
    assert!(scene.client.input::<Last>(jobs[2].id).await.unwrap().is_some());
    let error = scene.client.input::<Last>(jobs[1].id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

async fn chain_mismatch<S: Store>(scene: Scene<S>) {
    let chain = chains(&scene, &[1]).await[0];
    let error = scene.client.chain_jobs(Chain::<Last>::from_id(chain.id())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`Step`, expected `Last`"), "{error}");
}
