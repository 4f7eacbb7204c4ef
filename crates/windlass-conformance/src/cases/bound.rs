//! Limits, closing a store, and the capabilities and health that a store reports.

use windlass_core::{Capability, Payload};

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!("limit.items", "A command with too many items is invalid and writes nothing.", ["never 8"], items),
    case!("limit.bytes", "A command with too many bytes is invalid and writes nothing.", ["never 8"], bytes),
    case!("limit.items.most", "A command with the maximum number of items succeeds.", ["A8.12"], most_items),
    case!("limit.blockers", "A job with too many blockers is refused.", ["never 8"], blockers),
    case!(
        "limit.carried",
        "A settlement with too many carried chains is refused, and the attempt still holds its job.",
        ["never 8"],
        carried
    ),
    case!("limit.lease", "A lease of 0 ms is invalid.", ["A8.7", "never 7"], lease),
    case!(
        "limit.acquire",
        "An acquire that lists a type twice, or requests too many jobs, is invalid.",
        ["contract"],
        acquire
    ),
    case!(
        "limit.attempts",
        "A maximum of 0 attempts is refused, also for a continuation.",
        ["A8.11"],
        attempts
    ),
    case!("limit.far_future", "The latest times and longest durations are stored.", ["SA-CJ16"], far_future),
    case!(
        "store.capabilities",
        "A store executes the commands it claims to support, and rejects the others as unsupported.",
        ["contract"],
        capabilities
    ),
    case!("store.erase", "Erasing removes everything, and the store stays usable.", ["contract"], erase),
    case!(
        "store.close",
        "A closed store returns errors of kind `Closed`, and closing it again does nothing.",
        ["SA-CL01"],
        close
    ),
    case!(
        "store.round_trips",
        "A command takes the same number of round trips for many items as for few.",
        ["A8.12", "B4.28"],
        round_trips
    ),
    case!("store.health", "A healthy store has no health findings.", ["contract"], health),
];

async fn items(s: Subject) {
    let chains: Vec<_> = (0..=limit::BATCH_MAX_ITEMS).map(|_| s.start("a").build()).collect();
    assert_eq!(s.error(Create { chains: chains.clone() }).await, ErrorKind::Invalid);
    s.expect_none_due("a").await;
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let settlements = vec![settlement(&attempt, complete("1")); limit::BATCH_MAX_ITEMS + 1];
    assert_eq!(s.error(Settle { settlements }).await, ErrorKind::Invalid);
    let lease = RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: millis(1) };
    assert_eq!(s.error(Renew { leases: vec![lease; limit::BATCH_MAX_ITEMS + 1] }).await, ErrorKind::Invalid);
    let targets = chains.iter().map(|chain| Target::Chain(chain.id)).collect();
    assert_eq!(s.error(GetChains { chains: targets }).await, ErrorKind::Invalid);
    let jobs = chains.iter().map(|chain| chain.id.first_job()).collect();
    assert_eq!(s.error(GetJobs { jobs }).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
}

async fn bytes(s: Subject) {
    let payload = Payload::json(vec![b' '; limit::PAYLOAD_MAX_BYTES]).unwrap();
    let chains: Vec<_> = (0..5).map(|_| s.start("a").payload(payload.clone()).build()).collect();
    assert_eq!(s.error(Create { chains }).await, ErrorKind::Invalid);
    s.expect_none_due("a").await;
}

async fn most_items(s: Subject) {
    s.create((0..limit::BATCH_MAX_ITEMS).map(|_| s.start("a").build()).collect()).await;
    let attempts = s.acquire("a", u32::try_from(limit::BATCH_MAX_ITEMS).unwrap()).await;
    assert_eq!(attempts.len(), limit::BATCH_MAX_ITEMS);
    let lease =
        |attempt: &Acquired| RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: LEASE };
    assert_eq!(
        s.run(Renew { leases: attempts.iter().map(lease).collect() }).await.leases.len(),
        attempts.len()
    );
    let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
    let reply = s.run(Settle { settlements }).await;
    assert!(reply.settled.iter().all(|one| matches!(one, Settled::Applied(_))), "all are applied");
    assert_eq!(reply.ripple.closed.len(), attempts.len());
}

