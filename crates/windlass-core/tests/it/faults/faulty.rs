//! A memory store that fails on request.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Clock, Decorator, Error, ErrorKind, ManualClock, MemoryStore, MemoryTx, Millis,
    Result, Store, Timestamp, TransactionDecorator, Transactional,
};

use super::pass;

/// Above this many calls, a command hangs: a hot loop would never let paused time advance.
const CALLS_MAX: usize = 10_000;

/// A fault of a call.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    Hangs,
    /// The call waits until it is notified.
    Waits(Arc<Notify>),
    /// Nothing is executed, and the caller gets an error.
    Fails,
    /// Nothing is executed, and the caller gets an error of kind `AccessDenied`.
    IsDenied,
    /// The command is executed, but the caller gets an error.
    LosesReply,
    /// The command is executed, but the caller gets no reply.
    HangsAfterwards,
    /// The command is executed after this delay.
    Takes(Duration),
    /// The command is executed, and the caller gets the reply after this delay.
    AnswersLate(Duration),
    Panics,
    /// Every item is answered as busy.
    IsBusy,
    /// Nothing is executed, and the caller gets an error of kind `Busy`.
    IsLocked,
}

/// A store with injected faults. Clones share all state. Commands are named after the store's methods; a
/// settlement in a transaction is `settle_in`.
#[derive(Clone, Debug)]
pub(super) struct Faulty {
    inner: MemoryStore,
    state: Arc<Mutex<State>>,
    exchanges: u8,
    is_parallel: bool,
    is_joining: bool,
}

#[derive(Debug, Default)]
struct State {
    faults: HashMap<&'static str, (Fault, usize)>,
    calls: HashMap<&'static str, usize>,
    /// The number of exchanges in flight, and its maximum.
    in_flight: (usize, usize),
    /// The largest number of jobs that an acquire requested.
    requested_max: u32,
    /// The same for acquires that are joined with a creation.
    joined_max: u32,
}

impl Default for Faulty {
    fn default() -> Self {
        Self::with_exchanges(1)
    }
}

impl Faulty {
    /// Creates a store that handles this number of exchanges at a time.
    pub(super) fn with_exchanges(exchanges: u8) -> Self {
        let inner = MemoryStore::with_clock(Arc::new(RuntimeClock::default()));
        Self { inner, state: Arc::default(), exchanges, is_parallel: false, is_joining: false }
    }

    /// Creates a store that executes a settlement and an acquire at the same time.
    pub(super) fn in_parallel() -> Self {
        Self { is_parallel: true, ..Self::default() }
    }

    /// Creates a store on which a creation acquires for an idle worker.
    pub(super) fn joining() -> Self {
        Self { is_joining: true, ..Self::default() }
    }

    /// Returns the largest number of jobs that an acquire requested.
    pub(super) fn requested_max(&self) -> u32 {
        self.state.lock().unwrap().requested_max
    }

    /// Returns the largest number of jobs that an acquire requested which was joined with a creation.
    pub(super) fn joined_max(&self) -> u32 {
        self.state.lock().unwrap().joined_max
    }

    /// Returns the maximum number of exchanges that were in flight at the same time.
    pub(super) fn exchanges_in_flight(&self) -> usize {
        self.state.lock().unwrap().in_flight.1
    }

    /// Counts an exchange in flight, or its end.
    fn count_exchange(&self, begins: bool) {
        let (now, max) = &mut self.state.lock().unwrap().in_flight;
        *now = if begins { *now + 1 } else { *now - 1 };
        *max = (*max).max(*now);
    }

    /// Injects a fault into the next `times` calls of a command.
    pub(super) fn fault(&self, command: &'static str, fault: Fault, times: usize) {
        self.state.lock().unwrap().faults.insert(command, (fault, times));
    }

