//! Starting one or many chains.

use std::time::Duration;

use windlass_core::command::Created;
use windlass_core::{Chain, ChainId, ErrorKind, Plan, Transactional, plan};

use super::super::prelude::*;
use super::end;

pub(super) fn cases<S: Store>() -> Vec<Behavior<S>> {
    vec![
        behavior!(
            "start.one",
            "A started chain is stored with its first job and the given input.",
            ["BS-001", "BS-213"],
            one
        ),
        behavior!("start.key", "A start with a held key returns the chain that holds it.", ["BS-002"], key),
        behavior!("start.blockers", "A chain started with open blockers is blocked.", ["BS-003"], blockers),
        behavior!("start.schedule", "A chain started with a delay is due after it.", ["BS-004"], schedule),
        behavior!(
            "start.id",
            "A start with a chosen id can be repeated; an id of another chain is refused.",
            ["BS-009"],
            id
        ),
        behavior!("start.many", "Chains started together are returned in order.", ["BS-010"], many),
        behavior!("start.many.none", "Starting no chains is not an error.", ["BS-011"], none),
        behavior!(
            "start.many.keys",
            "If several starts of a batch have the same key, the first creates the chain and the others return it.",
            ["BS-012"],
            many_keys
        ),
        behavior!(
            "start.many.blockers",
            "Chains of a batch can wait for earlier chains of the same batch.",
            ["BS-013", "BS-016"],
            many_blockers
        ),
        behavior!(
            "start.many.schedules",
            "Each chain of a batch has its own schedule.",
            ["BS-014"],
            many_schedules
        ),
        behavior!(
            "start.many.types",
            "One command can start chains of several types.",
            ["BS-015"],
            many_types
        ),
        behavior!(
            "start.many.blockers_run",
            "Workers run a batch in which some chains wait for others.",
            ["BS-017"],
            many_blockers_run
        ),
        behavior!("start.many.run", "Workers run all chains of a batch.", ["BS-018"], many_run),
        behavior!(
            "start.many.ids",
            "The ids of a batch can be chosen by the caller; a refused one does not affect the others.",
            ["BS-023"],
            many_ids
        ),
    ]
}

pub(super) fn transactional_cases<S: Transactional>() -> Vec<Behavior<S>> {
    vec![
        // The sources require a transaction for this. Here it works with and without one.
        behavior!(
            "start.transaction",
            "A start takes effect immediately, or when its transaction commits, or never if it is rolled back.",
            ["BS-005"],
            transaction
        ),
        behavior!(
            "start.many.transaction",
            "A batch of starts takes effect immediately, or with its transaction, or never if it is rolled back.",
            ["BS-019"],
            many_transaction
        ),
    ]
}

job!(Greet { name: String } -> String);
job!(Number { number: u32 } -> u32);
job!(Sum {} -> u32, blocked_by Vec<Number>);

const HOUR: Duration = Duration::from_secs(3_600);

async fn number(job: Ctx<Number>) -> Result<u32> {
    Ok(job.input().number)
}

async fn sum(job: Ctx<Sum>) -> Result<u32> {
    Ok(job.blockers().iter().sum())
}

async fn one<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Greet { name: "Ada \0 \u{1F600}".into() }).await.unwrap();
    assert!(chain.is_new());
    let record = scene.other.chain(chain).await.unwrap().unwrap();
    let job = record.latest.clone();
    assert_eq!((record.id, record.chain_type.as_str(), record.closed), (chain.id(), "Greet", None));
    assert_eq!((job.id, job.index, job.status), (chain.id().first_job(), 0, Status::Pending));
    assert_eq!((job.attempt, job.due_at, record.first == job), (0, job.created_at, true));
    assert_eq!(scene.other.input::<Greet>(job.id).await.unwrap().unwrap().name, "Ada \0 \u{1F600}");
}

async fn key<S: Store>(scene: Scene<S>) {
    let first = scene.client.start(Number { number: 1 }).key("a").await.unwrap();
    let second = scene.other.start(Number { number: 2 }).key("a").await.unwrap();
    assert!(second == first && !second.is_new());
    let input = scene.client.input::<Number>(first.id().first_job()).await.unwrap().unwrap();
    assert_eq!(input.number, 1, "the first one's input stays");
}

