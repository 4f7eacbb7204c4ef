//! A saga: a chain that branches, and undoes its earlier steps if a later step is impossible.
//!
//! The chain reserves a flight, then a hotel. If there is no room, it continues with the compensation, which cancels
//! the flight. The caller that waits for the chain receives the same output type on both branches.
//!
//! Run with `cargo run --release -p windlass --example branching`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Client, Ctx, Data, Job, MemoryStore, Next, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(ReserveHotel), output = Trip)]
struct ReserveFlight {
    city: String,
}

/// The branch: completes the chain, or continues with the compensation.
#[derive(Serialize, Deserialize, Job)]
#[job(then(CancelFlight), output = Trip)]
struct ReserveHotel {
    city: String,
    flight: String,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = Refund)]
struct CancelFlight {
    flight: String,
    reason: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Trip {
    Booked { flight: String, hotel: String },
    Refunded(Refund),
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Refund {
    reason: String,
}

/// Converts the output of the compensation to the output type that the chain was started with.
impl From<Refund> for Trip {
    fn from(refund: Refund) -> Self {
        Self::Refunded(refund)
    }
}

/// The airline, with the flights reserved there.
#[derive(Clone, Default)]
struct Airline {
    reserved: Arc<Mutex<BTreeSet<String>>>,
}

impl Airline {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        change(&mut self.reserved.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// A job may run again after a crash, so the side effects of these handlers are idempotent: reserving a reserved flight
// and cancelling a cancelled one change nothing.

async fn reserve_flight(
    job: Ctx<ReserveFlight>,
    Data(airline): Data<Airline>,
) -> Result<Next<ReserveFlight>, BoxError> {
    let city = job.input().city.clone();
    let flight = format!("flight to {city}");
    airline.with(|reserved| reserved.insert(flight.clone()));
    println!("reserved the {flight}");
    Ok(Next::then(ReserveHotel { city, flight }))
}

async fn reserve_hotel(job: Ctx<ReserveHotel>) -> Result<Next<ReserveHotel>, BoxError> {
    let ReserveHotel { city, flight } = job.input();
    if city == "Atlantis" {
        // An error would be retried. This is a final decision, so the chain takes the other branch.
        let reason = format!("no hotel in {city}");
        return Ok(Next::then(CancelFlight { flight: flight.clone(), reason }));
    }
    Ok(Next::done(Trip::Booked { flight: flight.clone(), hotel: format!("hotel in {city}") }))
}

async fn cancel_flight(job: Ctx<CancelFlight>, Data(airline): Data<Airline>) -> Result<Refund, BoxError> {
    let CancelFlight { flight, reason } = job.input();
    airline.with(|reserved| reserved.remove(flight));
    println!("cancelled the {flight}: {reason}");
    Ok(Refund { reason: reason.clone() })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let (client, airline) = (Client::new(MemoryStore::new()), Airline::default());
    let worker = Worker::new(&client)
        .data(airline.clone())
        .handle(reserve_flight)
        .handle(reserve_hotel)
        .handle(cancel_flight)
        .start()
        .await?;

    let lisbon = client.start(ReserveFlight { city: "Lisbon".into() }).await?;
    let atlantis = client.start(ReserveFlight { city: "Atlantis".into() }).await?;
    let trip: Trip = client.wait(lisbon).timeout(Duration::from_secs(30)).await?;
    assert_eq!(trip, Trip::Booked { flight: "flight to Lisbon".into(), hotel: "hotel in Lisbon".into() });
    let trip = client.wait(atlantis).timeout(Duration::from_secs(30)).await?;
    assert_eq!(trip, Trip::Refunded(Refund { reason: "no hotel in Atlantis".into() }));
    airline.with(|reserved| assert_eq!(reserved.iter().collect::<Vec<_>>(), ["flight to Lisbon"]));

    worker.stop(Duration::from_secs(10)).await;
    Ok(())
}
