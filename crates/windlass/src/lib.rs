#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The first definition of a link wins, so here the pages link to modules, not to files.
#![doc = include_str!("links.txt")]
#![cfg_attr(all(feature = "sqlite", feature = "postgres"), doc = include_str!("../README.md"))]
#![cfg_attr(
    not(all(feature = "sqlite", feature = "postgres")),
    doc = "Durable background work for Rust: typed job chains that commit with your own transaction."
)]

// Clients and chains.
#[doc(inline)]
pub use windlass_core::{Chain, ChainId, Client, JobId, Status, Timestamp, plan};

// Jobs. `Job` is the trait and, from the second line, its derive macro.
#[doc(inline)]
pub use windlass_core::{
    Backoff, Entry, Fallible, Job, JobOptions, KeyHold, OnBlockerFailure, Rest, Retention, Then,
};
#[doc(inline)]
pub use windlass_macros::Job;

// Workers and handlers.
#[doc(inline)]
pub use windlass_core::{
    Attempt, BoxError, Ctx, Data, Done, Fatal, HandlerOptions, Handlers, Next, RetryAfter, Running, Worker,
    next, shutdown_signal,
};

// Queues.
#[doc(inline)]
pub use windlass_core::{Queue, queue};

// Schedules.
#[doc(inline)]
pub use windlass_core::schedule;

// Stores and observers.
#[doc(inline)]
pub use windlass_core::{MemoryStore, Observer, Store, Transactional};

// Errors.
#[doc(inline)]
pub use windlass_core::{Error, ErrorKind, Result};

// The commands, limits and rules of the store contract.
#[doc(inline)]
pub use windlass_core::{command, limit, model};

/// The client: builders for starts and waits, commands in a transaction, and completion of jobs from outside.
pub mod client {
    #[doc(inline)]
    pub use windlass_core::command::{DeleteReply, RetentionSet, Retried, TriggerReply};
    #[doc(inline)]
    pub use windlass_core::{
        CancelMode, Cancelled, ChainPages, ChainRef, ChangedChains, ClientBuilder, Completion, Destination,
        InTx, IntoPlan, JobEvent, JobEventKind, JobEvents, NoMore, Outside, OutsideStep,
        PendingAnnouncements, Plan, Start, Target, Tx, Wait,
    };
}

/// Job types: the traits behind blockers and continuations, and the graph of a set of types.
pub mod job {
    #[doc(inline)]
    pub use windlass_core::{
        BlockerSlot, Blockers, Continuations, Entry, Failure, Fallible, IsReady, Job, JobGraph, JobInfo,
        NeedsBlockedBy, Ready, Rest, Then, decode_output,
    };
}

/// Workers: attempts, handlers, middleware and hooks.
pub mod worker {
    #[doc(inline)]
    pub use windlass_core::{
        Abort, AbortReason, AnyAttempt, Argument, Closing, Continuation, ContinuationOf, Ended, Handler,
        Hooks, Inner, Middleware, Prepare, Probe, Stage, Step, Unhealthy,
    };
    #[cfg(feature = "tower")]
    #[doc(inline)]
    pub use windlass_core::{AttemptRequest, RunAttempt, TowerLayer};
}

/// The store contract and its supporting types. See also [`command`].
pub mod store {
    #[doc(inline)]
    pub use windlass_core::{
        BoxFuture, Capabilities, Capability, Counters, Decorator, Finding, MemoryStore, MemoryTx, Store,
        TransactionDecorator, Transactional,
    };
}

/// What a store returns: records of chains, jobs and attempts.
pub mod record {
    #[doc(inline)]
    pub use windlass_core::{
        AttemptEnd, AttemptRecord, BLOCKER_FAILED, Blocker, ChainKey, ChainRecord, Closed, ClosedAs,
        JobRecord, LEASE_EXPIRED, Lease, Payload, Refusal,
    };
}

