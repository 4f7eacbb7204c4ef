//! The store's own connections.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;
use windlass_core::{Error, ErrorKind, Result};

use crate::error::from_sqlite;

/// Number of prepared statements that a connection keeps.
const STATEMENTS: usize = 200;

/// Size of the writer's page cache, in KiB. With SQLite's default of 2 MiB, the pages of a large file are read
/// repeatedly.
const CACHE_KIB: u32 = 32 << 10;

/// Size of the write-ahead log, in pages, at which a commit checkpoints it into the file. A checkpoint takes two syncs.
/// With SQLite's default of 1,000 pages, every few dozen commits would pay for one.
const CHECKPOINT_PAGES: u32 = 4_000;

/// How long closing waits for queries.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the store opens its own connections.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) path: PathBuf,
    pub(crate) busy_timeout: Duration,
}

impl Location {
    /// Opens the connection for writing. Its own wait for a lock is short: the writer repeats a busy `begin`, and serves
    /// other commands meanwhile.
    pub(crate) fn open_writer(&self, synchronous: i64, busy_timeout: Duration) -> Result<Connection> {
        let connection = open(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(busy_timeout).map_err(|error| from_sqlite(&error))?;
        let settings = format!(
            "pragma synchronous = {synchronous}; pragma cache_size = -{CACHE_KIB}; \
             pragma wal_autocheckpoint = {CHECKPOINT_PAGES}"
        );
        connection.execute_batch(&settings).map_err(|error| from_sqlite(&error))?;
        Ok(connection)
    }

    fn open_reader(&self) -> Result<Connection> {
        let connection = open(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(self.busy_timeout).map_err(|error| from_sqlite(&error))?;
        Ok(connection)
    }
}

fn open(path: &Path, mode: OpenFlags) -> Result<Connection> {
    // One thread at a time uses a connection, so SQLite needs no mutex.
    let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| from_sqlite(&error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// Connections for queries. Each is opened when it is first needed.
#[derive(Debug)]
pub(crate) struct Readers {
    location: Location,
    /// Bounds the number of connections.
    permits: Arc<Semaphore>,
    connections: u32,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(crate) fn new(location: Location, connections: u32) -> Self {
        let permits = Arc::new(Semaphore::new(connections as usize));
        Self { location, permits, connections, idle: Arc::default() }
    }

    /// Runs work on a connection, in a read transaction, on a thread that may block.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed())?;
        let (idle, location, permits) =
            (Arc::clone(&self.idle), self.location.clone(), Arc::clone(&self.permits));
        let run = move || {
            let _permit = permit;
            let idle_connection = || idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match idle_connection() {
                Some(connection) => connection,
                None => location.open_reader()?,
            };
            let result = read(&connection, work);
            if connection.is_autocommit() && !permits.is_closed() {
                idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            result
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {
                let text = "the query was stopped with the runtime that it ran on: repeat it";
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    /// Closes all connections, once the queries that use them have ended.
    pub(crate) async fn close(&self) {
        let all = self.permits.acquire_many(self.connections);
        let _all = tokio::time::timeout(CLOSE_TIMEOUT, all).await;
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = tokio::task::spawn_blocking(move || drop(idle)).await;
    }
}

fn read<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    connection.execute_batch("begin").map_err(|error| from_sqlite(&error))?;
    let result = work(connection);
    connection.execute_batch("commit").map_err(|error| from_sqlite(&error))?;
    result
}

/// Returns the error of a command on a closed store.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store is closed: open it again")
}
