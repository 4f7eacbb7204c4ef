//! [`PostgresStore`]. Each command is implemented in the module of its family.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Clock, Counters, Error, ErrorKind, Finding, LazyNotifier, Notifier, Result,
    Store, Transactional, TxEnd, TxId, for_each_command,
};

use crate::error::{is_idle_timeout, name_role};
use crate::floors::{Floors, Scan};
use crate::health;
use crate::maintenance::{Maintenance, Task};
use crate::migrate::{MIGRATIONS, migrate};
use crate::notifier::PostgresNotifier;
use crate::options::Options;
use crate::provider::{Parameter, Provider, Row, SET_TIMEOUTS, Statement};
use crate::settings::{self, Defaults, TABLES};
use crate::statement::{Names, Statements};

/// Maximum number of attempts to open a store while the server ends its transactions because they are idle. If the role's
/// timeout is short, a busy machine may take longer between two statements.
const IDLE_TRIES: usize = 10;

/// Maximum number of attempts for a command that conflicts with a concurrent transaction.
const CONFLICT_TRIES: usize = 3;

/// How often, and after how long, an attempt's job is locked again while its lease is being renewed.
const LOCK_TRIES: usize = 25;
const LOCK_DELAY: Duration = Duration::from_millis(20);

/// A store in a PostgreSQL database. `P` is the driver: sqlx by default. See the [crate documentation](crate).
///
/// [`open`](crate::open()) and [`connect`](crate::connect()) open it with default options. With other options, or another
/// driver, call [`PostgresStore::open`]:
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(pool: sqlx::PgPool) -> windlass::Result<()> {
/// use windlass::Client;
/// use windlass::postgres::{Options, PostgresStore, Sqlx};
///
/// let options = Options::default().schema("jobs").migrate(false);
/// let client = Client::new(PostgresStore::open(Sqlx::from(pool), options).await?);
/// # let _ = client; Ok(())
/// # }
/// ```
pub struct PostgresStore<#[cfg(feature = "sqlx")] P = crate::Sqlx, #[cfg(not(feature = "sqlx"))] P> {
    provider: Arc<P>,
    options: Options,
    names: Names,
    statements: Statements,
    in_transaction: Statements,
    savepoints: Statement,
    ends: Statement,
    clock: Option<Arc<dyn Clock>>,
    durability: Durability,
    /// Whether each command runs in a transaction begun for it, because the defaults of the session do not suit the
    /// store. Guessed when the store is opened, and set when a command without a transaction is refused.
    begins: AtomicBool,
    /// Whether transactions read from a snapshot by default: repeatable read or serializable.
    snapshots: bool,
    /// Name of the connection's role, for messages.
    role: String,
    /// Whether these transactions need longer timeouts than the session's.
    has_short_timeout: AtomicBool,
    maintenance: Arc<Maintenance>,
    closed: AtomicBool,
    round_trips: AtomicU64,
    commits: AtomicU64,
}

/// Checks the server and brings the schema to the current version. Can be repeated.
async fn prepare<P: Provider>(provider: &P, names: &Names, migrates: bool) -> Result<Defaults> {
    let defaults = settings::check(provider).await?;
    let denied = |error| name_role(error, &defaults.role);
    migrate(provider, names, MIGRATIONS, migrates).await.map_err(denied)?;
    settings::check_access(provider, names).await.map_err(denied)?;
    Ok(defaults)
}

impl<P: Provider> PostgresStore<P> {
    /// Opens the store and, by default, creates or migrates its schema. Any number of programs may do so at the same
    /// time.
    pub async fn open(provider: P, mut options: Options) -> Result<Self> {
        let names = options.names()?;
        let mut tries = 1;
        let defaults = loop {
            match prepare(&provider, &names, options.migrate).await {
                Err(error) if is_idle_timeout(&error) && tries < IDLE_TRIES => tries += 1,
                prepared => break prepared?,
            }
        };
        let cached = match options.cached_statements {
            Some(chosen) => chosen,
            None => provider.may_cache_statements().await,
        };
        // The notifier shares the provider.
        options = options.cached_statements(cached);
        Ok(Self {
            statements: Statements::new(&names, cached),
            in_transaction: Statements::in_transaction(&names, cached),
            savepoints: Statement::new(SAVEPOINTS.to_owned(), cached),
            ends: Statement::new(ENDS.to_owned(), cached),
            provider: Arc::new(provider),
            names,
            clock: options.clock.clone(),
            options,
            durability: defaults.durability,
            begins: AtomicBool::new(defaults.needs_begin),
            has_short_timeout: AtomicBool::new(defaults.has_short_timeout),
            snapshots: defaults.snapshots,
            role: defaults.role,
            maintenance: Arc::default(),
            closed: AtomicBool::new(false),
            round_trips: AtomicU64::new(0),
            commits: AtomicU64::new(0),
        })
    }

