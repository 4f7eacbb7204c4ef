//! Drives the dashboard with a real browser.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod browser;
#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the API")]
mod harness;
mod site;

mod accessibility;
mod actions;
mod live;
mod looking;
mod markup;
mod picture;
mod restart;
