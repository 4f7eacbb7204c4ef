//! Trace contexts: requested before a write, stored with it, and reported to the observer when it is rolled
//! back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use windlass_core::{
    About, BlockersFound, ChainId, Client, ErrorKind, Event, MemoryStore, NotWritten, Observer, TraceContext,
    Traced, next, plan,
};

use super::{Approve, Report, Seen, Ship, mail};

type Contexts = Vec<(ChainId, String)>;

/// Returns a context with the name and number of what is traced.
#[derive(Clone, Debug, Default)]
struct Tracer {
    asked: Arc<Mutex<Vec<String>>>,
    rolled_back: Arc<Mutex<Vec<String>>>,
    /// Why the items were not written.
    reasons: Arc<Mutex<Vec<NotWritten>>>,
    unreported: Arc<Mutex<Vec<String>>>,
    is_off: Arc<AtomicBool>,
    silent: bool,
    /// The contexts of blockers that it was told, for each job.
    found: Arc<Mutex<Vec<Contexts>>>,
}

impl Observer for Tracer {
    fn observe(&self, _: &Event) {}

    fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::SeqCst)
    }

    fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(name(traced, about));
        (!self.silent).then(|| TraceContext::new(format!("{}-{}", name(traced, about), asked.len())).unwrap())
    }

    fn rolled_back(&self, traced: Traced, about: &About, why: NotWritten) {
        self.rolled_back.lock().unwrap().push(name(traced, about));
        self.reasons.lock().unwrap().push(why);
    }

    fn find_blockers(&self, about: &About) -> Option<BlockersFound> {
        assert!(!about.blockers.is_empty());
        let found = Arc::clone(&self.found);
        Some(Box::new(move |blockers| {
            let blockers = blockers.iter().map(|found| (found.chain, found.trace.as_str().to_owned()));
            found.lock().unwrap().push(blockers.collect());
        }))
    }

    fn unreported(&self, traced: Traced, about: &About) {
        self.unreported.lock().unwrap().push(name(traced, about));
    }
}

impl Tracer {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn rolled_back(&self) -> Vec<String> {
        std::mem::take(&mut self.rolled_back.lock().unwrap())
    }

    fn reasons(&self) -> Vec<NotWritten> {
        std::mem::take(&mut self.reasons.lock().unwrap())
    }
}

fn name(traced: Traced, about: &About) -> String {
    let what = match traced {
        Traced::Chain => "chain",
        Traced::Job => "job",
        Traced::Wait(_) => "wait",
    };
    format!("{what}:{}", about.job_type)
}

fn traced() -> (Client<MemoryStore>, Tracer) {
    let tracer = Tracer::default();
    (Client::builder(MemoryStore::new()).observer(tracer.clone()).build(), tracer)
}

#[tokio::test]
async fn chains_jobs_and_waits_are_stored_with_their_contexts() {
    let (client, _) = traced();
    let first = client.start(mail()).await.unwrap();
    let second = client.start_many([mail()]).await.unwrap()[0];
    let report = client.start(Report).blocked_by((first, second)).await.unwrap();
    let trace = |trace: Option<TraceContext>| trace.unwrap().as_str().to_owned();
    let stored = client.chain(first).await.unwrap().unwrap();
    assert_eq!(trace(stored.trace), "chain:mail-1");
    assert_eq!(trace(stored.latest.trace), "job:mail-2");
    assert_eq!(trace(client.chain(second).await.unwrap().unwrap().trace), "chain:mail-3");
    let stored = client.chain(report).await.unwrap().unwrap();
    assert_eq!(trace(stored.latest.blockers[0].trace.clone()), "wait:report-7");
    assert_eq!(trace(stored.latest.blockers[1].trace.clone()), "wait:report-8");
}

#[tokio::test]
async fn observers_learn_the_contexts_of_blockers() {
    let (client, tracer) = traced();
    let first = client.start(mail()).await.unwrap();
    let second = client.start(mail()).await.unwrap();
    client.start(Report).blocked_by((first, second)).await.unwrap();
    client.close().await.unwrap();
    let expected = [(first.id(), "chain:mail-1".to_owned()), (second.id(), "chain:mail-3".to_owned())];
    assert_eq!(*tracer.found.lock().unwrap(), [expected]);
}

