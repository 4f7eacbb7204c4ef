//! Deduplication keys: the result of creating a second chain with the same key.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "key.existing",
        "Creating a chain with a held key returns the existing chain and writes nothing.",
        ["SA-CJ07"],
        existing_chain
    ),
    case!(
        "key.existing.wins_over_id",
        "The key determines the result, regardless of the new chain's id.",
        ["SA-CJ25"],
        wins_over_id
    ),
    case!(
        "key.existing.ignores_the_rest",
        "If a chain exists, the new input, schedule and blockers are ignored.",
        ["SA-CJ25"],
        ignores_the_rest
    ),
    case!(
        "key.existing.output",
        "An existing chain is returned with its status and output.",
        ["SA-CJ07", "contract"],
        existing_output
    ),
    case!(
        "key.existing.error",
        "An existing chain is returned with its latest error.",
        ["contract"],
        existing_error
    ),
    case!(
        "key.same_batch",
        "If several chains of one command have the same key, only the first is stored.",
        ["SA-CJ18"],
        same_batch
    ),
    case!("key.per_type", "Two types may use the same key.", ["words"], per_type),
    case!(
        "key.of_the_chain",
        "A key is scoped to the type of its chain, not to the type of a continuation.",
        ["words"],
        of_the_chain
    ),
    case!(
        "key.open.continued",
        "A chain that continued is open and still holds its key.",
        ["A8.3"],
        open_continued
    ),
    case!("key.open.failing", "A chain that waits for a retry holds its key.", ["B4.13"], open_failing),
    case!("key.none", "Chains without a key are never deduplicated.", ["words"], none),
    case!(
        "key.look_up",
        "A chain can be found through either handle by the key that points at it.",
        ["contract"],
        look_up
    ),
    case!(
        "key.replaces",
        "A successor takes over the key only from the chain that it names.",
        ["SA-CJ12", "never 6"],
        replaces
    ),
    case!(
        "key.replaces.other_holder",
        "If another chain than the named one holds the key, the holder is returned.",
        ["SA-CJ12"],
        replaces_other
    ),
    case!(
        "key.replaces.free",
        "A chain that names a predecessor takes the key if it is free.",
        ["SA-CJ12"],
        replaces_free
    ),
    case!(
        "key.former_holder",
        "A chain that lost its key neither regains nor releases it when it closes.",
        ["never 6", "B4.17"],
        former_holder
    ),
];

async fn existing_chain(s: Subject) {
    let first = s.start("a").key("k").input("1").await;
    let second = s.start("a").key("k").input("2").build();
    let met = existing(s.through_other().create(vec![second.clone()]).await.remove(0));
    assert_eq!((met.chain, met.status, met.job_type), (first, Status::Pending, type_name("a")));
    assert_eq!((met.output, met.error), (None, None));
    assert_eq!(s.find_chain(second.id).await, None);
    assert_eq!(s.acquire_one("a").await.job.input, json("1"));
    s.expect_none_due("a").await;
}

async fn wins_over_id(s: Subject) {
    let first = s.start("a").key("k").await;
    let created = s.start("a").id(ChainId::new()).key("k").created().await;
    assert_eq!(created.chain(), Some(first));
    let repeated = s.start("a").id(first).key("k").created().await;
    assert!(matches!(repeated, Created::New { repeated: true, .. }), "the id is checked first: {repeated:?}");
}

async fn ignores_the_rest(s: Subject) {
    let first = s.start("a").key("k").input("1").await;
    let second = s.start("a").key("k").input("2").after(HOUR).priority(9).blocked_by([ChainId::new()]);
    assert_eq!(existing(second.created().await).chain, first);
    let job = s.acquire_one("a").await.job;
    assert_eq!((job.input, job.priority, job.due_at, job.blockers.len()), (json("1"), 0, s.now(), 0));
}

async fn existing_output(s: Subject) {
    let first = s.start("a").key("k").hold(KeyHold::Completed).await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    let attempt = s.acquire_one("b").await;
    let met = existing(s.start("a").key("k").created().await);
    assert_eq!((met.status, met.job_type, met.output), (Status::Running, type_name("b"), None));
    s.complete(&attempt, "42").await;
    let met = existing(s.start("a").key("k").created().await);
    assert_eq!((met.chain, met.status, met.output), (first, Status::Completed, Some(json("42"))));
}

