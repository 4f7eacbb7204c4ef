//! Tests of the model, the memory store, the client and the worker that go beyond the conformance cases.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod client;
mod control;
mod cost;
mod decorator;
mod faults;
mod handlers;
mod hooks;
mod job_types;
mod log;
mod memory;
mod middleware;
mod observer;
mod ordered;
mod queue;
mod schedule_changes;
mod schedule_declarations;
mod schedules;
mod times;
#[cfg(feature = "tower")]
mod tower;
mod unhandled;
mod worker;
