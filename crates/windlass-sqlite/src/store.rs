//! The store: its options, its connections, and the commands handed to the module of their family.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite};
use tokio::sync::{Mutex, MutexGuard};
use windlass_core::command::{
    Acquire, AcquireReply, Create, CreateReply, Durability, Exchange, ExchangeReply, Expire, ExpireReply,
    GetChains, GetChainsReply, GetJobs, GetJobsReply, NextDue, NextDueReply, Reap, ReapReply, Renew,
    RenewReply, Settle, SettleReply,
};
use windlass_core::{
    BoxFuture, Capabilities, Capability, Clock, Counters, Error, ErrorKind, Millis, Result, Store,
    SystemClock, Timestamp,
};

use crate::error::{closed, from_driver};
use crate::migrate::{log_ahead, migrate};
use crate::sql::{Counted, Session, Statements, Write};
use crate::stall::Stalls;

/// What the store can beyond the commands that every store has.
pub const CAPABILITIES: Capabilities =
    Capabilities::CORE.with(Capability::Exchange).with(Capability::NextDue);

/// The longest table prefix, in bytes.
pub const PREFIX_MAX_BYTES: usize = 40;

/// How to open a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct Options {
    path: PathBuf,
    prefix: String,
    clock: Arc<dyn Clock>,
    synchronous: Synchronous,
    busy_timeout: Duration,
    readers: u32,
    #[cfg(feature = "known-bad")]
    known_bad: Option<crate::known_bad::KnownBad>,
}

/// When SQLite waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// At each commit: what was acknowledged survives a loss of power. The default.
    #[default]
    Full,
    /// At checkpoints only: what was acknowledged survives the process, but the latest commits perhaps not a loss of
    /// power. The database stays consistent.
    Normal,
}

impl Options {
    /// The database in this file, which is made if it is missing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            prefix: "windlass_".to_owned(),
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(10),
            readers: 4,
            #[cfg(feature = "known-bad")]
            known_bad: None,
        }
    }

    /// What the names of its tables begin with: the namespace. 1 to 40 of `a-z`, `0-9` and `_`, not beginning with a
    /// digit nor with `sqlite_`; `windlass_` unless given.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// The store's clock; the machine's unless given. All who open one file must go by the same.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// When SQLite waits for the disk.
    #[must_use]
    pub const fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long a command waits for another connection's transaction before it gives up as busy, with the time that it
    /// spent in the queue behind other commands of this store; ten seconds unless given.
    #[must_use]
    pub const fn busy_timeout(mut self, busy_timeout: Duration) -> Self {
        self.busy_timeout = busy_timeout;
        self
    }

    /// How many connections look things up, beside the one that writes; at least one, and four unless given.
    #[must_use]
    pub const fn readers(mut self, readers: u32) -> Self {
        self.readers = readers;
        self
    }

    /// Breaks the store on purpose. For tests of the tests.
    #[cfg(feature = "known-bad")]
    #[doc(hidden)]
    #[must_use]
    pub const fn known_bad(mut self, known_bad: crate::known_bad::KnownBad) -> Self {
        self.known_bad = Some(known_bad);
        self
    }

    fn check(&self) -> Result<()> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let digit_first = self.prefix.starts_with(|first: char| first.is_ascii_digit());
        if self.prefix.is_empty()
            || self.prefix.len() > PREFIX_MAX_BYTES
            || !self.prefix.bytes().all(plain)
            || digit_first
            || self.prefix.starts_with("sqlite_")
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the table prefix {:?} is not 1 to {PREFIX_MAX_BYTES} of a-z, 0-9 and _, beginning neither with a \
                     digit nor with sqlite_",
                    self.prefix
                ),
            ));
        }
        if self.path.as_os_str().is_empty() || self.path.as_os_str() == ":memory:" {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a SQLite store needs a file: give its path, or use the memory store",
            ));
        }
        Ok(())
    }

    fn connection(&self) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new().filename(&self.path).busy_timeout(self.busy_timeout);
        options.disable_statement_logging()
    }

    fn writer(&self) -> SqliteConnectOptions {
        let synchronous = match self.synchronous {
            Synchronous::Full => SqliteSynchronous::Full,
            Synchronous::Normal => SqliteSynchronous::Normal,
        };
        self.connection().create_if_missing(true).synchronous(synchronous).foreign_keys(true)
    }
}

