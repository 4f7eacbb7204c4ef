//! A continuation that is not declared.
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

#[allow(unused)]
async fn provision(_: Ctx<Provision>) -> Result<Next<Provision>, windlass::Error> {
    Ok(Next::then(Provision { user: 1 }))
}

fn main() {}
