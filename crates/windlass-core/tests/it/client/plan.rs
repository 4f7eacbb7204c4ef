//! Plans, and several of them in one call.

use std::time::Duration;

use windlass_core::command::Created;
use windlass_core::{ChainId, ErrorKind, KeyHold, Plan, Status, Store, plan};

use super::{Mail, Report, client, mail};

#[tokio::test]
async fn plans_of_one_type_start_with_their_own_options() {
    let client = client();
    let before = client.store().counters().round_trips;
    let id = ChainId::new();
    let plans = [
        plan(mail()).id(id).priority(3),
        plan(mail()).key("a").hold(KeyHold::Any),
        plan(mail()).key("a"),
        plan(mail()).after(Duration::from_secs(60)).max_attempts(2),
    ];
    let handles: Vec<_> = plans.iter().map(Plan::handle).collect();
    let chains = client.start_many(plans).await.unwrap();
    assert_eq!(client.store().counters().round_trips - before, 1);

    assert_eq!(chains[0].id(), id);
    assert_eq!(chains[..2], handles[..2]);
    assert!(chains[2] == chains[1] && !chains[2].is_new(), "the key was held by the one before");
    let job = client.chain(chains[0]).await.unwrap().unwrap().latest;
    assert_eq!(job.priority, 3);
    let job = client.chain(chains[3]).await.unwrap().unwrap().latest;
    assert_eq!(job.max_attempts, Some(2));
    assert_eq!(job.due_at.since(job.created_at), Duration::from_secs(60));
}

#[tokio::test]
async fn no_plans_start_nothing() {
    let client = client();
    assert!(client.start_many(Vec::<Plan<Mail>>::new()).await.unwrap().is_empty());
    let mut tx = client.begin().await.unwrap();
    assert!(tx.start_many(Vec::<Mail>::new()).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    assert!(client.create(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn plans_of_several_types_and_their_blockers_start_together() {
    let client = client();
    let held = client.start(mail()).key("first").await.unwrap();
    // The first plan meets an existing chain, so the report waits for that one.
    let (first, second) = (plan(mail()).key("first"), plan(mail()));
    let report = plan(Report).blocked_by((first.handle(), second.handle()));
    let chains = vec![first.build().unwrap(), second.build().unwrap(), report.build().unwrap()];
    let created = client.create(chains).await.unwrap();
    assert!(matches!(&created[0], Created::Existing(existing) if existing.chain == held.id()));
    assert!(matches!(created[1], Created::New { job, .. } if job.status == Status::Pending));
    assert!(matches!(created[2], Created::New { job, .. } if job.status == Status::Blocked));
    let report = client.chain(created[2].chain().unwrap()).await.unwrap().unwrap();
    assert_eq!(report.latest.blockers[0].chain, held.id());
}

#[tokio::test]
async fn a_refused_plan_is_named_and_does_not_affect_the_others() {
    let client = client();
    let taken = client
        .start(Report)
        .blocked_by((client.start(mail()).await.unwrap(), client.start(mail()).await.unwrap()));
    let taken = taken.await.unwrap();
    let (good, bad) = (plan(mail()), plan(mail()).id(taken.id()));
    let handle = good.handle();
    let error = client.start_many([bad, good]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().starts_with("start 1 of 2 was refused: the id already belongs to another"),
        "{error}"
    );
    assert!(client.chain(handle).await.unwrap().is_some());
}

#[tokio::test]
async fn a_plan_reports_its_first_error_when_it_starts() {
    let client = client();
    let error = client.start_many([plan(mail()).key("").priority(1)]).await.unwrap_err();
    assert!(error.to_string().contains("the key is empty"), "{error}");
    let error = plan(mail()).window(Duration::from_secs(1)).build().unwrap_err();
    assert!(error.to_string().contains("call `.key(…)` first"), "{error}");
}
