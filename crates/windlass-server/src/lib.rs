//! An HTTP API and a dashboard for Windlass: start, query and operate jobs on any store.
//!
//! [`Server`] builds an axum router, which an application can mount under any path. [`listen`](Server::listen) serves it
//! on a socket, with TLS and limits; `windlass serve` does that. `docs/serve.md` describes the API and its security.
//!
//! ```
//! use windlass_core::{Client, MemoryStore};
//! use windlass_server::{Access, Identity, Role, Server};
//!
//! #[derive(Clone)]
//! struct User {
//!     name: String,
//!     is_staff: bool,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let client = Client::new(MemoryStore::new()).into_dyn();
//! // A middleware of the application has put the user into the request's extensions.
//! let access = Access::identity(|request| {
//!     let user = request.extensions.get::<User>()?;
//!     let role = if user.is_staff { Role::Operate } else { Role::Read };
//!     Some(Identity { name: user.name.clone(), role })
//! });
//! let app: axum::Router = axum::Router::new().nest("/jobs", Server::new(client, access).router());
//! # let _ = app; }
//! ```
//!
//! # Limits
//!
//! - The body of a request has at most [`BODY_MAX_BYTES`], or [`LOGIN_MAX_BYTES`] for a login. It must arrive within
//!   [`REQUEST_TIMEOUT`]. The server then answers within another [`REQUEST_TIMEOUT`]. A wait for a chain adds at most
//!   [`WAIT_MAX`].
//! - A server has at most [`STREAMS_MAX`] event streams, [`WAITS_MAX`] waits, [`CONNECTIONS_MAX`] connections and
//!   [`BULK_MAX`] bulk operations at the same time. One caller has at most half of the streams and waits.
//! - An event stream of a caller that the embedding application identified ends after [`IDENTITY_MAX`].

#![forbid(unsafe_code)]

mod api;
mod audit;
mod auth;
mod bulk;
mod client;
mod events;
mod guard;
mod listen;
mod pages;
mod payload;
mod permits;
mod sampler;
mod server;

pub use audit::AuditLog;
pub use auth::{Access, Identity, Role, Token, TokenError, TokenFile};
pub use guard::Peer;
pub use listen::{ListenError, Tls};
pub use payload::RedactionPath;
pub use server::Server;

use std::time::Duration;

/// The maximum size of a request's body, in bytes: a payload of the maximum size, and 1 MiB for other fields.
pub const BODY_MAX_BYTES: usize = windlass_core::limit::PAYLOAD_MAX_BYTES + 1024 * 1024;

/// The maximum size of the body of a request that requires no authentication, such as a login, in bytes.
pub const LOGIN_MAX_BYTES: usize = 4 * 1024;

/// The maximum time for a request's body to arrive, and the maximum time to answer a request without a wait.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum time to wait for the end of a chain.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// The maximum number of event streams of a server.
pub const STREAMS_MAX: usize = 1_000;

/// The maximum number of requests that wait for the end of a chain at the same time.
pub const WAITS_MAX: usize = 1_000;

/// The maximum duration of an event stream of a caller that the [application identified](Access::identity). The stream
/// then ends. When the client opens another stream, the application identifies the caller again.
pub const IDENTITY_MAX: Duration = Duration::from_secs(5 * 60);

/// The maximum number of connections of a server that listens on a socket. One address, or one /64 network of IPv6, has at
/// most a quarter of them, unless the server trusts a proxy.
pub const CONNECTIONS_MAX: usize = 2_000;

/// The maximum number of bulk operations that run at the same time.
pub const BULK_MAX: usize = 4;
