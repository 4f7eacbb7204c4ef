//! Orders on PostgreSQL: a chain that reads and writes the application's own tables in its own transactions, branches, and
//! returns a result.
//!
//! Set `DATABASE_URL`, then run `cargo run --release -p windlass --features postgres --example orders`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};
use windlass::postgres::{self, Attempt, Client, Done};
use windlass::{BoxError, Chain, Ctx, Data, Fatal, Job, Worker};

/// The result of an order's chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Receipt {
    Shipped { payment: String },
    Declined,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(Charge), output = Receipt)]
struct Reserve {
    order: i64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(then(Ship, Release), output = Receipt)]
struct Charge {
    order: i64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = Receipt)]
struct Ship {
    payment: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = Receipt)]
struct Release {
    order: i64,
}

/// Reads and writes in the transaction that ends the job. If the worker crashes, neither the stock nor the job has changed.
async fn reserve(a: Attempt<Reserve>) -> Result<Done<Reserve>, BoxError> {
    let order = a.input().order;
    let mut step = a.atomic().await?;
    let update = "update stock set left_over = left_over - 1
        where left_over > 0 and item = (select item from orders where id = $1)";
    if sqlx::query(update).bind(order).execute(step.tx()).await?.rows_affected() == 0 {
        // Retrying does not help: the job fails without further attempts.
        return Err(Fatal::new("out of stock").into());
    }
    Ok(step.then(Charge { order })?)
}

/// Calls another service between two transactions. No connection is held during the call, and the lease is renewed.
async fn charge(a: Attempt<Charge>, Data(bank): Data<Bank>) -> Result<Done<Charge>, BoxError> {
    let order = a.input().order;
    let mut before = a.prepare().await?;
    let query = "select card from orders where id = $1";
    let card: String = sqlx::query_scalar(query).bind(order).fetch_one(before.tx()).await?;
    before.commit().await?;

    // May run again after a crash: the order's id keeps the bank from charging twice.
    let payment = bank.charge(order, &card).await?;

    let mut step = a.begin().await?;
    let update = "update orders set payment = $2 where id = $1";
    sqlx::query(update).bind(order).bind(&payment).execute(step.tx()).await?;
    match payment {
        Some(payment) => Ok(step.then(Ship { payment })?),
        None => Ok(step.then(Release { order })?),
    }
}

/// Needs no transaction.
async fn ship(job: Ctx<Ship>) -> Result<Receipt, BoxError> {
    Ok(Receipt::Shipped { payment: job.input().payment.clone() })
}

async fn release(a: Attempt<Release>) -> Result<Done<Release>, BoxError> {
    let mut step = a.begin().await?;
    let update =
        "update stock set left_over = left_over + 1 where item = (select item from orders where id = $1)";
    sqlx::query(update).bind(a.input().order).execute(step.tx()).await?;
    Ok(step.done(Receipt::Declined)?)
}

#[derive(Clone)]
struct Bank;

impl Bank {
    /// Returns the number of the payment, or `None` if the card is declined.
    async fn charge(&self, order: i64, card: &str) -> Result<Option<String>, BoxError> {
        Ok((card == "valid").then(|| format!("payment {order}")))
    }
}

/// Inserts an order and starts its chain. Both are committed together, or not at all.
async fn order(client: &Client, pool: &PgPool, item: &str, card: &str) -> Result<Chain<Reserve>, BoxError> {
    let mut tx = pool.begin().await?;
    let order = insert_order(&mut tx, item, card).await?;
    // The key makes the chain unique: a second start with this key would return the same chain.
    let chain = client.in_tx(&mut tx).start(Reserve { order }).key(format!("order-{order}")).await?;
    tx.commit().await?;
    Ok(chain)
}

async fn insert_order(connection: &mut PgConnection, item: &str, card: &str) -> Result<i64, sqlx::Error> {
    let insert = "insert into orders (item, card) values ($1, $2) returning id";
    sqlx::query_scalar(insert).bind(item).bind(card).fetch_one(connection).await
}

const TABLES: &str = "
create table if not exists stock (item text primary key, left_over bigint not null);
create table if not exists orders (
    id bigint primary key generated always as identity, item text not null, card text not null, payment text
);
insert into stock values ('anchor', 2) on conflict (item) do update set left_over = 2";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;
    let client = Client::new(postgres::open(pool.clone()).await?);
    let worker = Worker::new(&client)
        .data(Bank)
        .handle(reserve)
        .handle(charge)
        .handle(ship)
        .handle(release)
        .start()
        .await?;

    let paid = order(&client, &pool, "anchor", "valid").await?;
    let declined = order(&client, &pool, "anchor", "stolen").await?;
    let missing = order(&client, &pool, "capstan", "valid").await?;
    let timeout = Duration::from_secs(30);
    let receipt = client.wait(paid).timeout(timeout).await?;
    println!("{receipt:?}");
    assert!(matches!(receipt, Receipt::Shipped { .. }));
    assert_eq!(client.wait(declined).timeout(timeout).await?, Receipt::Declined);
    let failure = client.wait(missing).timeout(timeout).await.expect_err("there is no capstan");
    println!("{failure}");
    assert!(failure.to_string().contains("out of stock"), "{failure}");
    let left: i64 =
        sqlx::query_scalar("select left_over from stock where item = 'anchor'").fetch_one(&pool).await?;
    assert_eq!(left, 1, "one was shipped, and the declined one was released");

    worker.stop(Duration::from_secs(10)).await;
    client.close().await?;
    Ok(())
}
