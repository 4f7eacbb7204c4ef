//! An approval that may take a week: a job that no worker runs. It is completed from outside once a person has decided.
//!
//! A webhook, here a function, delivers the decision. The decision commits together with the row that records who made
//! it. The webhook may be delivered twice: the second delivery finds the order decided and changes nothing.
//!
//! Run with `cargo run --release -p windlass --example approval`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Chain, ChainId, Client, Ctx, ErrorKind, Job, MemoryStore, Worker};

/// Waits for a person. No worker has a handler for it.
#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Ship, Refuse), output = String)]
struct Approve {
    order: u64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct Ship {
    order: u64,
    approved_by: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct Refuse {
    order: u64,
}

async fn ship(job: Ctx<Ship>) -> Result<String, BoxError> {
    let Ship { order, approved_by } = job.input();
    Ok(format!("order {order} shipped, approved by {approved_by}"))
}

async fn refuse(job: Ctx<Refuse>) -> Result<String, BoxError> {
    Ok(format!("order {} refused", job.input().order))
}

/// Records a decision. The approval page calls it with the chain's id from the link.
async fn decide(
    client: &Client<MemoryStore>,
    id: ChainId,
    by: &str,
    approves: bool,
) -> Result<(), windlass::Error> {
    let chain = Chain::<Approve>::from_id(id);
    let mut tx = client.begin().await?;
    // A real application would insert a row with the decision here, through `tx.tx()`. The row and the completion
    // commit together.
    let approval = tx.step(chain).await?.of::<Approve>()?;
    let order = approval.input().order;
    if approves {
        approval.then(Ship { order, approved_by: by.to_owned() }).await?;
    } else {
        approval.then(Refuse { order }).await?;
    }
    tx.commit().await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());
    let worker = Worker::new(&client).handle(ship).handle(refuse).start().await?;
    let first = client.start(Approve { order: 7 }).await?;
    let second = client.start(Approve { order: 8 }).await?;
    println!("two orders wait for approval");

    decide(&client, first.id(), "Ada", true).await?;
    decide(&client, second.id(), "Ada", false).await?;
    let wait = Duration::from_secs(30);
    assert_eq!(client.wait(first).timeout(wait).await?, "order 7 shipped, approved by Ada");
    assert_eq!(client.wait(second).timeout(wait).await?, "order 8 refused");

    // The webhook is delivered again: the chain's latest job is no longer the approval.
    let again = decide(&client, first.id(), "Bob", false).await;
    let error = again.expect_err("the order is decided");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    println!("again: {error}");

    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}
