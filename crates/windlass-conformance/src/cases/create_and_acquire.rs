//! Creating and acquiring in one round trip.

use super::prelude::*;

pub(super) const CASES: &[Case] = &[
    case!(
        "create_and_acquire.creates_first",
        "A command that creates and acquires returns the new jobs as created, and acquires them.",
        ["contract"],
        [CreateAndAcquire],
        creates_first
    ),
    case!(
        "create_and_acquire.order",
        "It acquires in the usual order: jobs that were due earlier come before the new ones.",
        ["contract"],
        [CreateAndAcquire],
        order
    ),
    case!(
        "create_and_acquire.key",
        "If a chain holds the key, it creates no chain, and acquires what is due.",
        ["contract"],
        [CreateAndAcquire],
        key
    ),
    case!(
        "create_and_acquire.single",
        "A single new job follows the same rules if no other job is pending: keys, quotas, paused types, repeats, fences.",
        ["contract"],
        [CreateAndAcquire, Delete, Pause],
        single
    ),
    case!(
        "create_and_acquire.blocked",
        "It does not acquire a new job that has an open blocker, or that is due later.",
        ["contract"],
        [CreateAndAcquire],
        blocked
    ),
    case!(
        "create_and_acquire.refused",
        "A refused chain does not prevent it from acquiring, nor from creating the others.",
        ["contract"],
        [CreateAndAcquire],
        refused
    ),
    case!(
        "create_and_acquire.repeated",
        "Repeated after a lost reply, it creates nothing and returns the same jobs.",
        ["never 12"],
        [CreateAndAcquire],
        repeated
    ),
    case!(
        "create_and_acquire.repeated_alone",
        "After a lost reply, each part can be repeated alone.",
        ["never 12"],
        [CreateAndAcquire],
        repeated_alone
    ),
    case!(
        "create_and_acquire.invalid",
        "If one part is invalid, it writes nothing.",
        ["contract"],
        [CreateAndAcquire],
        invalid
    ),
];

fn joined(s: &Subject, chains: Vec<NewChain>, name: &str) -> CreateAndAcquire {
    CreateAndAcquire { create: Create { chains }, acquire: s.acquire_request(&[name], 10) }
}

fn created(reply: &CreateAndAcquireReply) -> Vec<ChainId> {
    let new = reply.create.chains.iter().filter_map(|created| match created {
        Created::New { job, repeated: false } => {
            assert_eq!(job.status, Status::Pending);
            Some(job.chain)
        }
        _ => None,
    });
    new.collect()
}

async fn creates_first(s: Subject) {
    for count in [1, 3] {
        let chains: Vec<_> = (0..count).map(|_| s.start("a").build()).collect();
        let ids: Vec<_> = chains.iter().map(|new| new.id).collect();
        let reply = s.run(joined(&s, chains, "a")).await;
        assert_eq!(created(&reply), ids);
        assert_eq!(chains_of(&reply.acquire.jobs), ids);
        assert_eq!(s.job(ids[0].first_job()).await.status, Status::Running);
        assert_eq!(reply.acquire.jobs[0].job, s.job(ids[0].first_job()).await);
        assert_eq!(reply.acquire.now, s.now());
        let alone = s.run(Create { chains: vec![s.start("b").build()] }).await;
        assert_eq!(reply.create.durability, alone.durability);
    }
}

async fn single(s: Subject) {
    let acquired = |reply: &CreateAndAcquireReply| chains_of(&reply.acquire.jobs);
    // A key that was never used, and the same key while its chain is open.
    let (holder, other) = (s.start("keyed").key("k").build(), s.start("keyed").key("k").build());
    let reply = s.run(joined(&s, vec![holder.clone()], "keyed")).await;
    assert_eq!((created(&reply), acquired(&reply)), (vec![holder.id], vec![holder.id]));
    assert_eq!(reply.acquire.jobs[0].key.as_ref().map(|key| key.as_str()), Some("k"));
    let reply = s.run(joined(&s, vec![other], "keyed")).await;
    assert!(matches!(&reply.create.chains[..], [Created::Existing(found)] if found.chain == holder.id));
    assert_eq!(acquired(&reply), []);
    // No room for the type, or for any job.
    for (of_type, all) in [(0, 10), (10, 0)] {
        let new = s.start("full").build();
        let mut request = joined(&s, vec![new.clone()], "full");
        request.acquire.types[0].max = of_type;
        request.acquire.max = all;
        let reply = s.run(request).await;
        assert_eq!((created(&reply), acquired(&reply)), (vec![new.id], vec![]));
        assert_eq!(s.job(new.id.first_job()).await.status, Status::Pending);
        assert_eq!(chains_of(&s.acquire("full", 10).await), [new.id]);
    }
    // Another type than the one that is wanted, and a paused type.
    let new = s.start("unwanted").build();
    let reply = s.run(joined(&s, vec![new], "wanted")).await;
    assert_eq!(acquired(&reply), []);
    s.run(Pause { types: vec![type_name("paused")], paused: true }).await;
    let new = s.start("paused").build();
    let reply = s.run(joined(&s, vec![new.clone()], "paused")).await;
    assert_eq!((created(&reply), acquired(&reply)), (vec![new.id], vec![]));
    s.run(Pause { types: vec![type_name("paused")], paused: false }).await;
    // The whole command is repeated.
    let new = s.start("repeated").build();
    let request = joined(&s, vec![new.clone()], "repeated");
    let (first, second) = (s.run(request.clone()).await, s.run(request).await);
    assert_eq!(first.acquire.jobs, second.acquire.jobs);
    assert!(matches!(&second.create.chains[..], [Created::New { repeated: true, .. }]));
    assert_eq!(s.job(new.id.first_job()).await.attempt, 1);
    // The id is used again within the same millisecond.
    let old = first.acquire.jobs[0].job.fence;
    s.run(Delete { chains: vec![Target::Chain(new.id)], cascade: false, seen: None }).await;
    let reply = s.run(joined(&s, vec![new.clone()], "repeated")).await;
    assert_eq!(acquired(&reply), [new.id]);
    assert!(reply.acquire.jobs[0].job.fence > old);
}

