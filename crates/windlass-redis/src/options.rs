//! Options of the store and the notifier.

use std::sync::Arc;
use std::time::Duration;

use windlass_core::{Clock, Error, ErrorKind, Result};

/// Maximum length of a namespace, in bytes.
pub const NAMESPACE_MAX_BYTES: usize = 64;

/// Options for opening a [`RedisStore`](crate::RedisStore) or a [`RedisNotifier`](crate::RedisNotifier).
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a store is opened with them"]
pub struct Options {
    pub(crate) namespace: String,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) response_timeout: Duration,
    pub(crate) accept_eviction: bool,
    pub(crate) replicas: Option<(u32, Duration)>,
}

impl Default for Options {
    /// Uses the namespace `default`, the server's clock and a response timeout of 30 s. Refuses servers that evict
    /// keys, and does not wait for replicas.
    fn default() -> Self {
        Self {
            namespace: "default".to_owned(),
            clock: None,
            response_timeout: Duration::from_secs(30),
            accept_eviction: false,
            replicas: None,
        }
    }
}

impl Options {
    /// Sets the namespace (default: `default`): 1 to 64 characters of `a-z`, `0-9`, `_` and `-`. All keys of the store
    /// begin with `{windlass:<namespace>}:`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Uses another clock than the server's, for tests. All stores of one namespace must use the same clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets how long to wait for the server's reply to a command (default: 30 s). After that, the server counts as
    /// unreachable. A connection that the caller supplies keeps its own timeout.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Opens the store even if the server removes keys when its memory is full. Jobs are lost when that happens. By
    /// default, opening a store on such a server fails.
    pub fn accept_eviction(mut self) -> Self {
        self.accept_eviction = true;
        self
    }

    /// Makes each `create` wait until `replicas` replicas have the new chains, for at most `timeout`.
    ///
    /// If the server has an append-only file and supports `WAITAOF` (Redis 7.2), the replicas must have the chains on
    /// disk. Otherwise memory is enough (`WAIT`). The reply reports how many replicas had them in time. A creation is
    /// never undone.
    ///
    /// The store opens a second connection for creations, because the server blocks a connection that waits. A
    /// connection that the caller [supplies](crate::RedisStore::with_connection) is used for everything, so a wait blocks all
    /// its commands.
    pub fn wait_for_replicas(mut self, replicas: u32, timeout: Duration) -> Self {
        self.replicas = Some((replicas, timeout));
        self
    }
}

/// Returns the prefix of all keys of a namespace. The braces make it the hash tag, so one shard holds all the keys.
pub(crate) fn tag(namespace: &str) -> Result<String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    if namespace.is_empty() || namespace.len() > NAMESPACE_MAX_BYTES || !namespace.bytes().all(plain) {
        let message = format!(
            "the namespace {namespace:?} is invalid: use 1 to {NAMESPACE_MAX_BYTES} characters of a-z, 0-9, `_` and `-`"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(format!("{{windlass:{namespace}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_cannot_break_out_of_its_tag() {
        assert_eq!(tag("jobs_1-a").unwrap(), "{windlass:jobs_1-a}");
        for bad in ["", "a}b", "a:b", "A", "ä", "a*", &"x".repeat(65)] {
            assert_eq!(tag(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
