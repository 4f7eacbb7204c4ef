//! Real servers, and waiting for conditions, for the tests of Windlass.
//!
//! - [`RedisServer`] is a private Redis or Valkey server on a free port, which can be stopped, killed and restarted.
//! - [`PostgresServer`] is the same for PostgreSQL, and [`PgBouncer`] is a pooler in front of it.
//! - [`NatsServer`] is a private NATS server with JetStream.
//! - [`ChromeDriver`] is a private driver of the Chromium browser.
//! - [`shared_redis`] and [`shared_postgres`] return namespaces on one such server per test process.
//! - [`Proxy`] sits between a client and a server, and cuts, stalls or refuses connections.
//! - [`crash`] runs workers in their own processes, and kills them.
//! - [`schedules`] measures schedules.
//! - [`is_full_run`] says whether to run the long tests too.
//! - [`logs`] captures the log lines of a thread.
//! - [`print_figure`] prints what a test measured, also if the test passes.
//! - [`wait_until`] polls a condition with a timeout. Tests use it instead of sleeping.
//!
//! No server outlives the test process, however that ends: each runs under a watchdog that notices when the process is
//! gone, stops the server and removes its directory.
//!
//! The kit needs a Unix system, `sh`, and real time: a server does not start any faster on tokio's paused clock.
//! Failures are panics with the server's own message, because a test cannot handle them in any other way.

#![forbid(unsafe_code)]

pub mod crash;
pub mod logs;
pub mod schedules;

mod chrome;
mod figure;
mod nats;
mod pgbouncer;
mod postgres;
mod proxy;
mod redis;
mod shared;
mod tier;
mod wait;

mod account;
mod certificate;
mod process;
mod server;
mod supervised;

pub use chrome::ChromeDriver;
pub use figure::print_figure;
pub use nats::{NatsServer, NatsServerBuilder};
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresServer, PostgresServerBuilder};
pub use proxy::Proxy;
pub use redis::{RedisServer, RedisServerBuilder};
pub use server::Port;
pub use shared::{SharedPostgres, SharedRedis, shared_postgres, shared_redis};
pub use tier::is_full_run;
pub use wait::wait_until;