/// Ids, fences and versions.
pub mod id {
    pub use windlass_core::uuid;
    #[doc(inline)]
    pub use windlass_core::{ChainId, Fence, JobId, Occurrence, RequestId, ScheduleId, Version, WorkerId};
}

/// Validated names and texts.
pub mod name {
    #[doc(inline)]
    pub use windlass_core::{
        Codec, ErrorText, Key, LockName, ScheduleName, TraceContext, TypeName, WorkerName,
    };
}

/// Notifiers, which wake workers and waiting callers.
pub mod notifier {
    #[doc(inline)]
    pub use windlass_core::{
        Hint, InProcessNotifier, Notifier, Publisher, Reach, Signal, Subscription, Topic,
    };
}

/// Observers, which receive lifecycle events.
pub mod observer {
    #[doc(inline)]
    pub use windlass_core::{
        About, AboutJob, AboutWorker, Activity, AttemptScope, BatchEnd, BatchStart, BlockerTrace,
        BlockersFound, Buffered, Event, Frequent, Log, NoObserver, NotWritten, Observer, StoreCall, Traced,
    };
}

/// Clocks and points in time.
pub mod time {
    #[doc(inline)]
    pub use windlass_core::{Clock, ManualClock, Millis, SystemClock, Timestamp};
}

/// The standalone reaper.
pub mod reaper {
    #[doc(inline)]
    pub use windlass_core::{Reaper, RunningReaper};
}

/// Types for handlers and clients of the memory store.
pub mod memory {
    #[doc(inline)]
    pub use windlass_core::{MemoryStore, MemoryTx};

    /// A client of a [`MemoryStore`].
    pub type Client = windlass_core::Client<MemoryStore>;

    /// An attempt of a job in a [`MemoryStore`], whose handler may use transactions.
    pub type Attempt<J> = windlass_core::Attempt<J, MemoryStore>;

    /// The result of a handler that ends its job in a transaction of a [`MemoryStore`].
    pub type Done<J> = windlass_core::Done<J, MemoryStore>;

    /// An attempt of a queue job in a [`MemoryStore`], whose handler may use transactions.
    pub type ItemAttempt<T> = windlass_core::queue::ItemAttempt<T, MemoryStore>;

    /// The result of a handler that ends a queue job in a transaction of a [`MemoryStore`].
    pub type ItemDone<T> = windlass_core::queue::ItemDone<T, MemoryStore>;
}

/// File store: durable jobs in a folder, without a server.
#[cfg(feature = "file")]
pub mod file {
    #[doc(inline)]
    pub use windlass_file::*;
}

/// Notifier over NATS.
#[cfg(feature = "nats")]
pub mod nats {
    #[doc(inline)]
    pub use windlass_nats::*;
}

/// OpenTelemetry: metrics, traces and a Prometheus endpoint.
#[cfg(feature = "otel")]
pub mod otel {
    #[doc(inline)]
    pub use windlass_otel::*;
}

/// PostgreSQL store, with the transactions of your own driver.
#[cfg(feature = "postgres")]
pub mod postgres {
    #[doc(inline)]
    pub use windlass_postgres::*;
}

/// Store and notifier for Redis or Valkey.
#[cfg(feature = "redis")]
pub mod redis {
    #[doc(inline)]
    pub use windlass_redis::*;
}

/// HTTP API and dashboard.
#[cfg(feature = "server")]
pub mod server {
    #[doc(inline)]
    pub use windlass_server::*;
}

/// SQLite store: the embedded default.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    #[doc(inline)]
    pub use windlass_sqlite::*;
}

#[doc = include_str!("links.txt")]
#[doc = include_str!("../docs/guide.md")]
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/changing-types.md")]
    pub mod changing_types {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/deploy.md")]
    pub mod deploy {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/operating.md")]
    pub mod operating {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/monitoring.md")]
    pub mod monitoring {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/defaults.md")]
    pub mod defaults {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/cli.md")]
    pub mod cli {}

    #[doc = include_str!("links.txt")]
    #[doc = include_str!("../docs/serve.md")]
    pub mod serve {}
}
