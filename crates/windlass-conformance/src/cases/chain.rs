//! Continuations, chains created by a settlement, and queries for chains and jobs.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "chain.continue",
        "A continuation completes the job without an output and adds the next one.",
        ["SA-CJ02", "SA-GC01"],
        continues
    ),
    case!("chain.indexes", "The jobs of a chain are numbered consecutively.", ["SA-CJ10"], indexes),
    case!(
        "chain.view",
        "A chain is returned with its first and its latest job.",
        ["SA-GC02", "SA-GC03", "SA-GC04"],
        view
    ),
    case!(
        "chain.unknown",
        "A chain or job that is not stored is not found.",
        ["SA-GC05", "SA-GJ01"],
        unknown
    ),
    case!("chain.by_job", "A chain is found by any of its jobs.", ["SA-LC11", "contract"], by_job),
    case!(
        "chain.many",
        "One command can return many chains and jobs, in order.",
        ["SA-CC02", "SA-LC07", "SA-LJ07"],
        many
    ),
    case!(
        "chain.continue.loop",
        "A chain may continue with a type that it has already used.",
        ["client"],
        looping
    ),
    case!(
        "chain.continue.fields",
        "A continuation has its own schedule, priority, maximum attempts and trace context.",
        ["SA-CJ13", "SA-CJ15"],
        fields
    ),
    case!("chain.continue.blocked", "A continuation waits for its blockers.", ["SA-AB01"], blocked),
    case!("chain.continue.id_taken", "A continuation whose id is taken is refused.", ["SA-CJ24"], id_taken),
    case!(
        "chain.continue.itself",
        "A continuation that would make its chain wait for itself is refused.",
        ["never 1"],
        waits_for_itself
    ),
    case!(
        "chain.continue.fails",
        "A continuation whose blocker has failed may fail its chain immediately.",
        ["contract"],
        fails_at_once
    ),
    case!(
        "chain.carried",
        "A completion can carry chains, with the same results as a creation.",
        ["contract"],
        carried
    ),
    case!(
        "chain.carried.blockers",
        "A continuation can wait for chains that the same settlement carries.",
        ["contract"],
        carried_blockers
    ),
    case!(
        "chain.carried.existing",
        "A carried chain whose key is held refers to the existing chain.",
        ["contract"],
        carried_existing
    ),
    case!(
        "chain.carried.successor",
        "A completion can carry a successor that takes over the chain's key.",
        ["SA-CJ12", "never 6"],
        successor
    ),
    case!(
        "chain.carried.refused",
        "If a carried chain is refused, no part of the settlement is written.",
        ["B4.15"],
        carried_refused
    ),
];

async fn continues(s: Subject) {
    let id = s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let next = s.start("b").input("2").next_job();
    let reply = s.settle_reply(&attempt, continue_with(next.clone())).await;
    let place = |job, status| JobSummary { job, chain: id, status, due_at: s.now() };
    let applied = Applied {
        job: place(attempt.job.id, Status::Completed),
        next: Some(place(next.id, Status::Pending)),
        created: Vec::new(),
    };
    assert_eq!(reply.settled, [Settled::Applied(applied)]);
    assert_eq!(reply.ripple, Ripple::default());
    let first = s.job(attempt.job.id).await;
    assert_eq!((first.status, first.output, first.lease), (Status::Completed, None, None));
    assert_eq!((first.closed_at, first.closed_by), (Some(s.now()), Some(s.worker)));
    let job = s.job(next.id).await;
    assert_eq!((job.chain, job.index, job.attempt), (id, 1, 0));
    assert_eq!(s.chain(id).await.closed, None);
}

async fn indexes(s: Subject) {
    let id = s.start("a").await;
    for index in 0..5 {
        let attempt = s.work("a", continue_with(s.start("a").next_job())).await;
        assert_eq!((attempt.job.index, attempt.job.chain), (index, id));
    }
    assert_eq!(s.chain(id).await.latest.index, 5);
}

async fn view(s: Subject) {
    let id = s.start("a").await;
    let chain = s.chain(id).await;
    assert_eq!(chain.first, chain.latest);
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    let chain = s.through_other().chain(id).await;
    assert_eq!((chain.first.id, chain.latest.id), (id.first_job(), next.id));
    assert_eq!((chain.first.status, chain.status()), (Status::Completed, Status::Pending));
    assert_eq!(chain.latest, s.job(next.id).await);
    s.work("b", complete("1")).await;
    assert_eq!(s.chain(id).await.output(), Some(&json("1")));
}

