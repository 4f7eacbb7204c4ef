//! Lists of chains, and the agreement of all queries.

use windlass_core::command::{ChainFilter, JobFilter, ListChains, ListJobs, Order, Page};
use windlass_core::{Chain, ChainId, ChainRecord, Timestamp, TypeName};

use super::super::prelude::*;
use super::{LISTS, list_jobs};

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "list.chains.none",
            "The list of chains is empty if none is stored.",
            ["BS-113"],
            [LISTS],
            none
        ),
        behavior!("list.chains.all", "All chains are listed, newest first.", ["BS-114"], [LISTS], all),
        behavior!("list.chains.types", "Chains are listed by type.", ["BS-115"], [LISTS], types),
        behavior!(
            "list.chains.top_level",
            "The list can be limited to chains that no job waits or waited for.",
            ["BS-117"],
            [LISTS],
            top_level
        ),
        behavior!(
            "list.chains.statuses",
            "Chains are listed by the status of their latest job.",
            ["BS-118"],
            [LISTS],
            statuses
        ),
        behavior!("list.chains.oldest", "Chains can be listed oldest first.", ["BS-119"], [LISTS], oldest),
        behavior!(
            "list.chains.pages",
            "The pages of a list of chains contain each chain once, in order.",
            ["BS-120"],
            [LISTS],
            pages
        ),
        behavior!(
            "list.chains.created",
            "Chains are listed by creation time, with both ends of the range included.",
            ["BS-121"],
            [LISTS],
            created
        ),
        behavior!(
            "list.chains.records",
            "Listed chains equal those that single queries return.",
            ["BS-123"],
            [LISTS],
            records
        ),
        behavior!(
            "list.agree.completed",
            "All queries agree about a completed chain.",
            ["BS-152"],
            [LISTS],
            agree_completed
        ),
        behavior!(
            "list.agree.blockers",
            "All queries agree about chains that wait for each other.",
            ["BS-153"],
            [LISTS],
            agree_blockers
        ),
        behavior!("list.page", "By default, a page has at most 50 rows.", ["BS-154"], [LISTS], default_page),
    ]
}

job!(Draft { number: u32 } -> u32, then(Print));
job!(Print { number: u32 } -> u32);
job!(Bind {} -> u32, blocked_by Vec<Draft>);

async fn draft(job: Ctx<Draft>) -> Result<Next<Draft>> {
    Ok(Next::then(Print { number: job.input().number }))
}

async fn print(job: Ctx<Print>) -> Result<u32> {
    Ok(job.input().number)
}

async fn drafts<S: Store>(scene: &Scene<S>, count: u32) -> Vec<Chain<Draft>> {
    let mut chains = Vec::new();
    for number in 0..count {
        chains.push(scene.client.start(Draft { number }).await.unwrap());
    }
    chains
}

fn ids<J>(chains: &[Chain<J>]) -> Vec<ChainId> {
    chains.iter().map(Chain::id).collect()
}

fn oldest_first(max: u32) -> Page {
    Page { order: Order::Oldest, after: None, max }
}

/// Returns all pages of a list.
async fn listed<S: Store>(scene: &Scene<S>, filter: ChainFilter, page: Page) -> Vec<ChainRecord> {
    let mut list = ListChains { filter, page };
    let mut chains = Vec::new();
    loop {
        let reply = scene.other.list_chains(list.clone()).await.unwrap();
        assert!(reply.chains.len() <= list.page.max as usize);
        chains.extend(reply.chains);
        let Some(next) = reply.next else { return chains };
        list.page.after = Some(next);
    }
}

/// Returns the chain ids on all pages of a list, oldest first.
async fn found<S: Store>(scene: &Scene<S>, filter: ChainFilter) -> Vec<ChainId> {
    listed(scene, filter, oldest_first(50)).await.iter().map(|chain| chain.id).collect()
}

async fn none<S: Store>(scene: Scene<S>) {
    let reply = scene.client.list_chains(ListChains::default()).await.unwrap();
    assert_eq!((reply.chains, reply.next), (Vec::new(), None));
}

