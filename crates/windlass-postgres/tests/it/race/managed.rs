//! Commands that change jobs, against acquires of these jobs.

use std::sync::Arc;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Postgres, Transaction};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, yield_now};
use windlass_conformance::{Subject, complete, json};
use windlass_core::command::{
    Acquire, Cancel, CancelMode, Cancelled, Command, CompleteFromOutside, CompleteFromOutsideReply, Count,
    Delete, DeleteReply, Lost, Reply, RetentionSet, Retried, Retry, RetryTarget, Settled, Step, Trigger,
    TriggerReply, Types, Untriggerable,
};
use windlass_core::{ChainId, RequestId, Status, Store, Timestamp};
use windlass_postgres::{PostgresStore, Sqlx};
use windlass_testkit::is_full_run;

use crate::Database;
use crate::known_bad::{be_patient, changes, until_waiting};

/// The functions of the commands of [`changes`], in their order.
const FUNCTIONS: [&str; 6] =
    ["cancel_v1", "trigger_v1", "delete_v1", "complete_from_outside_v1", "set_retention_v1", "retry_v1"];

/// Returns a subject that runs ten commands at the same time: as many as half of its pool has connections.
async fn wide_subject(database: &Database) -> Subject {
    let pool = PgPoolOptions::new().max_connections(20).connect(&database.server.url()).await.unwrap();
    let store = PostgresStore::open(Sqlx::from(pool), database.options.clone()).await.unwrap();
    Subject { store: Arc::new(store), ..database.subject() }
}

/// Acquires the jobs of type `p` in a transaction that stays open, as an acquire does whose commit is slow.
async fn acquire_in_transaction(
    database: &Database,
    at: Timestamp,
    request: &Acquire,
) -> (i64, Transaction<'static, Postgres>) {
    let mut tx = database.pool.begin().await.unwrap();
    // Returns a row with the time and a row for each job.
    let acquire = database.sql(
        "select count(*) - 1 from {}.acquire_v1($1, $2, $3, null, array['p'], array[10::bigint], array[60000::bigint], 10, \
         null, null, null, false, false)",
    );
    let acquired = sqlx::query_scalar(acquire)
        .bind(at.as_millis())
        .bind(request.request.as_uuid())
        .bind(request.worker.as_uuid())
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    (acquired, tx)
}

async fn end(tx: Transaction<'static, Postgres>, commits: bool) {
    if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
}

/// Runs each command on a connection of its own, and describes the replies.
async fn run_all(s: &Subject, commands: &[Command]) -> Vec<&'static str> {
    let run = |command: &Command| {
        let (store, command) = (Arc::clone(&s.store), command.clone());
        tokio::spawn(async move { store.execute(command).await.unwrap() })
    };
    let running: Vec<_> = commands.iter().map(run).collect();
    let mut replies = Vec::new();
    for task in running {
        replies.push(describe(&task.await.unwrap()));
    }
    replies
}

fn describe(reply: &Reply) -> &'static str {
    match reply {
        Reply::Cancel(reply) => match reply.chains[..] {
            [Cancelled::Busy] => "busy",
            [Cancelled::Asked { .. }] => "asked",
            [Cancelled::Cancelled { .. }] => "cancelled",
            _ => panic!("{reply:?}"),
        },
        Reply::Trigger(TriggerReply::Triggered(_)) => "triggered",
        Reply::Trigger(TriggerReply::Refused(reasons)) => match reasons[..] {
            [Some(Untriggerable::Busy)] => "busy",
            [Some(Untriggerable::NotPending(Status::Running))] => "running",
            _ => panic!("{reasons:?}"),
        },
        Reply::Delete(DeleteReply::Busy) => "busy",
        Reply::Delete(DeleteReply::Deleted(deleted)) => match deleted.chains[0].status {
            Status::Pending => "deleted",
            Status::Running => "deleted while running",
            status => panic!("{status:?}"),
        },
        Reply::CompleteFromOutside(CompleteFromOutsideReply::Busy) => "busy",
        Reply::CompleteFromOutside(CompleteFromOutsideReply::Applied(_)) => "completed",
        Reply::CompleteFromOutside(CompleteFromOutsideReply::Changed { .. }) => "changed",
        Reply::SetRetention(reply) => match reply.chains[..] {
            [RetentionSet::Busy] => "busy",
            [RetentionSet::NotClosed] => "open",
            _ => panic!("{reply:?}"),
        },
        Reply::Retry(reply) => match reply.chains[..] {
            [Retried::Busy] => "busy",
            [Retried::AlreadyRetried] => "already retried",
            _ => panic!("{reply:?}"),
        },
        reply => panic!("{reply:?}"),
    }
}

