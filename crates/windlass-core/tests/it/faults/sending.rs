//! How each command of a client reaches the store: a try that hangs, a reply that is lost, a row that is busy.

use std::time::Duration;

use tokio::time::timeout;
use windlass_core::command::{ListChains, ListJobs, RetentionSet, Retried, TriggerReply, Types};
use windlass_core::{
    BoxFuture, CancelMode, Cancelled, Chain, Client, ErrorKind, Result, Target, TypeName, plan,
};

use super::faulty::{Fault, Faulty};
use super::{Task, faulty, task};

/// Longer than all tries together.
const LIMIT: Duration = Duration::from_secs(300);

/// What the calls are about.
#[derive(Clone, Copy)]
struct Chains {
    open: Chain<Task>,
    failed: Chain<Task>,
}

type Call = fn(Client<Faulty>, Chains) -> BoxFuture<'static, Result<bool>>;

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
};

async fn prepared() -> (Faulty, Client<Faulty>, Chains) {
    let (store, client) = faulty();
    let open = client.start(task("open")).key("open").await.unwrap();
    let failed = client.start(task("failed")).await.unwrap();
    client.step(failed).await.unwrap().of::<Task>().unwrap().fail("no").await.unwrap();
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
