//! A start without its declared blockers.
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

async fn start(client: &Client<MemoryStore>) {
    let _ = client.start(Report).await;
}

fn main() {
    let client = Client::new(MemoryStore::new());
    drop(start(&client));
}
