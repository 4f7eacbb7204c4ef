//! The cost of a command depends on the jobs it touches, not on the jobs that are stored.

use std::time::{Duration, Instant};

use windlass_core::command::{
    Acquire, Create, DueTime, NewChain, NewJob, Outcome, Quota, Reply, Settle, Settlement,
};
use windlass_core::model::Model;
use windlass_core::{ChainId, Millis, Payload, RequestId, Timestamp, TypeName, WorkerId};

const BATCH: usize = 100;
const ROUNDS: usize = 200;
const TRIES: usize = 3;

/// Half of the stored jobs are due, half are due in the future.
#[test]
fn acquire_and_settle_do_not_depend_on_what_is_stored() {
    // Other processes may evict the caches, so the measurement is repeated. If the cost did depend on the
    // stored jobs, the ratio would be about 1,000.
    let ratios = (0..TRIES).map(|_| {
        let (few, many) = (acquire_and_settle(1_000), acquire_and_settle(1_000_000));
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!(
            "{BATCH} jobs acquired and settled: {few:?} with 1,000 stored, {many:?} with 1,000,000 ({ratio:.2}x)"
        );
        ratio
    });
    assert!(ratios.into_iter().any(|ratio| ratio < 3.0), "commands cost more with many stored jobs");
}

/// Returns the shortest of many rounds, so that a busy machine does not affect the result. Each round
/// replaces the jobs that it completes.
fn acquire_and_settle(stored: usize) -> Duration {
    let now = Timestamp::from_millis(1_800_000_000_000).unwrap();
    let mut model = Model::new();
    for _ in 0..stored / 1_000 {
        create(&mut model, now, 500, DueTime::Now);
        create(&mut model, now, 500, DueTime::After(Millis::from_days(1)));
    }
    assert_eq!(model.jobs(), stored);
    let round = |model: &mut Model| {
        create(model, now, BATCH, DueTime::Now);
        let began = Instant::now();
        work(model, now);
        began.elapsed()
    };
    (0..ROUNDS).map(|_| round(&mut model)).min().unwrap()
}

fn create(model: &mut Model, now: Timestamp, count: usize, schedule: DueTime) {
    let job = NewJob { schedule, ..NewJob::new(job_type(), Payload::json("{}").unwrap()) };
    let chains = (0..count).map(|_| NewChain::new(ChainId::new(), job.clone())).collect();
    model.apply(now, &Create { chains }.into()).unwrap();
}

fn work(model: &mut Model, now: Timestamp) {
    let max = u32::try_from(BATCH).unwrap();
    let quota = Quota { job_type: job_type(), max, lease: Millis::from_secs(60) };
    let acquire = Acquire {
        request: RequestId::new(),
        worker: WorkerId::new(),
        worker_name: None,
        types: vec![quota],
        max,
    };
    let Reply::Acquire(acquired) = model.apply(now, &acquire.into()).unwrap().0 else { unreachable!() };
    assert_eq!(acquired.jobs.len(), BATCH);
    let settlements = acquired.jobs.into_iter().map(|acquired| Settlement {
        job: acquired.job.id,
        fence: acquired.job.fence,
        outcome: Outcome::Complete {
            output: Payload::json("null").unwrap(),
            retention: None,
            create: Vec::new(),
        },
    });
    model.apply(now, &Settle { settlements: settlements.collect() }.into()).unwrap();
}

fn job_type() -> TypeName {
    TypeName::new("mail").unwrap()
}
