//! Windlass hints over NATS: workers that wake by it, whatever the store.
//!
//! ```no_run
//! # async fn open() -> windlass_core::Result<()> {
//! use windlass_nats::{NatsNotifier, Options};
//!
//! let options = Options::default().namespace("jobs").bucket("windlass");
//! let notifier = NatsNotifier::open("nats://127.0.0.1", options).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Hints travel by core NATS, which is lossy, as hints may be: each topic is a subject,
//! `windlass.<namespace>.<kind>.<name>`, with names of types in hexadecimal digits, so that no character of theirs means
//! anything to NATS. The client connects again and subscribes again by itself; when it has, subscribers are told to look at
//! the store.
//!
//! With a [`bucket`](Options::bucket) of JetStream's key-value store there is a wake budget: when so many jobs are
//! scheduled, so many waiting workers look for them. It is kept by compare-and-swap. Without a bucket all look.

mod budget;
mod hint;
mod notifier;

pub use notifier::{NAMESPACE_MAX_BYTES, NatsNotifier, Options};
