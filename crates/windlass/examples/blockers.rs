//! Fan-in: jobs that wait for other chains and receive their outputs. A job can wait for a fixed set (a tuple), for any
//! number (a list), or for both (a tuple that ends in `Rest`).
//!
//! Run with `cargo run --release -p windlass --example blockers`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Client, Ctx, Job, MemoryStore, Rest, Status, Worker};

/// Measures one station's temperature, in tenths of a degree.
#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = i32)]
struct Measure {
    station: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(entry, output = i32)]
struct Forecast;

/// Waits for any number of measurements.
#[derive(Serialize, Deserialize, Job)]
#[job(entry, blocked_by(Vec<Measure>), output = i32)]
struct Average;

/// Waits for exactly these two chains.
#[derive(Serialize, Deserialize, Job)]
#[job(entry, blocked_by(Forecast, Average), output = String)]
struct Compare;

/// Waits for one comparison and any number of measurements.
#[derive(Serialize, Deserialize, Job)]
#[job(entry, blocked_by(Compare, Rest<Measure>), output = String)]
struct Bulletin;

async fn measure(job: Ctx<Measure>) -> Result<i32, BoxError> {
    let length = i32::try_from(job.input().station.len())?;
    Ok(150 + 10 * length)
}

async fn forecast(_: Ctx<Forecast>) -> Result<i32, BoxError> {
    Ok(200)
}

async fn average(job: Ctx<Average>) -> Result<i32, BoxError> {
    let measured = job.blockers();
    Ok(measured.iter().sum::<i32>() / i32::try_from(measured.len())?)
}

async fn compare(job: Ctx<Compare>) -> Result<String, BoxError> {
    let (forecast, average) = job.blockers();
    Ok(format!("{} tenths above the forecast", average - forecast))
}

async fn bulletin(job: Ctx<Bulletin>) -> Result<String, BoxError> {
    let (comparison, measured) = job.blockers();
    Ok(format!("{} stations, {comparison}", measured.len()))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(MemoryStore::new());

    // Start everything in one transaction. A job type with blockers must be started with them: a start without
    // blockers, or with chains of the wrong type, does not compile.
    let mut tx = client.begin().await?;
    let stations = ["Bergen", "Tromsø", "Oslo"].map(|station| Measure { station: station.to_owned() });
    let measured = tx.start_many(stations).await?;
    let forecast_chain = tx.start(Forecast).await?;
    let average_chain = tx.start(Average).blocked_by(measured.clone()).await?;
    let comparison = tx.start(Compare).blocked_by((forecast_chain, average_chain)).await?;
    let report = tx.start(Bulletin).blocked_by((comparison, measured)).await?;
    tx.commit().await?;

    let stored = client.chain(report).await?.ok_or("the chain was committed")?;
    assert_eq!(stored.status(), Status::Blocked);
    println!("the bulletin waits for {} chains", stored.latest.blockers.len());

    let worker = Worker::new(&client)
        .concurrency(4)
        .handle(measure)
        .handle(forecast)
        .handle(average)
        .handle(compare)
        .handle(bulletin)
        .start()
        .await?;

    let text = client.wait(report).timeout(Duration::from_secs(30)).await?;
    println!("the bulletin says: {text}");
    assert_eq!(text, "3 stations, 6 tenths above the forecast");

    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}
