//! How each command of a client reaches the store: a try that hangs, a reply that is lost, a row that is busy.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;
use windlass_core::command::{ChainFilter, ListChains, ListJobs, RetentionSet, Retried, TriggerReply, Types};
use windlass_core::schedule::{Every, ScheduleSpec};
use windlass_core::{
    CancelMode, Cancelled, Chain, Client, Ctx, ErrorKind, Reaper, Result, Target, TypeName, Worker, plan,
};

use super::faulty::{Fault, Faulty};
use super::{MINUTE, TIMEOUT, Task, echo, faulty, pass, task};

/// Longer than all tries together.
const LIMIT: Duration = Duration::from_secs(300);

/// What the calls are about.
#[derive(Clone, Copy)]
struct Chains {
    open: Chain<Task>,
    failed: Chain<Task>,
}

type Call = fn(Client<Faulty>, Chains) -> Pin<Box<dyn Future<Output = Result<bool>>>>;

/// A call of a client, with the command of the store that it sends.
struct Case {
    name: &'static str,
    command: &'static str,
    /// Whether the command is sent again after a lost reply.
    repeats: bool,
    /// Whether the store may answer that a row is busy.
    may_be_busy: bool,
    /// Returns whether the reply is the one of a successful call.
    call: Call,
}

macro_rules! cases {
    ($($name:literal: $command:ident, $repeats:ident, $busy:ident, |$client:ident, $chains:ident| $call:expr;)*) => {
        &[$(Case {
            name: $name,
            command: stringify!($command),
            repeats: matches!(stringify!($repeats).as_bytes(), b"repeats"),
            may_be_busy: matches!(stringify!($busy).as_bytes(), b"busy"),
            call: |$client, $chains| Box::pin(async move {
                let _ = $chains;
                Ok($call)
            }),
        }),*]
    };
}

const CASES: &[Case] = cases! {
    "start": create, repeats, busy, |client, chains| client.start(task("x")).key("new").await?.is_new();
    "start_many": create, repeats, busy, |client, chains| client.start_many([task("x"), task("y")]).await?.len() == 2;
    "create": create, repeats, busy, |client, chains| {
        client.create(vec![plan(task("x")).build()?]).await?.iter().all(|created| created.chain().is_some())
    };
    "step": complete_from_outside, repeats, busy, |client, chains| {
        client.step(chains.open).await?.of::<Task>()?.done("done".to_owned()).await?;
        true
    };
    "cancel": cancel, repeats, busy, |client, chains| {
        // The first try may have cancelled it already.
        let cancelled = client.cancel(chains.open, CancelMode::Ask).await?;
        matches!(cancelled, Cancelled::Cancelled { .. } | Cancelled::Closed { .. })
    };
    "cancel by key": cancel, once, busy, |client, chains| {
        let target = Target::Key(TypeName::new("Task")?, windlass_core::Key::new("open")?);
        matches!(client.cancel(target, CancelMode::Ask).await?, Cancelled::Cancelled { .. })
    };
    "trigger": trigger, once, busy, |client, chains| {
        matches!(client.trigger(chains.open).await?, TriggerReply::Triggered(_))
    };
    "retry": retry, repeats, busy, |client, chains| {
        matches!(client.retry(chains.failed).await?, Retried::Retried { .. } | Retried::AlreadyRetried)
    };
    "delete": delete, once, busy, |client, chains| {
        matches!(client.delete(vec![chains.open.into()]).await?, windlass_core::command::DeleteReply::Deleted(_))
    };
    "set_retention": set_retention, repeats, busy, |client, chains| {
        let set = client.set_retention(vec![chains.failed.into()], Duration::from_secs(60)).await?;
        matches!(set[..], [RetentionSet::Until(_)])
    };
    "pause": pause, once, free, |client, chains| client.pause(vec![TypeName::new("Task")?]).await? == [false];
    "chain": get_chains, repeats, free, |client, chains| client.chain(chains.open).await?.is_some();
    "output": get_chains, repeats, free, |client, chains| client.output(chains.open).await?.is_none();
    "job": get_jobs, repeats, free, |client, chains| client.job(chains.open.id().first_job()).await?.is_some();
    "list_chains": list_chains, repeats, free, |client, chains| {
        client.list_chains(ListChains::default()).await?.chains.len() == 2
    };
    "list_jobs": list_jobs, repeats, free, |client, chains| client.list_jobs(ListJobs::default()).await?.jobs.len() == 2;
    "dependents": list_dependents, repeats, free, |client, chains| client.dependents(chains.open).await?.is_empty();
    "attempts": list_attempts, repeats, free, |client, chains| {
        client.attempts(chains.open.id().first_job()).await?.is_empty()
    };
    "count": count, repeats, free, |client, chains| client.count(Types::All).await?.types.len() == 1;
    "workers": list_workers, repeats, free, |client, chains| client.workers().await?.is_empty();
    "resume": pause, once, free, |client, chains| client.resume(vec![TypeName::new("Task")?]).await? == [false];
    "retry_all": next_due, repeats, free, |client, chains| {
        client.retry_all(ChainFilter::default()).await?.changed == 1
    };
    "schedules.put": change_schedules, repeats, busy, |client, chains| {
        client.schedules().put("new", hourly(), task("x")).await?;
        true
    };
    "schedules.run_now": change_schedules, repeats, busy, |client, chains| {
        let chain = client.schedules().run_now("hourly").await?;
        client.chain(chain).await?.is_some()
    };
    "schedules.delete": change_schedules, repeats, busy, |client, chains| client.schedules().delete("hourly").await?;
    "schedules.get": get_schedules, repeats, free, |client, chains| {
        client.schedules().get("hourly").await?.is_some()
    };
    "schedules.list": list_schedules, repeats, free, |client, chains| client.schedules().list().await?.len() == 1;
    "visit_schedules": due_schedules, repeats, free, |client, chains| {
        client.visit_schedules().await?;
        true
    };
};

