//! Windlass notifications over NATS. They wake workers and waiting callers, whatever the store.
//!
//! ```no_run
//! # async fn open() -> windlass::Result<()> {
//! use windlass::nats::{NatsNotifier, Options};
//!
//! let options = Options::default().namespace("jobs").bucket("windlass");
//! let notifier = NatsNotifier::open("nats://127.0.0.1", options).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Notifications use core NATS, which may lose messages. That is fine, since workers and waiting callers also poll the
//! store. Each topic is a subject, `windlass.<namespace>.<kind>.<name>`. Job type names are hex-encoded, so that none
//! of their characters has a meaning in NATS. The client reconnects and resubscribes by itself; after a reconnect,
//! subscribers receive a gap signal and query the store.
//!
//! With a [`bucket`](Options::bucket) in JetStream's key-value store there is a wake budget: when `n` jobs are
//! scheduled, `n` waiting workers wake to acquire them. The budget is updated by compare-and-swap. Without a bucket all
//! waiting workers wake.

#![forbid(unsafe_code)]

mod budget;
mod hint;
mod notifier;

pub use notifier::{NAMESPACE_MAX_BYTES, NatsNotifier, Options};
