//! The store cases, one module for each part of the contract.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a case fails by panicking")]

use crate::case::Case;

mod acquire;
mod blocker;
mod bound;
mod bytes;
mod cancel;
mod chain;
mod count;
mod create;
mod create_and_acquire;
mod cycle;
mod ended;
mod exchange;
mod isolation;
mod key;
mod key_points;
mod key_terms;
mod list;
mod manage;
mod outside;
mod race;
mod reap;
mod renew;
mod repeat;
mod reply;
mod ripple;
mod savepoint;
mod schedule;
mod settle;
mod size;
mod stale;
mod stop;
mod transaction;
mod transaction_lease;
mod worker;

/// All groups, in reading order.
pub(crate) const GROUPS: &[&[Case]] = &[
    create::CASES,
    key::CASES,
    key_terms::CASES,
    key_points::CASES,
    blocker::CASES,
    ripple::CASES,
    acquire::CASES,
    renew::CASES,
    settle::CASES,
    chain::CASES,
    cycle::CASES,
    reply::CASES,
    stale::CASES,
    repeat::CASES,
    reap::CASES,
    race::CASES,
    bytes::CASES,
    bound::CASES,
    size::CASES,
    exchange::CASES,
    create_and_acquire::CASES,
    outside::CASES,
    cancel::CASES,
    stop::CASES,
    manage::CASES,
    list::CASES,
    count::CASES,
    ended::CASES,
    worker::CASES,
    schedule::CASES,
    transaction::CASES,
    transaction_lease::CASES,
    savepoint::CASES,
    isolation::CASES,
];

/// Imports and helpers that nearly every group uses.
mod prelude {
    pub(super) use windlass_core::command::*;
    pub(super) use windlass_core::{
        ChainId, ClosedAs, ErrorKind, ErrorText, Fence, JobId, KeyHold, Millis, OnBlockerFailure, Refusal,
        RequestId, Retention, Status, TraceContext, WorkerId, WorkerName, limit,
    };

    pub(super) use crate::case::{Case, case};
    pub(super) use crate::outcome::{
        complete, complete_with_chains, continue_with, continue_with_chains, fail, json, key, release,
        reschedule, reschedule_after, retry, retry_after, type_name,
    };
    pub(super) use crate::subject::{LEASE, Subject, millis, reap_request, settlement, worker_name};

    /// An hour, in milliseconds: a delay that does not end by itself within a case.
    pub(super) const HOUR: u64 = 60 * 60 * 1_000;

    /// Returns the chains of acquired jobs.
    pub(super) fn chains_of(jobs: &[Acquired]) -> Vec<ChainId> {
        jobs.iter().map(|attempt| attempt.job.chain).collect()
    }

    /// Returns the first job of a chain that must be new.
    #[track_caller]
    pub(super) fn summary(created: &Created) -> JobSummary {
        match created {
            Created::New { job, repeated: false } => *job,
            other => panic!("expected a new chain, got {other:?}"),
        }
    }

    /// Returns the existing chain that holds the key of a new chain.
    #[track_caller]
    pub(super) fn existing(created: Created) -> Existing {
        match created {
            Created::Existing(existing) => existing,
            other => panic!("expected the existing chain of the key, got {other:?}"),
        }
    }
}
