//! The memory store: the model behind a lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::{Clock, SystemClock};
use crate::command::*;
use crate::error::{Error, ErrorKind, Result};
use crate::for_each_command;
use crate::model::{Effect, Model};
use crate::notifier::{InProcessNotifier, Notifier};
use crate::store::{BoxFuture, Capabilities, Counters, Stalls, Store, Transactional};
use crate::time::Timestamp;

/// A store in the memory of this process: for tests, for development, and for work that may be lost with the
/// process.
///
/// It is the reference implementation: every other store behaves the same way. Clones share their jobs and are closed
/// together.
///
/// There is one writer at a time. An open transaction is a writer: other writes wait until it ends, up to the busy
/// timeout. Readers never wait, and do not see uncommitted writes.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    writer: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
    busy_timeout: Duration,
    commands: AtomicU64,
    /// Recent transactions that kept all other writers waiting.
    stalls: Stalls,
    notifier: InProcessNotifier,
}

#[derive(Default)]
struct State {
    model: Model,
    /// The effects of the open transaction so far.
    uncommitted: Vec<Effect>,
    closed: bool,
}

/// How long a write waits for an open transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

impl MemoryStore {
    /// Creates an empty store that uses this machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Creates an empty store that uses `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::with_clock_and_busy_timeout(clock, BUSY_TIMEOUT)
    }

    /// Creates an empty store that uses `clock`, and whose writes wait at most `busy_timeout` for an open
    /// transaction.
    #[must_use]
    pub fn with_clock_and_busy_timeout(clock: Arc<dyn Clock>, busy_timeout: Duration) -> Self {
        let writer = Arc::new(Semaphore::new(1));
        let (state, commands, stalls) = (Mutex::default(), AtomicU64::new(0), Stalls::default());
        // No other process can use the store.
        let notifier = InProcessNotifier::complete();
        Self { shared: Arc::new(Shared { state, writer, clock, busy_timeout, commands, stalls, notifier }) }
    }

    /// Returns an error if the transaction belongs to another store.
    fn check_own(&self, tx: &MemoryTx) -> Result<()> {
        if Arc::ptr_eq(&self.shared, &tx.shared) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            "the transaction belongs to another store: begin it with this store",
        ))
    }

    async fn run<R: Request>(&self, request: R) -> Result<R::Reply> {
        self.execute(request.into()).await?.try_into()
    }

    async fn execute(&self, command: Command) -> Result<Reply> {
        self.shared.commands.fetch_add(1, Ordering::Relaxed);
        if command.is_query() {
            return self.shared.open_state()?.committed(self.shared.clock.now(), &command);
        }
        let _writer = self.shared.writer().await?;
        let mut state = self.shared.open_state()?;
        let now = self.shared.clock.now();
        let command = match command {
            Command::Reap(reap) if self.shared.stalls.forbid_reaping(now, reap.renewal_interval) => {
                // Requeue nothing, but still resolve deferred waits.
                Command::Reap(Reap { max: 0, ..reap })
            }
            command => command,
        };
        state.model.reply(now, &command)
    }
}

impl State {
    /// Runs a query against the committed state, without the writes of the open transaction.
    fn committed(&mut self, now: Timestamp, query: &Command) -> Result<Reply> {
        // The caller holds the mutex, so no other command sees the state in between.
        self.model.undo(&self.uncommitted);
        let reply = self.model.reply(now, query);
        self.model.replay(&self.uncommitted);
        reply
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_state(&self) -> Result<MutexGuard<'_, State>> {
        if self.state.is_poisoned() {
            let text = "a command panicked, and the stored data may be inconsistent: create a new store";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let state = self.state();
        if state.closed {
            Err(Error::new(ErrorKind::Closed, "the store was closed: open it again"))
        } else {
            Ok(state)
        }
    }

    async fn writer(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.writer).acquire_owned();
        match tokio::time::timeout(self.busy_timeout, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Error::new(ErrorKind::Closed, "the store was closed: open it again")),
            Err(_) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "an open transaction has blocked this write for more than {:?}: end it; a task that has a \
                     transaction open must send its commands through it, such as `tx.start(…)` after \
                     `client.begin()`",
                    self.busy_timeout
                ),
            )),
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("jobs", &self.shared.state().model.jobs()).finish_non_exhaustive()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for MemoryStore {
            fn capabilities(&self) -> Capabilities {
                Capabilities::all()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(self.run(request))
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    let _writer = self.shared.writer().await?;
                    self.shared.open_state()?.model = Model::new();
                    Ok(())
                })
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                Arc::new(self.shared.notifier.clone())
            }

            fn counters(&self) -> Counters {
                let commands = self.shared.commands.load(Ordering::Relaxed);
                Counters { round_trips: commands, commits: 0 }
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.shared.state().closed = true;
                    Ok(())
                })
            }
        }
    };
}
for_each_command!(store);

