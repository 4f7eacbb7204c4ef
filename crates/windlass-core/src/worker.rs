//! The worker: acquires due jobs, runs their handlers, renews their leases and settles their attempts.

mod abort;
mod acquire;
mod any_attempt;
mod attempt;
mod builder;
mod data;
mod ended;
mod engine;
mod failure;
mod followed;
mod handler;
mod handlers;
mod health;
mod hooks;
mod keeper;
mod main_loop;
mod middleware;
mod next;
mod options;
mod prefetch;
mod schedule;
mod settle;
mod settle_in_tx;
mod signal;
mod slot;
mod stages;
mod task;
mod task_pool;
#[cfg(feature = "tower")]
mod tower;

pub use abort::{Abort, AbortReason};
pub use any_attempt::AnyAttempt;
pub use attempt::{Attempt, Ctx, Done, Prepare, Step};
pub use builder::{Running, Worker};
pub use data::{Argument, Data};
pub(crate) use data::{Values, argument, missing};
pub use ended::Ended;
pub(crate) use failure::{Failure, Retry, error_text};
pub use failure::{Fatal, RetryAfter};
pub(crate) use followed::Few;
pub use handler::Handler;
pub(crate) use handler::{Call, HandlerResult, Run};
pub use handlers::Handlers;
pub use health::{Probe, Unhealthy};
pub use hooks::{Closing, Hooks, Stage};
pub(crate) use main_loop::RECOVERY;
pub use middleware::{Inner, Middleware};
pub(crate) use next::carry;
pub use next::{Continuation, ContinuationOf, Next, next};
pub use options::HandlerOptions;
pub(crate) use settle_in_tx::{SettleAndCommit, roll_back, run_closing_hooks};
pub use signal::shutdown_signal;
pub(crate) use stages::{OpenPrepare, OpenStep, Parked, Scope, Stages, View};
pub(crate) use task::catch_panic;
#[cfg(feature = "tower")]
pub use tower::{AttemptRequest, RunAttempt, TowerLayer};

/// Any error that a handler, a middleware or a hook returns.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
