//! Testing your handlers with `windlass-test`: first a single handler, then the whole chain over time.
//!
//! In your crate the functions below `main` would be `#[tokio::test]` functions; here `main` calls them.
//!
//! Run with `cargo run --release -p windlass --example testing`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Client, Ctx, Data, Job, MemoryStore, Next, Store, Worker};
use windlass_test::{TestHarness, run};

const TRIAL: Duration = Duration::from_secs(14 * 24 * 60 * 60);

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Charge), output = u64)]
struct Subscribe {
    user_id: u64,
    plan: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(output = u64)]
struct Charge {
    user_id: u64,
    cents: u64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct SendReceipt {
    user_id: u64,
}

async fn subscribe(job: Ctx<Subscribe>) -> Result<Next<Subscribe>, BoxError> {
    let cents = match job.input().plan.as_str() {
        "basic" => 500,
        "gold" => 2_000,
        plan => return Ok(Next::fail(format!("there is no plan `{plan}`"))),
    };
    let charge = Charge { user_id: job.input().user_id, cents };
    Ok(Next::then(windlass::next(charge).after(TRIAL)))
}

/// A handler that starts other chains takes the client as a value, and is generic over the store.
async fn charge<S: Store>(job: Ctx<Charge>, Data(client): Data<Client<S>>) -> Result<u64, BoxError> {
    if job.attempt() == 1 {
        return Err("the bank does not answer".into());
    }
    client.start(SendReceipt { user_id: job.input().user_id }).await?;
    Ok(job.input().cents)
}

/// Builds the application's worker for any store: production and the tests pass different clients.
fn worker<S: Store>(client: &Client<S>) -> Worker<S> {
    Worker::new(client).data(client.clone()).handle(subscribe).handle(charge::<S>)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    one_handler_alone().await?;
    the_chain_through_time().await?;
    println!("all tests passed");
    Ok(())
}

async fn one_handler_alone() -> Result<(), BoxError> {
    let ran = run(subscribe, Subscribe { user_id: 7, plan: "gold".into() }).await?;
    assert_eq!(ran.continued_with::<Charge>(), Charge { user_id: 7, cents: 2_000 });
    let ran = run(subscribe, Subscribe { user_id: 7, plan: "iron".into() }).await?;
    assert_eq!(ran.failed_with(), "there is no plan `iron`");

    // `run` accepts any job type, any attempt number and any values.
    let ran = run(charge::<MemoryStore>, Charge { user_id: 7, cents: 500 }).data_with(Client::clone).await?;
    assert_eq!(ran.retried_with(), "the bank does not answer");
    let ran = run(charge::<MemoryStore>, Charge { user_id: 7, cents: 500 })
        .data_with(Client::clone)
        .attempt(2)
        .await?;
    assert_eq!((*ran.output(), ran.started::<SendReceipt>().len()), (500, 1));
    Ok(())
}

async fn the_chain_through_time() -> Result<(), BoxError> {
    let harness = TestHarness::new(worker);
    let chain = harness.client().start(Subscribe { user_id: 7, plan: "basic".into() }).await?;
    harness.drain_until_idle().await?.assert_no_errors();
    harness.assert_started::<Charge>(|charge| charge.cents == 500);

    harness.advance(TRIAL);
    assert_eq!(harness.drain_until_idle().await?.retried, 1);
    harness.assert_not_started::<SendReceipt>(|_| true);

    harness.advance_to_next_due();
    harness.drain_until_idle().await?.assert_no_errors();
    harness.assert_started::<SendReceipt>(|receipt| receipt.user_id == 7);
    assert_eq!(harness.output(chain), 500);
    Ok(())
}
