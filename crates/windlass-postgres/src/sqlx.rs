//! Provider for sqlx: the application's own pool and transactions.

mod recent;

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection, Executor, Postgres, Row as _, Transaction};
use tokio::time::sleep;
use uuid::Uuid;
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

use self::recent::Recent;
use crate::error::{from_sqlstate, name_address, no_connection, unreachable};
use crate::provider::{
    BEGIN_READ_COMMITTED, Listener, Parameter, PoolerCheck, Provider, Row, Statement, job_columns,
};

/// Acquire timeout of a pool that [`Sqlx::connect`] creates.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Idle time from which a connection is pinged before use.
const PING_IDLE: Duration = Duration::from_secs(1);

/// When this process last lost a server. Connections that have been idle since then may be dead as well.
static LAST_LOSS: RwLock<Option<Instant>> = RwLock::new(None);

/// A [`Provider`] on a pool of sqlx connections.
#[derive(Clone, Debug)]
pub struct Sqlx {
    pool: PgPool,
    recent: Recent,
    owned: bool,
}

impl Sqlx {
    /// Connects to a server. The URL is `postgres://user:password@host:port/database`. Closing the store closes the
    /// pool.
    pub async fn connect(url: &str) -> Result<Self> {
        let options: PgConnectOptions = url.parse().map_err(from_driver)?;
        // PgBouncer refuses the parameter. It does not change how PostgreSQL 12 or later writes floats.
        let options = options.extra_float_digits(None);
        // Connect once without the pool: a pool retries until its timeout and then hides the cause.
        let first = PgConnection::connect_with(&options).await;
        let first = first.map_err(|error| name_address(from_driver(error), &address(&options)))?;
        first.close().await.map_err(from_driver)?;
        let pool = Self::pool_options().acquire_timeout(ACQUIRE_TIMEOUT).connect_lazy_with(options);
        Ok(Self { owned: true, ..Self::from(pool) })
    }

    /// Returns options for your own pool.
    ///
    /// By default, sqlx pings each connection before it lends it, which adds a round trip to every transaction. With these
    /// options, it pings only a connection that has been idle for a second, or since the server was last lost.
    #[must_use]
    pub fn pool_options() -> PgPoolOptions {
        PgPoolOptions::new().test_before_acquire(false).before_acquire(|connection, about| {
            Box::pin(async move {
                if about.idle_for >= PING_IDLE
                    || Instant::now().checked_sub(about.idle_for).is_none_or(was_lost_since)
                {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
    }

    /// Returns the pool.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Whether the pool's connections reach dedicated server processes, and the driver's statement cache is on.
    ///
    /// Connects once with a unique application name. In a dedicated process, the name came with the startup packet, so
    /// it is also the name that a reset would restore. A pooler shares processes that it has started itself, and sets
    /// the name of each client later.
    async fn check_sessions(&self) -> Result<bool> {
        let name = format!("windlass-{}", Uuid::now_v7().simple());
        let options = (*self.pool.connect_options()).clone().application_name(&name);
        let mut connection = PgConnection::connect_with(&options).await.map_err(from_driver)?;
        // The reset, in the same transaction, keeps the name from staying with a process that is shared.
        let query = format!(
            "select (source = 'client' and reset_val = '{name}')::text from pg_catalog.pg_settings \
             where name = 'application_name'; reset application_name"
        );
        let is_own = self.ask_in(ConnectionRef(&mut connection), &query).await?.as_deref() == Some("true");
        if is_own {
            // If the cache is off, the driver would prepare the statement again for each command, and never close it.
            connection.execute(sqlx::query("select 1")).await.map_err(from_driver)?;
        }
        let may_cache = is_own && connection.cached_statements_size() > 0;
        connection.close().await.map_err(from_driver)?;
        Ok(may_cache)
    }
}

impl From<PgPool> for Sqlx {
    /// Uses the application's pool. The pool stays open when the store is closed.
    ///
    /// Commands outside transactions use a connection again for up to a second without returning it in between, while the
    /// pool has others. So `before_acquire` and `after_release` do not run for each command.
    fn from(pool: PgPool) -> Self {
        Self { recent: Recent::new(pool.clone()), pool, owned: false }
    }
}

/// A connection borrowed inside a transaction: from a [`Transaction`], or a connection on which one was begun.
#[derive(Debug)]
pub struct ConnectionRef<'t>(&'t mut PgConnection);

impl<'t> From<&'t mut Transaction<'_, Postgres>> for ConnectionRef<'t> {
    fn from(tx: &'t mut Transaction<'_, Postgres>) -> Self {
        Self(tx)
    }
}

impl<'t> From<&'t mut PgConnection> for ConnectionRef<'t> {
    fn from(connection: &'t mut PgConnection) -> Self {
        Self(connection)
    }
}

impl<'t> From<&'t mut PoolConnection<Postgres>> for ConnectionRef<'t> {
    fn from(connection: &'t mut PoolConnection<Postgres>) -> Self {
        Self(connection)
    }
}

impl Deref for ConnectionRef<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0
    }
}

