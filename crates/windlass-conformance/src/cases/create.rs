//! Starting chains.

use windlass_core::Timestamp;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!("create.first_job", "A chain's id is the id of its first job.", ["SA-CJ01", "SA-CJ23"], first_job),
    case!(
        "create.distinct",
        "Chains with different ids are different chains, even if they are otherwise equal.",
        ["SA-CJ03"],
        distinct
    ),
    case!(
        "create.fields",
        "All fields of a created chain are returned as given.",
        ["SA-CJ04", "SA-CJ16"],
        fields
    ),
    case!(
        "create.defaults",
        "Optional fields that were not set are absent.",
        ["SA-CJ05", "SA-GC03"],
        defaults
    ),
    case!("create.payloads", "Nested JSON is returned byte for byte.", ["SA-CJ06"], payloads),
    case!(
        "create.batch",
        "One command can create many chains, and the replies are in order.",
        ["SA-CJ17"],
        batch
    ),
    case!("create.empty", "An empty creation returns an empty reply.", ["SA-CJ22"], empty),
    case!(
        "create.schedule",
        "A job is due at the requested time or after the requested delay.",
        ["SA-CJ13"],
        schedule
    ),
    case!("create.schedule.past", "A job whose due time has passed is due now.", ["SA-CJ14"], schedule_past),
    case!("create.traces", "The trace contexts of chain and job are stored.", ["SA-CJ15"], traces),
    case!(
        "create.repeated",
        "A repeated creation writes nothing and reports that it is a repeat.",
        ["SA-CJ23", "never 12"],
        repeated
    ),
    case!(
        "create.repeated.moved_on",
        "A repeated creation returns the current state of the chain's latest job.",
        ["never 12"],
        repeated_moved_on
    ),
    case!(
        "create.repeated.closed",
        "A creation is recognized as repeated after its chain has closed.",
        ["never 12"],
        repeated_closed
    ),
    case!(
        "create.repeated.same_batch",
        "A chain that is listed twice in one command is created once.",
        ["never 12"],
        repeated_same_batch
    ),
    case!(
        "create.id_taken.other_type",
        "An id that belongs to a chain of another type is refused.",
        ["SA-CJ24"],
        id_of_other_type
    ),
    case!("create.id_taken.job", "An id that belongs to another job is refused.", ["SA-CJ24"], id_of_job),
    case!(
        "create.refused_alone",
        "A refused chain does not affect the other chains of the command.",
        ["contract"],
        refused_alone
    ),
    case!(
        "create.other_handle",
        "A chain created through one handle can be found and worked on through the other.",
        ["never 1"],
        other_handle
    ),
];

async fn first_job(s: Subject) {
    let id = s.start("a").await;
    let chain = s.chain(id).await;
    assert_eq!((chain.id, chain.first.id, chain.first.chain), (id, id.first_job(), id));
    assert_eq!((chain.first.index, chain.latest), (0, chain.first));
}

async fn distinct(s: Subject) {
    let chains: Vec<_> = (0..50).map(|_| s.start("a").input("1").build()).collect();
    s.create(chains.clone()).await;
    let mut found = chains_of(&s.acquire("a", 100).await);
    found.sort_unstable();
    let mut ids: Vec<_> = chains.iter().map(|chain| chain.id).collect();
    ids.sort_unstable();
    assert_eq!(found, ids);
}

