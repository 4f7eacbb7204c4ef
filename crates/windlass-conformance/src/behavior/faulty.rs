//! A wrapper around any store that fails on demand.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Decorator, Error, ErrorKind, Millis, Result, Store, TransactionDecorator, Transactional,
};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The command is not run, and the caller gets an error.
    Fails,
    /// The command is run, but the caller gets an error.
    LosesReply,
}

/// Controls a call that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Hold {
    begun: Arc<Notify>,
    go: Arc<Notify>,
}

impl Hold {
    /// Waits until the call has begun.
    pub(super) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Lets the call continue.
    pub(super) fn let_go(&self) {
        self.go.notify_one();
    }
}

/// A store that fails on demand. Calls are named after the store's methods. In a transaction, `begin` and `commit` have
/// their own names, and commands are named `in_tx`. Clones share everything.
#[derive(Debug)]
pub(super) struct Faulty<S> {
    inner: Arc<S>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    scripted: HashMap<&'static str, (Fault, usize)>,
    held: HashMap<&'static str, Hold>,
    /// If set, one in this many calls of each command fails.
    every: Option<usize>,
    lease: Option<Millis>,
    calls: HashMap<&'static str, usize>,
    failures: usize,
}

impl<S> Faulty<S> {
    /// Creates a store that does not fail yet.
    pub(super) fn new(inner: &Arc<S>) -> Self {
        Self { inner: Arc::clone(inner), state: Arc::default() }
    }

    /// Applies this fault to the next `times` calls of each of these commands.
    pub(super) fn fault(&self, commands: &[&'static str], fault: Fault, times: usize) {
        let mut state = self.state();
        state.scripted.extend(commands.iter().map(|command| (*command, (fault, times))));
    }

    /// Holds the next call of this command before it is run.
    pub(super) fn hold(&self, command: &'static str) -> Hold {
        self.state().held.entry(command).or_default().clone()
    }

    /// Fails one in this many calls of each command, alternately after and before the command is run.
    pub(super) fn fail_one_of(&self, calls: usize) {
        self.state().every = Some(calls);
    }

    /// Shortens the leases of acquired jobs to `lease`, while the worker sees a lease of a minute.
    pub(super) fn shorten_leases(&self, lease: Millis) {
        self.state().lease = Some(lease);
    }

    /// Removes all faults.
    pub(super) fn mend(&self) {
        let mut state = self.state();
        state.scripted.clear();
        (state.every, state.lease) = (None, None);
    }

    /// Returns how often a command was called.
    pub(super) fn calls(&self, command: &str) -> usize {
        self.state().calls.get(command).copied().unwrap_or(0)
    }

    /// Returns how many calls failed.
    pub(super) fn failures(&self) -> usize {
        self.state().failures
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, command: &'static str) -> Option<Fault> {
        let mut state = self.state();
        *state.calls.entry(command).or_default() += 1;
        let fault = state.next_fault(command)?;
        state.failures += 1;
        Some(fault)
    }

    /// Runs a call, or lets it fail.
    async fn attempt<T>(
        &self,
        command: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let held = self.state().held.remove(command);
        if let Some(Hold { begun, go }) = held {
            begun.notify_one();
            go.notified().await;
        }
        match self.enter(command) {
            None => call.await,
            Some(Fault::Fails) => Err(down()),
            Some(Fault::LosesReply) => call.await.and(Err(down())),
        }
    }

    fn shorten(&self, mut command: Command) -> Command {
        if let (
            Some(lease),
            Command::Acquire(acquire)
            | Command::Exchange(Exchange { acquire, .. })
            | Command::CreateAndAcquire(CreateAndAcquire { acquire, .. }),
        ) = (self.state().lease, &mut command)
        {
            acquire.types.iter_mut().for_each(|quota| quota.lease = lease);
        }
        command
    }

    /// Hides shortened leases from the worker.
    fn lengthen(&self, mut reply: Reply) -> Reply {
        if let (
            Some(_),
            Reply::Acquire(acquired)
            | Reply::Exchange(ExchangeReply { acquire: acquired, .. })
            | Reply::CreateAndAcquire(CreateAndAcquireReply { acquire: acquired, .. }),
        ) = (self.state().lease, &mut reply)
        {
            let leases = acquired.jobs.iter_mut().filter_map(|acquired| acquired.job.lease.as_mut());
            leases.for_each(|lease| lease.until = acquired.now + Millis::from_secs(60));
        }
        reply
    }
}

impl State {
    fn next_fault(&mut self, command: &'static str) -> Option<Fault> {
        if let Some(every) = self.every {
            // With `every` above 2, neither the first call nor two calls in a row fail.
            let (turn, call) = (self.calls.get(command)? / every, self.calls.get(command)? % every);
            let fault = if turn.is_multiple_of(2) { Fault::LosesReply } else { Fault::Fails };
            return (call == every - 1).then_some(fault);
        }
        let (fault, left) = self.scripted.get_mut(command)?;
        *left = left.checked_sub(1)?;
        Some(*fault)
    }
}

impl<S> Clone for Faulty<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), state: Arc::clone(&self.state) }
    }
}

fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "the store is down")
}

impl<S: Store> Decorator for Faulty<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        let (name, command) = (command.name(), self.shorten(command));
        Box::pin(async move { Ok(self.lengthen(self.attempt(name, self.forward(command)).await?)) })
    }
}

impl<S: Transactional> TransactionDecorator for Faulty<S> {
    fn call_begin(&self) -> BoxFuture<'_, Result<S::Tx>> {
        Box::pin(self.attempt("begin", self.inner.begin()))
    }

    fn call_begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<S::Tx>> {
        Box::pin(self.attempt("begin", self.inner.begin_attempt(attempt)))
    }

    fn call_commit(&self, tx: S::Tx) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.attempt("commit", self.inner.commit(tx)))
    }

    fn call_in<'a>(&'a self, tx: S::TxRef<'a>, command: Command) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(self.attempt("in_tx", self.inner.execute_in(tx, command)))
    }
}
