//! The store: routes each command to the writer, to a read connection, or into a transaction.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use tokio::task::spawn_blocking;
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Counters, Error, ErrorKind, Finding, Notifier, Result, Stalls, Store,
    Transactional, for_each_command,
};

use crate::connection::{Location, Readers, closed};
use crate::error::from_sqlite;
use crate::health::findings;
use crate::migrate::{MIGRATIONS, log_ahead, migrate};
use crate::notifier::SqliteNotifier;
use crate::options::Options;
use crate::provider::Provider;
use crate::session::{Base, Counted, Held};
use crate::sqlx::Sqlx;
use crate::statement::{Texts, fill};
use crate::writer::Writer;

/// A store of job chains in a SQLite file. See the [crate docs](crate).
pub struct SqliteStore<P: Provider = Sqlx> {
    options: Options,
    writer: Arc<Writer<P>>,
    readers: Arc<Readers>,
    pub(crate) notifier: SqliteNotifier,
    closed: AtomicBool,
    /// The value of `pragma synchronous` on the writing connections.
    synchronous: i64,
    /// A statement that takes the write lock and changes nothing.
    take_lock: String,
}

impl SqliteStore {
    /// Opens the store, and creates or migrates its tables. Any number of stores, in any number of processes, may open
    /// the same file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the table prefix or the path is invalid. [`ErrorKind::Incompatible`] if the tables
    /// belong to a newer version. [`ErrorKind::Outdated`] if they are missing or old and [`Options::migrate`] is off.
    /// Any error that SQLite returns for the file.
    pub async fn open(options: Options) -> Result<Self> {
        options.check_prefix()?;
        let provider = Sqlx::open(&options).await?;
        Self::over(provider, options).await
    }
}

impl<P: Provider> SqliteStore<P> {
    /// Opens the store on the application's own driver. The driver determines the path and the `synchronous` setting;
    /// the store ignores these two options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the table prefix is invalid, or if the driver's database is not a file.
    /// [`ErrorKind::Incompatible`] and [`ErrorKind::Outdated`] as for [`open`](SqliteStore::open).
    pub async fn over(provider: P, options: Options) -> Result<Self> {
        options.check_prefix()?;
        let options = options.at(provider.path());
        options.check_path()?;
        let synchronous = provider.synchronous().await?;
        // The driver has connected, so the file exists. Resolve its path to an absolute one without links, so that all
        // connections open the same file, and the notifier finds the log next to it.
        let path = provider.path();
        let path = path.canonicalize().unwrap_or(path);
        let location = Location { path, busy_timeout: options.write_timeout() };
        let (preparing, opening) = (options.clone(), location.clone());
        let prepare = move || -> Result<()> {
            let connection = opening.open_writer(synchronous, preparing.write_timeout())?;
            log_ahead(&connection, preparing.write_timeout())?;
            migrate(&connection, &preparing, MIGRATIONS)?;
            #[cfg(feature = "known-bad")]
            if let Some(known_bad) = preparing.variant() {
                known_bad.spoil(&connection, preparing.table_prefix())?;
            }
            Ok(())
        };
        spawn_blocking(prepare).await.map_err(stopped)??;
        let take_lock = fill("update {prefix}sequence set last = last where false", options.table_prefix());
        check_writable(&provider, &take_lock, options.write_timeout()).await?;
        let durability = if synchronous >= 2 { Durability::Synced } else { Durability::Buffered };
        let base = Arc::new(Base {
            texts: Texts::new(options.table_prefix()),
            clock: options.store_clock(),
            durability,
            stalls: Stalls::default(),
            counted: Counted::default(),
            held: Held::default(),
        });
        let options = options.at(location.path.clone());
        let readers = Arc::new(Readers::new(location.clone(), options.reading_connections()));
        // Open a read connection now: the first query does not have to wait for it, and errors surface here.
        readers.run(|_| Ok(())).await?;
        let notifier = SqliteNotifier::new(
            Arc::clone(&base),
            Arc::clone(&readers),
            &location.path,
            options.table_prefix(),
        );
        let writer = Writer::new(provider, base, location, synchronous, options.write_timeout());
        Ok(Self {
            options,
            writer,
            readers,
            notifier,
            closed: AtomicBool::new(false),
            synchronous,
            take_lock,
        })
    }

