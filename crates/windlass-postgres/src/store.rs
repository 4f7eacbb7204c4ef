//! The store: its options, and the commands handed to the module of their family.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Clock, Counters, Error, ErrorKind, Finding, Result, Store, Transactional,
    for_each_command,
};

use crate::health;
use crate::migrate::{MIGRATIONS, migrate, sql};
use crate::provider::{Parameter, Provider, Row, Statement};
use crate::session::{self, TABLES};
use crate::statement::{Names, Statements};

/// The longest schema name or table prefix, in bytes.
pub const NAME_MAX_BYTES: usize = 30;

/// How often a command is given again that met a concurrent change.
const TRIES: usize = 3;

/// How a [`PostgresStore`] is opened.
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a store is opened with them"]
pub struct Options {
    schema: String,
    prefix: String,
    migrate: bool,
    cached_statements: bool,
    clock: Option<Arc<dyn Clock>>,
}

impl Default for Options {
    /// The schema `windlass` without a prefix, made and migrated if needed, and prepared statements.
    fn default() -> Self {
        Self {
            schema: "windlass".to_owned(),
            prefix: String::new(),
            migrate: true,
            cached_statements: true,
            clock: None,
        }
    }
}

impl Options {
    /// The schema that has the tables: 1 to 30 of `a-z`, `0-9` and `_`, not beginning with a digit nor with `pg_`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// What the names of tables and functions begin with: at most 30 of `a-z`, `0-9` and `_`, not beginning with a digit.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether opening makes or migrates the schema. Without it, a schema that is missing or old is an error; see
    /// [`migrations_sql`](Self::migrations_sql).
    pub const fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Whether statements stay prepared on their connections. Turn it off behind a pooler that gives each transaction
    /// another connection and does not know of prepared statements, like PgBouncer before 1.21.
    pub const fn cached_statements(mut self, cached: bool) -> Self {
        self.cached_statements = cached;
        self
    }

    /// Another clock than the database's, for tests. All stores on one schema need the same one.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The statements that make the schema, for those who run migrations by other means.
    pub fn migrations_sql(&self) -> Result<String> {
        Ok(sql(&self.names()?, MIGRATIONS))
    }

    pub(crate) const fn caches_statements(&self) -> bool {
        self.cached_statements
    }

    pub(crate) fn names(&self) -> Result<Names> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let good = |name: &str| {
            name.len() <= NAME_MAX_BYTES
                && name.bytes().all(plain)
                && !name.starts_with(|first: char| first.is_ascii_digit())
        };
        if self.schema.is_empty()
            || !good(&self.schema)
            || self.schema.starts_with("pg_")
            || !good(&self.prefix)
        {
            let text = format!(
                "the schema {:?} and the prefix {:?} are not at most {NAME_MAX_BYTES} of a-z, 0-9 and _ each, beginning \
                 neither with a digit nor with pg_",
                self.schema, self.prefix
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Names { schema: self.schema.clone(), prefix: self.prefix.clone() })
    }
}

/// A store in a PostgreSQL database. See the [crate's page](crate).
pub struct PostgresStore<P> {
    provider: P,
    names: Names,
    statements: Statements,
    in_transaction: Statements,
    savepoints: Statement,
    clock: Option<Arc<dyn Clock>>,
    durability: Durability,
    /// Whether commands need a transaction of their own, because the server refused one that had none.
    begins: AtomicBool,
    /// Whether transactions read from a snapshot by default.
    snapshots: bool,
    closed: AtomicBool,
    round_trips: AtomicU64,
    commits: AtomicU64,
}

impl<P: Provider> PostgresStore<P> {
    /// Opens the store, and makes or migrates its schema. Any number of programs may do so at once.
    pub async fn open(provider: P, options: Options) -> Result<Self> {
        let names = options.names()?;
        let defaults = session::check(&provider).await?;
        migrate(&provider, &names, MIGRATIONS, options.migrate).await?;
        session::check_access(&provider, &names).await?;
        Ok(Self {
            statements: Statements::new(&names, options.cached_statements),
            in_transaction: Statements::in_transaction(&names, options.cached_statements),
            savepoints: Statement::new(SAVEPOINTS.to_owned(), options.cached_statements),
            provider,
            names,
            clock: options.clock,
            durability: defaults.durability,
            begins: AtomicBool::new(defaults.needs_begin),
            snapshots: defaults.snapshots,
            closed: AtomicBool::new(false),
            round_trips: AtomicU64::new(0),
            commits: AtomicU64::new(0),
        })
    }

