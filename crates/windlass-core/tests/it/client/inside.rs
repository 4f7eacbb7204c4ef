//! Every operation inside a transaction.

use std::time::Duration;

use windlass_core::command::{DeleteReply, ListChains, ListJobs, Outcome, Retried, TriggerReply, Types};
use windlass_core::{
    CancelMode, Cancelled, Chain, Client, ErrorText, Hint, InProcessNotifier, MemoryStore, Notifier, Signal,
    Status, Topic, Tx, TypeName,
};

use super::{Approve, Mail, Seen, Ship, acquire, mail, next_signal, work};

/// One chain for each operation.
struct Chains {
    to_cancel: Chain<Mail>,
    to_trigger: Chain<Mail>,
    to_retry: Chain<Mail>,
    to_delete: Chain<Mail>,
    to_complete: Chain<Approve>,
}

async fn chains(client: &Client<MemoryStore>) -> Chains {
    let to_retry = client.start(mail()).await.unwrap();
    work(client, "mail", Outcome::Fail { error: ErrorText::new("no"), retention: None }).await;
    let later = async || client.start(mail()).after(Duration::from_secs(60)).await.unwrap();
    Chains {
        to_cancel: later().await,
        to_trigger: later().await,
        to_retry,
        to_delete: later().await,
        to_complete: client.start(Approve { order: 7 }).await.unwrap(),
    }
}

async fn act(tx: &mut Tx<MemoryStore>, chains: &Chains) {
    let cancelled = tx.cancel(chains.to_cancel, CancelMode::Ask).await.unwrap();
    assert!(matches!(cancelled, Cancelled::Cancelled { .. }));
    let triggered = tx.trigger(chains.to_trigger).await.unwrap();
    assert!(matches!(triggered, TriggerReply::Triggered(_)));
    let retried = tx.retry(chains.to_retry).await.unwrap();
    assert!(matches!(retried, Retried::Retried { .. }));
    let deleted = tx.delete(vec![chains.to_delete.into()]).await.unwrap();
    assert!(matches!(deleted, DeleteReply::Deleted(_)));
    let step = tx.step(chains.to_complete).await.unwrap().of::<Approve>().unwrap();
    let order = step.input().order;
    assert_eq!(step.then(Ship { order }).await.unwrap(), Status::Pending);
    tx.start_many([mail()]).await.unwrap();
}

#[tokio::test]
async fn commands_are_visible_inside_and_announced_after_the_commit() {
    let (seen, notifier) = (Seen::default(), InProcessNotifier::new());
    let client =
        Client::builder(MemoryStore::new()).observer(seen.clone()).notifier(notifier.clone()).build();
    let chains = chains(&client).await;
    let topics = vec![Topic::ChainClosed(chains.to_cancel.id())];
    let mut hints = notifier.subscribe(topics).await.unwrap();
    seen.take();

    let mut tx = client.begin().await.unwrap();
    act(&mut tx, &chains).await;
    assert_eq!(tx.chain(chains.to_cancel).await.unwrap().unwrap().status(), Status::Cancelled);
    assert!(tx.chain(chains.to_delete).await.unwrap().is_none());
    assert_eq!(tx.chain_jobs(chains.to_complete).await.unwrap().len(), 2);
    assert_eq!(tx.list_chains(ListChains::default()).await.unwrap().chains.len(), 5);
    assert_eq!(tx.list_jobs(ListJobs::default()).await.unwrap().jobs.len(), 6);
    assert_eq!(tx.count(Types::All).await.unwrap().types.len(), 3);
    let ship = tx.chain(chains.to_complete).await.unwrap().unwrap().latest.id;
    assert_eq!(tx.input::<Ship>(ship).await.unwrap(), Some(Ship { order: 7 }));
    assert!(client.job(ship).await.unwrap().is_none(), "other sessions see it");
    assert!(
        seen.take().is_empty() && hints.try_next().is_none(),
        "something was announced before the commit"
    );
    tx.rollback().await.unwrap();
    assert!(seen.take().is_empty(), "nothing happened");
    assert_eq!(client.chain(chains.to_cancel).await.unwrap().unwrap().status(), Status::Pending);

    let mut tx = client.begin().await.unwrap();
    act(&mut tx, &chains).await;
    tx.commit().await.unwrap();
    let expected = [
        "JobCancelled",
        "ChainClosed",
        "JobTriggered",
        "ChainRetried",
        "ChainDeleted",
        "JobCompleted",
        "JobCreated",
        "ChainCreated",
        "JobCreated",
    ];
    assert_eq!(seen.take(), expected);
    assert!(matches!(next_signal(&mut hints).await, Signal::Hint(Hint::ChainClosed(_))));
}

#[tokio::test]
async fn hints_count_only_jobs_that_were_committed() {
    let notifier = InProcessNotifier::new();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let mut hints = notifier.subscribe(vec![Topic::Scheduled(TypeName::new("mail").unwrap())]).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.start(mail()).await.unwrap();
    tx.savepoint().await.unwrap();
    tx.start_many([mail(), mail(), mail()]).await.unwrap();
    tx.rollback_to().await.unwrap();
    tx.start_many([mail(), mail()]).await.unwrap();
    tx.commit().await.unwrap();
    assert!(matches!(next_signal(&mut hints).await, Signal::Hint(Hint::Scheduled { count: 3, .. })));
}

#[tokio::test]
async fn a_running_job_is_asked_to_stop_after_the_commit() {
    let notifier = InProcessNotifier::new();
    let client = Client::builder(MemoryStore::new()).notifier(notifier.clone()).build();
    let chain = client.start(mail()).await.unwrap();
    let running = acquire(&client, "mail").await.job;
    let worker = running.lease.unwrap().worker;
    let mut hints = notifier.subscribe(vec![Topic::OwnershipLost(worker)]).await.unwrap();
    let mut tx = client.begin().await.unwrap();
    tx.cancel(chain, CancelMode::Ask).await.unwrap();
    assert!(hints.try_next().is_none());
    tx.commit().await.unwrap();
    let lost = Signal::Hint(Hint::OwnershipLost { worker, job: running.id });
    assert_eq!(next_signal(&mut hints).await, lost);
}