    /// Returns the driver.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.writer.provider
    }

    pub(crate) fn base(&self) -> &Arc<Base> {
        &self.writer.base
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    async fn run<R: Request>(&self, request: R) -> Result<R::Reply> {
        self.check_open()?;
        let command: Command = request.into();
        #[cfg(feature = "known-bad")]
        if let Some(known_bad) = self.options.variant().filter(|_| !command.is_query()) {
            return self.execute_badly(known_bad, command).await?.try_into();
        }
        if command.is_query() {
            let base = Arc::clone(self.base());
            self.read(move |connection| base.execute_on(connection, &command)).await
        } else {
            self.writer.execute(command).await
        }?
        .try_into()
    }

    /// Runs work on a read connection, in one transaction.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let result = self.readers.run(work).await;
        self.base().counted.round_trip();
        result
    }

    /// Executes a command in a transaction of the application, in full or not at all.
    async fn run_in(&self, tx: P::TxRef<'_>, command: &Command) -> Result<Reply> {
        // Wait for the write lock here, where the wait does not block the runtime. Later it would, because the command
        // runs on this thread. A transaction that read before others wrote cannot get the lock.
        let first = if command.is_query() { "select 1" } else { &self.take_lock };
        #[cfg(feature = "known-bad")]
        if let Some(known_bad) = self.options.variant() {
            return self.execute_badly_in(tx, known_bad, first, command.clone()).await;
        }
        self.lend(tx, first, |connection| execute_in(self.base(), connection, command)).await
    }

    /// Runs a statement on the driver's connection, and then work on this thread.
    pub(crate) async fn lend<T: Send>(
        &self,
        mut tx: P::TxRef<'_>,
        first: &str,
        mut work: impl FnMut(&Connection) -> Result<T> + Send,
    ) -> Result<T> {
        self.provider().run_in(P::reborrow(&mut tx), first).await?;
        let mut result = None;
        let mut work = |connection: &Connection| result = Some(work(connection));
        self.provider().with_connection(P::reborrow(&mut tx), &mut work).await?;
        self.base().counted.round_trip();
        result.unwrap_or_else(|| {
            let text = "the driver did not lend its connection: fix the provider";
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    async fn erase_all(&self) -> Result<()> {
        self.check_open()?;
        let mut tx = self.writer.begin().await?;
        let text = "delete from {prefix}job; delete from {prefix}blocker; delete from {prefix}attempt; \
                    delete from {prefix}tally; delete from {prefix}paused; delete from {prefix}worker; \
                    delete from {prefix}leader; delete from {prefix}schedule";
        self.provider().run_in(P::tx_ref(&mut tx), &fill(text, self.options.table_prefix())).await?;
        self.end(self.provider().commit(tx).await)
    }

    /// Records the end of a transaction.
    fn end(&self, ended: Result<()>) -> Result<()> {
        self.base().counted.commit();
        self.base().stalls.ended(self.base().now());
        ended
    }

    async fn close_all(&self) {
        self.closed.store(true, Ordering::Release);
        self.readers.close().await;
        self.provider().close().await;
        // Close the writer last: the last connection to close checkpoints the log into the file, and a read-only one
        // cannot.
        self.writer.close().await;
    }
}

/// Executes a command in the open transaction of a connection. A savepoint undoes the writes of a command that fails.
fn execute_in(base: &Base, connection: &Connection, command: &Command) -> Result<Reply> {
    check_in_transaction(connection)?;
    let run = |text| connection.execute_batch(text).map_err(|error| from_sqlite(&error));
    if command.is_query() {
        return base.execute_on(connection, command);
    }
    run("savepoint windlass_command")?;
    match base.execute_on(connection, command) {
        Ok(reply) => run("release windlass_command").map(|()| reply),
        Err(error) => {
            // Return the command's error rather than that of the rollback, which fails if SQLite has already rolled
            // back by itself.
            let _ = run("rollback to windlass_command; release windlass_command");
            Err(error)
        }
    }
}

fn check_in_transaction(connection: &Connection) -> Result<()> {
    if connection.is_autocommit() {
        let text = "there is no transaction, or an error has ended it: roll it back, and begin a new one";
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Fails if the driver cannot write to the file, so that the error is not found only at the first command in a
/// transaction.
async fn check_writable<P: Provider>(provider: &P, take_lock: &str, timeout: Duration) -> Result<()> {
    let mut tx = provider.begin(timeout).await?;
    provider.run_in(P::tx_ref(&mut tx), take_lock).await?;
    provider.rollback(tx).await
}

fn stopped(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the store was not opened: the runtime is shutting down")
        .with_source(error)
}

impl<P: Provider> fmt::Debug for SqliteStore<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("options", &self.options).finish_non_exhaustive()
    }
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl<P: Provider> Store for SqliteStore<P> {
            fn capabilities(&self) -> Capabilities {
                // A commit waits for the disk.
                Capabilities::all().joining()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(self.run(request))
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(self.erase_all())
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                Box::pin(async {
                    self.check_open()?;
                    let (synchronous, integrity) = (self.synchronous, self.options.checks_integrity());
                    self.read(move |connection| findings(connection, synchronous, integrity)).await
                })
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                Arc::new(self.notifier.clone())
            }

            fn counters(&self) -> Counters {
                self.base().counted.counters()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.close_all().await;
                    Ok(())
                })
            }
        }
    };
}
for_each_command!(store);

