#![forbid(unsafe_code)]
#![doc = include_str!("../README.md")]

mod blockers;
mod harness;
mod query;
mod ran;
mod run;

pub use harness::{Drained, TestHarness};
pub use ran::{Outcome, Ran};
pub use run::{Run, run, run_on};
