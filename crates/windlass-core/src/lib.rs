//! The core of Windlass: the data types, the store, notifier and observer contracts, the rules as a deterministic
//! model, and the memory store, which runs the model.
//!
//! - [`Store`] keeps the jobs. [`Transactional`] adds support for the application's own transactions.
//! - [`command`] contains the commands and replies of the store contract as plain data.
//! - [`Model`](model::Model) implements the rules without I/O, clock or randomness.
//! - [`MemoryStore`] is the model behind a lock.
//! - [`Notifier`] delivers hints; [`InProcessNotifier`] does so within one process.
//! - [`Observer`] receives lifecycle events.
//! - [`limit`] lists every limit.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod chain;
mod client;
mod clock;
mod error;
mod id;
mod job;
mod maintenance;
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
pub mod schedule;

pub use chain::{Chain, ChainRef};
pub use client::{
    ChainPages, ChangedChains, Client, ClientBuilder, Completion, Destination, InTx, IntoPlan, JobEvent,
    JobEventKind, JobEvents, NoMore, Outside, OutsideStep, PendingAnnouncements, Plan, Schedules, Start, Tx,
    Wait, plan,
};
pub use clock::{Clock, ManualClock, SystemClock};
pub use command::{CancelMode, Cancelled, Target};
pub use error::{Error, ErrorKind, Result};
#[doc(hidden)]
pub use id::seed_ids;
pub use id::{ChainId, Fence, JobId, Occurrence, RequestId, ScheduleId, Version, WorkerId};
pub use job::{
    Backoff, BlockerSlot, Blockers, Continuations, Entry, Failure, Fallible, IsReady, Job, JobGraph, JobInfo,
    JobOptions, NeedsBlockedBy, Ready, Rest, Then, decode_output,
};
pub use memory::{MemoryStore, MemoryTx};
pub use name::{Codec, ErrorText, Key, LockName, ScheduleName, TraceContext, TypeName, WorkerName};
pub use notifier::{
    Connected, EventFiles, Hint, InProcessNotifier, LazyNotifier, Notifier, Publisher, Reach, Signal,
    Subscription, Topic,
};
pub use observer::{
    About, AboutJob, AboutWorker, Activity, AttemptScope, BatchEnd, BatchStart, BlockerTrace, BlockersFound,
    Buffered, Event, Frequent, Log, NoObserver, NotWritten, Observer, StoreCall, Traced,
};
pub use payload::Payload;
pub use queue::Queue;
pub use reaper::{Reaper, RunningReaper};
pub use record::{
    AttemptEnd, AttemptRecord, Blocker, ChainKey, ChainRecord, Closed, ClosedAs, JobRecord, KeyHold, Lease,
    OnBlockerFailure, Retention, Status,
};
pub use refusal::Refusal;
pub use store::{
    BoxFuture, Capabilities, Capability, Counters, Decorator, Finding, Stalls, Store, TransactionDecorator,
    Transactional, TxEnd, TxId, shared_file_system,
};
pub use time::{Millis, Timestamp};
pub use uuid;
pub use worker::{
    Abort, AbortReason, AnyAttempt, Argument, Attempt, BoxError, Closing, Continuation, ContinuationOf, Ctx,
    Data, Done, Ended, Fatal, Handler, HandlerOptions, Handlers, Hooks, Inner, Middleware, Next, Prepare,
    Probe, RetryAfter, Running, Stage, Step, Unhealthy, Worker, next, shutdown_signal,
};
#[cfg(feature = "tower")]
pub use worker::{AttemptRequest, RunAttempt, TowerLayer};

/// The error of a job whose lease expired before its attempt was settled.
pub const LEASE_EXPIRED: &str = "the lease expired before the attempt was settled";

/// The error of a job that failed because a blocker chain did not complete. The chain's id is appended.
pub const BLOCKER_FAILED: &str = "a blocker chain did not complete: ";
