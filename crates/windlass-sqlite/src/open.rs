//! Opens a store with default options; type aliases for applications that use it.

use std::path::PathBuf;

use windlass_core::Result;

use crate::options::Options;
use crate::sqlx::Sqlx;
use crate::store::SqliteStore;

/// Opens a store in a file with the default [`Options`]. Creates the file if it is missing, and creates or migrates its
/// tables if needed.
///
/// To choose options, call [`SqliteStore::open`]. To use a pool of the application, call [`SqliteStore::over`].
///
/// ```no_run
/// # async fn example() -> windlass::Result<()> {
/// use windlass::{Client, sqlite};
///
/// let client = Client::new(sqlite::open("jobs.db").await?);
/// # let _ = client; Ok(())
/// # }
/// ```
pub async fn open(path: impl Into<PathBuf>) -> Result<SqliteStore> {
    SqliteStore::open(Options::new(path)).await
}

/// A client of a [`SqliteStore`].
pub type Client<P = Sqlx> = windlass_core::Client<SqliteStore<P>>;

/// An attempt of a job in a [`SqliteStore`], whose handler may use transactions.
pub type Attempt<J, P = Sqlx> = windlass_core::Attempt<J, SqliteStore<P>>;

/// The result of a handler that ends its job in a transaction of a [`SqliteStore`].
pub type Done<J, P = Sqlx> = windlass_core::Done<J, SqliteStore<P>>;

/// An attempt of a queue job in a [`SqliteStore`], whose handler may use transactions.
pub type ItemAttempt<T, P = Sqlx> = windlass_core::queue::ItemAttempt<T, SqliteStore<P>>;

/// The result of a handler that ends a queue job in a transaction of a [`SqliteStore`].
pub type ItemDone<T, P = Sqlx> = windlass_core::queue::ItemDone<T, SqliteStore<P>>;