async fn unknown(s: Subject) {
    let id = s.start("a").await;
    assert_eq!((s.find_chain(ChainId::new()).await, s.find_job(JobId::new()).await), (None, None));
    assert_eq!(s.find_chain(Target::Job(JobId::new())).await, None);
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    assert_eq!(
        s.find_chain(ChainId::from_uuid(*next.id.as_uuid())).await,
        None,
        "a job's id is not a chain's"
    );
    assert!(s.find_chain(id).await.is_some(), "the chain is stored");
}

async fn by_job(s: Subject) {
    let id = s.start("a").await;
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    for job in [id.first_job(), next.id] {
        assert_eq!(s.find_chain(Target::Job(job)).await.map(|chain| chain.id), Some(id));
    }
}

async fn many(s: Subject) {
    let chains: Vec<_> = (0..200).map(|_| s.start("a").build()).collect();
    s.create(chains.clone()).await;
    let mut ids: Vec<_> = chains.iter().rev().map(|chain| chain.id).collect();
    ids.insert(7, ChainId::new());
    ids.push(ids[0]);
    let reply = s.run(GetChains { chains: ids.iter().map(|id| Target::Chain(*id)).collect() }).await;
    let found = |(id, index): (ChainId, usize)| (index != 7).then_some(id);
    let expected: Vec<_> = ids.iter().copied().zip(0..).map(found).collect();
    assert_eq!(
        reply.chains.iter().map(|chain| chain.as_ref().map(|chain| chain.id)).collect::<Vec<_>>(),
        expected
    );
    let reply = s.run(GetJobs { jobs: ids.iter().map(|id| id.first_job()).collect() }).await;
    assert_eq!(reply.jobs.iter().map(|job| job.as_ref().map(|job| job.chain)).collect::<Vec<_>>(), expected);
    assert_eq!(s.run(GetJobs { jobs: Vec::new() }).await.jobs, []);
    assert_eq!(s.run(GetChains { chains: Vec::new() }).await.chains, []);
}

async fn looping(s: Subject) {
    let id = s.start("a").await;
    s.work("a", continue_with(s.start("b").next_job())).await;
    s.work("b", continue_with(s.start("a").next_job())).await;
    let attempt = s.work("a", complete("1")).await;
    assert_eq!((attempt.job.chain, attempt.job.index), (id, 2));
}

async fn fields(s: Subject) {
    s.start("a").priority(5).max_attempts(9).traces("00-chain-01", "00-one-01").await;
    let next =
        s.start("b").after(1_000).priority(-3).max_attempts(2).traces("00-unused-01", "00-two-01").next_job();
    s.work("a", continue_with(next.clone())).await;
    let job = s.job(next.id).await;
    assert_eq!((job.due_at, job.priority, job.max_attempts), (s.now() + millis(1_000), -3, Some(2)));
    assert_eq!((job.trace.unwrap().as_str(), job.created_at), ("00-two-01", s.now()));
    s.expect_none_due("b").await;
    s.advance(1_000);
    assert_eq!(s.acquire_one("b").await.chain_trace.unwrap().as_str(), "00-chain-01");
}

async fn blocked(s: Subject) {
    let (one, two) = (s.start("x").await, s.start("x").await);
    s.work("x", complete("1")).await;
    let id = s.start("a").await;
    let next = s.start("b").blocked_by([two, one]).next_job();
    let attempt = s.acquire_one("a").await;
    let applied = s.apply(&attempt, continue_with(next.clone())).await;
    assert_eq!(applied.next.unwrap().status, Status::Blocked);
    s.expect_status(id, Status::Blocked).await;
    s.expect_none_due("b").await;
    s.work("x", complete("2")).await;
    let outputs: Vec<_> =
        s.acquire_one("b").await.blockers.into_iter().map(|one| one.output.unwrap()).collect();
    assert_eq!(outputs, [json("2"), json("1")]);
}

async fn id_taken(s: Subject) {
    let other = s.start("b").await;
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let mut next = s.start("b").next_job();
    for taken in [other.first_job(), attempt.job.id] {
        next.id = taken;
        let settled = s.settle(&attempt, continue_with(next.clone())).await;
        assert_eq!(settled, Settled::Refused(Refusal::IdTaken));
    }
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
}

