//! Tests on a disk that fails and forgets.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test may panic"
)]

mod disk;
mod workload;

mod backup;
mod clock;
mod compaction;
mod crash;
mod damage;
mod decode;
mod edges;
mod fault;
mod fuzz;
mod pace;
mod processes;
