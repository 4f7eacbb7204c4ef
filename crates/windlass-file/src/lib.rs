//! The file store of Windlass: durable job chains in a folder, without a server.
//!
//! ```no_run
//! # async fn example() -> windlass::Result<()> {
//! use std::time::Duration;
//! use windlass::file::{self, FileStore, Options};
//!
//! let store = file::open("queue").await?;
//!
//! // With options.
//! let store = FileStore::open(Options::new("queue").busy_timeout(Duration::from_secs(30))).await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - **Durable.** The store acknowledges a command after its effects have been written to the journal and synced
//!   (`fdatasync`). Concurrent commands share one sync.
//! - **Crash-safe.** A batch that was being written during a crash was never acknowledged. It is cut off when the
//!   folder is next used, with a warning. Damage before it is an error that names the file and the offset.
//! - **Full disk.** Commands fail with an error of kind `Unavailable`, and change nothing. If the journal was extended in
//!   advance, they succeed until that room is used up. The store continues when there is space again.
//! - **Many processes** on one machine may open the folder and wake each other ([`FileNotifier`]). They take turns: a
//!   process holds a lock while it executes, writes and syncs a batch. A command that waits for the lock longer than
//!   [`busy_timeout`](Options::busy_timeout) fails with an error of kind `Busy`, which names the process that holds the
//!   lock. On Linux, a folder on a network or cluster file system is refused
//!   ([`allow_network_file_system`](Options::allow_network_file_system) has a list). Other systems are not checked.
//! - **Transactions** group commands: all of them are committed, or none. A transaction holds the lock from its
//!   beginning to its end, so it should be short. It covers only jobs, because the application has no rows of its own
//!   in the folder.
//! - **Queries do not wait** for other processes, but see what they have committed. A query waits while this process
//!   syncs a batch.
//! - **The clock** is this machine's, but time never goes backwards: a batch is never earlier than the one before it. If
//!   the clock is set back, the store's time continues at 15/16 of the clock's pace until the clock has caught up. If it
//!   is ahead by more than a minute, the store logs a warning, and `health` reports it.
//! - **The rules are those of the model** ([`windlass_core::model`]), which this store keeps in memory. The cost of a
//!   command does not depend on how many other jobs are stored.
//! - **The folder stays small.** When the journal becomes larger than the last snapshot, a background thread writes a
//!   new snapshot and removes older files. Writers wait for it only briefly ([`FileStore::compaction`]).
//! - **No reaping right after a stall.** If writes were blocked or failed for at least half a renewal interval, reaps
//!   requeue no job until one full renewal interval has passed, because the owners could not renew their leases either.
//!
//! # Memory
//!
//! Each process that opens the folder reads all jobs and keeps them in memory. `docs/operating.md` has figures, and
//! describes when to use SQLite instead.
//!
//! # Threads
//!
//! An open store has one thread that writes, one that watches the folder once something has subscribed, and one that
//! compacts the folder while that is needed. Queries run on the thread that polls them. If a query has to wait, it runs
//! on one of tokio's blocking threads.
//!
//! # Cancel safety
//!
//! If the future of a command is dropped before its batch starts, the command is not executed. After that point it is
//! executed in full.
//!
//! # Limits
//!
//! The limits of [`windlass_core::limit`] apply. A [namespace](Options::namespace) has at most [`NAMESPACE_MAX_BYTES`]
//! bytes.
//!
//! # Files
//!
//! `docs/file-format.md` describes the files. To copy a folder that is in use, call [`FileStore::backup`]. A plain copy is
//! consistent only while no process uses the folder, or if it is an atomic snapshot of the file system.

#![forbid(unsafe_code)]

mod notifier;
mod open;
mod options;
mod pace;
mod store;
mod transaction;

mod backup;
mod compact;
mod hint;
mod queue;
mod shared;
mod state;
mod watch;
mod writer;

mod codec;
mod committed;
mod disk;
mod folder;
mod frame;
mod lock;
mod record;
mod reserve;
mod snapshot;
mod time;

mod error;
mod health;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod tests;

pub use crate::backup::BackupStats;
pub use crate::compact::CompactionStats;
pub use crate::notifier::FileNotifier;
pub use crate::open::{Attempt, Client, Done, ItemAttempt, ItemDone, open};
pub use crate::options::{NAMESPACE_MAX_BYTES, Options};
pub use crate::store::FileStore;
pub use crate::transaction::FileTx;
