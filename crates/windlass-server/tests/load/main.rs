//! Many visitors on a busy store, and what they cost.
//!
//! A normal run has a short slice of each test. A full run (`WINDLASS_FULL=1`) has the sizes of the goal.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod client;
mod cost;
mod traffic;