/// Job chains in a SQLite file.
pub struct SqliteStore {
    options: Options,
    statements: Statements,
    /// SQLite has one writer at a time. Commands queue here, first come first served, instead of in SQLite's lock, where
    /// whoever sleeps shortest wins.
    /// `None` after an error: the next command connects again.
    writer: Mutex<Option<Connected>>,
    readers: SqlitePool,
    counted: Counted,
    stalls: Stalls,
    closed: AtomicBool,
}

impl SqliteStore {
    /// Opens the store, and makes or migrates its tables. Any number of stores, in any number of processes, may have the
    /// same file open.
    pub async fn open(options: Options) -> Result<Self> {
        options.check()?;
        let mut writer = options.writer().connect().await.map_err(from_driver)?;
        #[allow(unused_mut, reason = "the known-bad variants change them")]
        let mut statements = Statements::new(&options.prefix);
        log_ahead(&mut writer, &statements, options.busy_timeout).await?;
        migrate(&mut writer, &statements, &options.prefix, &*options.clock).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(options.readers.max(1))
            .acquire_timeout(options.busy_timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(options.connection().read_only(true));
        #[cfg(feature = "known-bad")]
        if let Some(known_bad) = options.known_bad {
            known_bad.spoil(&mut writer, &mut statements, &options.prefix).await?;
        }
        let writer = Connected { connection: writer, patience: Some(options.busy_timeout) };
        Ok(Self {
            options,
            statements,
            writer: Mutex::new(Some(writer)),
            readers,
            counted: Counted::default(),
            stalls: Stalls::default(),
            closed: AtomicBool::new(false),
        })
    }

    /// Waits for its turn to write.
    pub(crate) async fn writer(&self) -> Result<Writer<'_>> {
        let (asked_at, queued_at) = (self.now(), Instant::now());
        let mut connected = self.writer.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if connected.is_none() {
            // A file that has gone meanwhile is not made anew, since it would lack the tables.
            let options = self.options.writer().create_if_missing(false);
            let connection = options.connect().await.map_err(from_driver)?;
            *connected = Some(Connected { connection, patience: Some(self.options.busy_timeout) });
        }
        Ok(Writer { connected, failed: false, asked_at, queued_at, store: self })
    }

