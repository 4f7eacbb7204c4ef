//! Provider for tokio-postgres with a deadpool pool.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use deadpool_postgres::{Client, ClientWrapper, Manager, Object, Pool, QueueMode, StatementCache};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::config::Host;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls, SimpleQueryMessage, Socket};
use windlass_core::{BoxFuture, Error, ErrorKind, Result};

use crate::error::{from_sqlstate, name_address, no_connection, unreachable, with_causes};
use crate::provider::{
    BEGIN_READ_COMMITTED, Listener, Parameter, PoolerCheck, Provider, Row, Statement, job_columns,
};

/// Idle time after which the system probes a connection.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(60);

/// Number of unread notifications from which the listening connection stops reading.
const NOTIFICATIONS_MAX: usize = 1_000;

/// A [`Provider`] on a pool of tokio-postgres clients.
#[derive(Clone)]
pub struct TokioPostgres {
    pool: Pool,
    listen: Listen,
    owned: bool,
}

/// Opens a dedicated connection and starts reading from it.
type Listen = Arc<dyn Fn() -> BoxFuture<'static, Result<Listening>> + Send + Sync>;

impl TokioPostgres {
    /// Connects to a server without encryption. The URL is `postgres://user:password@host:port/database`. Closing the
    /// store closes the pool.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Error::new(ErrorKind::Invalid, format!("the database URL is invalid: {}", with_causes(&error)))
                .with_inner(error)
        })?;
        // Connections that only a peak needs are idle for long. Without probes, a firewall may drop them silently.
        if !url.contains("keepalives_idle") {
            config.keepalives_idle(KEEPALIVES_IDLE);
        }
        // The last connection first: the plans of its server process are still in the processor's caches.
        let pool = Pool::builder(Manager::new(config.clone(), NoTls)).queue_mode(QueueMode::Lifo).build();
        let pool = pool.map_err(|error| unreachable(with_causes(&error)).with_inner(error))?;
        drop(pool.get().await.map_err(|error| name_address(from_pool(error), &address(&config)))?);
        Ok(Self { owned: true, ..Self::new(pool, config, NoTls) })
    }

    /// Uses the application's pool. The pool stays open when the store is closed.
    ///
    /// Build the pool with `queue_mode(QueueMode::Lifo)`. By default, deadpool lends its connections in turn, and a server
    /// process that has its turn has lost its plans from the processor's caches. Connections that only a peak needs are then
    /// idle for long. If a firewall drops idle connections, set a shorter `keepalives_idle` in the configuration.
    ///
    /// A notifier opens its own connection with `config` and `tls`, because a pool does not expose its settings. Pass
    /// those of the pool. If the pool connects through a pooler in transaction mode, pass the settings of a direct
    /// connection.
    #[must_use]
    pub fn new<T>(pool: Pool, config: Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket, Stream: Send, TlsConnect: TlsConnect<Socket, Future: Send> + Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let listen = move || {
            let (config, tls) = (config.clone(), tls.clone());
            Box::pin(async move {
                let (client, connection) = config.connect(tls).await.map_err(from_driver)?;
                Ok(Listening::over(client, connection))
            }) as BoxFuture<'static, Result<Listening>>
        };
        Self { pool, listen: Arc::new(listen), owned: false }
    }

    async fn begin_with(&self, begin: &str) -> Result<PooledTx> {
        // Wrap before `begin`: if this future is dropped during `begin`, the connection must not return to the pool.
        let tx = PooledTx(Some(self.pool.get().await.map_err(from_pool)?));
        tx.batch_execute(begin).await.map_err(from_driver)?;
        Ok(tx)
    }
}

impl std::fmt::Debug for TokioPostgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokioPostgres").field("pool", &self.pool.status()).finish_non_exhaustive()
    }
}

/// A pooled client inside a transaction. Dropping it before commit or rollback closes the connection, which rolls the
/// transaction back. The connection never returns to the pool inside a transaction.
#[derive(Debug)]
pub struct PooledTx(Option<Client>);

impl PooledTx {
    fn end(mut self) -> Client {
        self.0.take().expect("only `commit` and `rollback` take the client, and they consume this value")
    }
}

impl Deref for PooledTx {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.0.as_ref().expect("only `commit` and `rollback` take the client, and they consume this value")
    }
}

impl DerefMut for PooledTx {
    fn deref_mut(&mut self) -> &mut Client {
        self.0.as_mut().expect("only `commit` and `rollback` take the client, and they consume this value")
    }
}

impl Drop for PooledTx {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

/// A client borrowed inside a transaction: from a [`PooledTx`], from a transaction of tokio-postgres or deadpool, or
/// from a client on which a transaction was begun.
#[derive(Debug)]
pub struct ClientRef<'t> {
    client: &'t tokio_postgres::Client,
    /// Cache of prepared statements of the client, if it has one.
    prepared: Option<&'t StatementCache>,
}

impl<'t> ClientRef<'t> {
    const fn pooled(client: &'t tokio_postgres::Client, prepared: &'t StatementCache) -> Self {
        Self { client, prepared: Some(prepared) }
    }

