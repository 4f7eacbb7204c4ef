//! Chains that are deleted and created again with the same id.

use std::future::poll_fn;
use std::task::Poll;

use windlass_core::command::{
    Create, Created, Delete, DeleteReply, GetJobs, Outcome, Retried, Retry, RetryTarget, Settle, Settlement,
    Target,
};
use windlass_core::{ErrorText, JobId, JobRecord, OnBlockerFailure, Payload, Status, Store, Transactional};
use windlass_sqlite::SqliteStore;

use crate::{File, new_chain, start, take};

async fn settle(store: &SqliteStore, outcome: Outcome) {
    let job = take(store, 1).await.remove(0).job;
    let settle = Settle { settlements: vec![Settlement { job: job.id, fence: job.fence, outcome }] };
    store.settle(settle).await.unwrap();
}

async fn job(store: &SqliteStore, id: JobId) -> JobRecord {
    store.get_jobs(GetJobs { jobs: vec![id] }).await.unwrap().jobs.remove(0).unwrap()
}

/// A failed job still needs its blocker: if it is retried, it waits for the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_is_created_again_unblocks_the_jobs_of_the_former_one() {
    let file = File::new();
    let store = file.open().await;
    let (blocker, mut waiting) = (new_chain(), new_chain());
    waiting.job.blockers = vec![blocker.id.into()];
    waiting.job.on_blocker_failure = OnBlockerFailure::Fail;
    start(&store, vec![blocker.clone(), waiting.clone()]).await;
    settle(&store, Outcome::Fail { error: ErrorText::new("broken"), retention: None }).await;
    let failed = job(&store, waiting.id.first_job()).await;
    assert_eq!(failed.status, Status::Failed);

    let delete = Delete { chains: vec![Target::Chain(blocker.id)], cascade: false, seen: None };
    assert!(matches!(store.delete(delete).await.unwrap(), DeleteReply::Deleted(_)));
    start(&store, vec![blocker.clone()]).await;
    let retry = Retry { chains: vec![RetryTarget { job: failed.id, version: failed.version }] };
    let retried = store.retry(retry).await.unwrap().chains.remove(0);
    assert!(matches!(&retried, Retried::Retried { job, .. } if job.status == Status::Blocked), "{retried:?}");
    let output = Payload::json("2").unwrap();
    settle(&store, Outcome::Complete { output, retention: None, create: Vec::new() }).await;
    assert_eq!(job(&store, failed.id).await.status, Status::Pending);
}

/// The transaction makes both commands wait, so that they run in one group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_is_deleted_and_created_in_one_group_is_stored() {
    let file = File::new();
    let store = file.open().await;
    let chain = new_chain();
    start(&store, vec![chain.clone()]).await;
    let first = job(&store, chain.id.first_job()).await;
    file.clock.advance(windlass_core::Millis::from_secs(1));
    let tx = store.begin().await.unwrap();
    let mut deleting =
        store.delete(Delete { chains: vec![Target::Chain(chain.id)], cascade: false, seen: None });
    let mut creating = store.create(Create { chains: vec![chain.clone()] });
    let queued = poll_fn(|context| {
        let is_ready =
            deleting.as_mut().poll(context).is_ready() || creating.as_mut().poll(context).is_ready();
        Poll::Ready(!is_ready)
    });
    assert!(queued.await, "the transaction has the write lock");
    store.rollback(tx).await.unwrap();
    assert!(matches!(deleting.await.unwrap(), DeleteReply::Deleted(_)));
    let created = creating.await.unwrap().chains.remove(0);
    assert!(matches!(created, Created::New { repeated: false, .. }), "{created:?}");
    assert!(job(&store, chain.id.first_job()).await.created_at > first.created_at);
    assert_eq!(take(&store, 10).await.len(), 1);
}
