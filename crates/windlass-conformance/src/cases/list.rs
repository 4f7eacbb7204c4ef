//! Lists of chains, jobs and dependents.

use std::ops::Add;

use windlass_core::{ChainRecord, JobRecord};

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "list.chains.empty",
        "The list of chains is empty if none is stored.",
        ["SA-LC01"],
        [Lists],
        chains_empty
    ),
    case!(
        "list.chains.shape",
        "Listed chains equal those that a query by id returns.",
        ["SA-LC03"],
        [Lists],
        chains_shape
    ),
    case!(
        "list.chains.order",
        "Chains are listed newest first, or oldest first on request.",
        ["SA-LC05", "SA-LC08"],
        [Lists],
        chains_order
    ),
    case!(
        "list.chains.pages",
        "Following the cursors returns every chain once.",
        ["SA-LC06", "SA-LC09", "A8.17"],
        [Lists],
        chains_pages
    ),
    case!("list.chains.types", "Chains are listed by type.", ["SA-LC04"], [Lists], chains_types),
    case!(
        "list.chains.statuses",
        "Chains are listed by status, which is that of their latest job.",
        ["SA-LC12", "A8.3"],
        [Lists],
        chains_statuses
    ),
    case!(
        "list.chains.top_level",
        "The list can exclude chains that a job waits or waited for.",
        ["SA-LC02"],
        [Lists],
        chains_top_level
    ),
    case!(
        "list.chains.created",
        "Chains are listed by creation time, with both ends of the range included.",
        ["SA-LC10"],
        [Lists],
        chains_created
    ),
    case!(
        "list.chains.closed",
        "Chains are listed by closing time, with both ends of the range included. Open chains have none.",
        ["issue: filters"],
        [Lists],
        chains_closed
    ),
    case!(
        "list.chains.key",
        "Chains are listed by the key they were created with, whether they hold it or not.",
        ["issue: filters"],
        [Lists],
        chains_key
    ),
    case!(
        "list.chains.while_changing",
        "Pages stay correct while chains are created and removed.",
        ["SA-LC06"],
        [Lists],
        chains_while_changing
    ),
    case!(
        "list.chains.cursor",
        "A cursor that the store did not issue is invalid.",
        ["never 9"],
        [Lists],
        chains_cursor
    ),
    case!(
        "list.jobs.empty",
        "The list of jobs is empty if none is stored.",
        ["SA-LJ01"],
        [Lists],
        jobs_empty
    ),
    case!(
        "list.jobs.all",
        "All jobs are listed in order of creation, in either direction.",
        ["SA-LJ02", "SA-LJ09"],
        [Lists],
        jobs_all
    ),
    case!(
        "list.jobs.filters",
        "Jobs are listed by chain, status, type, chain type, creation time and closing time.",
        ["SA-LJ03", "SA-LJ04", "SA-LJ05", "SA-LJ06", "SA-LJ10"],
        [Lists],
        jobs_filters
    ),
    case!(
        "list.jobs.pages",
        "Following the cursors returns every job once.",
        ["SA-LJ08"],
        [Lists],
        jobs_pages
    ),
    case!(
        "list.jobs.of_a_chain",
        "The jobs of one chain are listed by their index, in either direction and in pages.",
        ["SA-LX01", "SA-LX02", "SA-LX03", "SA-LX04", "SA-LX05"],
        [Lists],
        jobs_of_a_chain
    ),
    case!(
        "list.dependents",
        "The jobs that wait or waited for a chain are listed in either direction and in pages.",
        ["SA-LB01", "SA-LB02", "SA-LB03", "SA-LB04"],
        [Lists],
        dependents
    ),
];

/// Returns all pages of a list of chains.
async fn all_chains(s: &Subject, filter: ChainFilter, order: Order, max: u32) -> Vec<ChainRecord> {
    let (mut chains, mut after) = (Vec::new(), None);
    loop {
        let page = Page { order, after, max };
        let reply = s.run(ListChains { filter: filter.clone(), page }).await;
        assert!(reply.chains.len() <= max as usize, "a page is not longer than asked for");
        chains.extend(reply.chains);
        after = reply.next;
        if after.is_none() {
            return chains;
        }
        assert!(chains.len() < 10_000, "the list does not end");
    }
}

async fn chain_ids(s: &Subject, filter: ChainFilter) -> Vec<ChainId> {
    all_chains(s, filter, Order::Oldest, 50).await.iter().map(|chain| chain.id).collect()
}