impl DerefMut for ConnectionRef<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0
    }
}

impl Provider for Sqlx {
    type Tx = Transaction<'static, Postgres>;
    type TxRef<'t> = ConnectionRef<'t>;
    type Connection<'t> = &'t mut PgConnection;

    fn tx_ref(tx: &mut Self::Tx) -> ConnectionRef<'_> {
        tx.into()
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        tx.0
    }

    fn reborrow<'t>(tx: &'t mut ConnectionRef<'_>) -> ConnectionRef<'t> {
        ConnectionRef(tx.0)
    }

    fn run<'a>(
        &'a self,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move {
            if statement.is_cached() {
                let mut lent = self.recent.get(statement).await.map_err(from_driver)?;
                let found = bind(statement, parameters).fetch_all(&mut *lent).await;
                if found.is_ok() {
                    lent.keep();
                }
                return rows(found);
            }
            // Without a cached statement, the driver prepares an unnamed statement and then executes it. In between, a
            // pooler could lend the server connection to another client that replaces the unnamed statement, and we
            // would execute that one. Within a transaction the pooler does not switch.
            let mut tx = self.begin_read_committed().await?;
            let found = self.run_in((&mut tx).into(), statement, parameters).await?;
            self.commit(tx).await?;
            Ok(found)
        })
    }

    fn run_in<'a>(
        &'a self,
        tx: ConnectionRef<'a>,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move { rows(bind(statement, parameters).fetch_all(tx.0).await) })
    }

    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>> {
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        Box::pin(async move { self.pool.execute(script).await.map(drop).map_err(from_driver) })
    }

    fn script_in<'a>(&'a self, tx: ConnectionRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>> {
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        Box::pin(async move { tx.0.execute(script).await.map(drop).map_err(from_driver) })
    }

    fn ask_in<'a>(&'a self, tx: ConnectionRef<'a>, text: &'a str) -> BoxFuture<'a, Result<Option<String>>> {
        let script = sqlx::raw_sql(AssertSqlSafe(text));
        Box::pin(async move {
            let rows = script.fetch_all(tx.0).await.map_err(from_driver)?;
            rows.last().map(|row| row.try_get_unchecked(0)).transpose().map_err(from_driver)
        })
    }

    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>> {
        let pool = self.pool.clone();
        Box::pin(begun(async move { pool.begin().await }))
    }

    fn begin_read_committed(&self) -> BoxFuture<'_, Result<Self::Tx>> {
        let pool = self.pool.clone();
        Box::pin(begun(async move { pool.begin_with(BEGIN_READ_COMMITTED).await }))
    }

    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { tx.commit().await.map_err(from_driver) })
    }

    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { tx.rollback().await.map_err(from_driver) })
    }

    fn may_cache_statements(&self) -> BoxFuture<'_, bool> {
        Box::pin(async {
            self.check_sessions().await.unwrap_or_else(|error| {
                tracing::warn!(%error, "statements are not cached, because a connection for a check failed");
                false
            })
        })
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let mut other = self.begin().await?;
            let opened_after = ask(&mut *other, PoolerCheck::TIME_QUERY.to_owned()).await?;
            self.rollback(other).await?;
            let options = (*self.pool.connect_options()).clone();
            let own = PgPoolOptions::new().max_connections(1).connect_with(options);
            let own = own.await.map_err(from_driver)?;
            let mut listener = PgListener::connect_with(&own).await.map_err(from_driver)?;
            listener.eager_reconnect(false);
            let mut check = PoolerCheck::new(opened_after);
            while check.goes_on() {
                let own = check.own(ask(&mut listener, check.own_query()).await?);
                let mut other = self.begin().await?;
                let signs = ask(&mut *other, check.others_query(&own)).await?;
                self.rollback(other).await?;
                check.evaluate(own, &signs)?;
                sleep(PoolerCheck::PAUSE).await;
            }
            listener.listen(channel).await.map_err(from_driver)?;
            Ok(Box::new(Listening(listener)) as Box<dyn Listener>)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The call marks the pool as closed, so that it closes the connections that it gets back.
            let closing = self.owned.then(|| self.pool.close());
            self.recent.clear(self.owned);
            if let Some(closing) = closing {
                closing.await;
            }
        })
    }
}

