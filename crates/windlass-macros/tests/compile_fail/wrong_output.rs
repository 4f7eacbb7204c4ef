//! An output of another type than the declared one.
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
async fn provision(_: Ctx<Provision>) -> Result<f64, windlass::Error> {
    Ok(1.5)
}

fn main() {
    let client = Client::new(MemoryStore::new());
    let _ = Worker::new(&client).handle(provision);
}