async fn all<S: Store>(scene: Scene<S>) {
    let chains = drafts(&scene, 5).await;
    let listed = listed(&scene, ChainFilter::default(), Page::default()).await;
    let listed: Vec<_> = listed.iter().map(|chain| chain.id).rev().collect();
    assert_eq!(listed, ids(&chains));
}

async fn types<S: Store>(scene: Scene<S>) {
    let drafts = drafts(&scene, 2).await;
    let print = scene.client.start(Print { number: 1 }).await.unwrap();
    scene.client.start(Bind {}).blocked_by(Vec::new()).await.unwrap();
    let of = |names: &[&str]| {
        let types = names.iter().map(|name| TypeName::new(*name).unwrap()).collect();
        found(&scene, ChainFilter { types, ..ChainFilter::default() })
    };
    assert_eq!(of(&["Draft"]).await, ids(&drafts));
    assert_eq!(of(&["Draft", "Print"]).await, [ids(&drafts), vec![print.id()]].concat());
    assert_eq!(of(&["Nobody"]).await, []);
}

async fn top_level<S: Store>(scene: Scene<S>) {
    let drafts = drafts(&scene, 3).await;
    let bind = scene.client.start(Bind {}).blocked_by(drafts[..2].to_vec()).await.unwrap();
    let filter = ChainFilter { top_level: true, ..ChainFilter::default() };
    assert_eq!(found(&scene, filter.clone()).await, [drafts[2].id(), bind.id()]);
    let worker = scene.worker().handle(draft).handle(print).start().await.unwrap();
    scene.output(drafts[0]).await;
    scene.output(drafts[1]).await;
    scene.stop([worker]).await;
    assert_eq!(
        found(&scene, filter).await,
        [drafts[2].id(), bind.id()],
        "one that was waited for stays hidden"
    );
}

async fn statuses<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(draft).handle(print).start().await.unwrap();
    let done = drafts(&scene, 1).await[0];
    scene.output(done).await;
    scene.stop([worker]).await;
    let worker = scene.worker().handle(draft).start().await.unwrap();
    let half = drafts(&scene, 1).await[0];
    scene.job_that("it continues", half, |job| job.index == 1).await;
    scene.stop([worker]).await;
    let waits = scene.client.start(Bind {}).blocked_by(vec![half]).await.unwrap();
    let of = |statuses: &[Status]| {
        found(&scene, ChainFilter { statuses: statuses.to_vec(), ..ChainFilter::default() })
    };
    assert_eq!(of(&[Status::Completed]).await, [done.id()], "one whose first job has completed is not");
    assert_eq!(of(&[Status::Pending]).await, [half.id()]);
    assert_eq!(of(&[Status::Blocked]).await, [waits.id()]);
    assert_eq!(of(&[Status::Failed]).await, []);
    assert_eq!(of(&[Status::Completed, Status::Blocked]).await, [done.id(), waits.id()]);
}

async fn oldest<S: Store>(scene: Scene<S>) {
    let chains = drafts(&scene, 4).await;
    assert_eq!(found(&scene, ChainFilter::default()).await, ids(&chains));
}

async fn pages<S: Store>(scene: Scene<S>) {
    let chains = ids(&drafts(&scene, 7).await);
    for max in [1, 3, 7, 8] {
        let page = oldest_first(max);
        let forth = listed(&scene, ChainFilter::default(), page.clone()).await;
        assert_eq!(forth.iter().map(|chain| chain.id).collect::<Vec<_>>(), chains);
        let back = Page { order: Order::Newest, ..page };
        let back = listed(&scene, ChainFilter::default(), back).await;
        assert_eq!(back.iter().map(|chain| chain.id).rev().collect::<Vec<_>>(), chains);
    }
}

