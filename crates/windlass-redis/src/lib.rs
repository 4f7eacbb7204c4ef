//! Windlass store and notifier for Redis and Valkey.
//!
//! ```no_run
//! # async fn open() -> windlass::Result<()> {
//! use windlass::redis::{self, Options, RedisStore};
//!
//! let store = redis::connect("redis://127.0.0.1/").await?;
//!
//! // With options.
//! let store = RedisStore::open("redis://127.0.0.1/", Options::default().namespace("jobs")).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! Each store command is one call of one Lua script, however many items it has. Redis runs scripts one at a time.
//!
//! A script makes all its decisions first and writes last, so a command is atomic. If it is stopped by something
//! unexpected, such as a key that another program has overwritten or a command that the user may not run, it has
//! written nothing. Each command reads the server's clock once.
//!
//! The exception is [`erase`](windlass_core::Store::erase), which takes several calls. Do not use the namespace while
//! it runs.
//!
//! # Key layout
//!
//! All keys of a namespace begin with `{windlass:<namespace>}:`. The part in braces is the Redis hash tag: in a
//! cluster, one shard holds the whole namespace, so the namespace is as fast as that shard. Several namespaces can
//! spread over several shards. The store detects a server that is part of a cluster. While the cluster moves the
//! namespace to another shard, commands may fail with an error that says to retry.
//!
//! Names that users choose (type names, deduplication keys) appear only at the end of a Redis key or inside a value.
//!
//! | key | content |
//! |---|---|
//! | `job:<id>` | string: a job with its input and output. The first job of a chain also holds the chain's fields |
//! | `input:<job>`, `output:<job>` | strings: the job's input and output, if they have more than 256 bytes |
//! | `jobs:<chain>` | sorted set: the jobs of the chain except the first, by position |
//! | `waits:<job>` | sorted set: the chains that the job still waits for |
//! | `history:<job>` | list: ended attempts |
//! | `patient:<chain>` | sorted set: blocked jobs that keep waiting if the chain fails, by creation order |
//! | `eager:<chain>` | sorted set: blocked jobs that react to the chain's failure, by creation order |
//! | `dependents:<chain>` | sorted set: all jobs that wait or have waited for the chain |
//! | `needing:<chain>` | sorted set: the open jobs among its dependents |
//! | `order:<block>` | string: jobs by creation order, one block for each hundred numbers |
//! | `order_counts` | hash: number of stored and of unfinished jobs in each block |
//! | `order_blocks`, `order_unfinished` | sorted sets: blocks with stored jobs, and with unfinished ones |
//! | `long:<type>` | sorted set: chains of several jobs that have not completed, by creation order |
//! | `pending:<priority>:<type>` | sorted set: pending jobs by due time |
//! | `running:<type>` | sorted set: running jobs by lease expiry |
//! | `blocked:<type>`, `failed:<type>`, `cancelled:<type>` | sorted sets: jobs with this status, by creation order |
//! | `pending_sets`, `busy` | sorted sets: names of the existing `pending:` and `running:` sets |
//! | `request:<id>` | string: the jobs that an acquire request leased |
//! | `held` | hash: number of jobs that each acquire request still holds |
//! | `keys` | hash: deduplication key to the latest chain stored with it |
//! | `rippling` | sorted set: closed chains with dependents that are not resolved yet |
//! | `leaving` | sorted set: closed chains by the time they may be removed, one or several in an entry |
//! | `trimming` | sorted set: open chains by the time their oldest inner job may be removed |
//! | `counts` | hash: number of jobs by status and type |
//! | `former` | hash: number of jobs that ended with a status and were removed or retried since, by status and type |
//! | `paused` | set: paused types |
//! | `workers`, `workers_ends` | hash: registered workers; sorted set: when each registration expires |
//! | `locks`, `locks_ends` | hash: leader lock holders; sorted set: when each lock expires |
//! | `schedules`, `schedule_ids` | hashes: schedules by name; names of schedules by id |
//! | `schedule_names`, `schedule_due` | sorted sets: names of schedules; schedules by due time |
//! | `meta` | hash: version of this layout, number of jobs ever created |
//! | `wake:<channel>` | string: remaining wake budget of a [`RedisNotifier`] channel |
//!
//! Only `wake:` keys have a Redis TTL.
//!
//! [`expire`](windlass_core::Store::expire) removes chains and jobs whose retention has ended.
//!
//! # Guarantees and requirements
//!
//! - An acknowledged write is as durable as the server's configuration makes it. The store derives
//!   [`Durability`](windlass_core::command::Durability) from the server's settings when it is opened:
//!   - `Synced` with `appendonly yes` and `appendfsync always`;
//!   - `Buffered` with another `appendfsync`, or if the user may not run `CONFIG GET`;
//!   - `Volatile` without an append-only file, or if the user may not run `INFO`.
//!
//!   With `everysec`, a server that is killed during a sync loses the writes it acknowledged meanwhile, up to two
//!   seconds of them.
//! - Replication is asynchronous. A failover can lose the last acknowledged writes, and with them jobs, completions
//!   and fences. The state after a failover is an earlier but consistent one, because replicas apply the writes of a
//!   script atomically. [`wait_for_replicas`](Options::wait_for_replicas) makes chain creation wait for replicas, and
//!   the reply reports the durability reached.
//! - The server must not evict keys: use `maxmemory-policy noeviction`. Under another policy it may remove jobs when
//!   its memory is full. Opening a store on such a server fails unless you
//!   [accept eviction](Options::accept_eviction).
//! - The scripts need Redis 7.0 or later, or a compatible Valkey. They are tested on Redis 7.0 and Valkey 9.1. Opening
//!   a store on an older server fails.
//!
//! # Hints
//!
//! [`RedisNotifier`] carries hints between processes, for this store or any other. It wakes only as many workers as
//! there are new jobs.
//!
//! # Limits
//!
//! A namespace name has at most 64 bytes ([`NAMESPACE_MAX_BYTES`]). A namespace lives on one shard. The server runs
//! nothing else while a script runs; the limits in [`windlass_core::limit`] bound how long that takes.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod flat;
mod open;
mod options;
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
mod schedule;
mod settle;

#[cfg(feature = "known-bad")]
#[doc(hidden)]
pub mod known_bad;

pub use connection::{ClientConnection, Connection};
pub use notifier::RedisNotifier;
pub use open::{Client, connect};
pub use options::{NAMESPACE_MAX_BYTES, Options};
pub use store::{CAPABILITIES, RedisStore};
