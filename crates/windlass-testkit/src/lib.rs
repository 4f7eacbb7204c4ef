//! Real servers, and waiting without guessing, for the tests of Windlass.
//!
//! - [`RedisServer`] is a private Redis or Valkey server on a free port, which can be stopped, killed
//!   and restarted.
//! - [`PostgresServer`] is the same with PostgreSQL, and [`PgBouncer`] a pooler in front of it.
//! - [`NatsServer`] is a private NATS server with JetStream.
//! - [`shared_redis`] and [`shared_postgres`] hand out namespaces on one such server per test process.
//! - [`Proxy`] stands between a client and a server, and cuts, stalls or refuses connections.
//! - [`crash`] runs workers in processes of their own, and kills them.
//! - [`wait_until`] polls a condition with a limit. It is the one place that pauses; tests do not.
//!
//! Nothing outlives the test process, however that ends: a server runs under a watchdog that notices
//! when the process is gone, ends the server and removes its folder.
//!
//! The kit needs a Unix system, `sh`, and real time: a server does not start any faster on tokio's
//! paused clock. What goes wrong is a panic that says what the server said, because a test can do
//! nothing else about it.

pub mod crash;

mod nats;
mod pgbouncer;
mod postgres;
mod proxy;
mod redis;
mod shared;
mod wait;

mod account;
mod certificate;
mod process;
mod server;
mod supervised;

pub use nats::{NatsServer, NatsServerBuilder};
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresServer, PostgresServerBuilder};
pub use proxy::Proxy;
pub use redis::{RedisServer, RedisServerBuilder};
pub use shared::{SharedPostgres, SharedRedis, shared_postgres, shared_redis};
pub use wait::wait_until;