    pub(crate) async fn reader(&self) -> Result<Reader<'_>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let connection = self.readers.acquire().await.map_err(from_driver)?;
        Ok(Reader { connection, failed: false, store: self })
    }

    /// The store's time. Commands that write ask for it when they have the write lock.
    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// Whether leases may have expired because nobody could renew them.
    pub(crate) fn forbids_reaping(&self, now: Timestamp, renewal_interval: Millis) -> bool {
        self.stalls.forbid_reaping(now, renewal_interval)
    }

    pub(crate) const fn durability(&self) -> Durability {
        match self.options.synchronous {
            Synchronous::Full => Durability::Synced,
            Synchronous::Normal => Durability::Buffered,
        }
    }

    #[cfg(feature = "known-bad")]
    pub(crate) const fn variant(&self) -> Option<crate::known_bad::KnownBad> {
        self.options.known_bad
    }

    #[cfg(test)]
    pub(crate) const fn statements(&self) -> &Statements {
        &self.statements
    }

    async fn erase_all(&self) -> Result<()> {
        let mut writer = self.writer().await?;
        let mut write = writer.begin().await?;
        let mut session = write.session();
        session.run(&session.statements.erase_jobs, Vec::new()).await?;
        write.commit().await
    }

    async fn close_all(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let writer = self.writer.lock().await.take();
        self.readers.close().await;
        match writer {
            Some(writer) => writer.connection.close().await.map_err(from_driver),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The connection that writes.
struct Connected {
    connection: SqliteConnection,
    /// How long it waits for other connections, if that is known.
    patience: Option<Duration>,
}

/// The writing connection, for as long as one has it.
pub(crate) struct Writer<'s> {
    connected: MutexGuard<'s, Option<Connected>>,
    failed: bool,
    asked_at: Timestamp,
    queued_at: Instant,
    store: &'s SqliteStore,
}

impl Writer<'_> {
    pub(crate) async fn begin(&mut self) -> Result<Write<'_>> {
        let (store, asked_at) = (self.store, self.asked_at);
        let write = self.begin_in_time().await;
        store.stalls.note(asked_at, store.now());
        write
    }

    /// Waits for other connections for as long as the queue has left it.
    async fn begin_in_time(&mut self) -> Result<Write<'_>> {
        let SqliteStore { options, statements, counted, .. } = self.store;
        let connected = self.connected.as_mut().ok_or_else(closed)?;
        let queued = self.queued_at.elapsed();
        // A short time in the queue is not worth a statement.
        let patience = match queued > options.busy_timeout / 10 {
            true => options.busy_timeout.saturating_sub(queued),
            false => options.busy_timeout,
        };
        if connected.patience != Some(patience) {
            connected.patience = None;
            let mut session = Session::new(&mut connected.connection, statements, counted, &mut self.failed);
            session.run_all(format!("pragma busy_timeout = {}", patience.as_millis())).await?;
            connected.patience = Some(patience);
        }
        Write::begin(&mut connected.connection, statements, counted, &mut self.failed).await
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if self.failed {
            *self.connected = None;
        }
    }
}

/// A connection that looks things up.
pub(crate) struct Reader<'s> {
    connection: PoolConnection<Sqlite>,
    failed: bool,
    store: &'s SqliteStore,
}

impl Reader<'_> {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let Self { connection, failed, store } = self;
        Session::new(connection, &store.statements, &store.counted, failed)
    }
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn create(&self, request: Create) -> BoxFuture<'_, Result<CreateReply>> {
        Box::pin(self.create_chains(request))
    }

    fn acquire(&self, request: Acquire) -> BoxFuture<'_, Result<AcquireReply>> {
        Box::pin(self.acquire_jobs(request))
    }

    fn renew(&self, request: Renew) -> BoxFuture<'_, Result<RenewReply>> {
        Box::pin(self.renew_leases(request))
    }

    fn settle(&self, request: Settle) -> BoxFuture<'_, Result<SettleReply>> {
        Box::pin(self.settle_attempts(request))
    }

    fn exchange(&self, request: Exchange) -> BoxFuture<'_, Result<ExchangeReply>> {
        Box::pin(self.exchange_attempts(request))
    }

    fn reap(&self, request: Reap) -> BoxFuture<'_, Result<ReapReply>> {
        Box::pin(self.reap_jobs(request))
    }

    fn next_due(&self, request: NextDue) -> BoxFuture<'_, Result<NextDueReply>> {
        Box::pin(self.look_due_up(request))
    }

    fn expire(&self, request: Expire) -> BoxFuture<'_, Result<ExpireReply>> {
        Box::pin(self.expire_chains(request))
    }

    fn get_chains(&self, request: GetChains) -> BoxFuture<'_, Result<GetChainsReply>> {
        Box::pin(self.look_chains_up(request))
    }

    fn get_jobs(&self, request: GetJobs) -> BoxFuture<'_, Result<GetJobsReply>> {
        Box::pin(self.look_jobs_up(request))
    }

    fn erase(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.erase_all())
    }

    fn counters(&self) -> Counters {
        self.counted.counters()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.close_all())
    }
}