fn hourly() -> ScheduleSpec {
    Every::new(60 * MINUTE).expect("an hour is a valid interval")
}

/// Checks every second until the condition holds, at most for the limit.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let holds = async {
        while !condition().await {
            pass(Duration::from_secs(1)).await;
        }
    };
    timeout(LIMIT, holds).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"));
}

async fn listed(client: &Client<Faulty>) -> usize {
    client.workers().await.unwrap().len()
}

async fn prepared() -> (Faulty, Client<Faulty>, Chains) {
    let (store, client) = faulty();
    let open = client.start(task("open")).key("open").await.unwrap();
    let failed = client.start(task("failed")).await.unwrap();
    client.step(failed).await.unwrap().of::<Task>().unwrap().fail("no").await.unwrap();
    client.schedules().put("hourly", hourly(), task("x")).await.unwrap();
    (store, client, Chains { open, failed })
}

/// Calls with the first try, or tries, of the command faulty.
async fn call(case: &Case, fault: Fault, times: usize) -> (Result<bool>, usize) {
    let (store, client, chains) = prepared().await;
    let before = store.calls(case.command);
    store.fault(case.command, fault, times);
    let answer = timeout(LIMIT, (case.call)(client, chains)).await;
    let answer = answer.unwrap_or_else(|_| panic!("{}: no answer within {LIMIT:?}", case.name));
    (answer, store.calls(case.command) - before)
}