    /// Returns the provider.
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// Returns the statements of all commands with their names. For tests.
    #[doc(hidden)]
    pub fn statements(&self) -> Vec<(&'static str, Arc<str>)> {
        let text = |(name, statement): (_, &Statement)| (name, statement.text().clone());
        self.statements.all().into_iter().map(text).collect()
    }

    pub(crate) fn call<'a>(&'a self, tx: Option<P::TxRef<'a>>) -> Result<Call<'a, P>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store is closed: open it again"));
        }
        Ok(Call { store: self, tx })
    }

    /// Runs a statement outside a transaction of the application.
    ///
    /// If the defaults of the session do not suit the store, the function in the database refuses to write. This
    /// statement and all later ones then run in a transaction begun for them, which takes two more round trips. The
    /// settings of the session are not changed, because the application uses it too.
    async fn run_alone(&self, statement: &Statement, parameters: &[Parameter]) -> Result<Vec<Row>> {
        if !self.begins.load(Ordering::Relaxed) {
            match self.provider.run(statement, parameters.to_vec()).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                done => return done,
            }
        }
        match self.run_begun(statement, parameters.to_vec()).await {
            // The timeout of this session is too short, too.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.has_short_timeout.store(true, Ordering::Relaxed);
                self.run_begun(statement, parameters.to_vec()).await
            }
            done => done,
        }
    }

    /// Runs a statement in a transaction begun for it.
    async fn run_begun(&self, statement: &Statement, parameters: Vec<Parameter>) -> Result<Vec<Row>> {
        let mut tx = self.provider.begin_read_committed().await?;
        self.round_trips.fetch_add(2, Ordering::Relaxed);
        let rows = async {
            if self.has_short_timeout.load(Ordering::Relaxed) {
                self.round_trips.fetch_add(1, Ordering::Relaxed);
                self.provider.script_in(P::tx_ref(&mut tx), SET_TIMEOUTS).await?;
            }
            self.provider.run_in(P::tx_ref(&mut tx), statement, parameters).await
        };
        match rows.await {
            Ok(rows) => {
                self.provider.commit(tx).await?;
                // Set only after a success: a standby also refuses the first try, and may be promoted later.
                self.begins.store(true, Ordering::Relaxed);
                Ok(rows)
            }
            Err(error) => {
                // If the rollback fails too, the connection is lost, and the server rolls back.
                let _ = self.provider.rollback(tx).await;
                Err(error)
            }
        }
    }

    /// Begins a transaction whose first statement renews the lease of an attempt, which locks its job. Until the
    /// transaction ends, no other renewal can commit and conflict with the settlement.
    async fn begin_locked(&self, attempt: RenewLease) -> Result<P::Tx> {
        let mut tx = self.begin().await?;
        let renewed = self.run_in(P::tx_ref(&mut tx), Renew { leases: vec![attempt] }).await;
        let error = match renewed.map(|reply| reply.leases.first().copied()) {
            Ok(Some(Renewed::Held { .. })) => return Ok(tx),
            Ok(Some(Renewed::Busy)) => Error::new(
                ErrorKind::Busy,
                "another transaction has locked the job: try again, or end that transaction",
            ),
            Ok(_) => {
                Error::new(ErrorKind::LeaseLost, "the attempt no longer holds its job: stop working on it")
            }
            Err(error) => error,
        };
        let _ = self.provider.rollback(tx).await;
        Err(error)
    }

    async fn savepoints<'a>(&'a self, tx: P::TxRef<'a>) -> Result<i64> {
        let found = self.provider.run_in(tx, &self.savepoints, Vec::new()).await?;
        let depth = found.first().and_then(|row| row.numbers.first().copied().flatten()).unwrap_or(0);
        if depth > 0 {
            return Ok(depth);
        }
        Err(Error::new(ErrorKind::Invalid, "the transaction has no savepoint: call `savepoint` first"))
    }
}

/// Reads the number of savepoints of a transaction. It is stored in a setting local to the transaction, because the
/// driver's transaction type has no place for it. PostgreSQL restores the setting when it rolls back to a savepoint.
const SAVEPOINTS: &str = "select 'savepoints', null::integer, null::uuid[], null::text[], \
     array[nullif(current_setting('windlass.savepoints', true), '')::bigint], null::bytea[]";

/// Reads the id of a transaction. A savepoint is refused outside a transaction.
const IDENTIFY: &str = "savepoint windlass_open; release savepoint windlass_open; \
     select pg_catalog.pg_current_xact_id()::text";

/// Reads how transactions have ended, in order.
const ENDS: &str = "select 'transaction', null::integer, null::uuid[], \
     array[pg_catalog.pg_xact_status(asked.id::pg_catalog.xid8)], null::bigint[], null::bytea[] \
     from pg_catalog.unnest($1::text[]) with ordinality as asked (id, at) order by asked.at";

