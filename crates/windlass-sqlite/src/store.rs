//! The store: routes each command to the writer, to a read connection, or into a transaction.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Counters, Error, ErrorKind, Finding, Result, Store, Transactional,
    for_each_command,
};

use crate::health::findings;
use crate::migrate::{MIGRATIONS, log_ahead, migrate};
use crate::options::Options;
use crate::provider::{Provider, Statement};
use crate::session::{Base, Counted, Reading, Session, Writing, execute};
use crate::sqlx::Sqlx;
use crate::stall::Stalls;
use crate::statement::{Statements, fill};
use crate::writer::Writer;

/// A store of job chains in a SQLite file. See the [crate docs](crate).
pub struct SqliteStore<P: Provider = Sqlx> {
    options: Options,
    writer: Arc<Writer<P>>,
    /// Whether a command inside a transaction was dropped before it finished. Its partial writes are rolled back before
    /// the store runs the next write in that transaction. One flag is enough: a transaction holds the write lock, so
    /// only one is open at a time.
    interrupted: AtomicBool,
    closed: AtomicBool,
    /// The value of `pragma synchronous` on the writing connection.
    synchronous: i64,
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
    /// Opens the store on the application's own driver. The driver decides the path, the `synchronous` setting and the
    /// number of readers; the store ignores these options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the table prefix is invalid, or if the connections do not enforce foreign keys.
    /// [`ErrorKind::Incompatible`] and [`ErrorKind::Outdated`] as for [`open`](SqliteStore::open).
    pub async fn over(provider: P, options: Options) -> Result<Self> {
        options.check_prefix()?;
        let write_timeout = options.write_timeout();
        log_ahead(&provider, write_timeout).await?;
        migrate(&provider, &options, MIGRATIONS).await?;
        let synchronous = check_settings(&provider, &options).await?;
        let durability = if synchronous >= 2 { Durability::Synced } else { Durability::Buffered };
        // Open a read connection now: the first query does not have to wait for it, and connection errors surface here.
        provider.run(&Statement::new("select 1"), Vec::new()).await?;
        #[allow(unused_mut, reason = "the known-bad variants change them")]
        let mut statements = Statements::new(options.table_prefix());
        #[cfg(feature = "known-bad")]
        if let Some(known_bad) = options.variant() {
            known_bad.spoil(&provider, &mut statements, options.table_prefix()).await?;
        }
        let clock = options.store_clock();
        let (stalls, counted) = (Stalls::default(), Counted::default());
        let base = Base { statements, clock, durability, stalls, counted };
        let writer = Writer::new(provider, base, write_timeout);
        Ok(Self {
            options,
            writer,
            interrupted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            synchronous,
        })
    }

    /// Returns the driver.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.writer.provider
    }

    pub(crate) fn base(&self) -> &Base {
        &self.writer.base
    }

    #[cfg(feature = "known-bad")]
    pub(crate) const fn variant(&self) -> Option<crate::known_bad::KnownBad> {
        self.options.variant()
    }

    fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "the store is closed: open it again")),
            false => Ok(()),
        }
    }

    async fn run<R: Request>(&self, request: R) -> Result<R::Reply> {
        self.check_open()?;
        let command: Command = request.into();
        #[cfg(feature = "known-bad")]
        if self.variant().is_some() && !command.is_query() {
            return self.carry_out_badly(&command).await?.try_into();
        }
        if command.is_query() { self.query(&command).await } else { self.writer.execute(command).await }?
            .try_into()
    }

    pub(crate) async fn query(&self, query: &Command) -> Result<Reply> {
        let mut connection = Reading(self.provider());
        execute(&mut Session::new(&mut connection, self.base()), query).await
    }

    /// Executes a command in a transaction, in full or not at all: a savepoint undoes the writes of a command that
    /// fails.
    async fn write_in(&self, tx: &mut P::Tx, command: &Command) -> Result<Reply> {
        self.undo_interrupted(tx).await?;
        self.provider().script_in(tx, "savepoint windlass_command").await?;
        let interrupted = Interruption(&self.interrupted);
        let reply = self.execute_as_is(tx, command).await;
        let end = match reply {
            Ok(_) => "release windlass_command",
            Err(_) => UNDO_COMMAND,
        };
        let ended = self.provider().script_in(tx, end).await;
        std::mem::forget(interrupted);
        match reply {
            Ok(reply) => ended.map(|()| reply),
            // Return the command's error rather than that of the rollback, which fails if SQLite has already rolled
            // back by itself.
            Err(error) => Err(error),
        }
    }

    async fn execute_as_is(&self, tx: &mut P::Tx, command: &Command) -> Result<Reply> {
        let mut connection = Writing { provider: self.provider(), tx };
        execute(&mut Session::new(&mut connection, self.base()), command).await
    }

    /// Rolls back the partial writes of a command that was dropped before it finished.
    async fn undo_interrupted(&self, tx: &mut P::Tx) -> Result<()> {
        if self.interrupted.swap(false, Ordering::AcqRel) {
            // The interrupted transaction may have been rolled back since. Then the savepoint is gone, and there is
            // nothing to undo.
            let _ = self.provider().script_in(tx, UNDO_COMMAND).await;
        }
        Ok(())
    }

    async fn erase_all(&self) -> Result<()> {
        self.check_open()?;
        let mut tx = self.writer.begin().await?;
        // Foreign keys cascade the delete to blockers and attempts.
        let text = "delete from {prefix}job; delete from {prefix}paused; delete from {prefix}worker; \
                    delete from {prefix}leader";
        self.provider().script_in(&mut tx, &fill(text, self.options.table_prefix())).await?;
        self.end(self.provider().commit(tx).await)
    }

    /// Records the end of a transaction.
    fn end(&self, ended: Result<()>) -> Result<()> {
        self.base().counted.commit();
        self.base().stalls.ended(self.base().now());
        ended
    }
}

