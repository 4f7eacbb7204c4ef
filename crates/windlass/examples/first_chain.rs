//! A chain that commits with the application's own rows. A worker runs its jobs, and the caller waits for the output.
//!
//! Run with `cargo run --release -p windlass --example first_chain`. It creates `jobs.db` in the current directory.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::sqlite::{self, Attempt, Done};
use windlass::{BoxError, Client, Ctx, Job, Worker};

const TABLES: &str = "create table if not exists users (id integer primary key, name text);
    create table if not exists accounts (id integer primary key, owner text)";

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(SendWelcome), output = String)]
struct OpenAccount {
    user: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct SendWelcome {
    account: i64,
}

// The handler's row and the next job commit in one transaction. A continuation, an input or an output that was not
// declared does not compile.
async fn open_account(a: Attempt<OpenAccount>) -> Result<Done<OpenAccount>, BoxError> {
    let mut step = a.begin().await?;
    let insert = "insert into accounts (owner) values (?) returning id";
    let account = sqlx::query_scalar(insert).bind(&a.input().user).fetch_one(step.tx()).await?;
    Ok(step.then(SendWelcome { account })?)
}

// A handler that takes `Ctx` needs no transaction and runs on any store.
async fn send_welcome(job: Ctx<SendWelcome>) -> Result<String, BoxError> {
    Ok(format!("welcome to account {}", job.input().account))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(sqlite::open("jobs.db").await?);
    let worker = Worker::new(&client).concurrency(10);
    let worker = worker.handle(open_account).handle(send_welcome).start().await?;

    let mut tx = client.begin().await?; // an sqlx transaction
    sqlx::raw_sql(TABLES).execute(tx.tx()).await?;
    sqlx::query("insert into users (name) values ('Ada')").execute(tx.tx()).await?;
    let chain = tx.start(OpenAccount { user: "Ada".into() }).await?;
    tx.commit().await?; // commits the row and the chain, or neither

    println!("{}", client.wait(chain).await?);
    worker.stop(Duration::from_secs(10)).await;
    client.close().await?;
    Ok(())
}
