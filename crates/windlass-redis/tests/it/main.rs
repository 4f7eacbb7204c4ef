//! What the conformance cases do not say: scripts, servers, damage, and stores that are wrong on purpose.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "../fixture/mod.rs"]
mod fixture;

mod crash;
mod damage;
mod database;
mod growth;
#[cfg(feature = "known-bad")]
mod known_bad;
mod random;
mod refused;
mod server;