/// A transaction of the memory store. Rolled back if it is dropped before the commit.
pub struct MemoryTx {
    shared: Arc<Shared>,
    savepoints: Vec<usize>,
    began_at: Timestamp,
    ended: bool,
    // Dropped after `drop` has rolled back, so the next writer never sees uncommitted rows.
    _writer: OwnedSemaphorePermit,
}

impl MemoryTx {
    fn execute(&mut self, command: &Command) -> Result<Reply> {
        if !command.is_transactional() {
            let name = command.name();
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("`{name}` cannot run in a transaction: run it outside"),
            ));
        }
        self.shared.commands.fetch_add(1, Ordering::Relaxed);
        let mut state = self.shared.open_state()?;
        let (reply, effects) = state.model.apply(self.shared.clock.now(), command)?;
        state.uncommitted.extend(effects);
        Ok(reply)
    }

    /// Undoes all effects after the first `kept`.
    fn undo_to(&self, kept: usize) {
        let mut state = self.shared.state();
        let kept = kept.min(state.uncommitted.len());
        let undone = state.uncommitted.split_off(kept);
        state.model.undo(&undone);
    }

    fn end(&mut self, commit: bool) -> Result<()> {
        if commit {
            let mut state = self.shared.open_state()?;
            state.uncommitted.clear();
        } else {
            self.undo_to(0);
        }
        self.shared.stalls.note(self.began_at, self.shared.clock.now());
        self.ended = true;
        Ok(())
    }

    fn pop_savepoint(&mut self) -> Result<usize> {
        self.savepoints.pop().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the transaction has no savepoint: create one first")
        })
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end(false);
        }
    }
}

impl fmt::Debug for MemoryTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryTx").field("savepoints", &self.savepoints.len()).finish_non_exhaustive()
    }
}

impl Transactional for MemoryStore {
    type Tx = MemoryTx;
    type TxRef<'t> = &'t mut MemoryTx;
    type Connection<'t> = &'t mut MemoryTx;

    fn tx_ref(tx: &mut MemoryTx) -> &mut MemoryTx {
        tx
    }

    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t> {
        tx
    }

    fn reborrow<'t>(tx: &'t mut &mut MemoryTx) -> &'t mut MemoryTx {
        tx
    }

    fn begin(&self) -> BoxFuture<'_, Result<MemoryTx>> {
        Box::pin(async {
            let writer = self.shared.writer().await?;
            drop(self.shared.open_state()?);
            let (shared, began_at) = (Arc::clone(&self.shared), self.shared.clock.now());
            Ok(MemoryTx { shared, savepoints: Vec::new(), began_at, ended: false, _writer: writer })
        })
    }

    fn commit(&self, mut tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_own(&tx)?;
            tx.end(true)
        })
    }

    fn rollback(&self, mut tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check_own(&tx)?;
            tx.end(false)
        })
    }

    fn savepoint<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            self.check_own(tx)?;
            let mark = tx.shared.state().uncommitted.len();
            tx.savepoints.push(mark);
            Ok(())
        })
    }

    fn release<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            self.check_own(tx)?;
            tx.pop_savepoint().map(drop)
        })
    }

    fn rollback_to<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            self.check_own(tx)?;
            let mark = tx.pop_savepoint()?;
            tx.undo_to(mark);
            Ok(())
        })
    }

    fn execute_in<'a>(&'a self, tx: &'a mut MemoryTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(async move {
            self.check_own(tx)?;
            tx.execute(&command)
        })
    }
}