async fn blockers<S: Store>(scene: Scene<S>) {
    let blockers = scene.client.start_many([1, 2].map(|number| Number { number })).await.unwrap();
    let chain = scene.client.start(Sum {}).blocked_by(blockers.clone()).await.unwrap();
    let job = scene.job(chain).await;
    assert_eq!(job.status, Status::Blocked);
    let waits: Vec<_> = job.blockers.iter().map(|blocker| (blocker.chain, blocker.resolved)).collect();
    assert_eq!(waits, [(blockers[0].id(), false), (blockers[1].id(), false)]);
}

async fn schedule<S: Store>(scene: Scene<S>) {
    let chain = scene.client.start(Number { number: 1 }).after(HOUR).await.unwrap();
    let job = scene.job(chain).await;
    assert_eq!((job.status, job.due_at.since(job.created_at)), (Status::Pending, HOUR));
}

async fn id<S: Store>(scene: Scene<S>) {
    let id = ChainId::new();
    let first = scene.client.start(Number { number: 1 }).id(id).await.unwrap();
    let again = scene.other.start(Number { number: 1 }).id(id).await.unwrap();
    assert_eq!((first.id(), again.id()), (id, id));
    let error = scene.client.start(Greet { name: "Ada".into() }).id(id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "it is another chain's");
    assert_eq!(scene.job(first).await.job_type.as_str(), "Number");
}

async fn many<S: Store>(scene: Scene<S>) {
    let chains = scene.client.start_many((0..50).map(|number| Number { number })).await.unwrap();
    assert_eq!(chains.len(), 50);
    for (number, chain) in (0..).zip(chains) {
        assert!(chain.is_new());
        let input = scene.client.input::<Number>(chain.id().first_job()).await.unwrap().unwrap();
        assert_eq!(input.number, number);
    }
}

async fn none<S: Store>(scene: Scene<S>) {
    assert_eq!(scene.client.start_many(Vec::<Number>::new()).await.unwrap(), []);
    assert_eq!(scene.client.create(Vec::new()).await.unwrap(), []);
    assert_eq!(scene.seen.all(), []);
}

async fn many_keys<S: Store>(scene: Scene<S>) {
    let plans = ["a", "b", "a"].map(|key| plan(Number { number: 1 }).key(key));
    let chains = scene.client.start_many(plans).await.unwrap();
    assert_eq!(chains.iter().map(Chain::is_new).collect::<Vec<_>>(), [true, true, false]);
    assert!(chains[2] == chains[0] && chains[1] != chains[0]);
    assert_eq!(scene.seen.count(|event| matches!(event, Event::ChainCreated(_))), 2);
}

/// Returns plans for numbers, for a sum of them, and for a sum without blockers.
fn sums(numbers: u32) -> (Vec<Plan<Number>>, [Plan<Sum>; 2]) {
    let numbers: Vec<_> = (0..numbers).map(|number| plan(Number { number })).collect();
    let blockers = numbers.iter().map(Plan::handle).collect();
    (numbers, [plan(Sum {}).blocked_by(blockers), plan(Sum {}).blocked_by(Vec::new())])
}

async fn many_blockers<S: Store>(scene: Scene<S>) {
    let (numbers, sums) = sums(3);
    let chains = numbers.into_iter().map(|plan| plan.build().unwrap());
    let chains = chains.chain(sums.map(|plan| plan.build().unwrap())).collect();
    let created = scene.client.create(chains).await.unwrap();
    let status = |created: &Created| match created {
        Created::New { job, .. } => job.status,
        other => panic!("{other:?}"),
    };
    let statuses: Vec<_> = created.iter().map(status).collect();
    assert_eq!(statuses[..3], [Status::Pending; 3]);
    assert_eq!(
        statuses[3..],
        [Status::Blocked, Status::Pending],
        "one waits, the other has nothing to wait for"
    );
}