impl<P: Provider> Transactional for SqliteStore<P> {
    type Tx = P::Tx;
    type TxRef<'t> = P::TxRef<'t>;
    type Connection<'t> = P::Connection<'t>;

    fn tx_ref(tx: &mut P::Tx) -> P::TxRef<'_> {
        P::tx_ref(tx)
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        P::connection(tx)
    }

    fn reborrow<'t>(tx: &'t mut P::TxRef<'_>) -> P::TxRef<'t> {
        P::reborrow(tx)
    }

    fn begin(&self) -> BoxFuture<'_, Result<P::Tx>> {
        Box::pin(async {
            self.check_open()?;
            self.writer.begin().await
        })
    }

    fn commit(&self, tx: P::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.end(self.provider().commit(tx).await) })
    }

    fn rollback(&self, tx: P::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let ended = self.provider().rollback(tx).await;
            self.base().stalls.ended(self.base().now());
            ended
        })
    }

    fn savepoint<'a>(&'a self, tx: P::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        // Outside a transaction, SQLite would begin one here.
        let set = |connection: &Connection| {
            check_in_transaction(connection)?;
            connection.execute_batch("savepoint windlass").map_err(|error| from_sqlite(&error))
        };
        Box::pin(self.lend(tx, "select 1", set))
    }

    fn release<'a>(&'a self, tx: P::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.provider().run_in(tx, "release windlass").await.map_err(no_savepoint) })
    }

    fn rollback_to<'a>(&'a self, tx: P::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let text = "rollback to windlass; release windlass";
            self.provider().run_in(tx, text).await.map_err(no_savepoint)
        })
    }

    fn execute_in<'a>(&'a self, tx: P::TxRef<'a>, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            self.check_open()?;
            if !command.is_transactional() {
                let name = command.name();
                let text = format!(
                    "`{name}` cannot run in a transaction: workers rely on its immediate effect; run it without one"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            self.run_in(tx, &command).await
        })
    }
}

/// Turns the error of a missing savepoint into one of kind `Invalid`.
fn no_savepoint(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable => {
            Error::new(ErrorKind::Invalid, "the transaction has no savepoint: call `savepoint` first")
                .with_source(error)
        }
        _ => error,
    }
}
