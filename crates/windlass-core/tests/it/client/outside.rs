//! Completion from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Chain, ChainId, Client, Decorator, Error, ErrorKind, ErrorText, Hint, InProcessNotifier,
    MemoryStore, Notifier, Result, Signal, Status, Store, Topic, plan,
};

use super::{Approve, Mail, Report, Seen, Ship, acquire, client, mail, next_signal};

async fn approval(client: &Client<MemoryStore>) -> Chain<Approve> {
    client.start(Approve { order: 7 }).await.unwrap()
}

#[tokio::test]
async fn a_chain_is_completed_step_by_step() {
    let client = client();
    let chain = approval(&client).await;
    let step = client.step(chain).await.unwrap();
    assert!(step.is::<Approve>() && !step.is::<Ship>());
    let step = step.of::<Approve>().unwrap();
    assert_eq!((step.input().order, step.job().status), (7, Status::Pending));
    assert_eq!(step.then(Ship { order: 7 }).await.unwrap(), Status::Pending);
    let step = client.step(chain).await.unwrap().of::<Ship>().unwrap();
    assert_eq!(step.done("sent".into()).await.unwrap(), Status::Completed);
    assert_eq!(client.wait(chain).await.unwrap(), "sent");
}

#[tokio::test]
async fn several_steps_are_one_command() {
    let seen = Seen::default();
    let client = Client::builder(MemoryStore::new()).observer(seen.clone()).build();
    let chain = approval(&client).await;
    seen.take();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let before = client.store().counters().round_trips;
    step.then(Ship { order: 7 }).done("sent".into()).await.unwrap();
    assert_eq!(client.store().counters().round_trips - before, 1);
    assert_eq!(seen.take(), ["JobCompleted", "JobCreated", "JobCompleted", "ChainClosed"]);
    assert_eq!(client.output(chain).await.unwrap().unwrap(), "sent");
}

#[tokio::test]
async fn a_failure_is_stored_with_its_causes() {
    let client = client();
    let chain = approval(&client).await;
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    assert_eq!(step.fail("not approved").retention(Duration::from_secs(9)).await.unwrap(), Status::Failed);
    let record = client.chain(chain).await.unwrap().unwrap();
    assert_eq!(record.latest.error, Some(ErrorText::new("not approved")));
    let closed = record.closed.unwrap();
    assert_eq!(closed.retain_until.since(closed.at), Duration::from_secs(9));
}

#[tokio::test]
async fn queries_change_nothing() {
    let client = client();
    let chain = approval(&client).await;
    let before = client.chain(chain).await.unwrap();
    drop(client.step(chain).await.unwrap().of::<Approve>().unwrap().then(Ship { order: 7 }));
    assert_eq!(client.chain(chain).await.unwrap(), before);
}

#[tokio::test]
async fn the_wrong_type_is_named_and_a_former_name_counts() {
    let client = client();
    let chain = approval(&client).await;
    let error = client.step(chain).await.unwrap().of::<Ship>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("has type `approve`, expected `ship`"), "{error}");
    // A job stored before the type was renamed.
    let mut former = plan(Approve { order: 1 }).build().unwrap();
    former.job.job_type = windlass_core::TypeName::new("sign-off").unwrap();
    let chain = Chain::<Approve>::from_id(client.create(vec![former]).await.unwrap()[0].chain().unwrap());
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.done("signed".into()).await.unwrap();
    assert_eq!(client.wait(chain).await.unwrap(), "signed");
}

