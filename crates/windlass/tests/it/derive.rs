//! `#[derive(Job)]` end to end: names, options, continuations, blockers, and a complete program.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::job::JobGraph;
use windlass::{
    Backoff, BoxError, Client, Ctx, Fallible, Job, JobOptions, MemoryStore, Next, OnBlockerFailure, Rest,
    Retention, Worker,
};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(SendWelcome), output = String)]
struct ProvisionAccount {
    user: i64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(name = "welcome", alias("send-welcome", "greet"), output = String, max_attempts = 5, priority = -1)]
struct SendWelcome {
    account: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, options = quick(), max_attempts = 2, renewal = MINUTE / 60, output = f64)]
#[job(on_blocker_failure = OnBlockerFailure::Wait)]
enum Price {
    Gold,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, blocked_by(Price, Fallible<Price>, Rest<ProvisionAccount>))]
struct Report;

#[derive(Serialize, Deserialize, Job)]
#[job(entry, blocked_by(Vec<Price>), output = f64)]
struct Total;

#[derive(Serialize, Deserialize, Job)]
#[job(lease = MINUTE / 2, timeout = Duration::from_secs(30), backoff = Backoff::NONE)]
#[job(retention = Retention::all(MINUTE).failed(2 * MINUTE), options = quick())]
struct Limited;

const MINUTE: Duration = Duration::from_secs(60);

/// Type names that are keywords or acronyms, and options that are expressions.
mod odd {
    use serde::{Deserialize, Serialize};
    use windlass::Job;

    pub(super) const ATTEMPTS: u32 = 3;

    /// Shadows `Some`: generated code must use the one from the standard library.
    #[expect(dead_code, reason = "generated code must not use it")]
    struct Some;

    #[expect(non_camel_case_types, reason = "the name is a keyword on purpose")]
    #[derive(Serialize, Deserialize, Job)]
    #[job(max_attempts = ATTEMPTS + 1)]
    #[job(priority = -(2 + 3), alias("kind"))]
    pub(super) struct r#type;

    #[derive(Serialize, Deserialize, Job)]
    pub(super) struct HTTPFetch;
}

fn quick() -> JobOptions {
    JobOptions {
        lease: Some(Duration::from_secs(5)),
        on_blocker_failure: OnBlockerFailure::Fail,
        ..JobOptions::default()
    }
}

#[test]
fn the_derived_declarations_match_the_attribute() {
    assert_eq!(ProvisionAccount::NAME, "provision-account");
    assert_eq!((SendWelcome::NAME, SendWelcome::ALIASES), ("welcome", ["send-welcome", "greet"].as_slice()));
    assert_eq!((SendWelcome::options().max_attempts, SendWelcome::options().priority), (Some(5), -1));
    assert_eq!(
        Price::options(),
        JobOptions {
            max_attempts: Some(2),
            renewal: Some(MINUTE / 60),
            on_blocker_failure: OnBlockerFailure::Wait,
            ..quick()
        }
    );
    assert_eq!(
        Limited::options(),
        JobOptions {
            lease: Some(MINUTE / 2),
            timeout: Some(Duration::from_secs(30)),
            backoff: Some(Backoff::NONE),
            retention: Retention::all(MINUTE).failed(2 * MINUTE),
            ..quick()
        }
    );
    let mut jobs = JobGraph::new();
    jobs.add::<ProvisionAccount>().unwrap();
    jobs.add::<Report>().unwrap();
    jobs.add::<Total>().unwrap();
    assert_eq!(
        jobs.to_string(),
        "provision-account -> welcome\n\
         report (waits for price, price, provision-account…)\n\
         total (waits for price…)\n"
    );
}

#[test]
fn raw_names_acronyms_and_expressions_are_supported() {
    use odd::{ATTEMPTS, HTTPFetch, r#type};
    assert_eq!((r#type::NAME, r#type::ALIASES), ("type", ["kind"].as_slice()));
    assert_eq!(
        r#type::options(),
        JobOptions { max_attempts: Some(ATTEMPTS + 1), priority: -5, ..JobOptions::default() }
    );
    assert_eq!(HTTPFetch::NAME, "http-fetch");
}

async fn provision(job: Ctx<ProvisionAccount>) -> Result<Next<ProvisionAccount>, BoxError> {
    Ok(Next::then(SendWelcome { account: format!("acc-{}", job.input().user) }))
}

async fn welcome(job: Ctx<SendWelcome>) -> Result<String, BoxError> {
    Ok(format!("welcome, {}", job.input().account))
}

async fn price(_: Ctx<Price>) -> Result<f64, BoxError> {
    Ok(1.5)
}

async fn total(job: Ctx<Total>) -> Result<f64, BoxError> {
    Ok(job.blockers().iter().sum())
}

#[tokio::test]
async fn a_complete_program_runs() {
    let client = Client::new(MemoryStore::new());
    let worker =
        Worker::new(&client).concurrency(4).handle(provision).handle(welcome).handle(price).handle(total);
    let worker = worker.start().await.unwrap();
    let mut tx = client.begin().await.unwrap();
    let chain = tx.start(ProvisionAccount { user: 7 }).await.unwrap();
    tx.commit().await.unwrap();
    let prices = client.start_many([Price::Gold, Price::Gold]).await.unwrap();
    let total = client.start(Total).blocked_by(prices).await.unwrap();
    assert_eq!(client.wait(chain).await.unwrap(), "welcome, acc-7");
    assert_eq!(client.wait(total).await.unwrap(), 3.0);
    worker.stop(Duration::from_secs(10)).await;
}