async fn created<S: Store>(scene: Scene<S>) {
    let mut times: Vec<Timestamp> = Vec::new();
    let mut chains = Vec::new();
    for chain in 0..3 {
        // Create each chain in a different millisecond.
        if let Some(last) = times.last() {
            scene.past(*last).await;
        }
        chains.push(scene.client.start(Draft { number: chain }).await.unwrap());
        times.push(scene.job(chains[chains.len() - 1]).await.created_at);
    }
    let between = |from: Option<Timestamp>, to: Option<Timestamp>| {
        let types = vec![TypeName::new("Draft").unwrap()];
        found(&scene, ChainFilter { types, created_from: from, created_to: to, ..ChainFilter::default() })
    };
    let ids = ids(&chains);
    assert_eq!(between(Some(times[1]), None).await, ids[1..]);
    assert_eq!(between(None, Some(times[1])).await, ids[..2]);
    assert_eq!(between(Some(times[1]), Some(times[1])).await, ids[1..2]);
    assert_eq!(between(Some(times[2]), Some(times[0])).await, []);
}

async fn records<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(draft).handle(print).start().await.unwrap();
    let done = scene.client.start(Draft { number: 1 }).key("a").await.unwrap();
    scene.output(done).await;
    scene.stop([worker]).await;
    let open = drafts(&scene, 1).await[0];
    scene.client.start(Bind {}).blocked_by(vec![done, open]).await.unwrap();
    for chain in listed(&scene, ChainFilter::default(), oldest_first(50)).await {
        assert_eq!(scene.client.chain(chain.id).await.unwrap(), Some(chain));
    }
}

/// Asserts that all queries agree about a chain, and returns it.
async fn assert_agree<S: Store>(scene: &Scene<S>, chain: ChainId) -> ChainRecord {
    let record = scene.client.chain(chain).await.unwrap().unwrap();
    let jobs = scene.client.chain_jobs(chain).await.unwrap();
    assert_eq!((jobs.first(), jobs.last()), (Some(&record.first), Some(&record.latest)));
    let listed = listed(scene, ChainFilter::default(), Page::default()).await;
    assert!(listed.contains(&record));
    let every = list_jobs::listed(scene, JobFilter::default(), Page::default()).await;
    for job in &jobs {
        assert_eq!(scene.client.job(job.id).await.unwrap().as_ref(), Some(job));
        assert!(every.contains(job));
        for (blocker, found) in job.blockers.iter().zip(scene.client.blockers(job.id).await.unwrap()) {
            let found = found.unwrap();
            assert_eq!((found.id, found.status() == Status::Completed), (blocker.chain, blocker.resolved));
            assert!(scene.client.dependents(found.id).await.unwrap().contains(job));
        }
    }
    record
}

async fn agree_completed<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().handle(draft).handle(print).start().await.unwrap();
    let chain = drafts(&scene, 1).await[0];
    scene.output(chain).await;
    scene.stop([worker]).await;
    let record = assert_agree(&scene, chain.id()).await;
    assert_eq!((record.status(), record.latest.index), (Status::Completed, 1));
    assert_eq!(scene.client.output(chain).await.unwrap(), Some(0));
}

async fn agree_blockers<S: Store>(scene: Scene<S>) {
    let drafts = drafts(&scene, 2).await;
    let bind = scene.client.start(Bind {}).blocked_by(drafts.clone()).await.unwrap();
    assert_eq!(assert_agree(&scene, bind.id()).await.status(), Status::Blocked);
    let worker = scene.worker().handle(draft).handle(print).start().await.unwrap();
    for chain in &drafts {
        scene.output(*chain).await;
    }
    scene.stop([worker]).await;
    assert_eq!(assert_agree(&scene, bind.id()).await.status(), Status::Pending);
    for chain in drafts {
        assert_agree(&scene, chain.id()).await;
    }
}

async fn default_page<S: Store>(scene: Scene<S>) {
    scene.client.start_many((0..60).map(|number| Print { number })).await.unwrap();
    let chains = scene.client.list_chains(ListChains::default()).await.unwrap();
    assert!(chains.chains.len() <= 50 && chains.next.is_some());
    let jobs = scene.client.list_jobs(ListJobs::default()).await.unwrap();
    assert!(jobs.jobs.len() <= 50 && jobs.next.is_some());
    assert_eq!(listed(&scene, ChainFilter::default(), Page::default()).await.len(), 60);
}
