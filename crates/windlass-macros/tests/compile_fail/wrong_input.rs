//! An input of another type than the declared one.
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

fn main() {
    let client = Client::<MemoryStore>::new(MemoryStore::new());
    let _ = client.start(Provision { user: "Ada" });
}
