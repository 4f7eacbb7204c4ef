//! A saga: a chain that branches, and takes back what it did when a later step cannot be done.
//!
//! A flight is reserved, then a hotel. Without a room the chain goes on with the compensation, which gives the flight
//! back. Whoever waits for the chain gets one type, whichever way it went.
//!
//! Run with `cargo run --release -p windlass --example branching`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::{BoxError, Client, Ctx, Job, MemoryStore, Next, State, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(ReserveHotel), output = Trip)]
struct ReserveFlight {
    city: String,
}

/// The branch: it ends the chain, or goes on with the compensation.
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

/// A chain that ended with the compensation gives its starter a trip all the same.
impl From<Refund> for Trip {
    fn from(refund: Refund) -> Self {
        Self::Refunded(refund)
    }
}

/// The airline: the flights that are reserved with it.
#[derive(Clone, Default)]
struct Airline {
    reserved: Arc<Mutex<BTreeSet<String>>>,
}

impl Airline {
    fn with<T>(&self, change: impl FnOnce(&mut BTreeSet<String>) -> T) -> T {
        change(&mut self.reserved.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// An attempt may be repeated after a crash, so what these do outside can be done twice without harm: to reserve a flight
// that is reserved, and to cancel one that is cancelled.

async fn reserve_flight(
    job: Ctx<ReserveFlight>,
    State(airline): State<Airline>,
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
        // Not an error, which would be tried again: this is decided, so the chain takes the other branch.
        let reason = format!("no hotel in {city}");
        return Ok(Next::then(CancelFlight { flight: flight.clone(), reason }));
    }
    Ok(Next::done(Trip::Booked { flight: flight.clone(), hotel: format!("hotel in {city}") }))
}

async fn cancel_flight(job: Ctx<CancelFlight>, State(airline): State<Airline>) -> Result<Refund, BoxError> {
    let CancelFlight { flight, reason } = job.input();
    airline.with(|reserved| reserved.remove(flight));
    println!("cancelled the {flight}: {reason}");
    Ok(Refund { reason: reason.clone() })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let (client, airline) = (Client::new(MemoryStore::new()), Airline::default());
    let worker = Worker::new(&client)
        .state(airline.clone())
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
