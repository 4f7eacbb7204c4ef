//! The number of statements does not depend on the size of the batch.

use windlass_core::command::{Expire, Outcome, Reap, Renew, RenewLease, Settle, Settlement, Types};
use windlass_core::{ErrorText, Fence, JobId, Millis, Payload, Store};
use windlass_sqlite::SqliteStore;

use crate::{File, acquire, new_chain, start};

/// Returns the number of statements of each command in a job's life, for a batch of this size.
async fn costs(size: usize) -> Vec<u64> {
    let file = File::new();
    let store = file.open().await;
    let mut costs = Vec::new();
    let mut before = 0;
    let mut count = |store: &SqliteStore| {
        let now = store.counters().round_trips;
        costs.push(now - before);
        before = now;
    };

    let blockers: Vec<_> = (0..size).map(|_| new_chain()).collect();
    start(&store, blockers.clone()).await;
    count(&store);
    let blocked = blockers.iter().map(|blocker| {
        let mut new = new_chain();
        new.job.blockers = vec![blocker.id.into()];
        new
    });
    start(&store, blocked.collect()).await;
    count(&store);

    let held = take(&store, size).await;
    count(&store);
    let lease =
        |(job, fence): &(JobId, Fence)| RenewLease { job: *job, fence: *fence, lease: Millis::from_secs(60) };
    store.renew(Renew { leases: held.iter().map(lease).collect() }).await.unwrap();
    count(&store);
    settle(&store, &held, &Outcome::Release).await;
    count(&store);
    let complete =
        Outcome::Complete { output: Payload::json("2").unwrap(), retention: None, create: Vec::new() };
    settle(&store, &take(&store, size).await, &complete).await;
    count(&store);
    assert_eq!(take(&store, size).await.len(), size);
    count(&store);
    file.clock.advance(Millis::from_secs(61));
    let max = u32::try_from(size).unwrap();
    let reap = Reap { types: Types::All, max, except: Vec::new(), renewal_interval: Millis::from_secs(20) };
    assert_eq!(store.reap(reap).await.unwrap().reaped.len(), size);
    count(&store);
    settle(&store, &take(&store, size).await, &Outcome::Fail { error: ErrorText::new("x"), retention: None })
        .await;
    count(&store);
    file.clock.advance(Millis::from_days(40));
    assert_eq!(store.expire(Expire { max: 1_000 }).await.unwrap().jobs, 2 * max);
    count(&store);
    costs
}

async fn take(store: &SqliteStore, size: usize) -> Vec<(JobId, Fence)> {
    let reply = store.acquire(acquire(u32::try_from(size).unwrap())).await.unwrap();
    reply.jobs.iter().map(|acquired| (acquired.job.id, acquired.job.fence)).collect()
}

async fn settle(store: &SqliteStore, held: &[(JobId, Fence)], outcome: &Outcome) {
    let settlement =
        |(job, fence): &(JobId, Fence)| Settlement { job: *job, fence: *fence, outcome: outcome.clone() };
    store.settle(Settle { settlements: held.iter().map(settlement).collect() }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_statements_does_not_depend_on_the_batch_size() {
    let one = costs(1).await;
    assert_eq!(costs(300).await, one);
    assert!(one.iter().all(|statements| *statements <= 24), "{one:?}");
}