fn unexpected() -> Error {
    Error::new(ErrorKind::Unavailable, "PostgreSQL did not identify the transaction: try again")
}

/// The execution of one command, alone or in a transaction of the application.
pub(crate) struct Call<'a, P: Provider> {
    store: &'a PostgresStore<P>,
    tx: Option<P::TxRef<'a>>,
}

impl<'a, P: Provider> Call<'a, P> {
    pub(crate) const fn statements(&self) -> &'a Statements {
        if self.tx.is_some() { &self.store.in_transaction } else { &self.store.statements }
    }

    /// Counts acquired jobs, and starts the maintenance of the tables if it is due.
    pub(crate) fn maintain(&self, acquired: usize) {
        let store = self.store;
        Maintenance::after(&store.maintenance, acquired, || Task {
            provider: Arc::clone(&store.provider),
            names: store.names.clone(),
            tidy: store.statements.tidy.clone(),
            leader_lock: store.statements.leader_lock.clone(),
        });
    }

    pub(crate) fn floors(&self) -> &'a Floors {
        self.store.maintenance.floors()
    }

    /// Updates the floors and the maintenance after an acquire.
    pub(crate) fn acquired(
        &self,
        scan: Option<&Scan>,
        request: &Acquire,
        reply: &AcquireReply,
        may_have_more: bool,
    ) {
        if let Some(scan) = scan {
            self.floors().learn(scan, request, reply, may_have_more);
        }
        self.maintain(reply.jobs.len());
    }

    pub(crate) const fn durability(&self) -> Durability {
        self.store.durability
    }

    /// Time to pass to a function, or null to use the database's clock.
    pub(crate) fn time(&self) -> Parameter {
        Parameter::Number(self.store.clock.as_ref().map(|clock| clock.now().as_millis()))
    }

    pub(crate) async fn run(
        &mut self,
        statement: &Statement,
        parameters: Vec<Parameter>,
    ) -> Result<Vec<Row>> {
        self.run_retrying(statement, parameters, |_| {}).await
    }

    /// Runs a statement whose last parameter is `careful`: whether it checks for locks that are not expected. First without
    /// this check; if the statement meets such a lock, again with it.
    pub(crate) async fn run_careful(
        &mut self,
        statement: &Statement,
        mut parameters: Vec<Parameter>,
    ) -> Result<Vec<Row>> {
        parameters.push(Parameter::Number(Some(0)));
        let with_care = |parameters: &mut Vec<Parameter>| {
            parameters.pop();
            parameters.push(Parameter::Number(Some(1)));
        };
        self.run_retrying(statement, parameters, with_care).await
    }

    async fn run_retrying(
        &mut self,
        statement: &Statement,
        mut parameters: Vec<Parameter>,
        before_retry: impl Fn(&mut Vec<Parameter>),
    ) -> Result<Vec<Row>> {
        let store = self.store;
        store.round_trips.fetch_add(1, Ordering::Relaxed);
        if let Some(tx) = &mut self.tx {
            let done = store.provider.run_in(P::reborrow(tx), statement, parameters).await;
            return done.map_err(|error| name_role(error, &store.role));
        }
        let mut left = CONFLICT_TRIES;
        loop {
            match store.run_alone(statement, &parameters).await {
                // The statement wrote nothing, so it can run again.
                Err(error) if is_concurrent(&error) && left > 1 => left -= 1,
                // `Conflict` asks the caller to run its transaction again, and there is none here.
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    return Err(Error::new(ErrorKind::Busy, error.to_string()).with_inner(error));
                }
                done => {
                    store.commits.fetch_add(1, Ordering::Relaxed);
                    return done.map_err(|error| name_role(error, &store.role));
                }
            }
            before_retry(&mut parameters);
            store.round_trips.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn is_concurrent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Conflict)
}

