//! Workers and consumers that are dropped as soon as they have started.
#![allow(unused)]
#![deny(unused_must_use)]

use serde::{Deserialize, Serialize};
use windlass::queue::Item;
use windlass::{BoxError, Client, Ctx, Job, MemoryStore, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry)]
struct Mail;

async fn mail(_: Ctx<Mail>) -> Result<(), BoxError> {
    Ok(())
}

async fn length(item: Item<String>) -> Result<usize, BoxError> {
    Ok(item.payload().len())
}

async fn run(client: &Client<MemoryStore>) -> windlass::Result<()> {
    Worker::new(client).handle(mail).start().await?;
    client.queue::<String, usize>("lengths").build()?.consume(length).await?;
    Ok(())
}

fn main() {
    let client = Client::new(MemoryStore::new());
    drop(run(&client));
}