async fn many_schedules<S: Store>(scene: Scene<S>) {
    let plans = (0..3).map(|number| plan(Number { number }).after(HOUR * number));
    let chains = scene.client.start_many(plans).await.unwrap();
    for (hours, chain) in (0..).zip(chains) {
        let job = scene.job(chain).await;
        assert_eq!(job.due_at.since(job.created_at), HOUR * hours);
    }
}

async fn many_types<S: Store>(scene: Scene<S>) {
    let (number, greet) = (plan(Number { number: 1 }), plan(Greet { name: "Ada".into() }));
    let (first, second) = (number.handle(), greet.handle());
    scene.client.create(vec![number.build().unwrap(), greet.build().unwrap()]).await.unwrap();
    assert_eq!(scene.job(first).await.job_type.as_str(), "Number");
    assert_eq!(scene.job(second).await.job_type.as_str(), "Greet");
}

async fn many_blockers_run<S: Store>(scene: Scene<S>) {
    let worker = scene.worker().concurrency(4).handle(number).handle(sum).start().await.unwrap();
    let (numbers, sums) = sums(10);
    let handles = [sums[0].handle(), sums[1].handle()];
    let chains = numbers.into_iter().map(|plan| plan.build().unwrap());
    let chains = chains.chain(sums.map(|plan| plan.build().unwrap())).collect();
    scene.client.create(chains).await.unwrap();
    assert_eq!(scene.output(handles[0]).await, 45);
    assert_eq!(scene.output(handles[1]).await, 0);
    scene.stop([worker]).await;
}

async fn many_run<S: Store>(scene: Scene<S>) {
    let chains = scene.client.start_many((0..40).map(|number| Number { number })).await.unwrap();
    let workers = [
        scene.worker().concurrency(4).handle(number).start().await.unwrap(),
        scene.other_worker().concurrency(4).handle(number).start().await.unwrap(),
    ];
    for (number, chain) in (0..).zip(chains) {
        assert_eq!(scene.output(chain).await, number);
    }
    scene.stop(workers).await;
}

async fn many_ids<S: Store>(scene: Scene<S>) {
    let ids = [ChainId::new(), ChainId::new()];
    let plans = ids.map(|id| plan(Number { number: 1 }).id(id));
    let chains = scene.client.start_many(plans).await.unwrap();
    assert_eq!([chains[0].id(), chains[1].id()], ids);

    let (good, bad) = (plan(Greet { name: "Ada".into() }), plan(Greet { name: "Bob".into() }).id(ids[0]));
    let handle = good.handle();
    let error = scene.client.start_many([bad, good]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().starts_with("start 1 of 2 was refused"), "{error}");
    assert!(scene.client.chain(handle).await.unwrap().is_some());
}

async fn transaction<S: Transactional>(scene: Scene<S>) {
    let at_once = scene.client.start(Number { number: 0 }).await.unwrap();
    assert!(scene.other.chain(at_once).await.unwrap().is_some());
    for commits in [false, true] {
        let mut tx = scene.client.begin().await.unwrap();
        let chain = tx.start(Number { number: 1 }).key("mine").await.unwrap();
        assert!(chain.is_new(), "nothing of the transaction that was rolled back holds the key");
        assert!(tx.chain(chain).await.unwrap().is_some(), "the transaction sees it");
        assert!(
            scene.other.chain(chain).await.unwrap().is_none(),
            "it is not visible outside before the commit"
        );
        end(tx, commits).await;
        assert_eq!(scene.other.chain(chain).await.unwrap().is_some(), commits);
    }
}

async fn many_transaction<S: Transactional>(scene: Scene<S>) {
    for commits in [false, true] {
        let mut tx = scene.client.begin().await.unwrap();
        let chains = tx.start_many([1, 2, 3].map(|number| Number { number })).await.unwrap();
        for chain in &chains {
            assert!(scene.other.chain(*chain).await.unwrap().is_none(), "not before the commit");
        }
        end(tx, commits).await;
        for chain in chains {
            assert_eq!(scene.other.chain(chain).await.unwrap().is_some(), commits);
        }
    }
}