/// Runs commands on jobs that a transaction has acquired: some while it is open, and all until it has ended. Checks that
/// each command then sees the job as running after a commit, and as pending after a rollback.
async fn check_acquired(waits: bool, commits: bool) {
    let database = Database::new().await;
    let s = wide_subject(&database).await;
    let (chains, commands) = changes(&s).await;
    let request = s.acquire_request(&["p"], 10);
    let (acquired, tx) = acquire_in_transaction(&database, s.now(), &request).await;
    assert_eq!(acquired, 6);
    let replies = if waits {
        for function in FUNCTIONS {
            be_patient(&database, function).await;
        }
        let ending = async {
            for function in FUNCTIONS {
                until_waiting(&database, function, 1).await;
            }
            end(tx, commits).await;
        };
        tokio::join!(run_all(&s, &commands), ending).0
    } else {
        assert_eq!(run_all(&s, &commands).await, ["busy"; 6]);
        end(tx, commits).await;
        run_all(&s, &commands).await
    };
    let attempts = if commits {
        assert_eq!(
            replies,
            ["asked", "running", "deleted while running", "changed", "open", "already retried"]
        );
        // The acquire is repeated after a lost reply.
        s.run(request).await.jobs
    } else {
        assert_eq!(replies, ["cancelled", "triggered", "deleted", "completed", "open", "already retried"]);
        s.acquire("p", 10).await
    };
    for attempt in &attempts {
        assert_eq!(attempt.job.attempt, 1);
        s.complete(attempt, "1").await;
    }
    let mut statuses = Vec::new();
    for chain in chains {
        statuses.push(s.find_chain(chain).await.map(|chain| chain.status()));
    }
    let first = if commits { Status::Completed } else { Status::Cancelled };
    let done = Some(Status::Completed);
    assert_eq!(attempts.len(), if commits { 5 } else { 3 });
    assert_eq!(statuses, [Some(first), done, None, done, done, done]);
    check_counts(&database, &statuses).await;
}

/// Checks that no job is pending or running, and that the counts of the ended ones are those of these chains.
async fn check_counts(database: &Database, statuses: &[Option<Status>]) {
    let ready = database.sql("select count(*) from {}.ready");
    let ready: i64 = sqlx::query_scalar(ready).fetch_one(&database.pool).await.unwrap();
    assert_eq!(ready, 0);
    let counts = &database.store.count(Count { types: Types::All }).await.unwrap().types[0];
    assert_eq!((counts.blocked, counts.pending, counts.running, counts.failed), (0, 0, 0, 0));
    let count = |status| statuses.iter().filter(|one| **one == Some(status)).count() as u64;
    let ended = (count(Status::Completed), count(Status::Cancelled));
    assert_eq!((counts.completed, counts.cancelled), ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_an_open_transaction_acquires_is_busy() {
    for commits in [true, false] {
        check_acquired(false, commits).await;
    }
}

/// As above, with commands that are already waiting when the transaction ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_waits_for_an_acquire_sees_its_result() {
    for commits in [true, false] {
        check_acquired(true, commits).await;
    }
}

/// What happened to a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Acquired,
    Completed,
    CompletedFromOutside,
    Cancelled,
    Retried,
    DeletedOpen,
    DeletedClosed,
}

type Events = Vec<(ChainId, Event)>;

/// Commands change jobs while workers acquire them. Each chain ends exactly once, and once more each time it is retried.
#[tokio::test(flavor = "multi_thread")]
async fn each_chain_ends_once_while_commands_and_acquires_race() {
    let database = Database::new().await;
    let s = wide_subject(&database).await;
    let mut statuses = Vec::new();
    for _ in 0..if is_full_run() { 200 } else { 20 } {
        let chains = start_chains(&s).await;
        let mut events = race(&s, &chains).await;
        // Some jobs may have been triggered or retried after the workers had stopped.
        events.extend(work(&s).await);
        for chain in chains.iter() {
            let status = s.find_chain(*chain).await.map(|chain| chain.status());
            check_events(*chain, &events, status);
            statuses.push(status);
        }
    }
    check_counts(&database, &statuses).await;
}

/// Creates thirty chains. A third of them are due in an hour, unless they are triggered.
async fn start_chains(s: &Subject) -> Arc<[ChainId]> {
    let due_after = |place| if place % 3 == 0 { 3_600_000 } else { 0 };
    let new: Vec<_> = (0..30).map(|place| s.start("p").after(due_after(place)).build()).collect();
    let chains = new.iter().map(|chain| chain.id).collect();
    s.create(new).await;
    chains
}

/// Runs all commands and three workers concurrently.
async fn race(s: &Subject, chains: &Arc<[ChainId]>) -> Events {
    const PARTS: usize = 7;
    let barrier = Arc::new(Barrier::new(PARTS));
    let mut parts = JoinSet::new();
    for part in 0..PARTS {
        let (s, chains, barrier) = (s.clone(), Arc::clone(chains), Arc::clone(&barrier));
        parts.spawn(async move {
            barrier.wait().await;
            match part {
                0 => cancel_and_retry(&s, &chains).await,
                1 => trigger(&s, &chains).await,
                2 => delete(&s, &chains).await,
                3 => complete_from_outside(&s, &chains).await,
                _ => work(&s).await,
            }
        });
    }
    parts.join_all().await.into_iter().flatten().collect()
}