    async fn run(&self, statement: &Statement, parameters: &[Parameter]) -> Result<Vec<Row>> {
        let rows = match self.prepared.filter(|_| statement.is_cached()) {
            Some(prepared) => {
                let prepared = prepared.prepare(self.client, statement.text()).await.map_err(from_driver)?;
                let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|one| one as _).collect();
                self.client.query(&prepared, &parameters).await
            }
            None => {
                // The driver sends everything in one message, so a pooler cannot switch the server connection in
                // between.
                let typed = |one| (one as &(dyn ToSql + Sync), type_of(one));
                let parameters = parameters.iter().map(typed).collect::<Vec<_>>();
                self.client.query_typed(statement.text(), &parameters).await
            }
        };
        rows.map_err(from_driver)?.iter().map(|found| row(found).map_err(from_driver)).collect()
    }
}

impl<'t> From<&'t mut PooledTx> for ClientRef<'t> {
    fn from(tx: &'t mut PooledTx) -> Self {
        Self::from(&mut ***tx)
    }
}

impl<'t> From<&'t mut ClientWrapper> for ClientRef<'t> {
    fn from(client: &'t mut ClientWrapper) -> Self {
        Self::pooled(client, &client.statement_cache)
    }
}

impl<'t> From<&'t mut deadpool_postgres::Transaction<'_>> for ClientRef<'t> {
    fn from(tx: &'t mut deadpool_postgres::Transaction<'_>) -> Self {
        Self::pooled(tx.client(), &tx.statement_cache)
    }
}

impl<'t> From<&'t mut tokio_postgres::Transaction<'_>> for ClientRef<'t> {
    fn from(tx: &'t mut tokio_postgres::Transaction<'_>) -> Self {
        Self { client: tx.client(), prepared: None }
    }
}

impl<'t> From<&'t mut tokio_postgres::Client> for ClientRef<'t> {
    fn from(client: &'t mut tokio_postgres::Client) -> Self {
        Self { client, prepared: None }
    }
}

impl Deref for ClientRef<'_> {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        self.client
    }
}

impl Provider for TokioPostgres {
    type Tx = PooledTx;
    type TxRef<'t> = ClientRef<'t>;
    type Connection<'t> = ClientRef<'t>;

    fn tx_ref(tx: &mut PooledTx) -> ClientRef<'_> {
        tx.into()
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        tx
    }

    fn reborrow<'t>(tx: &'t mut ClientRef<'_>) -> ClientRef<'t> {
        ClientRef { ..*tx }
    }

    fn run<'a>(
        &'a self,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move {
            let mut client = self.pool.get().await.map_err(from_pool)?;
            ClientRef::from(&mut *client).run(statement, &parameters).await
        })
    }

    fn run_in<'a>(
        &'a self,
        tx: ClientRef<'a>,
        statement: &'a Statement,
        parameters: Vec<Parameter>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        Box::pin(async move { tx.run(statement, &parameters).await })
    }

    fn script<'a>(&'a self, text: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let client = self.pool.get().await.map_err(from_pool)?;
            client.batch_execute(text).await.map_err(from_driver)
        })
    }

    fn script_in<'a>(&'a self, tx: ClientRef<'a>, text: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { tx.batch_execute(text).await.map_err(from_driver) })
    }

    fn ask_in<'a>(&'a self, tx: ClientRef<'a>, text: &'a str) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move {
            let messages = tx.simple_query(text).await.map_err(from_driver)?;
            let value = |message: &SimpleQueryMessage| match message {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            };
            Ok(messages.iter().rev().find_map(value))
        })
    }

    fn begin(&self) -> BoxFuture<'_, Result<PooledTx>> {
        Box::pin(self.begin_with("begin"))
    }

    fn begin_read_committed(&self) -> BoxFuture<'_, Result<PooledTx>> {
        Box::pin(self.begin_with(BEGIN_READ_COMMITTED))
    }

    fn commit(&self, tx: PooledTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            tx.batch_execute("commit").await.map_err(from_driver)?;
            drop(tx.end());
            Ok(())
        })
    }

    fn rollback(&self, tx: PooledTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            tx.batch_execute("rollback").await.map_err(from_driver)?;
            drop(tx.end());
            Ok(())
        })
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let other = self.begin().await?;
            let opened_after = ask(&other, PoolerCheck::TIME_QUERY).await?;
            self.rollback(other).await?;
            let listening = (self.listen)().await?;
            let mut check = PoolerCheck::new(opened_after);
            while check.goes_on() {
                let own = check.own(ask(&listening.client, &check.own_query()).await?);
                let other = self.begin().await?;
                let signs = ask(&other, &check.others_query(&own)).await?;
                self.rollback(other).await?;
                check.evaluate(own, &signs)?;
                sleep(PoolerCheck::PAUSE).await;
            }
            listening.client.batch_execute(&format!("listen \"{channel}\"")).await.map_err(from_driver)?;
            Ok(Box::new(listening) as Box<dyn Listener>)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.owned {
                self.pool.close();
            }
        })
    }
}

struct Listening {
    payloads: mpsc::Receiver<String>,
    reading: JoinHandle<()>,
    /// Keeps the connection open, and queries it before it listens.
    client: tokio_postgres::Client,
}