/// A command that can be executed on this store.
pub(crate) trait Execute: Request {
    fn execute<P: Provider>(self, call: Call<'_, P>) -> impl Future<Output = Result<Self::Reply>> + Send;
}

impl<P> fmt::Debug for PostgresStore<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("names", &self.names).finish_non_exhaustive()
    }
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl<P: Provider> Store for PostgresStore<P> {
            fn capabilities(&self) -> Capabilities {
                // Each connection has its own process. A commit waits for the disk.
                Capabilities::all().in_parallel().joining()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(async move { request.execute(self.call(None)?).await })
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.call(None)?;
                    // The lock timeout bounds the wait for open transactions.
                    let tables = TABLES.map(|table| format!("windlass.{table}")).join(", ");
                    // No maintenance during this: it locks the same tables in another order.
                    let text = format!(
                        "{SET_TIMEOUTS}; set local lock_timeout = '5s'; \
                         select pg_advisory_xact_lock(hashtextextended('windlass.tidy', 0)); truncate {tables}"
                    );
                    let mut tx = self.provider.begin_read_committed().await?;
                    self.provider.script_in(P::tx_ref(&mut tx), &self.names.render(&text)).await?;
                    self.provider.commit(tx).await
                })
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                Box::pin(async { health::findings(self.call(None)?, None).await })
            }

            fn counters(&self) -> Counters {
                Counters {
                    round_trips: self.round_trips.load(Ordering::Relaxed),
                    commits: self.commits.load(Ordering::Relaxed),
                }
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                let (provider, options) = (Arc::clone(&self.provider), self.options.clone());
                Arc::new(LazyNotifier::new(move || {
                    let notifier = PostgresNotifier::<P>::new(Arc::clone(&provider), &options);
                    Box::pin(async { Ok(Arc::new(notifier?) as Arc<dyn Notifier>) })
                }))
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.closed.store(true, Ordering::Release);
                    self.provider.close().await;
                    Ok(())
                })
            }
        }

        async fn execute<P: Provider>(call: Call<'_, P>, command: Command) -> Result<Reply> {
            match command { $(Command::$request(request) => request.execute(call).await.map(Reply::$request),)* }
        }
    };
}
for_each_command!(store);

impl<P: Provider> Transactional for PostgresStore<P> {
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
            self.call(None)?;
            self.provider.begin().await
        })
    }

    fn begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<P::Tx>> {
        Box::pin(async move {
            if !self.snapshots {
                return self.begin().await;
            }
            for _ in 1..LOCK_TRIES {
                match self.begin_locked(attempt).await {
                    // The lease is being renewed, or was between the snapshot and the lock. Begin again with a new
                    // snapshot.
                    Err(error) if is_concurrent(&error) => sleep(LOCK_DELAY).await,
                    begun => return begun,
                }
            }
            self.begin_locked(attempt).await
        })
    }

    fn commit(&self, tx: P::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.commits.fetch_add(1, Ordering::Relaxed);
            self.provider.commit(tx).await
        })
    }

    fn rollback(&self, tx: P::Tx) -> BoxFuture<'_, Result<()>> {
        self.provider.rollback(tx)
    }

    /// Sets and releases a savepoint, which fails outside a transaction. Neither the drivers nor PostgreSQL offer a
    /// direct way to check.
    fn identify<'a>(&'a self, tx: P::TxRef<'a>) -> BoxFuture<'a, Result<TxId>> {
        Box::pin(async move {
            self.call(None)?;
            self.round_trips.fetch_add(1, Ordering::Relaxed);
            let id = self.provider.ask_in(tx, IDENTIFY).await?;
            id.and_then(|id| id.parse().ok()).map(TxId).ok_or_else(unexpected)
        })
    }

    fn ends(&self, transactions: Vec<TxId>) -> BoxFuture<'_, Result<Vec<TxEnd>>> {
        Box::pin(async move {
            self.call(None)?;
            self.round_trips.fetch_add(1, Ordering::Relaxed);
            let ids = transactions.iter().map(|id| Some(id.0.to_string())).collect();
            let found = self.provider.run(&self.ends, vec![Parameter::Texts(Some(ids))]).await?;
            if found.len() != transactions.len() {
                return Err(unexpected());
            }
            let end = |row: &Row| match row.texts.first().and_then(Option::as_deref) {
                Some("in progress") => TxEnd::Open,
                Some("committed") => TxEnd::Committed,
                Some("aborted") => TxEnd::RolledBack,
                // The server has forgotten it.
                _ => TxEnd::Unknown,
            };
            Ok(found.iter().map(end).collect())
        })
    }

    fn savepoint<'a>(&'a self, tx: P::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        let text = "savepoint windlass; select set_config('windlass.savepoints', (coalesce(nullif(\
                    current_setting('windlass.savepoints', true), ''), '0')::bigint + 1)::text, true)";
        self.provider.script_in(tx, text)
    }

    fn release<'a>(&'a self, mut tx: P::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let left = self.savepoints(P::reborrow(&mut tx)).await? - 1;
            let text = format!(
                "release savepoint windlass; select set_config('windlass.savepoints', '{left}', true)"
            );
            self.provider.script_in(P::reborrow(&mut tx), &text).await
        })
    }

    fn rollback_to<'a>(&'a self, mut tx: P::TxRef<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.savepoints(P::reborrow(&mut tx)).await?;
            self.provider.script_in(tx, "rollback to savepoint windlass; release savepoint windlass").await
        })
    }

    fn execute_in<'a>(&'a self, tx: P::TxRef<'a>, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            if !command.is_transactional() {
                let name = command.name();
                let text = format!(
                    "`{name}` cannot run in a transaction: workers rely on its immediate effect; run it without one"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            execute(self.call(Some(tx))?, command).await
        })
    }
}