/// Returns all pages of a list of jobs.
async fn all_jobs(s: &Subject, filter: JobFilter, order: Order, max: u32) -> Vec<JobRecord> {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let page = Page { order, after, max };
        let reply = s.run(ListJobs { filter: filter.clone(), page }).await;
        assert!(reply.jobs.len() <= max as usize, "a page is not longer than asked for");
        jobs.extend(reply.jobs);
        after = reply.next;
        if after.is_none() {
            return jobs;
        }
        assert!(jobs.len() < 10_000, "the list does not end");
    }
}

async fn job_ids(s: &Subject, filter: JobFilter) -> Vec<JobId> {
    all_jobs(s, filter, Order::Oldest, 50).await.iter().map(|job| job.id).collect()
}

/// Starts `count` chains of type `a` and returns them, oldest first.
async fn some_chains(s: &Subject, count: usize) -> Vec<ChainId> {
    let chains: Vec<_> = (0..count).map(|_| s.start("a").build()).collect();
    let ids = chains.iter().map(|chain| chain.id).collect();
    s.create(chains).await;
    ids
}

fn reversed<T: Clone>(items: &[T]) -> Vec<T> {
    items.iter().rev().cloned().collect()
}

async fn chains_empty(s: Subject) {
    let reply = s.run(ListChains::default()).await;
    assert_eq!(reply, ListChainsReply { chains: Vec::new(), next: None });
}

async fn chains_shape(s: Subject) {
    let id = s.start("a").key("k").traces("00-chain-01", "00-job-01").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    let listed = s.through_other().run(ListChains::default()).await.chains;
    assert_eq!(listed, [s.chain(id).await]);
}

async fn chains_order(s: Subject) {
    let mut ids = some_chains(&s, 3).await;
    s.advance(1_000);
    ids.extend(some_chains(&s, 3).await);
    // The id does not affect the order: the smallest id comes last.
    let late = ChainId::from_uuid(windlass_core::uuid::Uuid::from_u128(1));
    s.start("a").id(late).await;
    ids.push(late);
    let newest = s.run(ListChains::default()).await.chains;
    assert_eq!(newest.iter().map(|chain| chain.id).collect::<Vec<_>>(), reversed(&ids));
    assert_eq!(chain_ids(&s, ChainFilter::default()).await, ids);
}

async fn chains_pages(s: Subject) {
    let ids = some_chains(&s, 23).await;
    for max in [1, 5, 23, 100] {
        for (order, expected) in [(Order::Oldest, ids.clone()), (Order::Newest, reversed(&ids))] {
            let listed = all_chains(&s, ChainFilter::default(), order, max).await;
            assert_eq!(listed.iter().map(|chain| chain.id).collect::<Vec<_>>(), expected);
        }
    }
}

async fn chains_types(s: Subject) {
    let (one, two, three) = (s.start("a").await, s.start("b").await, s.start("c").await);
    s.work("a", continue_with(s.start("b").next_job())).await;
    let of = |names: &[&str]| ChainFilter {
        types: names.iter().map(|name| type_name(name)).collect(),
        ..ChainFilter::default()
    };
    assert_eq!(chain_ids(&s, of(&["b"])).await, [two]);
    assert_eq!(chain_ids(&s, of(&["c", "a"])).await, [one, three]);
    assert_eq!(chain_ids(&s, of(&["d"])).await, []);
}

async fn chains_statuses(s: Subject) {
    let continued = s.start("a").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    let done = s.start("c").await;
    s.work("c", complete("1")).await;
    let waiting = s.start("a").blocked_by([continued]).await;
    let with = |statuses: &[Status]| ChainFilter { statuses: statuses.to_vec(), ..ChainFilter::default() };
    assert_eq!(chain_ids(&s, with(&[Status::Pending])).await, [continued]);
    assert_eq!(chain_ids(&s, with(&[Status::Completed])).await, [done]);
    assert_eq!(chain_ids(&s, with(&[Status::Blocked, Status::Completed])).await, [done, waiting]);
    assert_eq!(chain_ids(&s, with(&[Status::Failed])).await, []);
}

async fn chains_top_level(s: Subject) {
    let blocker = s.start("b").await;
    let top = s.start("a").blocked_by([blocker]).await;
    let filter = ChainFilter { top_level: true, ..ChainFilter::default() };
    assert_eq!(chain_ids(&s, filter.clone()).await, [top]);
    s.work("b", complete("1")).await;
    assert_eq!(chain_ids(&s, filter).await, [top], "the job waited for it");
}

