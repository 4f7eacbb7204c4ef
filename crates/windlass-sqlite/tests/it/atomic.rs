//! A batch is applied in full or not at all, wherever it is interrupted.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;

use sqlx::AssertSqlSafe;
use windlass_core::command::{Acquired, Create, GetJobs, Outcome, Reply, Settle, Settled, Settlement};
use windlass_core::{ErrorKind, JobId, Payload, Status, Store, Transactional};
use windlass_sqlite::{Options, SqliteStore};

use crate::{File, new_chain, start, take};

/// Number of settlements in a batch.
const BATCH: u32 = 3;

/// Leased jobs, and a batch that completes them, each with a chain to create.
struct Batch {
    jobs: Vec<JobId>,
    carried: Vec<JobId>,
    settle: Settle,
}

impl Batch {
    async fn new(store: &SqliteStore) -> Self {
        start(store, (0..BATCH).map(|_| new_chain()).collect()).await;
        let held = take(store, BATCH).await;
        let complete = |Acquired { job, .. }: &Acquired| {
            let (output, create) = (Payload::json("2").unwrap(), vec![new_chain()]);
            let outcome = Outcome::Complete { output, retention: None, create };
            Settlement { job: job.id, fence: job.fence, outcome }
        };
        let settlements: Vec<_> = held.iter().map(complete).collect();
        Self {
            jobs: held.iter().map(|acquired| acquired.job.id).collect(),
            carried: settlements.iter().map(|item| item.outcome.carried()[0].id.first_job()).collect(),
            settle: Settle { settlements },
        }
    }

    /// Returns how many of the settlements were applied.
    async fn applied(&self, store: &SqliteStore) -> usize {
        let jobs = store.get_jobs(GetJobs { jobs: self.jobs.clone() }).await.unwrap().jobs;
        let carried = store.get_jobs(GetJobs { jobs: self.carried.clone() }).await.unwrap().jobs;
        for (job, carried) in jobs.iter().zip(&carried) {
            assert_eq!(job.as_ref().unwrap().status == Status::Completed, carried.is_some());
        }
        carried.iter().flatten().count()
    }
}

/// Settles a batch whose last item fails with a database error. Returns how many of its items were applied.
pub(crate) async fn applied_before_error(options: impl Fn(&File) -> Options) -> usize {
    let file = File::new();
    let store = SqliteStore::open(options(&file)).await.unwrap();
    let batch = Batch::new(&store).await;
    let id = batch.jobs.last().unwrap().as_uuid().simple();
    let trigger = format!(
        "create trigger broken before update on windlass_job when new.id = x'{id}'
         begin select raise(abort, 'the disk is broken'); end"
    );
    let mut beside = file.connect().await;
    sqlx::query(AssertSqlSafe(trigger)).execute(&mut beside).await.unwrap();
    let error = store.settle(batch.settle.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("the disk is broken"), "{error}");

    let applied = batch.applied(&store).await;
    sqlx::query("drop trigger broken").execute(&mut beside).await.unwrap();
    let repeated = store.settle(batch.settle.clone()).await.unwrap().settled;
    let already = repeated.iter().filter(|settled| matches!(settled, Settled::AlreadyApplied(_))).count();
    assert_eq!((already, batch.applied(&store).await), (applied, BATCH as usize), "{repeated:?}");
    applied
}

/// Drops a batch where it first waits, then another where it waits for the second time, and so on. Returns the distinct
/// numbers of items that were applied.
pub(crate) async fn applied_before_cut(
    options: impl Fn(&File) -> Options,
    in_transaction: bool,
) -> Vec<usize> {
    let file = File::new();
    let store = SqliteStore::open(options(&file)).await.unwrap();
    let mut seen = BTreeSet::new();
    for waits in 1.. {
        let batch = Batch::new(&store).await;
        let mut tx = if in_transaction { Some(store.begin().await.unwrap()) } else { None };
        let mut settling = match &mut tx {
            Some(tx) => store.execute_in(tx.into(), batch.settle.clone().into()),
            None => Box::pin(async { store.settle(batch.settle.clone()).await.map(Reply::Settle) }),
        };
        let mut waited = 0;
        let done = poll_fn(|context| match settling.as_mut().poll(context) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => {
                waited += 1;
                if waited == waits { Poll::Ready(None) } else { Poll::Pending }
            }
        });
        let done = done.await;
        let never_cut = done.is_some();
        done.map(Result::unwrap);
        drop(settling);
        if let Some(tx) = tx {
            store.commit(tx).await.unwrap();
        }
        // This acquire waits for the write lock, so the interrupted transaction has ended by then, committed or not.
        assert_eq!(take(&store, 0).await, []);
        seen.insert(batch.applied(&store).await);
        if never_cut {
            break;
        }
    }
    seen.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_midway_rolls_back_the_whole_batch() {
    assert_eq!(applied_before_error(File::options).await, 0);
}

/// SQLite may end a transaction by itself, for example when the disk is full. Then there is nothing to roll back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_ends_the_transaction_leaves_the_store_usable() {
    let file = File::new();
    let store = file.open().await;
    let batch = Batch::new(&store).await;
    let mut beside = file.connect().await;
    let trigger = "create trigger broken before update on windlass_job
                   begin select raise(rollback, 'the disk is full'); end";
    for _ in 0..2 {
        sqlx::query(trigger).execute(&mut beside).await.unwrap();
        let error = store.settle(batch.settle.clone()).await.unwrap_err();
        assert!(error.to_string().contains("the disk is full"), "{error}");
        sqlx::query("drop trigger broken").execute(&mut beside).await.unwrap();
        start(&store, vec![new_chain()]).await;
        assert_eq!(batch.applied(&store).await, 0);
    }
    store.settle(batch.settle.clone()).await.unwrap();
    assert_eq!(batch.applied(&store).await, BATCH as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_closed_after_an_error_stays_closed() {
    let file = File::new();
    let store = file.open().await;
    let trigger = "create trigger broken before insert on windlass_job
                   begin select raise(rollback, 'the disk is full'); end";
    sqlx::query(trigger).execute(&mut file.connect().await).await.unwrap();
    let create = || store.create(Create { chains: vec![new_chain()] });
    assert_eq!(create().await.unwrap_err().kind(), ErrorKind::Unavailable);
    store.close().await.unwrap();
    assert_eq!(create().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_dropped_in_a_transaction_is_applied_completely_or_not_at_all() {
    assert_eq!(applied_before_cut(File::options, true).await, [0, BATCH as usize]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_dropped_in_the_queue_is_not_applied() {
    let file = File::new();
    let store = file.open().await;
    let batch = Batch::new(&store).await;
    let tx = store.begin().await.unwrap();
    let mut settling = store.settle(batch.settle.clone());
    let ready = poll_fn(|context| Poll::Ready(settling.as_mut().poll(context).is_ready())).await;
    assert!(!ready, "the transaction has the write lock");
    drop(settling);
    store.rollback(tx).await.unwrap();
    assert_eq!(take(&store, 0).await, []);
    assert_eq!(batch.applied(&store).await, 0);
}
