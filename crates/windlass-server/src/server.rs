//! The server: its options and its router.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use tokio_util::sync::CancellationToken;
use windlass_core::{Client, Store};

use crate::api;
use crate::audit::AuditLog;
use crate::auth::{Access, LoginLimit, Role};
use crate::bulk::Bulk;
use crate::client::BoxedClient;
use crate::events::JobFeed;
use crate::guard::guard;
use crate::pages::{self, SharedPages};
use crate::payload::{RedactionPath, Rules};
use crate::permits::Permits;
use crate::sampler::Sampler;
use crate::{STREAMS_MAX, WAITS_MAX};

/// The time between two samples of the store, unless set.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// The time between two heartbeats of an event stream, unless set.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The time between two checks whether the caller of an event stream is still admitted.
const ADMISSION_CHECK: Duration = Duration::from_secs(1);

/// Builds the HTTP API and the dashboard of a store.
///
/// The constructor takes an [`Access`], because there is no safe default for who may use the API.
pub struct Server {
    pub(crate) client: Client<dyn Store>,
    pub(crate) access: Access,
    rules: Rules,
    audit: AuditLog,
    pub(crate) trusts_proxy: bool,
    is_https: bool,
    sample_interval: Duration,
    heartbeat: Duration,
    pub(crate) stop: CancellationToken,
}

/// The state that all handlers share.
pub(crate) struct App {
    pub(crate) client: BoxedClient,
    pub(crate) access: Access,
    pub(crate) rules: Rules,
    pub(crate) audit: AuditLog,
    pub(crate) logins: LoginLimit,
    pub(crate) trusts_proxy: bool,
    pub(crate) is_https: bool,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) feed: Arc<JobFeed>,
    pub(crate) pages: Arc<SharedPages>,
    pub(crate) bulk: Bulk,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) streams: Arc<Permits>,
    pub(crate) waits: Arc<Permits>,
    /// Cancelled when the server stops: event streams and bulk operations end.
    pub(crate) stop: CancellationToken,
}

/// How often an event stream sends a heartbeat, and checks whether its caller is still admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heartbeat {
    pub(crate) every: Duration,
    pub(crate) check: Duration,
}

impl Server {
    /// Creates a server for the store of this client. Convert a client of a specific store with
    /// [`into_dyn`](windlass_core::Client::into_dyn).
    #[must_use]
    pub fn new(client: Client<dyn Store>, access: Access) -> Self {
        Self {
            client,
            access,
            rules: Rules { visible_from: Role::Read, redacted: Vec::new() },
            audit: AuditLog::writer(std::io::stderr()),
            trusts_proxy: false,
            is_https: false,
            sample_interval: SAMPLE_INTERVAL,
            heartbeat: HEARTBEAT,
            stop: CancellationToken::new(),
        }
    }

    /// Sets the weakest role that sees inputs, outputs and errors. Default: all roles see them.
    #[must_use]
    pub fn payloads_from(mut self, role: Role) -> Self {
        self.rules.visible_from = role;
        self
    }

    /// Hides the values at these paths in all payloads, for all roles, and removes the same values from errors. Payloads that
    /// cannot be decoded are hidden.
    #[must_use]
    pub fn redact(mut self, paths: impl IntoIterator<Item = RedactionPath>) -> Self {
        self.rules.redacted.extend(paths);
        self
    }

    /// Sets the audit log. Default: standard error.
    #[must_use]
    pub fn audit(mut self, log: AuditLog) -> Self {
        self.audit = log;
        self
    }

    /// Trusts the headers `x-forwarded-for`, `x-forwarded-host` and `x-forwarded-proto`. Only set this if all requests
    /// come from a proxy that sets or removes these headers. Default: they are ignored; without authentication, requests
    /// with them are refused.
    #[must_use]
    pub const fn trust_proxy(mut self) -> Self {
        self.trusts_proxy = true;
        self
    }

    /// Declares that browsers reach the router over HTTPS, so that cookies are `Secure`. Not needed if the server itself uses
    /// TLS, or if a trusted proxy reports HTTPS in `x-forwarded-proto`.
    #[must_use]
    pub const fn https(mut self) -> Self {
        self.is_https = true;
        self
    }

    /// Sets the time between two samples of the store, while clients request them. Default: 2 s.
    #[must_use]
    pub fn sample_interval(mut self, interval: Duration) -> Self {
        self.sample_interval = interval.max(Duration::from_millis(10));
        self
    }

    /// Sets the time between two heartbeats of an event stream. Default: 15 s.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval.max(Duration::from_millis(10));
        self
    }

    /// Sets a token that stops the server when it is cancelled: event streams and bulk operations end.
    #[must_use]
    pub fn stop_token(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// Returns the router, which can be mounted under any path with [`Router::nest`].
    pub fn router(self) -> Router {
        let Self { client, access, rules, audit, trusts_proxy, is_https, stop, heartbeat, .. } = self;
        let (client, pages) = (BoxedClient(client), Arc::<SharedPages>::default());
        let app = Arc::new(App {
            sampler: Sampler::new(client.clone(), self.sample_interval),
            feed: JobFeed::new(client.clone(), Arc::clone(&pages)),
            bulk: Bulk::new(Arc::clone(&pages), stop.clone()),
            pages,
            client,
            access,
            rules,
            audit,
            logins: LoginLimit::new(),
            trusts_proxy,
            is_https,
            heartbeat: Heartbeat { every: heartbeat, check: heartbeat.min(ADMISSION_CHECK) },
            streams: Permits::new("event streams", STREAMS_MAX, STREAMS_MAX / 2),
            waits: Permits::new("waits", WAITS_MAX, WAITS_MAX / 2),
            stop,
        });
        let router = api::router().merge(pages::router());
        let router = router.fallback(pages::not_found).method_not_allowed_fallback(api::wrong_method);
        router.layer(from_fn_with_state(Arc::clone(&app), guard)).with_state(app)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("access", &self.access).finish_non_exhaustive()
    }
}