async fn chains_created(s: Subject) {
    let mut ids = Vec::new();
    let begin = s.now();
    for _ in 0..4 {
        ids.push(s.start("a").await);
        s.advance(1_000);
    }
    let at = |ms| Some(begin.add(millis(ms)));
    let between =
        |created_from, created_to| ChainFilter { created_from, created_to, ..ChainFilter::default() };
    assert_eq!(chain_ids(&s, between(at(1_000), at(2_000))).await, ids[1..3]);
    assert_eq!(chain_ids(&s, between(at(1_001), None)).await, ids[2..]);
    assert_eq!(chain_ids(&s, between(None, at(999))).await, ids[..1]);
}

async fn chains_closed(s: Subject) {
    let begin = s.now();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(s.start("a").await);
    }
    let longer = s.start("b").await;
    s.start("open").await;
    for _ in 0..3 {
        s.work("a", complete("1")).await;
        s.advance(1_000);
    }
    s.work("b", continue_with(s.start("b").next_job())).await;
    s.advance(1_000);
    s.work("b", fail("no")).await;
    let at = |ms| Some(begin.add(millis(ms)));
    let between = |closed_from, closed_to| ChainFilter { closed_from, closed_to, ..ChainFilter::default() };
    assert_eq!(chain_ids(&s, between(at(1_000), at(2_000))).await, ids[1..]);
    assert_eq!(chain_ids(&s, between(None, at(999))).await, ids[..1]);
    assert_eq!(chain_ids(&s, between(at(3_000), None)).await, [longer], "the chain closes with its last job");
    assert_eq!(chain_ids(&s, between(at(3_000), at(3_999))).await, []);
    let failed = ChainFilter { statuses: vec![Status::Failed], ..between(at(4_000), at(4_000)) };
    assert_eq!(chain_ids(&s, failed).await, [longer]);
}

async fn chains_key(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", complete("1")).await;
    let second = s.start("a").key("k").await;
    let other_type = s.start("b").key("k").await;
    s.start("a").key("kk").await;
    s.start("a").await;
    let of = |name| ChainFilter { key: Some(key(name)), ..ChainFilter::default() };
    assert_eq!(chain_ids(&s, of("k")).await, [first, second, other_type]);
    assert_eq!(chain_ids(&s, ChainFilter { types: vec![type_name("b")], ..of("k") }).await, [other_type]);
    assert_eq!(chain_ids(&s, of("none")).await, []);
}

async fn chains_while_changing(s: Subject) {
    let ids = some_chains(&s, 20).await;
    let page =
        |order, after| ListChains { filter: ChainFilter::default(), page: Page { order, after, max: 7 } };
    let first = s.run(page(Order::Newest, None)).await;
    some_chains(&s, 5).await;
    s.work("a", complete("1")).await;
    let second = s.run(page(Order::Newest, first.next)).await;
    let third = s.run(page(Order::Newest, second.next)).await;
    let listed: Vec<_> =
        [first.chains, second.chains, third.chains].concat().iter().map(|chain| chain.id).collect();
    assert_eq!((listed, third.next), (reversed(&ids), None));
}

async fn chains_cursor(s: Subject) {
    some_chains(&s, 3).await;
    for text in ["", "x", "1'; drop table job; --", "\u{1f600}"] {
        let page = Page { after: Some(Cursor(text.to_owned())), ..Page::default() };
        assert_eq!(
            s.error(ListChains { filter: ChainFilter::default(), page }).await,
            ErrorKind::Invalid,
            "{text:?}"
        );
    }
}

async fn jobs_empty(s: Subject) {
    let reply = s.run(ListJobs::default()).await;
    assert_eq!(reply, ListJobsReply { jobs: Vec::new(), next: None });
}

/// Creates a chain of jobs `a`, `b`, `b` and a chain of one job `b`. Returns the jobs in order of creation, and the two
/// chains.
async fn two_chains(s: &Subject) -> (Vec<JobId>, ChainId, ChainId) {
    let (one, two) = (s.start("a").await, s.start("b").after(HOUR).await);
    s.advance(1_000);
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    let last = s.start("b").next_job();
    s.work("b", continue_with(last.clone())).await;
    (vec![one.first_job(), two.first_job(), next.id, last.id], one, two)
}

async fn jobs_all(s: Subject) {
    let (jobs, ..) = two_chains(&s).await;
    assert_eq!(job_ids(&s, JobFilter::default()).await, jobs);
    let newest = s.run(ListJobs::default()).await.jobs;
    assert_eq!(newest.iter().map(|job| job.id).collect::<Vec<_>>(), reversed(&jobs));
    assert_eq!(newest[0], s.job(jobs[3]).await);
}