    /// Injects a fault into all calls of these commands, until [`clear_faults`](Self::clear_faults).
    pub(super) fn break_all(&self, commands: &[&'static str], fault: &Fault) {
        commands.iter().for_each(|command| self.fault(command, fault.clone(), usize::MAX));
    }

    /// Makes the next call of a command wait until the returned value is notified.
    pub(super) fn hold(&self, command: &'static str) -> Arc<Notify> {
        let gate = Arc::new(Notify::new());
        self.fault(command, Fault::Waits(Arc::clone(&gate)), 1);
        gate
    }

    pub(super) fn clear_faults(&self) {
        self.state.lock().unwrap().faults.clear();
    }

    /// Returns how often a command was called.
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
}

/// Executes a call with a fault.
async fn apply<T>(
    fault: Option<Fault>,
    name: &'static str,
    carry_out: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    match fault {
        None | Some(Fault::IsBusy) => carry_out.await,
        Some(Fault::Hangs) => pending().await,
        Some(Fault::Waits(gate)) => {
            gate.notified().await;
            carry_out.await
        }
        Some(Fault::Fails) => Err(down()),
        Some(Fault::IsLocked) => Err(Error::new(ErrorKind::Busy, "a row is locked")),
        Some(Fault::IsDenied) => Err(Error::new(ErrorKind::AccessDenied, "wrong password")),
        Some(Fault::LosesReply) => carry_out.await.and(Err(down())),
        Some(Fault::HangsAfterwards) => {
            let _ = carry_out.await;
            pending().await
        }
        Some(Fault::Takes(time)) => {
            pass(time).await;
            carry_out.await
        }
        Some(Fault::AnswersLate(time)) => {
            let reply = carry_out.await;
            pass(time).await;
            reply
        }
        Some(Fault::Panics) => panic!("{name} panics"),
    }
}

/// Returns the reply to a command whose rows are all locked by another transaction.
fn busy(command: &Command) -> Reply {
    match command {
        Command::Create(Create { chains }) => Reply::Create(CreateReply {
            chains: vec![Created::Busy; chains.len()],
            durability: Durability::Volatile,
            deferred: false,
        }),
        Command::CreateAndAcquire(CreateAndAcquire { create: Create { chains }, .. }) => {
            let chains = vec![Created::Busy; chains.len()];
            let create = CreateReply { chains, durability: Durability::Volatile, deferred: false };
            let acquire =
                AcquireReply { jobs: Vec::new(), ripple: Ripple::default(), now: Timestamp::default() };
            Reply::CreateAndAcquire(CreateAndAcquireReply { create, acquire })
        }
        Command::CompleteFromOutside(_) => Reply::CompleteFromOutside(CompleteFromOutsideReply::Busy),
        Command::Cancel(Cancel { chains, .. }) => {
            let chains = vec![Cancelled::Busy; chains.len()];
            Reply::Cancel(CancelReply { chains, ripple: Ripple::default() })
        }
        Command::Trigger(Trigger { jobs }) => {
            Reply::Trigger(TriggerReply::Refused(vec![Some(Untriggerable::Busy); jobs.len()]))
        }
        Command::Retry(Retry { chains }) => {
            Reply::Retry(RetryReply { chains: vec![Retried::Busy; chains.len()], deferred: false })
        }
        Command::Delete(_) => Reply::Delete(DeleteReply::Busy),
        Command::SetRetention(SetRetention { chains, .. }) => {
            Reply::SetRetention(SetRetentionReply { chains: vec![RetentionSet::Busy; chains.len()] })
        }
        Command::ChangeSchedules(ChangeSchedules { changes }) => {
            let changes = vec![ScheduleChanged::Busy; changes.len()];
            Reply::ChangeSchedules(ChangeSchedulesReply { now: Timestamp::default(), changes })
        }
        command => panic!("no row of `{}` is ever busy", command.name()),
    }
}

fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is down")
}

/// A clock that follows the runtime's time, which may be paused.
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

impl Decorator for Faulty {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn supported(&self) -> Capabilities {
        let capabilities = self.inner.capabilities().exchanges_in_flight(self.exchanges);
        let capabilities = if self.is_joining { capabilities.joining() } else { capabilities };
        if self.is_parallel { capabilities.in_parallel() } else { capabilities }
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        let name = command.name();
        let mut state = self.state.lock().unwrap();
        match &command {
            Command::Acquire(Acquire { max, .. }) => state.requested_max = state.requested_max.max(*max),
            Command::CreateAndAcquire(CreateAndAcquire { acquire: Acquire { max, .. }, .. }) => {
                state.joined_max = state.joined_max.max(*max);
            }
            _ => {}
        }
        drop(state);
        match self.enter(name) {
            Some(Fault::IsBusy) => Box::pin(async move { Ok(busy(&command)) }),
            fault if name == "exchange" => Box::pin(async move {
                self.count_exchange(true);
                let reply = apply(fault, name, self.forward(command)).await;
                self.count_exchange(false);
                reply
            }),
            fault => Box::pin(apply(fault, name, self.forward(command))),
        }
    }
}

impl TransactionDecorator for Faulty {
    fn call_begin(&self) -> BoxFuture<'_, Result<MemoryTx>> {
        Box::pin(apply(self.enter("begin"), "begin", self.inner.begin()))
    }

    fn call_begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<MemoryTx>> {
        Box::pin(apply(self.enter("begin"), "begin", self.inner.begin_attempt(attempt)))
    }

    fn call_commit(&self, tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        Box::pin(apply(self.enter("commit"), "commit", self.inner.commit(tx)))
    }

    fn call_rollback_to<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        Box::pin(apply(self.enter("rollback_to"), "rollback_to", self.inner.rollback_to(tx)))
    }

    fn call_in<'a>(&'a self, tx: &'a mut MemoryTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        let is_settle = matches!(command, Command::Settle(_));
        if is_settle && matches!(self.enter("settle_in"), Some(Fault::IsBusy)) {
            let busy = SettleReply { settled: vec![Settled::Busy], ripple: Ripple::default() };
            return Box::pin(async { Ok(Reply::Settle(busy)) });
        }
        self.inner.execute_in(tx, command)
    }
}
