//! Opens a store with default options; type aliases for applications that use it.

use sqlx::PgPool;
use windlass_core::Result;

use crate::options::Options;
use crate::sqlx::Sqlx;
use crate::store::PostgresStore;

/// Connects to a server and opens a store with the default [`Options`]: in the schema `windlass`, which is created or
/// migrated if needed. The URL is `postgres://user:password@host:port/database`. Closing the store closes its
/// connections.
///
/// To use the pool of the application, call [`open`]. To choose options, call [`PostgresStore::open`].
///
/// ```no_run
/// # async fn example() -> windlass::Result<()> {
/// use windlass::{Client, postgres};
///
/// let client = Client::new(postgres::connect("postgres://jobs@localhost/shop").await?);
/// # let _ = client; Ok(())
/// # }
/// ```
pub async fn connect(url: &str) -> Result<PostgresStore> {
    PostgresStore::open(Sqlx::connect(url).await?, Options::default()).await
}

/// Opens a store on the application's pool, with the default [`Options`]: in the schema `windlass`, which is created or
/// migrated if needed. Closing the store leaves the pool open.
///
/// To choose options, call [`PostgresStore::open`].
///
/// ```no_run
/// # async fn example() -> Result<(), windlass::BoxError> {
/// use sqlx::PgPool;
/// use windlass::{Client, postgres};
///
/// let pool = PgPool::connect("postgres://jobs@localhost/shop").await?;
/// let client = Client::new(postgres::open(pool.clone()).await?);
/// # let _ = client; Ok(())
/// # }
/// ```
pub async fn open(pool: PgPool) -> Result<PostgresStore> {
    PostgresStore::open(Sqlx::from(pool), Options::default()).await
}

/// A client of a [`PostgresStore`].
pub type Client<P = Sqlx> = windlass_core::Client<PostgresStore<P>>;

/// An attempt of a job in a [`PostgresStore`], whose handler may use transactions.
pub type Attempt<J, P = Sqlx> = windlass_core::Attempt<J, PostgresStore<P>>;

/// The result of a handler that ends its job in a transaction of a [`PostgresStore`].
pub type Done<J, P = Sqlx> = windlass_core::Done<J, PostgresStore<P>>;

/// An attempt of a job of a queue in a [`PostgresStore`], whose handler may use transactions.
pub type ItemAttempt<T, P = Sqlx> = windlass_core::queue::ItemAttempt<T, PostgresStore<P>>;

/// The result of a handler that ends a job of a queue in a transaction of a [`PostgresStore`].
pub type ItemDone<T, P = Sqlx> = windlass_core::queue::ItemDone<T, PostgresStore<P>>;
