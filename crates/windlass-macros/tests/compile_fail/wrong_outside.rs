//! A completion from outside that is not what the job's type declares.
#![allow(unused)]

use serde::{Deserialize, Serialize};
use windlass::{Chain, Client, Job, MemoryStore};

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

async fn approve(client: &Client<MemoryStore>, chain: Chain<Provision>) -> Result<(), windlass::Error> {
    client.step(chain).await?.of::<Provision>()?.then(Provision { user: 1 }).await?;
    client.step(chain).await?.of::<Provision>()?.then(Welcome { account: 1 }).await?;
    client.step(chain).await?.of::<Provision>()?.done(1.5).await?;
    let next = client.step(chain).await?.of::<Provision>()?.then(Welcome { account: String::new() });
    next.then(Welcome { account: String::new() }).await?;
    client.step(chain).await?.done(String::new()).await?;
    Ok(())
}

fn main() {}
