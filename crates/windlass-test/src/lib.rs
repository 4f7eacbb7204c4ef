#![doc = include_str!("../README.md")]

mod bench;
mod blockers;
mod look;
mod ran;
mod run;

pub use bench::{Drained, TestBench};
pub use ran::{Outcome, Ran};
pub use run::{Run, run};