impl Listening {
    fn over<S, T>(client: tokio_postgres::Client, mut connection: Connection<S, T>) -> Self
    where
        Connection<S, T>: Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin,
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let (sender, payloads) = mpsc::channel(NOTIFICATIONS_MAX);
        let reading = tokio::spawn(async move {
            let mut messages = poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                let AsyncMessage::Notification(notification) = message else { continue };
                if sender.send(notification.payload().to_owned()).await.is_err() {
                    return;
                }
            }
        });
        Self { payloads, reading, client }
    }
}

/// Runs a query that returns one text.
async fn ask(client: &tokio_postgres::Client, query: &str) -> Result<String> {
    let messages = client.simple_query(query).await.map_err(from_driver)?;
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    messages.iter().find_map(row).ok_or_else(|| unreachable("the server returned no row"))
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Listener for Listening {
    fn next(&mut self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async {
            self.payloads.recv().await.ok_or_else(|| unreachable("the listening connection was lost"))
        })
    }
}

const fn type_of(parameter: &Parameter) -> Type {
    match parameter {
        Parameter::Flag(_) => Type::BOOL,
        Parameter::Number(_) => Type::INT8,
        Parameter::Text(_) => Type::TEXT,
        Parameter::Id(_) => Type::UUID,
        Parameter::Numbers(_) => Type::INT8_ARRAY,
        Parameter::Texts(_) => Type::TEXT_ARRAY,
        Parameter::Ids(_) => Type::UUID_ARRAY,
        Parameter::Bytes(_) => Type::BYTEA_ARRAY,
    }
}

impl ToSql for Parameter {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Self::Flag(value) => value.to_sql(of, out),
            Self::Number(value) => value.to_sql(of, out),
            Self::Text(value) => value.to_sql(of, out),
            Self::Id(value) => value.to_sql(of, out),
            Self::Numbers(values) => values.to_sql(of, out),
            Self::Texts(values) => values.to_sql(of, out),
            Self::Ids(values) => values.to_sql(of, out),
            Self::Bytes(values) => {
                values.iter().map(Option::as_deref).collect::<Vec<Option<&[u8]>>>().to_sql(of, out)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn row(row: &tokio_postgres::Row) -> Result<Row, tokio_postgres::Error> {
    let has_job = row.len() > 6 && row.try_get::<_, Option<uuid::Uuid>>(6)?.is_some();
    if has_job {
        let job = Some(Box::new(job_columns!(row)));
        return Ok(Row { part: row.try_get(0)?, item: row.try_get(1)?, job, ..Row::default() });
    }
    let bytes: Option<Vec<Option<Vec<u8>>>> = row.try_get(5)?;
    Ok(Row {
        part: row.try_get(0)?,
        item: row.try_get(1)?,
        ids: row.try_get::<_, Option<_>>(2)?.unwrap_or_default(),
        texts: row.try_get::<_, Option<_>>(3)?.unwrap_or_default(),
        numbers: row.try_get::<_, Option<_>>(4)?.unwrap_or_default(),
        bytes: bytes.unwrap_or_default().into_iter().map(|bytes| bytes.map(Bytes::from)).collect(),
        job: None,
    })
}

/// Returns the servers' addresses and the database, without the password.
fn address(config: &Config) -> String {
    let ports = config.get_ports();
    // One port applies to all hosts.
    let port = |place: usize| ports.get(place).or(ports.first()).copied().unwrap_or(5432);
    let host = |(place, host): (usize, &Host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(place)),
        #[cfg(unix)]
        Host::Unix(directory) => format!("{}:{}", directory.display(), port(place)),
    };
    let mut servers: Vec<_> = config.get_hosts().iter().enumerate().map(host).collect();
    if servers.is_empty() {
        let numeric = config.get_hostaddrs().iter().enumerate();
        servers =
            numeric.map(|(place, address)| SocketAddr::new(*address, port(place)).to_string()).collect();
    }
    let servers = servers.join(",");
    config.get_dbname().map_or(servers.clone(), |database| format!("{servers}/{database}"))
}

fn from_pool(error: deadpool_postgres::PoolError) -> Error {
    use deadpool_postgres::PoolError;
    match error {
        PoolError::Backend(error) => from_driver(error),
        PoolError::Closed => Error::new(ErrorKind::Closed, "the pool is closed: open the store again"),
        PoolError::Timeout(_) => no_connection(),
        _ => unreachable(with_causes(&error)).with_inner(error),
    }
}

fn from_driver(error: tokio_postgres::Error) -> Error {
    let converted = match error.as_db_error() {
        Some(database) => from_sqlstate(database.code().code(), database.message()),
        None if is_without_password(&error) => Error::new(
            ErrorKind::AccessDenied,
            "PostgreSQL requires a password, and the configuration has none: add it to the URL",
        ),
        None => unreachable(with_causes(&error)),
    };
    converted.with_inner(error)
}

/// Whether the server asked for a password that the configuration lacks. The driver has no public kind for this.
fn is_without_password(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|source| source.to_string() == "password missing")
}
