//! A job that was asked to stop. No command asks yet, so the mark is made by hand.

use redis::AsyncCommands;
use windlass_conformance::{
    Subject, complete, complete_with_chains, continue_with_chains, fail, release, retry,
};
use windlass_core::command::{Acquired, Created, Outcome, Renewed, Settled};
use windlass_core::{ChainRecord, ClosedAs, Refusal, Status};

use crate::database::{Database, subject};

async fn asked_to_stop(subject: &Subject, database: &mut Database) -> Acquired {
    subject.start("a").await;
    ask(subject.acquire_one("a").await, database).await
}

async fn ask(attempt: Acquired, database: &mut Database) -> Acquired {
    let key = database.key(&format!("job:{}", attempt.job.id));
    let _: () = database.connection.hset(key, "cancel", "1").await.unwrap();
    attempt
}

async fn settled(subject: &Subject, attempt: &Acquired, outcome: Outcome) -> ChainRecord {
    let Settled::Applied(_) = subject.settle(attempt, outcome).await else { panic!("it is applied") };
    subject.chain(attempt.job.chain).await
}

#[tokio::test(flavor = "multi_thread")]
async fn its_worker_learns_it_at_the_next_renewal() {
    let (subject, mut database) = subject().await;
    let attempt = asked_to_stop(&subject, &mut database).await;
    assert!(matches!(subject.renew(&attempt).await, Renewed::Held { cancel_requested: true, .. }));
    assert!(subject.job(attempt.job.id).await.cancel_requested);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_go_on_is_cancelled_and_carries_nothing() {
    let (subject, mut database) = subject().await;
    let carried = subject.start("b").build();
    let id = carried.id;
    for outcome in
        [retry("no"), release(), continue_with_chains(subject.start("c").next_job(), vec![carried])]
    {
        let attempt = asked_to_stop(&subject, &mut database).await;
        let chain = settled(&subject, &attempt, outcome.clone()).await;
        assert_eq!(chain.closed.unwrap().closed_as, ClosedAs::Cancelled);
        assert_eq!(chain.latest.id, attempt.job.id, "it was not continued");
        let repeated = subject.settle(&attempt, outcome).await;
        assert!(matches!(repeated, Settled::AlreadyApplied(job) if job.status == Status::Cancelled));
    }
    assert!(subject.find_chain(id).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn its_end_stands() {
    let (subject, mut database) = subject().await;
    let attempt = asked_to_stop(&subject, &mut database).await;
    let chain =
        settled(&subject, &attempt, complete_with_chains("1", vec![subject.start("b").build()])).await;
    assert_eq!(chain.status(), Status::Completed);
    assert_eq!(subject.acquire("b", 1).await.len(), 1);
    let attempt = asked_to_stop(&subject, &mut database).await;
    assert_eq!(settled(&subject, &attempt, fail("no")).await.status(), Status::Failed);
    let attempt = asked_to_stop(&subject, &mut database).await;
    assert_eq!(settled(&subject, &attempt, complete("2")).await.status(), Status::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_completes_without_its_successor() {
    let (subject, mut database) = subject().await;
    let chain = subject.start("a").key("k").await;
    let attempt = ask(subject.acquire_one("a").await, &mut database).await;
    let successor = subject.start("a").key("k").replaces(chain).build();
    let other = subject.start("b").build();
    let ids = [successor.id, other.id];
    let applied = subject.apply(&attempt, complete_with_chains("1", vec![successor, other])).await;
    assert_eq!(applied.created[0], Created::Refused(Refusal::CancelRequested));
    assert_eq!(applied.created[1].chain(), Some(ids[1]));
    assert!(subject.find_chain(ids[0]).await.is_none());
    assert_eq!(subject.by_key("a", "k").await, Some(chain));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_cancelled_when_its_lease_expires() {
    let (subject, mut database) = subject().await;
    let attempt = asked_to_stop(&subject, &mut database).await;
    subject.advance(60_000);
    let reply = subject.reap().await;
    assert_eq!(reply.reaped[0].job.status, Status::Cancelled);
    assert_eq!(reply.ripple.closed[0].closed_as, ClosedAs::Cancelled);
    assert_eq!(subject.chain(attempt.job.chain).await.latest.closed_by, None);
}
