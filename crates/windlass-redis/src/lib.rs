//! Windlass on Redis and Valkey: the store contract as batch scripts.
//!
//! ```no_run
//! # async fn open() -> windlass_core::Result<()> {
//! use windlass_redis::{Options, RedisStore};
//!
//! let store = RedisStore::open("redis://127.0.0.1/", Options::default().namespace("jobs")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! Every command is one call of one script, whatever the number of its items; Redis runs scripts one after the other.
//! A script decides everything first and writes last, so that a command happens whole or not at all: one that is
//! stopped by something unexpected, such as a key that somebody else has overwritten or a command that the user may not
//! use, has written nothing. Time is the
//! server's, read once for each command. Only [`erase`](windlass_core::Store::erase) is several calls; nobody should use
//! the namespace meanwhile.
//!
//! # Where things are
//!
//! All keys of a namespace begin with `{windlass:<namespace>}:`. The braces make that the hash tag: in a cluster one
//! shard has the whole namespace, which is as fast as that shard is; another namespace may be on another shard, so that
//! several spread. A server that is part of a cluster is recognized as such. While the cluster moves the namespace to
//! another shard, commands are told to try again. What users choose (names of types, keys) stands only at the end of a
//! key's name, or inside a value.
//!
//! | key | what |
//! |---|---|
//! | `job:<id>` | hash: a job; a chain's first job carries the chain's facts too |
//! | `jobs:<chain>` | sorted set: the chain's jobs but the first, by place |
//! | `waits:<job>` | sorted set: the chains that the job still waits for |
//! | `history:<job>` | list: ended attempts |
//! | `patient:<chain>`, `eager:<chain>` | sorted sets: blocked jobs that wait for the chain, by order of creation; those that its failure leaves waiting, and the others |
//! | `dependents:<chain>`, `needing:<chain>` | sorted sets: all jobs that wait or waited for it, and those of them that are open |
//! | `chains`, `later` | sorted sets: chains, and jobs that are not the first of theirs, by order of creation |
//! | `chains_unfinished`, `later_unfinished` | the same without those that completed |
//! | `pending:<priority>:<type>` | sorted set: pending jobs by due time |
//! | `running:<type>` | sorted set: running jobs by the end of their lease |
//! | `lanes`, `busy` | sorted sets: which of the two above there are |
//! | `request:<id>` | sorted set: the jobs that an acquire took and still holds |
//! | `keys` | hash: the latest chain that was stored with each deduplication key |
//! | `rippling` | sorted set: closed chains with dependents left to resolve |
//! | `leaving`, `trimming` | sorted sets: what leaves when |
//! | `counts` | hash: how many jobs there are of each status and type |
//! | `paused` | set: types that are not acquired |
//! | `workers`, `locks` | hashes: who works, and who holds a leader lock; `workers_ends`, `locks_ends`: until when |
//! | `seq` | how many jobs were ever created |
//! | `wake:<channel>` | how many workers a [`RedisNotifier`] may still wake; the only kind with a time to live of Redis' own |
//!
//! [`expire`](windlass_core::Store::expire) removes what is kept no longer.
//!
//! # What is promised
//!
//! - An acknowledged write is as durable as the server is set up to be.
//!   [`Durability`](windlass_core::command::Durability) is read from its settings as the store is opened: `Synced` with
//!   `appendonly yes` and `appendfsync always`, `Buffered` with another `appendfsync` or where `CONFIG GET` is not allowed,
//!   `Volatile` without an append-only file or where `INFO` is not allowed. With `everysec` a server that is killed while
//!   it syncs loses what it acknowledged meanwhile, up to two seconds.
//! - Replication is asynchronous: a failover can lose the last acknowledged writes, and with them jobs, completions and
//!   fences. What is then read is an earlier state, consistent in itself, because replicas get each script's writes as one.
//!   [`wait_for_replicas`](Options::wait_for_replicas) makes starts wait, and tells what was reached.
//! - The server must not evict: use `maxmemory-policy noeviction`. Under another policy it may remove jobs when its memory is
//!   full, so that it is refused unless that is [accepted](Options::accept_eviction).
//! - Scripts need Redis 7.0 or later, or a Valkey that does what it does; they are tested on Redis 7.0 and
//!   Valkey 9.1. An older server is refused as the store is opened.
//!
//! # Hints
//!
//! [`RedisNotifier`] carries hints between processes, for this store or any other, and wakes as many workers as there are
//! jobs.
//!
//! # Limits
//!
//! A namespace has up to 64 bytes ([`NAMESPACE_MAX_BYTES`]) and lives on one shard. The server does nothing else while a
//! script runs; the limits of [`windlass_core::limit`] bound how long that is.

mod connection;
mod error;
mod permission;
mod row;
mod script;
mod store;
mod wire;

mod acquire;
mod create;
mod expire;
mod get;
mod health;
mod hint;
mod list;
mod manage;
mod notifier;
mod outside;
mod reap;
mod registry;
mod settle;

#[cfg(feature = "known-bad")]
#[doc(hidden)]
pub mod known_bad;

pub use connection::Connection;
pub use notifier::RedisNotifier;
pub use store::{CAPABILITIES, NAMESPACE_MAX_BYTES, Options, RedisStore};
