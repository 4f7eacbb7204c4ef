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
//! - A request has at most [`BODY_MAX_BYTES`] of body, and a login [`LOGIN_MAX_BYTES`]. Its body has [`REQUEST_TIMEOUT`] to
//!   arrive. It is answered within another [`REQUEST_TIMEOUT`], to which a wait adds at most [`WAIT_MAX`].
//! - A server has at most [`STREAMS_MAX`] event streams, [`WAITS_MAX`] waits, [`CONNECTIONS_MAX`] connections and
//!   [`BULK_MAX`] bulk operations at a time. One caller has at most half of the streams and waits.
//! - An event stream for an identity of the embedding application ends after [`IDENTITY_MAX`].

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
mod places;
mod sampler;
mod server;

pub use audit::AuditLog;
pub use auth::{Access, Identity, Role, Token, TokenError, TokenFile};
pub use guard::Peer;
pub use listen::{ListenError, Tls};
pub use payload::RedactionPath;
pub use server::Server;

use std::time::Duration;

/// The maximum size of the body of a request, in bytes: a payload of the maximum size, and room for other fields.
pub const BODY_MAX_BYTES: usize = windlass_core::limit::PAYLOAD_MAX_BYTES + 1024 * 1024;

/// The maximum size of the body of a request that needs no authentication, in bytes.
pub const LOGIN_MAX_BYTES: usize = 4 * 1024;

/// The time that the body of a request has to arrive, and that a request without a wait has to be answered.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest wait for the end of a chain.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// The maximum number of event streams of a server.
pub const STREAMS_MAX: usize = 1_000;

/// The maximum number of requests that wait for the end of a chain at the same time.
pub const WAITS_MAX: usize = 1_000;

/// The longest time that an event stream relies on an [identity](Access::identity) of the embedding application. The stream
/// then ends, and the client opens another one, for which the application is asked again.
pub const IDENTITY_MAX: Duration = Duration::from_secs(5 * 60);

/// The maximum number of connections of a server that listens. One address has at most a quarter of them, unless a trusted
/// proxy is in between.
pub const CONNECTIONS_MAX: usize = 2_000;

/// The maximum number of bulk operations that run at the same time.
pub const BULK_MAX: usize = 4;
