//! The heart of Windlass: the words, the three seams with their contracts, the rules as one deterministic
//! model, and the memory store that runs it.
//!
//! - [`Store`] is where jobs live; [`Transactional`] adds the application's own transaction.
//! - [`command`] has the commands and replies of the contract as plain data.
//! - [`Model`](model::Model) holds the rules: no I/O, no clock, no randomness.
//! - [`MemoryStore`] is the model behind a lock.
//! - [`Notifier`] carries hints; [`InProcessNotifier`] does so inside one process.
//! - [`Observer`] is told what happened.
//! - [`limit`] lists every limit.

mod chain;
mod client;
mod clock;
mod error;
mod id;
mod job;
mod memory;
mod name;
mod notifier;
mod observer;
mod payload;
mod reaper;
mod record;
mod refusal;
mod store;
mod time;
mod worker;

pub mod command;
pub mod limit;
pub mod model;
pub mod queue;

pub use chain::{Chain, ChainRef};
pub use client::{
    Client, ClientBuilder, Completion, Destination, InTx, IntoPlan, NoMore, Outside, OutsideStep, Plan,
    Start, Tx, Unannounced, Wait, plan,
};
pub use clock::{Clock, ManualClock, SystemClock};
pub use command::{CancelMode, Cancelled, Target};
pub use error::{Error, ErrorKind, Result};
#[doc(hidden)]
pub use id::seed_ids;
pub use id::{ChainId, Fence, JobId, RequestId, Version, WorkerId};
pub use job::{
    Backoff, Blockers, Continuations, Entry, Failure, Fallible, IsReady, Job, JobGraph, JobInfo, JobOptions,
    NeedsBlockedBy, Ready, Rest, Slot, Then, decode_output,
};
pub use memory::{MemoryStore, MemoryTx};
pub use name::{Codec, ErrorText, Key, LockName, TraceContext, TypeName, WorkerName};
pub use notifier::{Hint, InProcessNotifier, Notifier, Publisher, Signal, Subscription, Topic};
pub use observer::{About, Event, Log, NoObserver, Observer, Traced};
pub use payload::Payload;
pub use queue::Queue;
pub use reaper::{Reaper, RunningReaper};
pub use record::{
    AttemptEnd, AttemptRecord, Blocker, ChainKey, ChainRecord, Closed, ClosedAs, JobRecord, KeyHold, Lease,
    OnBlockerFailure, Retention, Status,
};
pub use refusal::Refusal;
pub use store::{BoxFuture, Capabilities, Capability, Counters, Finding, Store, Transactional};
pub use time::{Millis, Timestamp};
pub use uuid;
pub use worker::{
    Abort, AbortReason, AnyAttempt, Attempt, BoxError, Closing, Continuation, ContinuationOf, Ctx, Done,
    Ended, Handler, Handlers, Hooks, Inner, Middleware, Next, Prepare, Running, Stage, State, Step, Worker,
    next,
};

/// The error of a job whose lease expired before its attempt was settled.
pub const LEASE_EXPIRED: &str = "the lease expired before the attempt was settled";

/// The error of a job that fails because a blocker chain did not complete, with that chain's id behind it.
pub const BLOCKER_FAILED: &str = "a blocker chain did not complete: ";