async fn fields(s: Subject) {
    let blocker = s.start("b").await;
    let retention = Retention { completed: millis(1), failed: millis(2), cancelled: millis(3) };
    let id = s
        .start("a")
        .key("k")
        .hold(KeyHold::CompletedOrFailed)
        .window(HOUR)
        .after(5_000)
        .priority(-7)
        .max_attempts(4)
        .blocked_by([blocker])
        .on_failure(OnBlockerFailure::Receive)
        .input(r#"{"n":1}"#)
        .retentions(retention)
        .await;
    let chain = s.chain(id).await;
    let held = chain.key.unwrap();
    assert_eq!(
        (held.key, held.hold, held.window),
        (key("k"), KeyHold::CompletedOrFailed, Some(millis(HOUR)))
    );
    assert!(held.held, "the key points at its chain");
    assert_eq!((chain.chain_type, chain.retention, chain.created_at), (type_name("a"), retention, s.now()));
    let job = chain.first;
    assert_eq!((job.job_type, job.chain_type, job.status), (type_name("a"), type_name("a"), Status::Blocked));
    assert_eq!((job.input, job.priority, job.max_attempts), (json(r#"{"n":1}"#), -7, Some(4)));
    assert_eq!((job.created_at, job.due_at), (s.now(), s.now() + millis(5_000)));
    assert_eq!((job.blockers.len(), job.on_blocker_failure), (1, OnBlockerFailure::Receive));
    assert_eq!((job.blockers[0].chain, job.blockers[0].resolved), (blocker, false));
}

async fn defaults(s: Subject) {
    let id = s.start("a").await;
    let chain = s.chain(id).await;
    assert_eq!((&chain.key, chain.closed, &chain.trace), (&None, None, &None));
    assert_eq!(chain.retention, Retention::default());
    let job = chain.latest;
    assert_eq!((job.output, job.error, job.lease, job.trace), (None, None, None, None));
    assert_eq!((job.started_at, job.closed_at, job.closed_by), (None, None, None));
    assert_eq!((job.attempt, job.max_attempts, job.priority), (0, None, 0));
    assert_eq!(job.fence, Fence::at_creation(job.created_at));
    assert_eq!((job.blockers.len(), job.cancel_requested), (0, false));
}

async fn payloads(s: Subject) {
    let text = r#"{"a":[1, 2.50, null, {"b":"ü\u0000\n\"" , "c":{}}], "a":1e400,"z": [ ] }"#;
    let id = s.start("a").input(text).await;
    let attempt = s.acquire_one("a").await;
    assert_eq!(attempt.job.input, json(text));
    s.complete(&attempt, text).await;
    let job = s.job(id.first_job()).await;
    assert_eq!((job.input, job.output), (json(text), Some(json(text))));
}

async fn batch(s: Subject) {
    let chains: Vec<_> = (0..300).map(|n| s.start("a").input(&n.to_string()).build()).collect();
    let ids: Vec<_> = chains.iter().map(|chain| chain.id).collect();
    let created = s.create(chains).await;
    assert_eq!(created.iter().map(|one| summary(one).chain).collect::<Vec<_>>(), ids);
    assert_eq!(summary(&created[0]).job, ids[0].first_job());
    assert_eq!((summary(&created[0]).status, summary(&created[0]).due_at), (Status::Pending, s.now()));
    assert_eq!(s.job(ids[299].first_job()).await.input, json("299"));
}

async fn empty(s: Subject) {
    assert_eq!(s.create(Vec::new()).await, []);
}

async fn schedule(s: Subject) {
    let after = s.start("a").after(1_000).created().await;
    let at = s.start("a").at(s.now() + millis(2_000)).created().await;
    assert_eq!(summary(&after).due_at, s.now() + millis(1_000));
    assert_eq!(summary(&at).due_at, s.now() + millis(2_000));
    assert_eq!((summary(&after).status, summary(&at).status), (Status::Pending, Status::Pending));
    s.advance(1_000);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
    s.advance(1_000);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn schedule_past(s: Subject) {
    let early = Timestamp::from_millis(1).unwrap();
    let created = s.start("a").at(early).created().await;
    assert_eq!(summary(&created).due_at, s.now());
    assert_eq!(s.acquire_one("a").await.job.due_at, s.now());
}

async fn traces(s: Subject) {
    let id = s.start("a").traces("00-chain-01", "00-job-01").await;
    let attempt = s.acquire_one("a").await;
    assert_eq!(attempt.chain_trace.unwrap().as_str(), "00-chain-01");
    assert_eq!(attempt.job.trace.unwrap().as_str(), "00-job-01");
    let chain = s.chain(id).await;
    assert_eq!(chain.trace.unwrap().as_str(), "00-chain-01");
    assert_eq!(chain.first.trace.unwrap().as_str(), "00-job-01");
}

async fn repeated(s: Subject) {
    let chain = s.start("a").after(1_000).input("1").build();
    let first = s.create(vec![chain.clone()]).await;
    s.advance(500);
    let again = s.through_other().create(vec![chain.clone()]).await;
    assert_eq!(again, [Created::New { job: summary(&first[0]), repeated: true }]);
    s.advance(1_000);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn repeated_moved_on(s: Subject) {
    let chain = s.start("a").build();
    s.create(vec![chain.clone()]).await;
    let next = s.start("b").after(1_000).next_job();
    s.work("a", continue_with(next.clone())).await;
    let again = s.create(vec![chain.clone()]).await;
    let due_at = s.now() + millis(1_000);
    let job = JobSummary { job: next.id, chain: chain.id, status: Status::Pending, due_at };
    assert_eq!(again, [Created::New { job, repeated: true }]);
}

async fn repeated_closed(s: Subject) {
    let chain = s.start("a").key("k").retention(0).build();
    s.create(vec![chain.clone()]).await;
    s.work("a", complete("1")).await;
    s.advance(limit::REPEAT_WINDOW_MS - 1);
    s.expire().await;
    let again = s.create(vec![chain.clone()]).await;
    let [Created::New { job, repeated: true }] = again[..] else {
        panic!("expected a repeated creation: {again:?}")
    };
    assert_eq!((job.chain, job.status), (chain.id, Status::Completed));
    s.expect_none_due("a").await;
}

async fn repeated_same_batch(s: Subject) {
    let chain = s.start("a").build();
    let created = s.create(vec![chain.clone(), chain]).await;
    assert_eq!(created[1], Created::New { job: summary(&created[0]), repeated: true });
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn id_of_other_type(s: Subject) {
    let id = s.start("a").input("1").await;
    let created = s.start("b").id(id).input("2").created().await;
    assert_eq!(created, Created::Refused(Refusal::IdTaken));
    assert_eq!(s.chain(id).await.first.input, json("1"));
    s.expect_none_due("b").await;
}

async fn id_of_job(s: Subject) {
    s.start("a").await;
    let next = s.start("b").next_job();
    s.work("a", continue_with(next.clone())).await;
    let taken = ChainId::from_uuid(*next.id.as_uuid());
    assert_eq!(s.start("b").id(taken).created().await, Created::Refused(Refusal::IdTaken));
    assert_eq!(s.acquire("b", 10).await.len(), 1);
}

async fn refused_alone(s: Subject) {
    let missing = ChainId::new();
    let chains = vec![
        s.start("a").input("1").build(),
        s.start("a").max_attempts(0).build(),
        s.start("a").blocked_by([missing]).build(),
        s.start("a").input("2").build(),
    ];
    let created = s.create(chains.clone()).await;
    assert_eq!((summary(&created[0]).chain, summary(&created[3]).chain), (chains[0].id, chains[3].id));
    assert_eq!(created[1], Created::Refused(Refusal::NoAttempts));
    assert_eq!(created[2], Created::Refused(Refusal::BlockerNotFound(missing)));
    assert_eq!((s.find_chain(chains[1].id).await, s.find_chain(chains[2].id).await), (None, None));
    assert_eq!(s.acquire("a", 10).await.len(), 2);
}

async fn other_handle(s: Subject) {
    let other = s.through_other();
    let id = s.start("a").input("1").await;
    assert_eq!(other.chain(id).await, s.chain(id).await);
    let attempt = other.acquire_one("a").await;
    s.expect_none_due("a").await;
    s.expect_status(id, Status::Running).await;
    s.complete(&attempt, "2").await;
    assert_eq!(other.chain(id).await.output(), Some(&json("2")));
}