/// The job is not written, so no observer receives an event.
#[tokio::test]
async fn blockers_of_a_job_that_is_rolled_back_are_not_queried() {
    let (client, tracer) = traced();
    let blocker = client.start(mail()).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.start(Report).blocked_by((blocker, blocker)).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.start(Report).blocked_by((blocker, blocker)).await.unwrap();
    assert!(tracer.found.lock().unwrap().is_empty());
    tx.commit().await.unwrap();
    client.close().await.unwrap();
    assert_eq!(tracer.found.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_explicit_context_is_kept() {
    let (client, tracer) = traced();
    let mut new = plan(mail()).build().unwrap();
    new.trace = Some(TraceContext::new("mine").unwrap());
    let created = client.create(vec![new]).await.unwrap();
    assert_eq!(tracer.asked(), ["job:mail"]);
    let stored = client.chain(created[0].chain().unwrap()).await.unwrap().unwrap();
    assert_eq!(stored.trace.unwrap().as_str(), "mine");
}

#[tokio::test]
async fn an_unwritten_context_is_reported() {
    let (client, tracer) = traced();
    client.start(mail()).key("held").await.unwrap();
    assert!(tracer.rolled_back().is_empty());
    client.start(mail()).key("held").await.unwrap();
    assert_eq!(tracer.rolled_back(), ["chain:mail", "job:mail"], "it exists already");
    client
        .create(vec![plan(mail()).key("held").build().unwrap(), plan(mail()).build().unwrap()])
        .await
        .unwrap();
    assert_eq!(tracer.rolled_back(), ["chain:mail", "job:mail"], "one of two");
    assert_eq!(tracer.reasons(), [NotWritten::Existed; 4]);
    client.start(mail()).max_attempts(0).await.unwrap_err();
    assert_eq!(tracer.rolled_back(), ["chain:mail", "job:mail"], "it is refused");
    client.start_many([plan(mail()).max_attempts(0)]).await.unwrap_err();
    let chain = client.start(Approve { order: 1 }).await.unwrap();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.then(next(Ship { order: 1 }).id(chain.id().first_job())).await.unwrap_err();
    assert_eq!(tracer.reasons(), [NotWritten::Failed(ErrorKind::Invalid); 5]);
    client.close().await.unwrap();
    client.start(mail()).await.unwrap_err();
    assert_eq!(tracer.reasons(), [NotWritten::Failed(ErrorKind::Closed); 2]);
}

#[tokio::test]
async fn a_rollback_is_reported() {
    let (client, tracer) = traced();
    let mut tx = client.begin().await.unwrap();
    tx.start(Approve { order: 1 }).await.unwrap();
    tx.savepoint().await.unwrap();
    tx.start(mail()).await.unwrap();
    tx.rollback_to().await.unwrap();
    assert_eq!(tracer.rolled_back(), ["chain:mail", "job:mail"]);
    drop(tx);
    assert_eq!(tracer.rolled_back(), ["chain:approve", "job:approve"]);
    assert_eq!(tracer.reasons(), [NotWritten::RolledBack; 4]);
    let mut tx = client.begin().await.unwrap();
    tx.start(mail()).await.unwrap();
    tx.commit().await.unwrap();
    assert!(tracer.rolled_back().is_empty());
}

/// The transaction records no events, because no observer wanted any when it began.
#[tokio::test]
async fn a_context_that_is_requested_in_an_unobserved_transaction_is_reported() {
    let (client, tracer) = traced();
    tracer.is_off.store(true, Ordering::SeqCst);
    let mut tx = client.begin().await.unwrap();
    tracer.is_off.store(false, Ordering::SeqCst);
    tx.start(mail()).await.unwrap();
    assert_eq!(tracer.asked(), ["chain:mail", "job:mail"]);
    tx.commit().await.unwrap();
    assert_eq!(*tracer.unreported.lock().unwrap(), ["chain:mail", "job:mail"]);
    assert!(tracer.rolled_back().is_empty());
}

#[tokio::test]
async fn a_completion_from_outside_is_traced() {
    let (client, tracer) = traced();
    let chain = client.start(Approve { order: 1 }).await.unwrap();
    tracer.asked();
    let mut tx = client.begin().await.unwrap();
    let step = tx.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.then(next(Ship { order: 1 })).start(mail()).await.unwrap();
    assert_eq!(tracer.asked(), ["chain:mail", "job:mail", "job:ship"]);
    tx.rollback().await.unwrap();
    assert_eq!(tracer.rolled_back(), ["chain:mail", "job:mail", "job:ship"]);
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.then(Ship { order: 1 }).await.unwrap();
    assert!(client.chain(chain).await.unwrap().unwrap().latest.trace.is_some());
    assert!(tracer.rolled_back().is_empty());
}

#[tokio::test]
async fn every_observer_is_asked_and_notified() {
    let (silent, loud, seen) =
        (Tracer { silent: true, ..Tracer::default() }, Tracer::default(), Seen::default());
    let builder = Client::builder(MemoryStore::new()).observer(silent.clone()).observer(loud.clone());
    let client = builder.observer(Tracer::default()).observer(seen.clone()).build();
    loud.asked.lock().unwrap().push("so that its numbers differ".to_owned());
    let chain = client.start(mail()).await.unwrap();
    assert_eq!(silent.asked(), ["chain:mail", "job:mail"]);
    let stored = client.chain(chain).await.unwrap().unwrap().trace.unwrap();
    assert_eq!(stored.as_str(), "chain:mail-2", "the first answer is stored");
    assert_eq!(seen.take(), ["ChainCreated", "JobCreated"]);
}
