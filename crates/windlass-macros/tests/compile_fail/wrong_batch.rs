//! Batches of a type that is not an entry, of inputs of the wrong type, and without declared blockers.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::{Client, Job, MemoryStore, plan};

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

fn start(client: &Client<MemoryStore>) {
    drop(client.start_many([Welcome { account: String::new() }]));
    drop(client.start_many([Provision { user: "Ada" }]));
    drop(client.start_many([plan(Report)]));
    drop(client.start_many([Report]));
}

fn main() {}
