//! A blocker of another type than the declared one.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::{Client, Ctx, Job, MemoryStore, Next, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Welcome), output = String)]
struct Provision {
    user: i64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct Welcome {
    account: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, blocked_by(Provision), output = f64)]
struct Report;

async fn start(client: &Client<MemoryStore>) -> Result<(), windlass::Error> {
    let provision = client.start(Provision { user: 1 }).await?;
    let first = client.start(Report).blocked_by((provision,)).await?;
    client.start(Report).blocked_by((first,)).await?;
    Ok(())
}

fn main() {
    let client = Client::new(MemoryStore::new());
    drop(start(&client));
}