async fn order(s: Subject) {
    let earlier = s.start("a").await;
    s.start("b").await;
    s.advance(10);
    let (new, first) = (s.start("a").build(), s.start("a").priority(1).build());
    let (id, first_id) = (new.id, first.id);
    let mut request = joined(&s, vec![new, first], "a");
    request.acquire.max = 2;
    let reply = s.run(request).await;
    assert_eq!(chains_of(&reply.acquire.jobs), [first_id, earlier]);
    assert_eq!(chains_of(&s.acquire("a", 10).await), [id]);
}

async fn key(s: Subject) {
    let holder = s.start("a").key("k").await;
    let (held, free) = (s.start("a").key("k").build(), s.start("a").key("l").build());
    let free_id = free.id;
    let reply = s.run(joined(&s, vec![held, free], "a")).await;
    assert!(matches!(&reply.create.chains[0], Created::Existing(existing) if existing.chain == holder));
    assert_eq!(created(&reply), [free_id]);
    assert_eq!(chains_of(&reply.acquire.jobs), [holder, free_id]);
}

async fn blocked(s: Subject) {
    let blocker = s.start("b").await;
    let blocked = s.start("a").blocked_by([blocker]).build();
    let later = s.start("a").at(s.now() + millis(10)).build();
    let plain = s.start("a").build();
    let plain_id = plain.id;
    let reply = s.run(joined(&s, vec![blocked, later, plain], "a")).await;
    assert_eq!(chains_of(&reply.acquire.jobs), [plain_id]);
    assert!(reply.create.chains.iter().all(|created| matches!(created, Created::New { .. })), "{reply:?}");
}

async fn refused(s: Subject) {
    let due = s.start("a").await;
    let refused = s.start("a").blocked_by([ChainId::new()]).build();
    let reply = s.run(joined(&s, vec![refused.clone()], "a")).await;
    assert!(matches!(reply.create.chains[..], [Created::Refused(_)]), "{reply:?}");
    assert_eq!(chains_of(&reply.acquire.jobs), [due]);
    let plain = s.start("a").build();
    let plain_id = plain.id;
    let reply = s.run(joined(&s, vec![refused, plain], "a")).await;
    assert!(matches!(reply.create.chains[..], [Created::Refused(_), Created::New { .. }]), "{reply:?}");
    assert_eq!(chains_of(&reply.acquire.jobs), [plain_id]);
}

async fn repeated(s: Subject) {
    let chains: Vec<_> = (0..3).map(|_| s.start("a").build()).collect();
    let mut request = joined(&s, chains, "a");
    request.acquire.max = 2;
    let first = s.run(request.clone()).await;
    let again = s.through_other().run(request).await;
    assert_eq!(created(&again), []);
    let is_repeated = |created: &Created| matches!(created, Created::New { repeated: true, .. });
    assert!(again.create.chains.iter().all(is_repeated), "{again:?}");
    assert_eq!(again.acquire.jobs, first.acquire.jobs);
    assert_eq!(s.acquire("a", 10).await.len(), 1);
}

async fn repeated_alone(s: Subject) {
    let request = joined(&s, vec![s.start("a").build()], "a");
    let first = s.run(request.clone()).await;
    let create = s.run(request.create).await;
    assert!(matches!(create.chains[..], [Created::New { repeated: true, .. }]), "{create:?}");
    let acquire = s.through_other().run(request.acquire).await;
    assert_eq!(acquire.jobs, first.acquire.jobs);
}

async fn invalid(s: Subject) {
    let new = s.start("a").build();
    let id = new.id;
    let mut request = joined(&s, vec![new], "a");
    request.acquire.types[0].lease = Millis::ZERO;
    assert_eq!(s.error(request).await, ErrorKind::Invalid);
    let due = s.start("a").await;
    let too_many = (0..=limit::BATCH_MAX_ITEMS).map(|_| s.start("a").build()).collect();
    assert_eq!(s.error(joined(&s, too_many, "a")).await, ErrorKind::Invalid);
    assert_eq!(chains_of(&s.acquire("a", 10).await), [due]);
    assert!(s.run(GetChains { chains: vec![Target::Chain(id)] }).await.chains[0].is_none());
}