/// Rolls back to the state before a command.
const UNDO_COMMAND: &str = "rollback to windlass_command; release windlass_command";

/// Sets the flag when dropped. [`write_in`](SqliteStore::write_in) forgets it when the command has ended, so that it is
/// dropped only together with a cancelled future.
struct Interruption<'a>(&'a AtomicBool);

impl Drop for Interruption<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
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
                Capabilities::all()
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
                    findings(self.provider(), self.synchronous, self.options.checks_integrity()).await
                })
            }

            fn counters(&self) -> Counters {
                self.base().counted.counters()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.closed.store(true, Ordering::Release);
                    self.provider().close().await;
                    Ok(())
                })
            }
        }
    };
}
for_each_command!(store);

impl<P: Provider> Transactional for SqliteStore<P> {
    type Tx = P::Tx;
    type TxRef<'t> = &'t mut P::Tx;

    fn tx_ref(tx: &mut P::Tx) -> &mut P::Tx {
        tx
    }

    fn reborrow<'t>(tx: &'t mut &mut P::Tx) -> &'t mut P::Tx {
        tx
    }

    fn begin(&self) -> BoxFuture<'_, Result<P::Tx>> {
        Box::pin(async {
            self.check_open()?;
            self.writer.begin().await
        })
    }

    fn commit(&self, mut tx: P::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.undo_interrupted(&mut tx).await?;
            self.end(self.provider().commit(tx).await)
        })
    }

    fn rollback(&self, tx: P::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let ended = self.provider().rollback(tx).await;
            self.base().stalls.ended(self.base().now());
            ended
        })
    }

    fn savepoint<'a>(&'a self, tx: &'a mut P::Tx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.undo_interrupted(tx).await?;
            self.provider().script_in(tx, "savepoint windlass").await
        })
    }

    fn release<'a>(&'a self, tx: &'a mut P::Tx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.undo_interrupted(tx).await?;
            self.provider().script_in(tx, "release windlass").await.map_err(no_savepoint)
        })
    }

    fn rollback_to<'a>(&'a self, tx: &'a mut P::Tx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.undo_interrupted(tx).await?;
            self.provider()
                .script_in(tx, "rollback to windlass; release windlass")
                .await
                .map_err(no_savepoint)
        })
    }

    fn execute_in<'a>(&'a self, tx: &'a mut P::Tx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            self.check_open()?;
            if !command.is_transactional() {
                let name = command.name();
                let text = format!(
                    "`{name}` cannot run in a transaction: workers rely on its immediate effect; run it without one"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            if !self.provider().is_open(tx).await? {
                let text =
                    "there is no transaction, or an error has ended it: roll it back, and begin a new one";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            match command.is_query() {
                true => self.execute_as_is(tx, &command).await,
                false => self.write_in(tx, &command).await,
            }
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

/// Returns the `synchronous` setting of the driver's connections. Fails if they do not enforce foreign keys, or if the
/// file is not writable.
async fn check_settings<P: Provider>(provider: &P, options: &Options) -> Result<i64> {
    let mut tx = provider.begin(options.write_timeout()).await?;
    let text = "select foreign_keys, synchronous from pragma_foreign_keys, pragma_synchronous";
    let rows = provider.run_in(&mut tx, &Statement::new(text), Vec::new()).await;
    // An update that changes no row: a read-only file fails here, rather than at the first command.
    let nothing = fill("update {prefix}migration set name = name where step = 0", options.table_prefix());
    provider.script_in(&mut tx, &nothing).await?;
    provider.rollback(tx).await?;
    let setting = |name| rows.as_ref().ok()?.first()?.maybe_number::<i64>(name).ok().flatten();
    if setting("foreign_keys") != Some(1) {
        return Err(Error::new(
            ErrorKind::Invalid,
            "the connections do not enforce foreign keys: turn `foreign_keys` on for all of them",
        ));
    }
    Ok(setting("synchronous").unwrap_or_default())
}