/// Only a command that cannot be repeated reports that its reply was lost.
fn check(case: &Case, answer: Result<bool>) {
    match answer {
        Ok(succeeded) => assert!(succeeded && case.repeats, "{}", case.name),
        Err(error) => {
            assert!(!case.repeats, "{}: {error}", case.name);
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}: {error}", case.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_first_try_times_out_and_is_repeated() {
    for case in CASES {
        check(case, call(case, Fault::Hangs, 1).await.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_is_followed_by_another_try() {
    for case in CASES {
        let (answer, calls) = call(case, Fault::LosesReply, 1).await;
        check(case, answer);
        assert_eq!(calls > 1, case.repeats, "{}", case.name);
    }
}

/// A repeat cannot succeed before an operator acts.
#[tokio::test(start_paused = true)]
async fn denied_access_is_reported_without_a_repeat() {
    for case in CASES {
        let (answer, calls) = call(case, Fault::IsDenied, 1).await;
        let error = answer.unwrap_err();
        assert_eq!((error.kind(), calls), (ErrorKind::AccessDenied, 1), "{}: {error}", case.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_row_is_retried() {
    for case in CASES.iter().filter(|case| case.may_be_busy) {
        let (answer, calls) = call(case, Fault::IsBusy, 2).await;
        assert!(answer.unwrap(), "{}", case.name);
        assert_eq!(calls, 3, "{}", case.name);
    }
}

/// The retries end after about a second; the caller then sees that the row is busy.
#[tokio::test(start_paused = true)]
async fn a_row_that_stays_busy_is_reported() {
    for case in CASES.iter().filter(|case| case.may_be_busy) {
        let began = tokio::time::Instant::now();
        let (answer, _) = call(case, Fault::IsBusy, usize::MAX).await;
        assert!(began.elapsed() < Duration::from_secs(2), "{}: {:?}", case.name, began.elapsed());
        assert!(!matches!(answer, Ok(true)), "{}", case.name);
    }
}

/// How a call in the background fails. After the first two, only another call can have an effect.
const FAILURES: [Fault; 3] = [Fault::Hangs, Fault::Fails, Fault::LosesReply];

#[tokio::test(start_paused = true)]
async fn the_query_of_a_handler_is_repeated() {
    async fn query(job: Ctx<Task>) -> super::Result<String> {
        job.last_success().await?;
        echo(job).await
    }
    for fault in FAILURES {
        let (store, client, _) = prepared().await;
        let chain = Chain::<Task>::from_id(client.schedules().run_now("hourly").await.unwrap());
        store.fault("get_schedules", fault.clone(), 1);
        let worker = Worker::new(&client).handle(query).start().await.unwrap();
        assert_eq!(client.wait(chain).timeout(LIMIT).await.unwrap(), "attempt 1", "{fault:?}");
        worker.stop(TIMEOUT).await;
    }
}

/// The list of workers must not depend on a single call.
#[tokio::test(start_paused = true)]
async fn a_worker_stays_listed_while_one_heartbeat_hangs() {
    let (store, client) = faulty();
    let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    until("the worker is listed", async || listed(&client).await == 1).await;
    store.fault("beat", Fault::Hangs, 1);
    for second in 0..60 {
        pass(Duration::from_secs(1)).await;
        assert_eq!(listed(&client).await, 1, "after {second} s");
    }
    worker.stop(TIMEOUT).await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_continue_after_a_failed_one() {
    for fault in FAILURES {
        let (store, client) = faulty();
        store.fault("beat", fault.clone(), 1);
        let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
        until("the worker is listed", async || listed(&client).await == 1).await;
        // Longer than a heartbeat is valid.
        pass(MINUTE).await;
        assert_eq!(listed(&client).await, 1, "{fault:?}");
        worker.stop(TIMEOUT).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopping_worker_repeats_its_last_call_if_it_fails() {
    for fault in [Fault::Fails, Fault::LosesReply] {
        let (store, client) = faulty();
        let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
        until("the worker is listed", async || listed(&client).await == 1).await;
        store.fault("retire", fault.clone(), 1);
        worker.stop(TIMEOUT).await;
        assert_eq!((listed(&client).await, store.calls("retire")), (0, 2), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_stops_though_its_last_call_hangs() {
    let (store, client) = faulty();
    let worker = Worker::new(&client).handle(echo::<Task>).start().await.unwrap();
    until("the worker is listed", async || listed(&client).await == 1).await;
    store.fault("retire", Fault::Hangs, usize::MAX);
    timeout(2 * TIMEOUT, worker.stop(TIMEOUT)).await.unwrap();
    assert_eq!(listed(&client).await, 1);
    until("its heartbeat has expired", async || listed(&client).await == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_reaper_leads_after_a_failed_call() {
    for fault in FAILURES {
        let (store, client) = faulty();
        store.fault("leader_lock", fault, 1);
        let reaper = Reaper::new(&client).start().await.unwrap();
        until("the reaper leads", async || reaper.is_leader()).await;
        reaper.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reaper_expires_chains_after_a_failed_call() {
    for fault in FAILURES {
        let (store, client, chains) = prepared().await;
        let second = Duration::from_secs(1);
        client.set_retention(vec![chains.failed.into()], second).await.unwrap();
        // A chain is kept for a while after its end, whatever its retention: its creation may be repeated.
        pass(60 * MINUTE).await;
        store.fault("expire", fault.clone(), 1);
        let reaper = Reaper::new(&client).start().await.unwrap();
        until("the chain is gone", async || client.chain(chains.failed).await.unwrap().is_none()).await;
        // The next one closes after the call that failed, so another call must expire it.
        client.cancel(chains.open, CancelMode::Ask).await.unwrap();
        client.set_retention(vec![chains.open.into()], second).await.unwrap();
        pass(60 * MINUTE).await;
        until("the next chain is gone", async || client.chain(chains.open).await.unwrap().is_none()).await;
        reaper.stop().await;
    }
}

/// An error while a busy chain is tried again is the error of the whole call.
#[tokio::test(start_paused = true)]
async fn an_error_during_a_busy_retry_is_returned() {
    let (store, client) = faulty();
    store.fault("create", Fault::IsBusy, 1);
    let starting = client.start_many([plan(task("x")).key("k")]);
    let breaking = async {
        super::pass(Duration::from_millis(10)).await;
        store.fault("create", Fault::Fails, usize::MAX);
    };
    let (started, ()) = tokio::join!(starting, breaking);
    assert_eq!(started.unwrap_err().kind(), ErrorKind::Unavailable);
}