async fn jobs_filters(s: Subject) {
    let begin = s.now();
    let (jobs, one, two) = two_chains(&s).await;
    let none = JobFilter::default();
    let check = async |filter: JobFilter, expected: &[usize]| {
        let expected: Vec<_> = expected.iter().map(|index| jobs[*index]).collect();
        assert_eq!(job_ids(&s, filter.clone()).await, expected, "{filter:?}");
    };
    check(JobFilter { chain: Some(one), ..none.clone() }, &[0, 2, 3]).await;
    check(JobFilter { chain: Some(two), ..none.clone() }, &[1]).await;
    check(JobFilter { statuses: vec![Status::Pending], ..none.clone() }, &[1, 3]).await;
    check(JobFilter { statuses: vec![Status::Pending, Status::Completed], ..none.clone() }, &[0, 1, 2, 3])
        .await;
    check(JobFilter { types: vec![type_name("b")], ..none.clone() }, &[1, 2, 3]).await;
    check(JobFilter { chain_types: vec![type_name("b")], ..none.clone() }, &[1]).await;
    check(JobFilter { created_from: Some(begin + millis(1)), ..none.clone() }, &[2, 3]).await;
    check(JobFilter { created_to: Some(begin), ..none.clone() }, &[0, 1]).await;
    let (closed_from, closed_to) = (Some(begin + millis(1_000)), Some(begin + millis(1_000)));
    check(JobFilter { closed_from, closed_to, ..none.clone() }, &[0, 2]).await;
    check(JobFilter { closed_from, chain: Some(one), ..none.clone() }, &[0, 2]).await;
    check(JobFilter { closed_from: Some(begin + millis(1_001)), ..none.clone() }, &[]).await;
    check(JobFilter { closed_to: Some(begin + millis(999)), ..none.clone() }, &[]).await;
    check(JobFilter { statuses: vec![Status::Pending], closed_to, ..none.clone() }, &[]).await;
    let both = JobFilter { chain: Some(one), types: vec![type_name("b")], ..none.clone() };
    check(JobFilter { statuses: vec![Status::Completed], ..both }, &[2]).await;
}

async fn jobs_pages(s: Subject) {
    let ids: Vec<_> = some_chains(&s, 23).await.iter().map(|chain| chain.first_job()).collect();
    for (order, expected) in [(Order::Oldest, ids.clone()), (Order::Newest, reversed(&ids))] {
        let listed = all_jobs(&s, JobFilter::default(), order, 4).await;
        assert_eq!(listed.iter().map(|job| job.id).collect::<Vec<_>>(), expected);
    }
}

async fn jobs_of_a_chain(s: Subject) {
    let of = |chain| JobFilter { chain: Some(chain), ..JobFilter::default() };
    assert_eq!(job_ids(&s, of(ChainId::new())).await, []);
    let id = s.start("a").await;
    for _ in 0..6 {
        s.work("a", continue_with(s.start("a").next_job())).await;
        s.start("other").await;
    }
    let listed = all_jobs(&s, of(id), Order::Oldest, 2).await;
    assert_eq!(listed.iter().map(|job| job.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    let listed = all_jobs(&s, of(id), Order::Newest, 3).await;
    assert_eq!(listed.iter().map(|job| job.index).collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1, 0]);
    assert!(listed.iter().all(|job| job.chain == id), "only that chain's jobs are listed");
    let later = ChainId::from_uuid(*listed[0].id.as_uuid());
    assert_eq!(job_ids(&s, of(later)).await, [], "the id of a later job is not a chain");
}

async fn all_dependents(s: &Subject, chain: ChainId, order: Order, max: u32) -> Vec<JobId> {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let reply = s.run(ListDependents { chain, page: Page { order, after, max } }).await;
        jobs.extend(reply.jobs.iter().map(|job| job.id));
        after = reply.next;
        if after.is_none() {
            return jobs;
        }
        assert!(jobs.len() < 1_000, "the list does not end");
    }
}

async fn dependents(s: Subject) {
    let (blocker, free) = (s.start("b").await, s.start("b").await);
    let mut jobs = Vec::new();
    for _ in 0..5 {
        jobs.push(s.start("a").blocked_by([blocker]).await.first_job());
    }
    s.start("c").await;
    let next = s.start("d").blocked_by([blocker]).next_job();
    s.work("c", continue_with(next.clone())).await;
    jobs.push(next.id);
    assert_eq!(all_dependents(&s, free, Order::Newest, 2).await, []);
    assert_eq!(all_dependents(&s, blocker, Order::Newest, 2).await, reversed(&jobs));
    s.work("b", complete("1")).await;
    s.work("a", complete("2")).await;
    assert_eq!(all_dependents(&s, blocker, Order::Oldest, 4).await, jobs, "jobs that waited are listed too");
}