async fn waits_for_itself(s: Subject) {
    let id = s.start("a").await;
    let near = s.start("b").blocked_by([id]).await;
    let far = s.start("b").blocked_by([near]).await;
    let attempt = s.acquire_one("a").await;
    for blocker in [id, near, far] {
        let next = s.start("c").blocked_by([blocker]).next_job();
        let settled = s.settle(&attempt, continue_with(next)).await;
        assert_eq!(settled, Settled::Refused(Refusal::WaitsForItself(blocker)));
    }
    s.complete(&attempt, "1").await;
    s.expect_status(near, Status::Pending).await;
}

async fn fails_at_once(s: Subject) {
    let blocker = s.start("x").await;
    s.work("x", fail("no")).await;
    let id = s.start("a").await;
    let waiting = s.start("y").blocked_by([id]).on_failure(OnBlockerFailure::Receive).await;
    let attempt = s.acquire_one("a").await;
    let next = s.start("b").blocked_by([blocker]).on_failure(OnBlockerFailure::Fail).next_job();
    let reply = s.settle_reply(&attempt, continue_with(next.clone())).await;
    let closed: Vec<_> = reply.ripple.closed.iter().map(|closed| (closed.chain, closed.job)).collect();
    assert_eq!(closed, [(id, next.id)]);
    s.expect_status(id, Status::Failed).await;
    s.expect_status(waiting, Status::Pending).await;
}

async fn carried(s: Subject) {
    s.start("a").await;
    let held = s.start("b").key("k").await;
    let chains = vec![s.start("b").input("1").build(), s.start("b").key("k").build()];
    let attempt = s.acquire_one("a").await;
    let applied = s.apply(&attempt, complete_with_chains("1", chains.clone())).await;
    assert_eq!(summary(&applied.created[0]).chain, chains[0].id);
    assert_eq!(existing(applied.created[1].clone()).chain, held);
    assert_eq!(s.acquire("b", 10).await.len(), 2);
}

async fn carried_blockers(s: Subject) {
    let id = s.start("a").await;
    let chains = vec![s.start("x").build(), s.start("x").build()];
    let next = s.start("b").blocked_by(chains.iter().map(|chain| chain.id)).next_job();
    let attempt = s.acquire_one("a").await;
    let applied = s.apply(&attempt, continue_with_chains(next, chains)).await;
    assert_eq!((applied.created.len(), applied.next.unwrap().status), (2, Status::Blocked));
    s.work("x", complete("1")).await;
    s.expect_status(id, Status::Blocked).await;
    s.work("x", complete("2")).await;
    assert_eq!(s.acquire_one("b").await.blockers.len(), 2);
}

async fn carried_existing(s: Subject) {
    let held = s.start("x").key("k").await;
    s.start("a").await;
    let chain = s.start("x").key("k").build();
    let next = s.start("b").blocked_by([chain.id]).next_job();
    s.work("a", continue_with_chains(next.clone(), vec![chain])).await;
    assert_eq!(s.job(next.id).await.blockers[0].chain, held);
    s.work("x", complete("1")).await;
    assert_eq!(s.acquire_one("b").await.blockers[0].chain, held);
}

async fn successor(s: Subject) {
    let first = s.start("a").key("k").hold(KeyHold::Any).await;
    let second = s.start("a").key("k").hold(KeyHold::Any).replaces(first).build();
    s.work("a", complete_with_chains("1", vec![second.clone()])).await;
    assert_eq!(s.by_key("a", "k").await, Some(second.id));
    assert_eq!(s.chain(first).await.output(), Some(&json("1")));
    assert_eq!(s.acquire_one("a").await.job.chain, second.id);
}

async fn carried_refused(s: Subject) {
    let id = s.start("a").key("k").await;
    let attempt = s.acquire_one("a").await;
    let good = s.start("b").key("l").build();
    let taken_over = s.start("a").key("k").replaces(id).build();
    let missing = ChainId::new();
    let bad = s.start("b").blocked_by([missing]).build();
    let chains = vec![good.clone(), taken_over, bad];
    let next = s.start("c").next_job();
    for outcome in [complete_with_chains("1", chains.clone()), continue_with_chains(next.clone(), chains)] {
        let settled = s.settle(&attempt, outcome).await;
        assert_eq!(settled, Settled::Refused(Refusal::BlockerNotFound(missing)));
        assert_eq!((s.find_chain(good.id).await, s.find_job(next.id).await), (None, None));
        assert_eq!((s.by_key("a", "k").await, s.by_key("b", "l").await), (Some(id), None));
        assert_eq!(s.job(attempt.job.id).await, attempt.job);
    }
    s.complete(&attempt, "1").await;
}
