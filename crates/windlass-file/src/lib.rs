//! The file store of Windlass: durable job chains in a folder, without a server.
//!
//! ```no_run
//! # async fn example() -> windlass_core::Result<()> {
//! use std::time::Duration;
//! use windlass_file::{FileStore, Options};
//!
//! let store = windlass_file::open("queue").await?;
//!
//! // With options.
//! let store = FileStore::open(Options::new("queue").busy_timeout(Duration::from_secs(30))).await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - **Durable.** The store acknowledges a command after its effects were written to the journal and synced
//!   (`fdatasync`). Commands that wait at the same time share one sync.
//! - **Safe after a crash.** A batch that was being written is cut off when the folder is next used, with a warning. It was
//!   never acknowledged. Damage before it is an error that names the file and the offset.
//! - **A full disk** fails commands with an error of kind `Unavailable`, and changes nothing. The store continues when
//!   there is room again.
//! - **Many processes** on one machine may open the folder and wake each other ([`FileNotifier`]). They take turns: a lock
//!   is held while a batch is decided, written and synced. A command that waits for it longer than
//!   [`busy_timeout`](Options::busy_timeout) fails with an error of kind `Busy`, which names the process that has the lock.
//!   A folder on a network file system is refused.
//! - **Transactions** group commands: all of them are committed together, or none. A transaction has the lock from its
//!   beginning to its end, so it should be short. It contains jobs only: the folder has no rows of the application.
//! - **Queries do not wait** for other processes, and see what these have committed. A query waits while this process syncs
//!   a batch.
//! - **The clock** is this machine's, but time never goes back: a batch is never earlier than the one before it.
//! - **The rules are those of the model** ([`windlass_core::model`]), which this store keeps in memory. The cost of a
//!   command does not depend on how many other jobs are stored.
//! - **The folder stays small.** When the journal is larger than what is stored, the store writes a snapshot and removes
//!   older files, in a thread of its own. Writers hardly wait for it ([`FileStore::compaction`]).
//! - **No reaping right after a stall.** If writes were blocked or failed for at least half a renewal interval, reaps
//!   requeue no job until one full renewal interval has passed, because the owners could not renew their leases either.
//!
//! # Memory
//!
//! All jobs are in memory, in each process that opens the folder. Opening reads all of them. `docs/operating.md` has
//! figures, and says when to use SQLite instead.
//!
//! # Threads
//!
//! An open store has one thread that writes, one that watches the folder while there are subscriptions, and one while it
//! compacts. Queries run on the thread that polls them, unless they have to wait; then they run on tokio's threads for
//! blocking work.
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
//! `docs/file-format.md` describes the files. To copy a folder, stop the processes that use it, or copy all files but
//! `head`.

#![forbid(unsafe_code)]

mod notifier;
mod open;
mod options;
mod store;
mod transaction;

mod compact;
mod hints;
mod queue;
mod shared;
mod stall;
mod state;
mod watch;
mod writer;

mod codec;
mod disk;
mod folder;
mod frame;
mod lock;
mod mount;
mod record;
mod snapshot;

mod error;
mod health;

#[cfg(test)]
mod tests;

pub use crate::compact::CompactionStats;
pub use crate::notifier::FileNotifier;
pub use crate::open::{Attempt, Client, Done, open};
pub use crate::options::{NAMESPACE_MAX_BYTES, Options};
pub use crate::store::FileStore;
pub use crate::transaction::FileTx;
