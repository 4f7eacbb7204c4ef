//! The cases cover what the sources check.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

mod behaviors;
mod contracts;
mod hooks;
mod queues;
mod telemetry;
