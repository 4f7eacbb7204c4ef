//! A chain that commits with a transaction, or not at all; a worker runs its steps; the starter waits for the answer.
//!
//! Run with `cargo run --release -p windlass --example first_chain`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{Attempt, BoxError, Client, Ctx, Done, Job, MemoryStore, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(name = "provision-account", entry, then(SendWelcome), output = String)]
struct ProvisionAccount {
    user: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(name = "send-welcome", output = String)]
struct SendWelcome {
    account: String,
}

/// The step that needs transactions: what it writes and the hand-over to the next job commit together.
async fn provision(
    a: Attempt<ProvisionAccount, MemoryStore>,
) -> Result<Done<ProvisionAccount, MemoryStore>, BoxError> {
    println!("provisioning for {}, attempt {}", a.input().user, a.attempt());
    let account = format!("account-of-{}", a.input().user);
    let step = a.finish().await?;
    Ok(step.then(SendWelcome { account })?)
}

/// A step that runs on any store.
async fn welcome(job: Ctx<SendWelcome>) -> Result<String, BoxError> {
    println!("sending the welcome for {}", job.input().account);
    Ok(format!("mail-for-{}", job.input().account))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());
    let worker = Worker::new(&client).concurrency(10).handle(provision).handle(welcome).start().await?;

    // Rolled back: as if nothing had been.
    let mut tx = client.begin().await?;
    let lost = tx.start(ProvisionAccount { user: "nobody".into() }).await?;
    tx.rollback().await?;
    assert!(client.chain(lost).await?.is_none());

    // Committed: the chain is there from this moment on, and nobody sees it before.
    let mut tx = client.begin().await?;
    let chain = tx.start(ProvisionAccount { user: "Ada".into() }).await?;
    assert!(client.chain(chain).await?.is_none());
    tx.commit().await?;

    let mail: String = client.wait(chain).timeout(Duration::from_secs(30)).await?;
    assert_eq!(mail, "mail-for-account-of-Ada");
    println!("the chain gave {mail:?}");

    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}