#[tokio::test]
async fn completing_a_changed_job_is_an_error() {
    let client = client();
    let chain = approval(&client).await;
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    acquire(&client, "approve").await;
    let error = step.done("late".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert!(error.to_string().contains("although it is still open: query it again"), "{error}");

    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    client.step(chain).await.unwrap().of::<Approve>().unwrap().done("first".into()).await.unwrap();
    let error = step.done("second".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert!(error.to_string().contains("it has completed: query it again"), "{error}");
    let error = client.step(chain).await.unwrap().of::<Approve>().unwrap().fail("third").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "a closed chain stays closed");
    assert_eq!(client.wait(chain).await.unwrap(), "first");
}

#[tokio::test]
async fn a_deleted_chain_is_not_found() {
    let client = client();
    let error = client.step(ChainId::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let chain = approval(&client).await;
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    client.delete(vec![chain.into()]).await.unwrap();
    assert_eq!(step.done("late".into()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_refusal_states_its_reason() {
    let client = client();
    let chain = approval(&client).await;
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let error = step.done("x".into()).start(plan(mail()).max_attempts(0)).await.unwrap_err();
    assert!(error.to_string().contains("max attempts must be at least 1"), "{error}");
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let error = step.fail("x").start(mail()).await.unwrap_err();
    assert!(error.to_string().contains("a failed job cannot start chains"), "{error}");
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    let error = step.then(Ship { order: 1 }).retention(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("can set its retention"), "{error}");
    assert_eq!(client.chain(chain).await.unwrap().unwrap().status(), Status::Pending);
}

#[tokio::test]
async fn the_worker_that_runs_the_job_is_notified() {
    let notifier = InProcessNotifier::new();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let chain = approval(&client).await;
    let running = acquire(&client, "approve").await.job;
    let worker = running.lease.unwrap().worker;
    let topics = vec![Topic::OwnershipLost(worker), Topic::ChainClosed(chain.id())];
    let mut hints = notifier.subscribe(topics).await.unwrap();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.done("from outside".into()).await.unwrap();
    let signals = [next_signal(&mut hints).await, next_signal(&mut hints).await];
    assert!(signals.contains(&Signal::Hint(Hint::OwnershipLost { worker, job: running.id })), "{signals:?}");
    assert!(signals.contains(&Signal::Hint(Hint::ChainClosed(chain.id()))), "{signals:?}");
}

#[tokio::test]
async fn a_blocked_job_is_completed_and_one_that_waited_for_it_unblocked() {
    let client = client();
    let mails = client.start_many([mail(), mail()]).await.unwrap();
    let report = client.start(Report).blocked_by((mails[0], mails[1])).await.unwrap();
    for mail in mails {
        client.step(mail).await.unwrap().of::<Mail>().unwrap().done(1).await.unwrap();
    }
    assert_eq!(client.chain(report).await.unwrap().unwrap().status(), Status::Pending);
    let mails = client.start_many([mail(), mail()]).await.unwrap();
    let report = client.start(Report).blocked_by((mails[0], mails[1])).await.unwrap();
    let step = client.step(report).await.unwrap().of::<Report>().unwrap();
    assert_eq!(step.job().status, Status::Blocked);
    assert_eq!(step.done("without".into()).await.unwrap(), Status::Completed);
}

#[tokio::test]
async fn a_successor_takes_the_key_over() {
    let client = client();
    let chain = client.start(Approve { order: 1 }).key("standing").await.unwrap();
    let successor = plan(Approve { order: 2 }).key("standing").replaces(chain);
    let handle = successor.handle();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    step.done("sent".into()).start(successor).await.unwrap();
    let found = client.start(Approve { order: 3 }).key("standing").await.unwrap();
    assert_eq!(found, handle);
}

#[tokio::test]
async fn a_job_that_was_asked_to_stop_does_not_continue() {
    let seen = Seen::default();
    let client = Client::builder(MemoryStore::new()).observer(seen.clone()).build();
    let chain = approval(&client).await;
    acquire(&client, "approve").await;
    client.cancel(chain, CancelMode::Ask).await.unwrap();
    seen.take();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    assert_eq!(step.then(Ship { order: 7 }).await.unwrap(), Status::Cancelled);
    assert_eq!(seen.take(), ["JobCancelled", "ChainClosed"]);
}

/// A store that executes the next completion from outside but loses its reply.
#[derive(Debug)]
struct LosesReply {
    inner: MemoryStore,
    once: AtomicBool,
}

impl Decorator for LosesReply {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(async move {
            let reply = self.forward(command).await?;
            if matches!(reply, Reply::CompleteFromOutside(_)) && self.once.swap(false, Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Unavailable, "the connection was lost"));
            }
            Ok(reply)
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_is_repeated_after_a_lost_reply() {
    let store = Arc::new(LosesReply { inner: MemoryStore::new(), once: AtomicBool::new(true) });
    let client: Client<LosesReply> = Client::new(Arc::clone(&store));
    let chain = client.start(Approve { order: 7 }).await.unwrap();
    let step = client.step(chain).await.unwrap().of::<Approve>().unwrap();
    assert_eq!(step.then(Ship { order: 7 }).await.unwrap(), Status::Pending);
    assert!(!store.once.load(Ordering::SeqCst), "the reply was not lost");
    assert_eq!(client.chain_jobs(chain).await.unwrap().len(), 2, "the command took effect twice");
}
