//! Test cases for the contracts of Windlass, so that anyone can check their own store.
//!
//! A [`Case`] is one rule of a contract, with the code that checks it. An adapter implements [`Fixture`],
//! which opens a fresh [`Subject`] for each case, and has a `tests/conformance.rs` with `harness = false`:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use windlass_conformance::{Erased, Fixture, Subject};
//! use windlass_core::{BoxFuture, Capabilities, ManualClock, MemoryStore};
//!
//! struct Memory;
//!
//! impl Fixture for Memory {
//!     fn name(&self) -> &str {
//!         "memory"
//!     }
//!
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::all()
//!     }
//!
//!     fn open(&self) -> BoxFuture<'_, Subject> {
//!         let clock = Arc::new(ManualClock::default());
//!         let store = Arc::new(MemoryStore::with_clock(clock.clone()));
//!         let other = Arc::new(MemoryStore::clone(&store));
//!         let subject = Subject::new(store.clone(), other, clock).with_transactions(Arc::new(Erased::new(store)));
//!         Box::pin(async { subject })
//!     }
//! }
//!
//! fn main() {
//!     windlass_conformance::main(Memory)
//! }
//! ```
//!
//! with these lines in its `Cargo.toml`:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! The strongest check is [`random`]: it runs the same random commands on the store and on the model, and their
//! replies must agree. A store that wraps another implements its methods with `windlass_core::for_each_command!`.
//!
//! [`run`] returns a [`Report`] instead of ending the process, for callers that inspect the results.
//!
//! [`race`] has larger races, for use in a store's own tests.
//!
//! Notifiers have their own cases: see [`NotifierFixture`] and [`notifier_main`].
//!
//! The behavior of clients and workers is checked on pairs of a store and a notifier: see [`BehaviorFixture`] and
//! [`BehaviorSuite`]. This includes the behavior of queues.
//!
//! If a case needs a [`Capability`](windlass_core::Capability) that the store lacks, it is skipped and reported as
//! such. [`EXCLUDED`] lists the cases of the source designs that have no counterpart here, each with its reason.

#![forbid(unsafe_code)]

mod at_once;
mod behavior;
mod case;
mod cases;
mod excluded;
mod fixture;
pub mod latency;
mod notifier;
mod outcome;
pub mod race;
mod random;
mod runner;
pub mod samples;
pub mod snapshot;
mod start;
mod subject;
mod table;
mod transaction;

pub use behavior::{
    AnyStore, BEHAVIORS_EXCLUDED, BEHAVIORS_PROVED_BY_TYPES, Behavior, BehaviorFixture, BehaviorSuite,
    MuteNotifier, Need, QUEUE_EXCLUDED, Rule, Scene, Seen, behaviors, rules, run_behaviors,
    transactional_behaviors,
};
pub use case::{Case, cases};
pub use excluded::EXCLUDED;
pub use fixture::{Fixture, TestClock};
pub use notifier::{
    NotifierCase, NotifierFixture, NotifierSubject, notifier_cases, notifier_main, run_notifier,
};
pub use outcome::{
    complete, complete_with_chains, continue_with, continue_with_chains, fail, json, key, release,
    reschedule, reschedule_after, retry, retry_after, type_name,
};
pub use random::{Tally, random};
pub use runner::{CASE_LIMIT, Report, Verdict, main, run, run_cases};
pub use start::Start;
pub use subject::{LEASE, Subject, millis};
pub use table::{coverage, table};
pub use transaction::{Erased, ErasedTransactional, ErasedTx};
