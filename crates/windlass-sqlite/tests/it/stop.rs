//! Jobs that were asked to stop. The tests set the flag in the table directly.

use windlass_core::command::{
    Applied, Created, DueTime, GetChains, GetJobs, JobSummary, NewKey, NextJob, Outcome, Reap, Renew,
    RenewLease, Renewed, Settle, Settled, Settlement, Types,
};
use windlass_core::{
    ChainRecord, ClosedAs, ErrorText, JobId, JobRecord, Key, LEASE_EXPIRED, Millis, Payload, Refusal, Status,
    Store,
};
use windlass_sqlite::SqliteStore;

use crate::{File, new_chain, start, take};

/// Settles a job that was asked to stop. Returns its chain, and the reply to the repeated settlement.
async fn settle(outcome: Outcome) -> (ChainRecord, Settled) {
    let (_file, store, held) = asked_to_stop().await;
    let settle = || Settle {
        settlements: vec![Settlement { job: held.id, fence: held.fence, outcome: outcome.clone() }],
    };
    let lease = RenewLease { job: held.id, fence: held.fence, lease: Millis::from_secs(60) };
    let renewed = store.renew(Renew { leases: vec![lease] }).await.unwrap().leases;
    assert!(matches!(renewed[0], Renewed::Held { cancel_requested: true, .. }), "{renewed:?}");

    let reply = store.settle(settle()).await.unwrap();
    let Settled::Applied(Applied { job, next: None, .. }) = &reply.settled[0] else { panic!("{reply:?}") };
    let chain = chain(&store, held.id).await;
    assert_eq!((job.status, chain.latest.id), (chain.status(), held.id));
    assert_eq!(Some(reply.ripple.closed[0].closed_as), chain.closed.map(|closed| closed.closed_as));
    (chain, store.settle(settle()).await.unwrap().settled.remove(0))
}

async fn asked_to_stop() -> (File, SqliteStore, JobRecord) {
    let file = File::new();
    let store = file.open().await;
    start(&store, vec![new_chain()]).await;
    let held = take(&store, 1).await.remove(0).job;
    sqlx::query("update windlass_job set cancel_requested = 1")
        .execute(&mut file.connect().await)
        .await
        .unwrap();
    (file, store, held)
}

fn summary(job: &JobRecord) -> JobSummary {
    JobSummary { job: job.id, chain: job.chain, status: job.status, due_at: job.due_at }
}

async fn chain(store: &SqliteStore, job: JobId) -> ChainRecord {
    let target = windlass_core::command::Target::Job(job);
    store.get_chains(GetChains { chains: vec![target] }).await.unwrap().chains.remove(0).unwrap()
}

#[tokio::test]
async fn outcomes_that_would_continue_the_chain_cancel_it() {
    let error = || ErrorText::new("boom");
    let next = NextJob { id: JobId::new(), job: new_chain().job };
    for (outcome, kept) in [
        (Outcome::Continue { next, create: vec![new_chain()] }, None),
        (Outcome::Retry { schedule: DueTime::Now, error: error() }, Some(error())),
        (Outcome::Reschedule { schedule: DueTime::Now, error: Some(error()) }, Some(error())),
        (Outcome::Release, None),
    ] {
        let (chain, repeated) = settle(outcome).await;
        assert_eq!((chain.status(), &chain.latest.error), (Status::Cancelled, &kept));
        assert_eq!(repeated, Settled::AlreadyApplied(summary(&chain.latest)));
    }
}

#[tokio::test]
async fn completions_and_failures_are_applied() {
    let complete =
        Outcome::Complete { output: Payload::json("2").unwrap(), retention: None, create: Vec::new() };
    assert_eq!(settle(complete).await.0.status(), Status::Completed);
    let fail = Outcome::Fail { error: ErrorText::new("boom"), retention: None };
    assert_eq!(settle(fail).await.0.status(), Status::Failed);
}

#[tokio::test]
async fn a_recurring_chain_ends_without_a_successor() {
    let (_file, store, held) = asked_to_stop().await;
    let [mut successor, beside] = [new_chain(), new_chain()];
    successor.key = Some(NewKey { replaces: Some(held.chain), ..NewKey::new(Key::new("daily").unwrap()) });
    let create = vec![successor.clone(), beside.clone()];
    let outcome = Outcome::Complete { output: Payload::json("2").unwrap(), retention: None, create };
    let settle = Settle { settlements: vec![Settlement { job: held.id, fence: held.fence, outcome }] };
    let reply = store.settle(settle).await.unwrap();
    let Settled::Applied(applied) = &reply.settled[0] else { panic!("{reply:?}") };
    assert_eq!(applied.created[0], Created::Refused(Refusal::CancelRequested));
    assert!(matches!(applied.created[1], Created::New { repeated: false, .. }), "{reply:?}");
    let stored = GetJobs { jobs: vec![successor.id.first_job(), beside.id.first_job()] };
    let stored = store.get_jobs(stored).await.unwrap().jobs;
    assert_eq!(stored.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    assert_eq!(chain(&store, held.id).await.status(), Status::Completed);
}

#[tokio::test]
async fn an_expired_lease_cancels_the_job() {
    let (file, store, held) = asked_to_stop().await;
    file.clock.advance(Millis::from_secs(61));
    let renewal_interval = Millis::from_secs(20);
    let reap = Reap { types: Types::All, max: 10, except: Vec::new(), renewal_interval };
    let reply = store.reap(reap).await.unwrap();
    assert_eq!(reply.ripple.closed[0].closed_as, ClosedAs::Cancelled);
    let chain = chain(&store, held.id).await;
    assert_eq!(
        (chain.status(), chain.latest.error),
        (Status::Cancelled, Some(ErrorText::new(LEASE_EXPIRED)))
    );
}
