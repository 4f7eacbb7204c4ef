use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::client::CancelMode;
use windlass::record::AttemptEnd;
use windlass::{
    Attempt, Backoff, BoxError, Client, Ctx, Data, Done, ErrorKind, Job, JobOptions, MemoryStore, Next, Rest,
};
use windlass_test::{Outcome, run};

use crate::failing;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Greet, Wave), output = String)]
struct Meet {
    name: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(output = String)]
struct Greet {
    name: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct Wave;

fn meet(name: &str) -> Meet {
    Meet { name: name.to_owned() }
}

async fn decide(job: Ctx<Meet>) -> Result<Next<Meet>, BoxError> {
    match job.input().name.as_str() {
        "error" => Err("no answer".into()),
        "later" => Ok(Next::reschedule(Duration::from_secs(60)).because("busy")),
        "never" => Ok(Next::fail("a stranger")),
        "done" => Ok(Next::done("met".into())),
        name => Ok(Next::then(Greet { name: name.to_owned() })),
    }
}

#[tokio::test]
async fn each_outcome_is_reported() {
    let ran = run(decide, meet("done")).await.unwrap();
    assert_eq!(ran.output(), "met");
    let ran = run(decide, meet("ada")).await.unwrap();
    assert_eq!(ran.continued_with::<Greet>(), Greet { name: "ada".into() });
    let ran = run(decide, meet("never")).await.unwrap();
    assert_eq!(ran.failed_with(), "a stranger");
    let ran = run(decide, meet("error")).await.unwrap();
    assert_eq!(ran.retried_with(), "no answer");
    assert!(
        matches!(ran.outcome(), Outcome::Retried(_, after) if *after == Duration::from_secs(10)),
        "{ran:?}"
    );
    let ran = run(decide, meet("later")).await.unwrap();
    assert_eq!(ran.rescheduled_after(), Duration::from_secs(60));
    assert!(matches!(ran.outcome(), Outcome::Rescheduled(_, Some(reason)) if reason == "busy"), "{ran:?}");
}

#[tokio::test]
async fn a_different_outcome_is_reported() {
    let ran = run(decide, meet("ada")).await.unwrap();
    let continued = r#"but it continued with `greet` {"name":"ada"}"#;
    assert_eq!(failing(|| ran.output().len()), format!("expected `meet` to complete, {continued}"));
    assert_eq!(
        failing(|| ran.continued_with::<Wave>()),
        format!("expected `meet` to continue with `wave`, {continued}")
    );
    assert!(failing(|| ran.failed_with().len()).ends_with(continued));
    assert!(failing(|| ran.retried_with().len()).ends_with(continued));
    assert!(failing(|| ran.rescheduled_after()).ends_with(continued));

    let but = |input: &'static str| async move {
        let ran = run(decide, meet(input)).await.unwrap();
        failing(|| ran.continued_with::<Greet>())
    };
    assert!(but("done").await.ends_with(r#"but it completed with "met""#));
    assert!(but("never").await.ends_with("but it failed permanently: a stranger"));
    assert!(but("error").await.ends_with("but it is retried after 10s: no answer"));
    assert!(but("later").await.ends_with("but it is rescheduled after 60s: busy"));
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = u32)]
struct Price {
    item: u32,
}

#[derive(Serialize, Deserialize, Job)]
#[job(blocked_by(Price, Rest<Price>), output = u32)]
struct Total;

#[derive(Serialize, Deserialize, Job)]
#[job(blocked_by(Vec<Price>), output = u32)]
struct Sum;

#[tokio::test]
async fn the_handler_receives_the_outputs_of_blockers() {
    async fn total(job: Ctx<Total>) -> Result<u32, BoxError> {
        let (shipping, prices) = job.blockers();
        Ok(shipping + prices.iter().sum::<u32>())
    }
    async fn sum(job: Ctx<Sum>) -> Result<u32, BoxError> {
        Ok(job.blockers().iter().sum())
    }
    assert_eq!(*run(total, Total).blockers((5, vec![1, 2])).await.unwrap().output(), 8);
    assert_eq!(*run(total, Total).blockers((5, Vec::new())).await.unwrap().output(), 5);
    assert_eq!(*run(sum, Sum).blockers(vec![1, 2, 3]).await.unwrap().output(), 6);
    assert!(
        run(sum, Sum).blockers(vec![1]).await.unwrap().started::<Price>().is_empty(),
        "blockers do not count as started"
    );
}

/// Is retried without delay, or continues with its own type: a second attempt would be due immediately.
#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Again), output = u32, options = at_once())]
struct Again {
    fails: bool,
}

fn at_once() -> JobOptions {
    JobOptions { backoff: Some(Backoff::NONE), max_attempts: Some(3), ..JobOptions::default() }
}

async fn again(job: Ctx<Again>, Data(calls): Data<Arc<AtomicU32>>) -> Result<Next<Again>, BoxError> {
    calls.fetch_add(1, Ordering::SeqCst);
    if job.input().fails { Err("again".into()) } else { Ok(Next::then(Again { fails: false })) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_one_attempt_is_run() {
    for fails in [true, false] {
        for _ in 0..50 {
            let calls = Arc::new(AtomicU32::new(0));
            let ran = run(again, Again { fails }).data(Arc::clone(&calls)).await.unwrap();
            assert_eq!(calls.load(Ordering::SeqCst), 1, "{ran:?}");
            assert_eq!(matches!(ran.outcome(), Outcome::Retried(..)), fails);
        }
    }
}

#[tokio::test]
async fn a_later_attempt_can_be_run() {
    async fn tell(job: Ctx<Again>) -> Result<u32, BoxError> {
        if job.input().fails { Err("the last one".into()) } else { Ok(job.attempt()) }
    }
    assert_eq!(*run(tell, Again { fails: false }).attempt(3).await.unwrap().output(), 3);
    assert_eq!(run(tell, Again { fails: true }).attempt(3).await.unwrap().failed_with(), "the last one");
    let error = run(tell, Again { fails: false }).attempt(5).await.unwrap_err();
    assert!(error.to_string().contains("`again` allows fewer attempts"), "{error}");
}

#[derive(Clone)]
struct App {
    client: Client<MemoryStore>,
}

#[tokio::test]
async fn started_chains_are_listed_if_they_commit() {
    async fn order(
        a: Attempt<Meet, MemoryStore>,
        Data(app): Data<App>,
    ) -> Result<Done<Meet, MemoryStore>, BoxError> {
        let mut step = a.begin().await?;
        app.client.in_tx(step.tx()).start(Price { item: 7 }).await?;
        if a.input().name == "error" {
            return Err("after the start".into());
        }
        Ok(step.done(a.key().unwrap_or("none").to_owned())?)
    }
    let state = |client: &Client<MemoryStore>| App { client: client.clone() };
    let ran = run(order, meet("ada")).data_with(state).key("order-1").await.unwrap();
    assert_eq!(ran.output(), "order-1");
    assert_eq!(ran.started::<Price>().iter().map(|price| price.item).collect::<Vec<_>>(), [7]);
    let ran = run(order, meet("error")).data_with(state).await.unwrap();
    assert_eq!(ran.retried_with(), "after the start");
    assert!(ran.started::<Price>().is_empty(), "rolled back");
}

#[tokio::test]
async fn a_panic_and_a_cancelled_job_are_outcomes_too() {
    async fn panics(_: Ctx<Meet>) -> Result<String, BoxError> {
        panic!("broken")
    }
    let ran = run(panics, meet("ada")).await.unwrap();
    assert_eq!(ran.retried_with(), "the handler panicked: broken");

    async fn cancelled(job: Ctx<Meet>, Data(app): Data<App>) -> Result<String, BoxError> {
        app.client.cancel(job.chain::<Meet>(), CancelMode::Ask).await?;
        Err("stopped".into())
    }
    let ran = run(cancelled, meet("ada")).data_with(|c| App { client: c.clone() }).await.unwrap();
    assert!(matches!(ran.outcome(), Outcome::Taken(AttemptEnd::Cancelled)), "{ran:?}");
    assert!(failing(|| ran.output().len()).ends_with("the job was taken from it: Cancelled"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_never_returns_is_an_error() {
    async fn hangs(_: Ctx<Meet>) -> Result<String, BoxError> {
        std::future::pending().await
    }
    let error = run(hangs, meet("ada")).timeout(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().starts_with("the handler of `meet` has not returned after 3s"), "{error}");
}
