//! The store: the commands handed to the writer, to a connection that looks, or into a transaction.

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

/// Job chains in a SQLite file. See the [crate's page](crate).
pub struct SqliteStore<P: Provider = Sqlx> {
    options: Options,
    writer: Arc<Writer<P>>,
    /// Whether a command in a transaction was dropped half-way. What it wrote is taken back before anything else happens
    /// in that transaction, which is the only one: it has the write lock.
    cut: AtomicBool,
    closed: AtomicBool,
    /// SQLite's number for when it waits for the disk.
    synchronous: i64,
}

impl SqliteStore {
    /// Opens the store, and makes or migrates its tables. Any number of stores, in any number of processes, may have the
    /// same file open.
    pub async fn open(options: Options) -> Result<Self> {
        options.check_prefix()?;
        let provider = Sqlx::open(&options).await?;
        Self::over(provider, options).await
    }
}

impl<P: Provider> SqliteStore<P> {
    /// Opens the store over the application's own driver. Path, synchronous writing and the number of readers are the
    /// driver's affair then.
    pub async fn over(provider: P, options: Options) -> Result<Self> {
        options.check_prefix()?;
        let patience = options.patience();
        log_ahead(&provider, patience).await?;
        migrate(&provider, &options, MIGRATIONS).await?;
        let synchronous = check_settings(&provider, &options).await?;
        let durability = if synchronous >= 2 { Durability::Synced } else { Durability::Buffered };
        // The first look-up need not wait for a connection, and what keeps one from being made is said here.
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
        let writer = Writer::new(provider, base, patience);
        Ok(Self { options, writer, cut: AtomicBool::new(false), closed: AtomicBool::new(false), synchronous })
    }

    /// The driver.
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
            true => Err(Error::new(ErrorKind::Closed, "the store was closed: open it again")),
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
        if command.is_query() { self.look(&command).await } else { self.writer.carry_out(command).await }?
            .try_into()
    }

    pub(crate) async fn look(&self, query: &Command) -> Result<Reply> {
        let mut connection = Reading(self.provider());
        execute(&mut Session::new(&mut connection, self.base()), query).await
    }

    /// Carries a command out in a transaction: whole, or not at all.
    async fn write_in(&self, tx: &mut P::Tx, command: &Command) -> Result<Reply> {
        self.mend(tx).await?;
        self.provider().script_in(tx, "savepoint windlass_command").await?;
        let cut = Cut(&self.cut);
        let reply = self.execute_as_is(tx, command).await;
        let end = match reply {
            Ok(_) => "release windlass_command",
            Err(_) => TAKE_BACK,
        };
        let ended = self.provider().script_in(tx, end).await;
        std::mem::forget(cut);
        match reply {
            Ok(reply) => ended.map(|()| reply),
            // The error that counts is this one: SQLite may have rolled back by itself.
            Err(error) => Err(error),
        }
    }

    async fn execute_as_is(&self, tx: &mut P::Tx, command: &Command) -> Result<Reply> {
        let mut connection = Writing { provider: self.provider(), tx };
        execute(&mut Session::new(&mut connection, self.base()), command).await
    }

    /// Takes back what a command wrote that was dropped half-way.
    async fn mend(&self, tx: &mut P::Tx) -> Result<()> {
        if self.cut.swap(false, Ordering::AcqRel) {
            // If that transaction was rolled back since, there is nothing to return to.
            let _ = self.provider().script_in(tx, TAKE_BACK).await;
        }
        Ok(())
    }

    async fn erase_all(&self) -> Result<()> {
        self.check_open()?;
        let mut tx = self.writer.begin().await?;
        // Blockers and attempts go with their jobs.
        let text = "delete from {prefix}job; delete from {prefix}paused; delete from {prefix}worker; \
                    delete from {prefix}leader";
        self.provider().script_in(&mut tx, &fill(text, self.options.table_prefix())).await?;
        self.end(self.provider().commit(tx).await)
    }

    /// Notes the end of a transaction.
    fn end(&self, ended: Result<()>) -> Result<()> {
        self.base().counted.commit();
        self.base().stalls.ended(self.base().now());
        ended
    }
}

/// Returns to the state before a command.
const TAKE_BACK: &str = "rollback to windlass_command; release windlass_command";

/// Notes that a command was dropped half-way.
struct Cut<'a>(&'a AtomicBool);

impl Drop for Cut<'_> {
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
                    findings(self.provider(), self.synchronous, self.options.looks_for_damage()).await
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
    type Lent<'t> = &'t mut P::Tx;

    fn lend(tx: &mut P::Tx) -> &mut P::Tx {
        tx
    }

    fn lend_on<'t>(tx: &'t mut &mut P::Tx) -> &'t mut P::Tx {
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
            self.mend(&mut tx).await?;
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
            self.mend(tx).await?;
            self.provider().script_in(tx, "savepoint windlass").await
        })
    }

    fn release<'a>(&'a self, tx: &'a mut P::Tx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.mend(tx).await?;
            self.provider().script_in(tx, "release windlass").await.map_err(no_savepoint)
        })
    }

    fn rollback_to<'a>(&'a self, tx: &'a mut P::Tx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.mend(tx).await?;
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
                    "`{name}` belongs to workers and takes effect at once: give it outside the transaction"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            if !self.provider().is_open(tx).await? {
                let text = "there is no transaction, or an error has ended it: roll back, and begin anew";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            match command.is_query() {
                true => self.execute_as_is(tx, &command).await,
                false => self.write_in(tx, &command).await,
            }
        })
    }
}

/// The error of a place that is not there.
fn no_savepoint(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable => Error::new(
            ErrorKind::Invalid,
            "the transaction has no savepoint: make one before you return to it",
        )
        .with_source(error),
        _ => error,
    }
}

/// When SQLite waits for the disk, as the driver has set it up. Refuses what the store cannot work with.
async fn check_settings<P: Provider>(provider: &P, options: &Options) -> Result<i64> {
    let mut tx = provider.begin(options.patience()).await?;
    let text = "select foreign_keys, synchronous from pragma_foreign_keys, pragma_synchronous";
    let rows = provider.run_in(&mut tx, &Statement::new(text), Vec::new()).await;
    // A file that cannot be written is noticed here and not by the first command.
    let nothing = fill("update {prefix}migration set name = name where step = 0", options.table_prefix());
    provider.script_in(&mut tx, &nothing).await?;
    provider.rollback(tx).await?;
    let setting = |name| rows.as_ref().ok()?.first()?.maybe_number::<i64>(name).ok().flatten();
    if setting("foreign_keys") != Some(1) {
        return Err(Error::new(
            ErrorKind::Invalid,
            "the connections do not watch over foreign keys: turn `foreign_keys` on for all of them",
        ));
    }
    Ok(setting("synchronous").unwrap_or_default())
}