async fn blockers(s: Subject) {
    let blocker = s.start("b").await;
    let created = s.start("a").blocked_by(vec![blocker; limit::BLOCKERS_MAX + 1]).created().await;
    assert_eq!(created, Created::Refused(Refusal::TooManyBlockers));
}

async fn carried(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let chains: Vec<_> = (0..=limit::CARRIED_MAX).map(|_| s.start("b").build()).collect();
    let settled = s.settle(&attempt, complete_with_chains("1", chains.clone())).await;
    assert_eq!(settled, Settled::Refused(Refusal::TooManyCarried));
    s.expect_none_due("b").await;
    s.apply(&attempt, complete_with_chains("1", chains[1..].to_vec())).await;
    assert_eq!(s.acquire("b", 1_000).await.len(), limit::CARRIED_MAX);
}

async fn lease(s: Subject) {
    s.start("a").await;
    let mut request = s.acquire_request(&["a"], 1);
    request.types[0].lease = Millis::ZERO;
    assert_eq!(s.error(request).await, ErrorKind::Invalid);
    let attempt = s.acquire_one("a").await;
    let lease = RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: Millis::ZERO };
    assert_eq!(s.error(Renew { leases: vec![lease] }).await, ErrorKind::Invalid);
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
}

async fn acquire(s: Subject) {
    s.start("a").await;
    assert_eq!(s.error(s.acquire_request(&["a", "b", "a"], 1)).await, ErrorKind::Invalid);
    let too_many = u32::try_from(limit::BATCH_MAX_ITEMS).unwrap() + 1;
    assert_eq!(s.error(s.acquire_request(&["a"], too_many)).await, ErrorKind::Invalid);
    s.acquire_one("a").await;
}

async fn attempts(s: Subject) {
    assert_eq!(s.start("a").max_attempts(0).created().await, Created::Refused(Refusal::NoAttempts));
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    let settled = s.settle(&attempt, continue_with(s.start("b").max_attempts(0).next_job())).await;
    assert_eq!(settled, Settled::Refused(Refusal::NoAttempts));
    s.complete(&attempt, "1").await;
}

async fn far_future(s: Subject) {
    let end = windlass_core::Timestamp::from_millis(limit::TIMESTAMP_MAX_MS).unwrap();
    let id =
        s.start("a").at(end).retention(limit::DURATION_MAX_MS).key("k").window(limit::DURATION_MAX_MS).await;
    assert_eq!(s.chain(id).await.latest.due_at, end);
    let id = s.start("b").retention(limit::DURATION_MAX_MS).await;
    let mut request = s.acquire_request(&["b"], 1);
    request.types[0].lease = millis(limit::DURATION_MAX_MS);
    let attempt = s.run(request).await.jobs.remove(0);
    assert_eq!(attempt.job.lease.as_ref().unwrap().until, s.now() + millis(limit::DURATION_MAX_MS));
    s.complete(&attempt, "1").await;
    let until = s.chain(id).await.closed.unwrap().retain_until;
    assert_eq!(until, s.now() + millis(limit::DURATION_MAX_MS));
}

