//! A memory store that fails as it is told.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Clock, Counters, Error, ErrorKind, ManualClock, MemoryStore, MemoryTx, Millis,
    Result, Store, Timestamp, Transactional,
};

use super::pass;

/// From so many calls of a command on it hangs: a hot loop would never let paused time go on.
const CALLS_MAX: usize = 10_000;

/// What becomes of a call.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Hangs,
    /// It waits until it is let go.
    Waits(Arc<Notify>),
    /// Nothing is carried out.
    Fails,
    /// It is carried out, and the caller hears of an error.
    LosesReply,
    /// It is carried out, and the caller hears nothing.
    HangsAfterwards,
    /// It takes so long.
    Takes(Duration),
    Panics,
    /// A settlement in a transaction is answered so.
    IsBusy,
}

/// Clones share everything. Commands are named by the store's methods; a settlement in a transaction is
/// `settle_in`.
#[derive(Clone, Debug)]
pub(super) struct Faulty {
    inner: MemoryStore,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    faults: HashMap<&'static str, (Fault, usize)>,
    calls: HashMap<&'static str, usize>,
}

impl Default for Faulty {
    fn default() -> Self {
        Self { inner: MemoryStore::with_clock(Arc::new(RuntimeClock::default())), state: Arc::default() }
    }
}

impl Faulty {
    /// The next calls of a command meet this fault.
    pub(super) fn fault(&self, command: &'static str, fault: Fault, times: usize) {
        self.state.lock().unwrap().faults.insert(command, (fault, times));
    }

    /// All calls of these commands meet this fault, until it is mended.
    pub(super) fn break_all(&self, commands: &[&'static str], fault: &Fault) {
        commands.iter().for_each(|command| self.fault(command, fault.clone(), usize::MAX));
    }

    /// The next call of a command waits until it is let go.
    pub(super) fn hold(&self, command: &'static str) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        self.fault(command, Fault::Waits(Arc::clone(&gate)), 1);
        gate
    }

    pub(super) fn mend(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// How often a command was called.
    pub(super) fn calls(&self, command: &str) -> usize {
        self.state.lock().unwrap().calls.get(command).copied().unwrap_or(0)
    }

    fn enter(&self, command: &'static str) -> Option<Fault> {
        let mut state = self.state.lock().unwrap();
        let calls = state.calls.entry(command).or_default();
        *calls += 1;
        if *calls > CALLS_MAX {
            return Some(Fault::Hangs);
        }
        let (fault, left) = state.faults.get_mut(command)?;
        *left = left.checked_sub(1)?;
        Some(fault.clone())
    }

    async fn call<T>(
        &self,
        command: &'static str,
        carry_out: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match self.enter(command) {
            None | Some(Fault::IsBusy) => carry_out.await,
            Some(Fault::Hangs) => pending().await,
            Some(Fault::Waits(gate)) => {
                gate.notified().await;
                carry_out.await
            }
            Some(Fault::Fails) => Err(down()),
            Some(Fault::LosesReply) => carry_out.await.and(Err(down())),
            Some(Fault::HangsAfterwards) => {
                let _ = carry_out.await;
                pending().await
            }
            Some(Fault::Takes(time)) => {
                pass(time).await;
                carry_out.await
            }
            Some(Fault::Panics) => panic!("{command} panics"),
        }
    }
}

fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is down")
}

/// Shows the time of the runtime, which may be paused.
#[derive(Debug)]
pub(crate) struct RuntimeClock(Instant);

impl Default for RuntimeClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        ManualClock::default().now() + Millis::try_from(self.0.elapsed()).unwrap()
    }
}

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for Faulty {
            fn capabilities(&self) -> Capabilities {
                self.inner.capabilities()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(self.call(stringify!($method), self.inner.$method(request)))
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                self.inner.erase()
            }

            fn counters(&self) -> Counters {
                self.inner.counters()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                self.inner.close()
            }
        }
    };
}
windlass_core::for_each_command!(store);

impl Transactional for Faulty {
    type Tx = MemoryTx;
    type Lent<'t> = &'t mut MemoryTx;

    fn lend(tx: &mut MemoryTx) -> &mut MemoryTx {
        tx
    }

    fn lend_on<'t>(tx: &'t mut &mut MemoryTx) -> &'t mut MemoryTx {
        tx
    }

    fn begin(&self) -> BoxFuture<'_, Result<MemoryTx>> {
        Box::pin(self.call("begin", self.inner.begin()))
    }

    fn commit(&self, tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.call("commit", self.inner.commit(tx)))
    }

    fn rollback(&self, tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        self.inner.rollback(tx)
    }

    fn savepoint<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        self.inner.savepoint(tx)
    }

    fn release<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        self.inner.release(tx)
    }

    fn rollback_to<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.call("rollback_to", self.inner.rollback_to(tx)))
    }

    fn execute_in<'a>(&'a self, tx: &'a mut MemoryTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        let is_settle = matches!(command, Command::Settle(_));
        if is_settle && matches!(self.enter("settle_in"), Some(Fault::IsBusy)) {
            let busy = SettleReply { settled: vec![Settled::Busy], ripple: Ripple::default() };
            return Box::pin(async { Ok(Reply::Settle(busy)) });
        }
        self.inner.execute_in(tx, command)
    }
}
