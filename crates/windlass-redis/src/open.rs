//! Opens a store with default options; a type alias for its client.

use windlass_core::Result;

use crate::options::Options;
use crate::store::RedisStore;

/// Connects to a server, or to the cluster it is part of, and opens a store with the default [`Options`]: in the
/// namespace `default`. The URL is `redis://user:password@host:port/database`, or `rediss://` for TLS.
///
/// To choose options, call [`RedisStore::open`].
///
/// ```no_run
/// # async fn example() -> windlass::Result<()> {
/// use windlass::{Client, redis};
///
/// let client = Client::new(redis::connect("redis://127.0.0.1/").await?);
/// # let _ = client; Ok(())
/// # }
/// ```
pub async fn connect(url: &str) -> Result<RedisStore> {
    RedisStore::open(url, Options::default()).await
}

/// A client of a [`RedisStore`].
pub type Client = windlass_core::Client<RedisStore>;