    /// The driver.
    pub const fn provider(&self) -> &P {
        &self.provider
    }

    /// The statements of all commands, each with its name. For tests.
    #[doc(hidden)]
    pub fn statements(&self) -> Vec<(&'static str, Arc<str>)> {
        let text = |(name, statement): (_, &Statement)| (name, statement.text().clone());
        self.statements.all().into_iter().map(text).collect()
    }

    pub(crate) fn call<'a>(&'a self, tx: Option<P::Lent<'a>>) -> Result<Call<'a, P>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the store was closed: open it again"));
        }
        Ok(Call { store: self, tx })
    }

    /// Runs a statement by itself. A session may have defaults that do not suit the store: the function then refuses to
    /// write, and this statement and all later ones run in a transaction that is begun for them, which takes two round trips
    /// more. The session itself is not changed, since the application uses it too.
    async fn run_alone(&self, statement: &Statement, parameters: &[Parameter]) -> Result<Vec<Row>> {
        if !self.begins.load(Ordering::Relaxed) {
            match self.provider.run(statement, parameters.to_vec()).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                done => return done,
            }
        }
        self.round_trips.fetch_add(2, Ordering::Relaxed);
        let mut tx = self.provider.begin_read_committed().await?;
        match self.provider.run_in(P::lend(&mut tx), statement, parameters.to_vec()).await {
            Ok(rows) => {
                self.provider.commit(tx).await?;
                // Only now: a standby refuses the first try as well, and may be promoted.
                self.begins.store(true, Ordering::Relaxed);
                Ok(rows)
            }
            Err(error) => {
                // If this fails too, the connection is lost, and the server rolls back.
                let _ = self.provider.rollback(tx).await;
                Err(error)
            }
        }
    }

    /// Begins a transaction whose first statement locks the job of an attempt.
    async fn begin_locked(&self, attempt: RenewLease) -> Result<P::Tx> {
        let mut tx = self.begin().await?;
        let renewed = self.run_in(P::lend(&mut tx), Renew { leases: vec![attempt] }).await;
        let error = match renewed.map(|reply| reply.leases.first().copied()) {
            Ok(Some(Renewed::Held { .. })) => return Ok(tx),
            Ok(Some(Renewed::Busy)) => Error::new(
                ErrorKind::Busy,
                "another transaction holds the job: try again, or end that transaction",
            ),
            Ok(_) => Error::new(ErrorKind::LeaseLost, "the attempt no longer holds its job: stop"),
            Err(error) => error,
        };
        let _ = self.provider.rollback(tx).await;
        Err(error)
    }

    async fn savepoints<'a>(&'a self, tx: P::Lent<'a>) -> Result<i64> {
        let found = self.provider.run_in(tx, &self.savepoints, Vec::new()).await?;
        let depth = found.first().and_then(|row| row.numbers.first().copied().flatten()).unwrap_or(0);
        if depth > 0 {
            return Ok(depth);
        }
        Err(Error::new(
            ErrorKind::Invalid,
            "the transaction has no savepoint: make one before you return to it",
        ))
    }
}

/// How many savepoints a transaction has. The number is a setting of the transaction, which PostgreSQL itself takes back
/// when it returns to a savepoint: the driver's own transaction has no room for it.
const SAVEPOINTS: &str = "select 'savepoints', null::integer, null::uuid[], null::text[], \
     array[nullif(current_setting('windlass.savepoints', true), '')::bigint], null::bytea[]";

/// One command, by itself or in a transaction.
pub(crate) struct Call<'a, P: Provider> {
    store: &'a PostgresStore<P>,
    tx: Option<P::Lent<'a>>,
}

