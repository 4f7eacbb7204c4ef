//! Registered workers, and leader locks.

use windlass_core::LockName;

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "worker.listed",
        "A registered worker is listed with the values that it registered.",
        ["B4.20"],
        [Workers],
        listed
    ),
    case!(
        "worker.beat",
        "Renewing a registration keeps the worker's start time.",
        ["B4.20"],
        [Workers],
        beats
    ),
    case!(
        "worker.gone",
        "A worker that has not renewed its registration within its TTL is not listed.",
        ["B4.20"],
        [Workers],
        gone
    ),
    case!("worker.each_its_own", "Each worker has its own TTL.", ["B4.20"], [Workers], each_its_own),
    case!(
        "worker.retired",
        "A retired worker is not listed, and its jobs are not affected.",
        ["B4.2"],
        [Workers],
        retired
    ),
    case!("worker.order", "Workers are listed in order of their ids.", ["contract"], [Workers], order),
    case!("lock.one_holder", "One token holds a lock at a time.", ["contract"], [LeaderLock], one_holder),
    case!(
        "lock.renewed",
        "Only the token that holds a lock can renew it.",
        ["contract"],
        [LeaderLock],
        renewed
    ),
    case!(
        "lock.released",
        "Only the token that holds a lock can release it.",
        ["contract"],
        [LeaderLock],
        released
    ),
    case!("lock.expired", "Any token can acquire an expired lock.", ["contract"], [LeaderLock], expired),
    case!("lock.names", "Locks of different names are different locks.", ["never 9"], [LeaderLock], names),
    case!(
        "lock.race",
        "If many tokens compete for a lock, one acquires it.",
        ["contract"],
        [LeaderLock],
        race
    ),
];

fn beat(worker: WorkerId, ttl: u64) -> Beat {
    Beat { worker, name: None, types: vec![type_name("a")], concurrency: 4, running: 1, ttl: millis(ttl) }
}

async fn listed_ids(s: &Subject) -> Vec<WorkerId> {
    s.run(ListWorkers).await.workers.iter().map(|worker| worker.worker).collect()
}

async fn listed(s: Subject) {
    assert_eq!(s.run(ListWorkers).await.workers, []);
    let types = vec![type_name("b"), type_name("a: '")];
    let name = Some(WorkerName::new("worker one").unwrap());
    let request = Beat { name: name.clone(), types: types.clone(), ..beat(s.worker, 10_000) };
    assert_eq!(s.run(request).await.now, s.now());
    let expected = WorkerInfo {
        worker: s.worker,
        name,
        types,
        concurrency: 4,
        running: 1,
        started_at: s.now(),
        seen_at: s.now(),
        expires_at: s.now() + millis(10_000),
    };
    assert_eq!(s.through_other().run(ListWorkers).await.workers, [expected]);
}

async fn beats(s: Subject) {
    let begin = s.now();
    s.run(beat(s.worker, 10_000)).await;
    for running in 2..5 {
        s.advance(9_000);
        s.run(Beat { running, ..beat(s.worker, 10_000) }).await;
        let worker = s.run(ListWorkers).await.workers.remove(0);
        assert_eq!((worker.started_at, worker.seen_at, worker.running), (begin, s.now(), running));
    }
}

async fn gone(s: Subject) {
    s.run(beat(s.worker, 10_000)).await;
    s.advance(9_999);
    assert_eq!(listed_ids(&s).await, [s.worker]);
    s.advance(2);
    assert_eq!(listed_ids(&s).await, []);
    assert!(!s.run(Retire { worker: s.worker }).await.was_known, "it had gone before");
    s.run(beat(s.worker, 10_000)).await;
    assert_eq!(s.run(ListWorkers).await.workers[0].started_at, s.now());
}

async fn each_its_own(s: Subject) {
    let other = WorkerId::new();
    s.run(beat(s.worker, 100_000)).await;
    s.run(beat(other, 1_000)).await;
    s.advance(2_000);
    assert_eq!(listed_ids(&s).await, [s.worker]);
}