/// Returns a harmless command that needs this optional capability.
fn probe(s: &Subject, capability: Capability) -> Option<Command> {
    let acquire = s.acquire_request(&[], 0);
    Some(match capability {
        Capability::Exchange => Exchange { settle: Settle { settlements: Vec::new() }, acquire }.into(),
        Capability::CreateAndAcquire => {
            CreateAndAcquire { create: Create { chains: Vec::new() }, acquire }.into()
        }
        Capability::NextDue => NextDue { types: Types::All }.into(),
        Capability::Outside => {
            let (request, job) = (RequestId::new(), JobId::new());
            let steps = vec![Step::Fail { error: ErrorText::new("no"), retention: None }];
            CompleteFromOutside { request, job, version: windlass_core::Version(0), steps }.into()
        }
        Capability::Cancel => Cancel { chains: Vec::new(), mode: CancelMode::Ask }.into(),
        Capability::Trigger => Trigger { jobs: Vec::new() }.into(),
        Capability::Retry => Retry { chains: Vec::new() }.into(),
        Capability::Delete => Delete { chains: Vec::new(), cascade: false, seen: None }.into(),
        Capability::SetRetention => SetRetention { chains: Vec::new(), retention: millis(1) }.into(),
        Capability::Pause => Pause { types: Vec::new(), paused: false }.into(),
        Capability::Lists => ListChains::default().into(),
        Capability::Attempts => ListAttempts { job: JobId::new() }.into(),
        Capability::Count => Count { types: Types::All }.into(),
        Capability::Workers => ListWorkers.into(),
        Capability::LeaderLock => {
            let name = windlass_core::LockName::new("lock").unwrap();
            LeaderLock { name, token: RequestId::new(), action: LockAction::Release }.into()
        }
        _ => return None,
    })
}

async fn capabilities(s: Subject) {
    let says = s.store.capabilities();
    assert_eq!(says, s.other.capabilities(), "both handles report the same");
    assert_eq!(
        says.has(Capability::Transactions),
        s.transactions.is_some(),
        "transactions match the claimed capability"
    );
    for capability in Capability::ALL {
        let Some(command) = probe(&s, capability) else { continue };
        match s.store.execute(command).await {
            Ok(_) => {
                assert!(says.has(capability), "the store supports {capability:?}, but does not claim it")
            }
            Err(error) => {
                assert!(!says.has(capability), "the store claims {capability:?}, but returned {error:?}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{capability:?}");
            }
        }
    }
}

async fn erase(s: Subject) {
    let id = s.start("a").key("k").await;
    s.start("b").blocked_by([id]).await;
    let attempt = s.acquire_one("a").await;
    s.store.erase().await.unwrap();
    assert_eq!((s.find_chain(id).await, s.by_key("a", "k").await), (None, None));
    assert_eq!(s.settle(&attempt, complete("1")).await, Settled::Lost(Lost::NotFound));
    let other = s.through_other();
    other.expect_none_due("b").await;
    let again = other.start("a").key("k").await;
    assert_eq!(chains_of(&s.acquire("a", 10).await), [again]);
}

async fn close(s: Subject) {
    s.start("a").await;
    s.store.close().await.unwrap();
    s.store.close().await.unwrap();
    assert_eq!(s.error(s.acquire_request(&["a"], 1)).await, ErrorKind::Closed);
    assert_eq!(s.error(GetJobs { jobs: vec![JobId::new()] }).await, ErrorKind::Closed);
    assert_eq!(s.error(Create { chains: vec![s.start("a").build()] }).await, ErrorKind::Closed);
}

async fn round_trips(s: Subject) {
    let mut costs = Vec::new();
    // The first round prepares statements and scripts, so it is not compared.
    for size in [2_u32, 2, 100] {
        let mut trips = vec![s.store.counters().round_trips];
        s.create((0..size).map(|_| s.start("a").build()).collect()).await;
        trips.push(s.store.counters().round_trips);
        let attempts = s.acquire("a", size).await;
        trips.push(s.store.counters().round_trips);
        let lease =
            |attempt: &Acquired| RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: LEASE };
        s.run(Renew { leases: attempts.iter().map(lease).collect() }).await;
        trips.push(s.store.counters().round_trips);
        let settlements = attempts.iter().map(|attempt| settlement(attempt, complete("1"))).collect();
        s.run(Settle { settlements }).await;
        trips.push(s.store.counters().round_trips);
        s.run(GetJobs { jobs: attempts.iter().map(|attempt| attempt.job.id).collect() }).await;
        trips.push(s.store.counters().round_trips);
        costs.push(trips.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>());
    }
    assert_eq!(costs[1], costs[2], "create, acquire, renew, settle and get_jobs, for 2 items and for 100");
}

async fn health(s: Subject) {
    s.start("a").await;
    s.work("a", complete("1")).await;
    assert_eq!(s.store.health().await.unwrap(), []);
}