impl<'a, P: Provider> Call<'a, P> {
    pub(crate) const fn statements(&self) -> &'a Statements {
        if self.tx.is_some() { &self.store.in_transaction } else { &self.store.statements }
    }

    pub(crate) const fn durability(&self) -> Durability {
        self.store.durability
    }

    /// The time to give to a function; none where the database's own counts.
    pub(crate) fn time(&self) -> Parameter {
        Parameter::Number(self.store.clock.as_ref().map(|clock| clock.now().as_millis()))
    }

    pub(crate) async fn run(
        &mut self,
        statement: &Statement,
        parameters: Vec<Parameter>,
    ) -> Result<Vec<Row>> {
        let store = self.store;
        store.round_trips.fetch_add(1, Ordering::Relaxed);
        if let Some(tx) = &mut self.tx {
            return store.provider.run_in(P::lend_on(tx), statement, parameters).await;
        }
        let mut left = TRIES;
        loop {
            match store.run_alone(statement, &parameters).await {
                // Nothing was written, and every command is safe to repeat.
                Err(error) if is_concurrent(&error) && left > 1 => left -= 1,
                // There is no transaction that the caller could run again.
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    return Err(Error::new(ErrorKind::Busy, error.to_string()).with_source(error));
                }
                done => {
                    store.commits.fetch_add(1, Ordering::Relaxed);
                    return done;
                }
            }
            store.round_trips.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn is_concurrent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Conflict)
}

/// A command that knows how to be carried out.
pub(crate) trait CarryOut: Request {
    fn carry_out<P: Provider>(self, call: Call<'_, P>) -> impl Future<Output = Result<Self::Reply>> + Send;
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
                Capabilities::all()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(async move { request.carry_out(self.call(None)?).await })
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.call(None)?;
                    // Somebody's open transaction is not waited for without end.
                    let tables = TABLES.map(|table| format!("windlass.{table}")).join(", ");
                    let text = format!("set local lock_timeout = '5s'; truncate {tables}");
                    let mut tx = self.provider.begin_read_committed().await?;
                    self.provider.script_in(P::lend(&mut tx), &self.names.render(&text)).await?;
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

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.closed.store(true, Ordering::Release);
                    self.provider.close().await;
                    Ok(())
                })
            }
        }

        async fn execute<P: Provider>(call: Call<'_, P>, command: Command) -> Result<Reply> {
            match command { $(Command::$request(request) => request.carry_out(call).await.map(Reply::$request),)* }
        }
    };
}
for_each_command!(store);

impl<P: Provider> Transactional for PostgresStore<P> {
    type Tx = P::Tx;
    type Lent<'t> = P::Lent<'t>;

    fn lend(tx: &mut P::Tx) -> P::Lent<'_> {
        P::lend(tx)
    }

    fn lend_on<'t>(tx: &'t mut P::Lent<'_>) -> P::Lent<'t> {
        P::lend_on(tx)
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
            for _ in 1..TRIES {
                match self.begin_locked(attempt).await {
                    // The lease was renewed between the snapshot and the lock.
                    Err(error) if is_concurrent(&error) => {}
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

    /// Neither driver tells, and no function of PostgreSQL; but a savepoint needs a transaction.
    fn check_open<'a>(&'a self, tx: P::Lent<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.call(None)?;
            self.round_trips.fetch_add(1, Ordering::Relaxed);
            self.provider.script_in(tx, "savepoint windlass_open; release savepoint windlass_open").await
        })
    }

    fn savepoint<'a>(&'a self, tx: P::Lent<'a>) -> BoxFuture<'a, Result<()>> {
        let text = "savepoint windlass; select set_config('windlass.savepoints', (coalesce(nullif(\
                    current_setting('windlass.savepoints', true), ''), '0')::bigint + 1)::text, true)";
        self.provider.script_in(tx, text)
    }

    fn release<'a>(&'a self, mut tx: P::Lent<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let left = self.savepoints(P::lend_on(&mut tx)).await? - 1;
            let text = format!(
                "release savepoint windlass; select set_config('windlass.savepoints', '{left}', true)"
            );
            self.provider.script_in(P::lend_on(&mut tx), &text).await
        })
    }

    fn rollback_to<'a>(&'a self, mut tx: P::Lent<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.savepoints(P::lend_on(&mut tx)).await?;
            self.provider.script_in(tx, "rollback to savepoint windlass; release savepoint windlass").await
        })
    }

    fn execute_in<'a>(&'a self, tx: P::Lent<'a>, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            if !command.is_transactional() {
                let name = command.name();
                let text = format!(
                    "`{name}` belongs to workers and takes effect at once: give it outside the transaction"
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            execute(self.call(Some(tx))?, command).await
        })
    }
}