async fn existing_error(s: Subject) {
    s.start("a").key("k").hold(KeyHold::CompletedOrFailed).await;
    s.work("a", retry("first")).await;
    let met = existing(s.start("a").key("k").created().await);
    assert_eq!((met.status, met.error), (Status::Pending, Some(ErrorText::new("first"))));
    s.work("a", fail("last")).await;
    let met = existing(s.start("a").key("k").created().await);
    assert_eq!((met.status, met.error, met.output), (Status::Failed, Some(ErrorText::new("last")), None));
}

async fn same_batch(s: Subject) {
    let chains: Vec<_> =
        ["k", "k", "l", "k", "l"].iter().map(|text| s.start("a").key(text).build()).collect();
    let created = s.create(chains.clone()).await;
    let expected = [chains[0].id, chains[0].id, chains[2].id, chains[0].id, chains[2].id];
    assert_eq!(created.iter().filter_map(Created::chain).collect::<Vec<_>>(), expected);
    summary(&created[0]);
    summary(&created[2]);
    assert_eq!(existing(created[1].clone()).status, Status::Pending);
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn per_type(s: Subject) {
    let (one, two) = (s.start("a").key("k").await, s.start("b").key("k").await);
    assert_eq!((s.by_key("a", "k").await, s.by_key("b", "k").await), (Some(one), Some(two)));
    s.work("a", complete("1")).await;
    assert_eq!(existing(s.start("b").key("k").created().await).chain, two);
}

async fn of_the_chain(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    let other = s.start("b").key("k").await;
    assert_eq!((s.by_key("a", "k").await, s.by_key("b", "k").await), (Some(first), Some(other)));
}

async fn open_continued(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    assert_eq!(existing(s.start("a").key("k").created().await).chain, first);
    s.work("b", complete("1")).await;
    s.start("a").key("k").await;
}

async fn open_failing(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", retry_after(HOUR, "no")).await;
    assert_eq!(existing(s.start("a").key("k").created().await).chain, first);
}

async fn none(s: Subject) {
    s.start("a").await;
    s.start("a").await;
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn look_up(s: Subject) {
    let id = s.start("a").key("k").await;
    assert_eq!(s.by_key("a", "k").await, Some(id));
    assert_eq!(s.through_other().by_key("a", "k").await, Some(id));
    assert_eq!((s.by_key("a", "K").await, s.by_key("b", "k").await), (None, None));
}

async fn replaces(s: Subject) {
    let first = s.start("a").key("k").await;
    let second = s.start("a").key("k").replaces(first).await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
    assert!(!s.chain(first).await.key.unwrap().held, "the former holder no longer holds the key");
    assert!(s.chain(second).await.key.unwrap().held, "the successor holds it");
    s.expect_status(first, Status::Pending).await;
    assert_eq!(existing(s.start("a").key("k").created().await).chain, second);
}

async fn replaces_other(s: Subject) {
    let first = s.start("a").key("k").await;
    let stranger = s.start("a").await;
    let met = s.start("a").key("k").replaces(stranger).created().await;
    assert_eq!(existing(met).chain, first);
    let second = s.start("a").key("k").replaces(first).await;
    let late = s.start("a").key("k").replaces(first).created().await;
    assert_eq!(existing(late).chain, second);
}

async fn replaces_free(s: Subject) {
    let first = s.start("a").key("k").await;
    s.work("a", complete("1")).await;
    let second = s.start("a").key("k").replaces(first).await;
    let third = s.start("a").key("other").replaces(ChainId::new()).await;
    assert_eq!((s.by_key("a", "k").await, s.by_key("a", "other").await), (Some(second), Some(third)));
}

async fn former_holder(s: Subject) {
    let first = s.start("a").key("k").hold(KeyHold::Any).retention(HOUR).await;
    let attempt = s.acquire_one("a").await;
    let second = s.start("a").key("k").hold(KeyHold::Any).retention(24 * HOUR).replaces(first).await;
    s.complete(&attempt, "1").await;
    assert_eq!(s.by_key("a", "k").await, Some(second));
    s.work("a", complete("2")).await;
    s.advance(2 * HOUR);
    s.expire().await;
    assert_eq!(s.find_chain(first).await, None);
    assert_eq!(existing(s.start("a").key("k").created().await).output, Some(json("2")));
}