/// Whether this process lost a server after the given time.
fn was_lost_since(time: Instant) -> bool {
    LAST_LOSS.read().unwrap_or_else(PoisonError::into_inner).is_some_and(|lost| lost >= time)
}

/// Runs a `begin` of sqlx on its own task, which is never dropped early. A `begin` future that is dropped early may
/// return a connection to the pool inside a transaction (launchbadge/sqlx#4393).
async fn begun(
    begin: impl Future<Output = sqlx::Result<Transaction<'static, Postgres>>> + Send + 'static,
) -> Result<Transaction<'static, Postgres>> {
    tokio::spawn(begin).await.map_err(|error| unreachable(&error))?.map_err(from_driver)
}

/// Runs a query that returns one text.
async fn ask<'c>(connection: impl Executor<'c, Database = Postgres>, query: String) -> Result<String> {
    let row = sqlx::raw_sql(AssertSqlSafe(query)).fetch_one(connection).await.map_err(from_driver)?;
    row.try_get(0).map_err(from_driver)
}

struct Listening(PgListener);

impl Listener for Listening {
    fn next(&mut self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async {
            match self.0.try_recv().await.map_err(from_driver)? {
                Some(notification) => Ok(notification.payload().to_owned()),
                None => Err(unreachable("the listening connection was lost")),
            }
        })
    }
}

fn bind(statement: &Statement, parameters: Vec<Parameter>) -> Query<'_, Postgres, PgArguments> {
    let mut query = sqlx::query(AssertSqlSafe(statement.text().clone())).persistent(statement.is_cached());
    for parameter in parameters {
        query = match parameter {
            Parameter::Flag(value) => query.bind(value),
            Parameter::Number(value) => query.bind(value),
            Parameter::Text(value) => query.bind(value),
            Parameter::Id(value) => query.bind(value),
            Parameter::Numbers(values) => query.bind(values),
            Parameter::Texts(values) => query.bind(values),
            Parameter::Ids(values) => query.bind(values),
            Parameter::Bytes(values) => {
                query.bind(values.iter().map(Option::as_deref).collect::<Vec<Option<&[u8]>>>())
            }
        };
    }
    query
}

fn rows(rows: sqlx::Result<Vec<PgRow>>) -> Result<Vec<Row>> {
    rows.map_err(from_driver)?.iter().map(|found| row(found).map_err(from_driver)).collect()
}

fn row(row: &PgRow) -> sqlx::Result<Row> {
    let has_job = row.len() > 6 && row.try_get::<Option<Uuid>, _>(6)?.is_some();
    if has_job {
        let job = Some(Box::new(job_columns!(row)));
        return Ok(Row { part: row.try_get(0)?, item: row.try_get(1)?, job, ..Row::default() });
    }
    let bytes: Option<Vec<Option<Vec<u8>>>> = row.try_get(5)?;
    Ok(Row {
        part: row.try_get(0)?,
        item: row.try_get(1)?,
        ids: row.try_get::<Option<_>, _>(2)?.unwrap_or_default(),
        texts: row.try_get::<Option<_>, _>(3)?.unwrap_or_default(),
        numbers: row.try_get::<Option<_>, _>(4)?.unwrap_or_default(),
        bytes: bytes.unwrap_or_default().into_iter().map(|bytes| bytes.map(Bytes::from)).collect(),
        job: None,
    })
}

/// Returns the server's address and the database, without the password.
fn address(options: &PgConnectOptions) -> String {
    let port = options.get_port();
    let server = match options.get_socket() {
        Some(directory) => format!("{}:{port}", directory.display()),
        None => format!("{}:{port}", options.get_host()),
    };
    options.get_database().map_or(server.clone(), |database| format!("{server}/{database}"))
}

fn from_driver(error: sqlx::Error) -> Error {
    let converted = match &error {
        sqlx::Error::Database(database) => {
            from_sqlstate(&database.code().unwrap_or_default(), database.message())
        }
        sqlx::Error::PoolTimedOut => no_connection(),
        sqlx::Error::PoolClosed => Error::new(ErrorKind::Closed, "the pool is closed: open the store again"),
        sqlx::Error::Configuration(_) => {
            Error::new(ErrorKind::Invalid, format!("the database URL is invalid: {error}"))
        }
        sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => Error::new(
            ErrorKind::Corrupt,
            format!("a row cannot be decoded: {error}: inspect the tables before you continue"),
        ),
        _ => unreachable(&error),
    };
    if converted.kind() == ErrorKind::Unavailable {
        *LAST_LOSS.write().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
    converted.with_inner(error)
}