async fn retired(s: Subject) {
    s.start("a").await;
    let attempt = s.acquire_one("a").await;
    s.run(beat(s.worker, 10_000)).await;
    assert!(s.run(Retire { worker: s.worker }).await.was_known, "it was on the list");
    assert!(!s.run(Retire { worker: s.worker }).await.was_known, "it is no longer");
    assert_eq!(listed_ids(&s).await, []);
    assert_eq!(s.job(attempt.job.id).await, attempt.job);
    s.complete(&attempt, "1").await;
}

async fn order(s: Subject) {
    let mut workers: Vec<_> = (0..5).map(|_| WorkerId::new()).collect();
    for worker in workers.iter().rev() {
        s.run(beat(*worker, 10_000)).await;
    }
    workers.sort_unstable();
    assert_eq!(listed_ids(&s).await, workers);
}

async fn lock(s: &Subject, name: &str, token: RequestId, action: LockAction) -> LockState {
    let name = LockName::new(name).unwrap();
    s.run(LeaderLock { name, token, action }).await.state
}

fn hold(ms: u64) -> LockAction {
    LockAction::Hold(millis(ms))
}

async fn one_holder(s: Subject) {
    let (one, two) = (RequestId::new(), RequestId::new());
    let until = s.now() + millis(10_000);
    assert_eq!(lock(&s, "l", one, hold(10_000)).await, LockState::Held(until));
    s.advance(1_000);
    assert_eq!(lock(&s.through_other(), "l", two, hold(99_000)).await, LockState::HeldByAnother(until));
    assert_eq!(lock(&s, "l", one, hold(9_000)).await, LockState::Held(until));
}

async fn renewed(s: Subject) {
    let (one, two) = (RequestId::new(), RequestId::new());
    lock(&s, "l", one, hold(10_000)).await;
    for _ in 0..3 {
        s.advance(9_000);
        assert_eq!(lock(&s, "l", one, hold(10_000)).await, LockState::Held(s.now() + millis(10_000)));
        assert!(
            matches!(lock(&s, "l", two, hold(10_000)).await, LockState::HeldByAnother(_)),
            "it is renewed"
        );
    }
}

async fn released(s: Subject) {
    let (one, two) = (RequestId::new(), RequestId::new());
    let until = s.now() + millis(10_000);
    lock(&s, "l", one, hold(10_000)).await;
    assert_eq!(lock(&s, "l", two, LockAction::Release).await, LockState::HeldByAnother(until));
    assert_eq!(lock(&s, "l", one, LockAction::Release).await, LockState::Free);
    assert_eq!(lock(&s, "l", one, LockAction::Release).await, LockState::Free);
    assert_eq!(lock(&s, "l", two, hold(1_000)).await, LockState::Held(s.now() + millis(1_000)));
}

async fn expired(s: Subject) {
    let (one, two) = (RequestId::new(), RequestId::new());
    lock(&s, "l", one, hold(10_000)).await;
    s.advance(10_001);
    assert_eq!(lock(&s, "l", two, hold(5_000)).await, LockState::Held(s.now() + millis(5_000)));
    let until = s.now() + millis(5_000);
    assert_eq!(lock(&s, "l", one, hold(10_000)).await, LockState::HeldByAnother(until));
    assert_eq!(lock(&s, "l", one, LockAction::Release).await, LockState::HeldByAnother(until));
}

async fn names(s: Subject) {
    for name in ["l", "L", "l:", "{l}", "l'", "../l", "ü"] {
        let state = lock(&s, name, RequestId::new(), hold(10_000)).await;
        assert_eq!(state, LockState::Held(s.now() + millis(10_000)), "{name:?}");
    }
}

async fn race(s: Subject) {
    for _ in 0..5 {
        let contenders: Vec<_> = (0..12)
            .map(|turn| {
                let s = s.turn(turn);
                tokio::spawn(async move { lock(&s, "l", RequestId::new(), hold(1_000)).await })
            })
            .collect();
        let mut held = 0;
        for contender in contenders {
            held += usize::from(matches!(contender.await.unwrap(), LockState::Held(_)));
        }
        assert_eq!(held, 1);
        s.advance(1_001);
    }
}
