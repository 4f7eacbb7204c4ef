//! How the ends of interrupted transactions are reported.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::timeout;
use windlass_core::schedule::Every;
use windlass_core::{
    About, AnyAttempt, Attempt, BoxFuture, Client, Closing, Data, Done, Event, Hooks, InTx, MemoryTx,
    NotWritten, Observer, Status, TraceContext, Traced, Transactional, Worker,
};

use super::faulty::{Fault, Faulty};
use super::{MINUTE, Result, Seen, TIMEOUT, Task, Timed, faulty, pass, task};

/// How transactions ended, according to their hooks.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<&'static str>>>);

impl Ends {
    fn listen(&self, mut tx: InTx<'_, Faulty>) {
        let (rolled_back, committed) = (self.clone(), self.clone());
        tx.after_rollback(move || rolled_back.0.lock().unwrap().push("rolled back"));
        tx.after_commit(move || committed.0.lock().unwrap().push("committed"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_prepare_is_reported_as_rolled_back() {
    async fn drop_prepare(
        attempt: Attempt<Task, Faulty>,
        Data(ends): Data<Ends>,
    ) -> Result<Done<Task, Faulty>> {
        let mut prepare = attempt.prepare().await?;
        ends.listen(prepare.client());
        prepare.client().start(task("rolled back")).await?;
        drop(prepare);
        Ok(attempt.begin().await?.done(String::new())?)
    }
    let (tracer, ends) = (Tracer::default(), Ends::default());
    let client = Client::builder(Faulty::default()).observer(tracer.clone()).build();
    let chain = client.start(task("x")).await.unwrap();
    let asked = tracer.asked.load(Ordering::SeqCst);
    let _worker =
        Worker::new(&client).concurrency(1).data(ends.clone()).handle(drop_prepare).start().await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    assert_eq!(*ends.0.lock().unwrap(), ["rolled back"]);
    let asked = tracer.asked.load(Ordering::SeqCst) - asked;
    assert_eq!((asked, tracer.rolled_back.load(Ordering::SeqCst)), (2, 2), "the chain and its job");
}

/// Counts how often a tracer was asked for a context, and how often a write it was asked for was rolled back.
#[derive(Clone, Debug, Default)]
struct Tracer {
    asked: Arc<AtomicU32>,
    rolled_back: Arc<AtomicU32>,
}

impl Observer for Tracer {
    fn observe(&self, _: &Event) {}

    fn trace_context(&self, _: Traced, _: &About) -> Option<TraceContext> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        None
    }

    fn rolled_back(&self, _: Traced, _: &About, _: NotWritten) {
        self.rolled_back.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_finish_whose_hook_panics_is_reported_as_rolled_back() {
    struct PanicsFirst;
    impl Hooks<MemoryTx> for PanicsFirst {
        fn closing<'a>(
            &'a self,
            attempt: &'a AnyAttempt,
            _: Closing<'a>,
            _: &'a mut MemoryTx,
        ) -> BoxFuture<'a, Result<()>> {
            Box::pin(async move {
                assert!(attempt.attempt() > 1, "too early");
                Ok(())
            })
        }
    }
    async fn listen(attempt: Attempt<Task, Faulty>, Data(ends): Data<Ends>) -> Result<Done<Task, Faulty>> {
        let mut step = attempt.begin().await?;
        ends.listen(step.client());
        Ok(step.done(String::new())?)
    }
    let (_, client) = faulty();
    let ends = Ends::default();
    let worker = Worker::new(&client).concurrency(1).data(ends.clone()).hooks(PanicsFirst).handle(listen);
    let worker = worker.start().await.unwrap();
    let chain = client.start(task("x")).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    assert_eq!(*ends.0.lock().unwrap(), ["rolled back", "committed"]);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_was_dropped_midway_announces_nothing() {
    let (store, seen) = (Faulty::default(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let mut tx = client.begin().await.unwrap();
    tx.savepoint().await.unwrap();
    let chain = tx.start(task("x")).await.unwrap();
    store.fault("rollback_to", Fault::HangsAfterwards, 1);
    timeout(TIMEOUT, tx.rollback_to()).await.unwrap_err();
    tx.commit().await.unwrap();
    assert!(client.chain(chain).await.unwrap().is_none(), "it was rolled back");
    assert_eq!(seen.count(|event| matches!(event, Event::ChainCreated(_))), 0);
}

/// A hook that never returns.
struct Endless;

impl Hooks<MemoryTx> for Endless {
    fn closing<'a>(
        &'a self,
        _: &'a AnyAttempt,
        _: Closing<'a>,
        _: &'a mut MemoryTx,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(pending())
    }
}

async fn finish_timed(attempt: Attempt<Timed, Faulty>) -> Result<Done<Timed, Faulty>> {
    Ok(attempt.begin().await?.done(String::new())?)
}

#[tokio::test(start_paused = true)]
async fn a_closing_hook_that_hangs_is_ended_with_its_lease() {
    let (_, client) = faulty();
    let first = client.start::<Timed>("x".into()).await.unwrap();
    let second = client.start::<Timed>("y".into()).await.unwrap();
    let _worker =
        Worker::new(&client).concurrency(1).hooks(Endless).handle(finish_timed).start().await.unwrap();
    pass(MINUTE).await;
    for chain in [first, second] {
        assert!(client.chain(chain).await.unwrap().unwrap().latest.attempt > 0, "both had their turn");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_releases_a_job_whose_closing_hook_hangs() {
    let (_, client) = faulty();
    let worker =
        Worker::new(&client).concurrency(1).hooks(Endless).handle(finish_timed).start().await.unwrap();
    let chain = client.start::<Timed>("x".into()).await.unwrap();
    pass(TIMEOUT / 10).await;
    worker.stop(TIMEOUT / 10).await;
    let job = client.chain(chain).await.unwrap().unwrap().latest;
    assert_eq!((job.status, job.attempt), (Status::Pending, 0));
    client.start::<Timed>("y".into()).await.expect("no transaction is left open");
}

/// The store does not know how the transaction of the caller ended, so the client looks for the chain.
#[tokio::test(start_paused = true)]
async fn a_manual_run_in_a_transaction_of_the_caller_is_announced_after_its_commit() {
    let (store, seen) = (Faulty::default(), Seen::default());
    let client = Client::builder(store.clone()).observer(seen.clone()).build();
    let hourly = Every::new(60 * MINUTE).unwrap();
    client.schedules().put("hourly", hourly, task("x")).await.unwrap();
    for (commits, events) in [(false, 0), (true, 1)] {
        let mut tx = store.begin().await.unwrap();
        let mut inside = client.in_tx(&mut tx);
        inside.schedules().run_now("hourly").await.unwrap();
        drop(inside);
        match commits {
            true => store.commit(tx).await.unwrap(),
            false => store.rollback(tx).await.unwrap(),
        }
        pass(TIMEOUT).await;
        assert_eq!(seen.count(|event| matches!(event, Event::ChainCreated(_))), events);
    }
}
