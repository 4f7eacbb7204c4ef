//! Where a command runs its statements: in a transaction or on a read connection.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use windlass_core::command::{Command, Durability, Reply, Request};
use windlass_core::{BoxFuture, Clock, Counters, Result, Timestamp, for_each_command};

use crate::provider::{Provider, Row, Statement, Value};
use crate::stall::Stalls;
use crate::statement::Statements;

/// State shared by all commands of a store.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) statements: Statements,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) durability: Durability,
    pub(crate) stalls: Stalls,
    pub(crate) counted: Counted,
}

impl Base {
    /// Returns the store's time. Commands that write read it while they hold the write lock.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Runs the statements of one command.
pub(crate) struct Session<'c> {
    connection: &'c mut dyn Connection,
    pub(crate) base: &'c Base,
    pub(crate) statements: &'c Statements,
    #[cfg(feature = "known-bad")]
    pub(crate) spoiled: crate::known_bad::Spoiled,
}

impl<'c> Session<'c> {
    pub(crate) fn new(connection: &'c mut dyn Connection, base: &'c Base) -> Self {
        Self {
            connection,
            base,
            statements: &base.statements,
            #[cfg(feature = "known-bad")]
            spoiled: crate::known_bad::Spoiled::default(),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.base.now()
    }

    /// Runs a statement and returns its rows.
    pub(crate) async fn rows(&mut self, statement: &Statement, values: Vec<Value>) -> Result<Vec<Row>> {
        let rows = self.connection.run(statement, values).await;
        self.base.counted.round_trip();
        rows
    }

    /// Runs a statement and discards its rows.
    pub(crate) async fn run(&mut self, statement: &Statement, values: Vec<Value>) -> Result<()> {
        self.rows(statement, values).await.map(drop)
    }
}

/// Runs statements, inside or outside a transaction.
pub(crate) trait Connection: Send {
    fn run<'a>(&'a mut self, statement: &'a Statement, values: Vec<Value>)
    -> BoxFuture<'a, Result<Vec<Row>>>;
}

/// Runs statements in a transaction.
pub(crate) struct Writing<'a, P: Provider> {
    pub(crate) provider: &'a P,
    pub(crate) tx: &'a mut P::Tx,
}

impl<P: Provider> Connection for Writing<'_, P> {
    fn run<'a>(
        &'a mut self,
        statement: &'a Statement,
        values: Vec<Value>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        self.provider.run_in(self.tx, statement, values)
    }
}

/// Runs each statement by itself on any read connection. Each statement sees a committed state, but two statements may
/// see different ones.
pub(crate) struct Reading<'a, P: Provider>(pub(crate) &'a P);

impl<P: Provider> Connection for Reading<'_, P> {
    fn run<'a>(
        &'a mut self,
        statement: &'a Statement,
        values: Vec<Value>,
    ) -> BoxFuture<'a, Result<Vec<Row>>> {
        self.0.run(statement, values)
    }
}

/// A command that a session can execute.
pub(crate) trait Execute: Request {
    /// Executes the command.
    ///
    /// # Errors
    ///
    /// An error of kind `Invalid` means that the command wrote nothing, and the transaction may continue. After any
    /// other error the caller must roll the transaction back.
    fn execute(&self, session: &mut Session<'_>) -> impl Future<Output = Result<Self::Reply>> + Send;
}

macro_rules! execute {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        /// Executes any command.
        pub(crate) async fn execute(session: &mut Session<'_>, command: &Command) -> Result<Reply> {
            match command { $(Command::$request(request) => request.execute(session).await.map(Reply::$request),)* }
        }
    };
}
for_each_command!(execute);

/// Counts round trips and commits.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    round_trips: AtomicU64,
    commits: AtomicU64,
}

impl Counted {
    pub(crate) fn round_trip(&self) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn commit(&self) {
        self.round_trip();
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            round_trips: self.round_trips.load(Ordering::Relaxed),
            commits: self.commits.load(Ordering::Relaxed),
        }
    }
}
