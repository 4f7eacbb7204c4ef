//! Tests beyond the conformance cases: scripts, servers, damaged data, and stores that break the contract on purpose.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod access;
mod cluster;
#[cfg(feature = "known-bad")]
mod cost;
mod crash;
mod damage;
mod database;
mod failover;
mod growth;
mod herd;
#[cfg(feature = "known-bad")]
mod known_bad;
mod large;
#[cfg(feature = "known-bad")]
mod mixture;
mod names;
mod noop;
mod notifier;
mod outage;
#[cfg(feature = "known-bad")]
mod paths;
#[cfg(feature = "known-bad")]
mod payloads;
mod random;
mod refused;
mod schedules;
mod server;
mod setup;
#[cfg(feature = "tls")]
mod tls;
