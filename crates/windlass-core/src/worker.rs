//! The worker: takes due jobs, runs their handlers, keeps their leases and ends their attempts.

mod abort;
mod attempt;
mod builder;
mod handler;
mod keeper;
mod next;
mod run;
mod slot;
mod task;

pub use abort::{Abort, AbortReason};
pub use attempt::{Attempt, Ctx, Done, Prepare, Step};
pub use builder::{Running, Worker};
pub use handler::{Handler, State};
pub use next::{Continuation, Next, next};

/// Any error of a handler.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
