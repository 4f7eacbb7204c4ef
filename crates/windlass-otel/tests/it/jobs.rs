//! Job types and handlers for the tests.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::memory::{Attempt, Done};
use windlass::{Backoff, BoxError, Client, Ctx, Job, MemoryStore, Next, Running, Worker, next, plan};
use windlass_otel::Telemetry;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A chain of three steps. The second one waits for a label.
#[derive(Serialize, Deserialize, Job)]
#[job(name = "order", entry, then(Pack), output = String)]
pub(crate) struct Order {
    pub(crate) number: u32,
}

#[derive(Serialize, Deserialize, Job)]
#[job(name = "pack", entry, blocked_by(Label), then(Ship), output = String)]
pub(crate) struct Pack {
    pub(crate) number: u32,
}

#[derive(Serialize, Deserialize, Job)]
#[job(name = "ship", output = String)]
pub(crate) struct Ship {
    pub(crate) label: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(name = "label", entry, output = String)]
pub(crate) struct Label {
    pub(crate) number: u32,
}

pub(crate) async fn order(job: Ctx<Order>) -> Result<Next<Order>, BoxError> {
    let number = job.input().number;
    let label = plan(Label { number });
    Ok(Next::then(next(Pack { number }).blocked_by((label.handle(),))).start(label))
}

pub(crate) async fn pack(job: Ctx<Pack>) -> Result<Next<Pack>, BoxError> {
    let (label,) = job.blockers();
    Ok(Next::then(Ship { label: label.clone() }))
}

pub(crate) async fn ship(job: Ctx<Ship>) -> Result<String, BoxError> {
    Ok(format!("shipped with {}", job.input().label))
}

pub(crate) async fn label(job: Ctx<Label>) -> Result<String, BoxError> {
    Ok(format!("label {}", job.input().number))
}

/// A job whose handler uses transactions, and fails as often as its input says.
#[derive(Serialize, Deserialize, Job)]
#[job(name = "parcel", entry, output = u32, max_attempts = 3, backoff = Backoff::NONE)]
pub(crate) struct Parcel {
    pub(crate) failures: u32,
}

pub(crate) async fn parcel(a: Attempt<Parcel>) -> Result<Done<Parcel>, BoxError> {
    a.prepare().await?.commit().await?;
    let step = a.begin().await?;
    if a.attempt() <= a.input().failures {
        return Err("it rains".into());
    }
    Ok(step.done(a.attempt())?)
}

/// Creates a client with this telemetry.
pub(crate) fn client(telemetry: &Telemetry) -> Client<MemoryStore> {
    Client::builder(MemoryStore::new()).observer(telemetry.clone()).build()
}

/// Starts a worker for all types.
pub(crate) async fn worker(client: &Client<MemoryStore>) -> Running<MemoryStore> {
    let worker = Worker::new(client).name("packer").concurrency(4);
    worker.handle(order).handle(pack).handle(ship).handle(label).handle(parcel).start().await.unwrap()
}