fn check_events(chain: ChainId, events: &Events, status: Option<Status>) {
    let count = |event| events.iter().filter(|one| **one == (chain, event)).count();
    let own: Vec<_> = events.iter().filter(|(of, _)| *of == chain).map(|(_, event)| *event).collect();
    let ended = count(Event::Completed) + count(Event::CompletedFromOutside) + count(Event::Cancelled);
    let opened = 1 + count(Event::Retried);
    assert_eq!(ended + count(Event::DeletedOpen), opened, "{own:?}");
    assert!(count(Event::Acquired) <= opened, "{own:?}");
    let deleted = count(Event::DeletedOpen) + count(Event::DeletedClosed);
    assert_eq!(deleted, usize::from(status.is_none()), "{own:?}, {status:?}");
}

/// Completes jobs until ten acquires in a row return none.
async fn work(s: &Subject) -> Events {
    let (mut events, mut idle) = (Vec::new(), 0);
    while idle < 10 {
        let attempts = s.acquire("p", 4).await;
        idle = if attempts.is_empty() { idle + 1 } else { 0 };
        for attempt in &attempts {
            events.push((attempt.job.chain, Event::Acquired));
            let settled = loop {
                match s.settle(attempt, complete("1")).await {
                    Settled::Busy => yield_now().await,
                    settled => break settled,
                }
            };
            match settled {
                Settled::Applied(_) => events.push((attempt.job.chain, Event::Completed)),
                Settled::Lost(Lost::NotFound | Lost::Closed(_)) => {}
                settled => panic!("{settled:?}"),
            }
        }
    }
    events
}

/// Cancels every second chain, and retries those that are cancelled. Sends each retry twice, as after a lost reply.
async fn cancel_and_retry(s: &Subject, chains: &[ChainId]) -> Events {
    let mut events = Vec::new();
    for chain in chains.iter().step_by(2) {
        let cancel = Cancel { chains: vec![(*chain).into()], mode: CancelMode::Ask };
        let cancelled = loop {
            match s.run(cancel.clone()).await.chains.remove(0) {
                Cancelled::Busy => yield_now().await,
                cancelled => break cancelled,
            }
        };
        if !matches!(cancelled, Cancelled::Cancelled { .. }) {
            continue;
        }
        events.push((*chain, Event::Cancelled));
        let Some(record) = s.find_chain(*chain).await else { continue };
        let target = RetryTarget { job: record.latest.id, version: record.latest.version };
        let mut sent = 0;
        while sent < 2 {
            match s.run(Retry { chains: vec![target] }).await.chains.remove(0) {
                Retried::Busy => {
                    yield_now().await;
                    continue;
                }
                Retried::Retried { .. } => events.push((*chain, Event::Retried)),
                Retried::AlreadyRetried | Retried::NotFound => {}
                retried => panic!("{retried:?}"),
            }
            sent += 1;
        }
    }
    events
}

/// Triggers all chains that are pending.
async fn trigger(s: &Subject, chains: &[ChainId]) -> Events {
    for chain in chains {
        let busy = TriggerReply::Refused(vec![Some(Untriggerable::Busy)]);
        while s.run(Trigger { jobs: vec![(*chain).into()] }).await == busy {
            yield_now().await;
        }
    }
    Vec::new()
}

/// Deletes a third of the chains, two with each command.
async fn delete(s: &Subject, chains: &[ChainId]) -> Events {
    let mut events = Vec::new();
    for batch in chains.chunks(2).skip(1).step_by(3) {
        let chains = batch.iter().map(|chain| (*chain).into()).collect();
        let delete = Delete { chains, cascade: false, seen: None };
        let deleted = loop {
            match s.run(delete.clone()).await {
                DeleteReply::Busy => yield_now().await,
                DeleteReply::Deleted(deleted) => break deleted,
                DeleteReply::Refused(refused) => panic!("{refused:?}"),
            }
        };
        let event = |status| match status {
            Status::Pending | Status::Running => Event::DeletedOpen,
            _ => Event::DeletedClosed,
        };
        events.extend(deleted.chains.iter().map(|deleted| (deleted.chain, event(deleted.status))));
    }
    events
}

/// Completes every fourth chain without a worker.
async fn complete_from_outside(s: &Subject, chains: &[ChainId]) -> Events {
    let mut events = Vec::new();
    for chain in chains.iter().skip(1).step_by(4) {
        let Some(record) = s.find_chain(*chain).await else { continue };
        let step = Step::Complete { output: json("1"), retention: None, create: Vec::new() };
        let (job, version) = (record.latest.id, record.latest.version);
        let complete = CompleteFromOutside { request: RequestId::new(), job, version, steps: vec![step] };
        let reply = loop {
            match s.run(complete.clone()).await {
                CompleteFromOutsideReply::Busy => yield_now().await,
                reply => break reply,
            }
        };
        match reply {
            CompleteFromOutsideReply::Applied(_) => events.push((*chain, Event::CompletedFromOutside)),
            CompleteFromOutsideReply::Changed { .. } | CompleteFromOutsideReply::NotFound => {}
            reply => panic!("{reply:?}"),
        }
    }
    events
}
