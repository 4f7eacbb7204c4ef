//! Executes the commands of a client, in the store or in a transaction.

use std::future::Future;

use super::outside::Queried;
use super::send::{BusyRetries, Repeat, send};
use super::trace::Why;
use super::{Announcements, Client, Dispatcher, InTx, Shared, outside, start};
use crate::command::{Created, NewChain, Step};
use crate::error::{Error, ErrorKind, Result};
use crate::record::Status;
use crate::store::{BoxFuture, Store, Transactional};

/// A client or a transaction that executes commands.
pub(super) trait Executor: Send {
    /// Sends a command. Outside a transaction, each try has a timeout, and the command is repeated after a
    /// lost reply if it is repeatable.
    fn send<R: Repeat>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send;

    /// Announces changes: immediately, or after the commit of the transaction.
    fn announce(&mut self, note: impl FnOnce(&mut Announcements));

    /// Returns the dispatcher of the client.
    fn dispatcher(&self) -> &Dispatcher;

    /// Sends a command. Retries it up to 20 times, every 50 ms, while another transaction has locked one of its rows.
    fn execute<R: Repeat>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        async {
            let mut retries = BusyRetries::new();
            loop {
                let reply = self.send(request).await?;
                if !R::is_busy(&reply) || !retries.wait().await {
                    return Ok(reply);
                }
            }
        }
    }
}

impl<S: Store + ?Sized> Executor for &Client<S> {
    fn send<R: Repeat>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        let Shared { store, dispatcher, .. } = &*self.shared;
        // Counted in the request: the reply to a client's command has one result per item.
        let items = |_: &R::Reply| request.items();
        dispatcher.measured(R::NAME, items, send(&**store, request))
    }

    fn announce(&mut self, note: impl FnOnce(&mut Announcements)) {
        let mut announcements = Announcements::committed(&self.shared.dispatcher);
        note(&mut announcements);
        announcements.send(&self.shared.dispatcher);
    }

    fn dispatcher(&self) -> &Dispatcher {
        &self.shared.dispatcher
    }
}

impl<S: Transactional> Executor for InTx<'_, S> {
    /// Never repeats the command: after a lost reply the transaction has failed as a whole, and its owner
    /// runs it again.
    fn send<R: Repeat>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        self.run(request.clone())
    }

    fn announce(&mut self, note: impl FnOnce(&mut Announcements)) {
        note(self.announcements_mut());
    }

    fn dispatcher(&self) -> &Dispatcher {
        Self::dispatcher(self)
    }
}

impl<E: Executor> Executor for &mut E {
    fn send<R: Repeat>(&mut self, request: &R) -> impl Future<Output = Result<R::Reply>> + Send {
        (**self).send(request)
    }

    fn announce(&mut self, note: impl FnOnce(&mut Announcements)) {
        (**self).announce(note);
    }

    fn dispatcher(&self) -> &Dispatcher {
        (**self).dispatcher()
    }
}

/// The part of an executor that a start and a completion from outside need. It is dyn-compatible.
pub(super) trait DynExecutor: Send {
    /// Creates a chain.
    fn create_one(&mut self, new: NewChain) -> BoxFuture<'_, Result<Created>>;

    /// Ends a job that the caller has queried. Returns the status of its chain.
    fn complete(&mut self, job: Queried, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>>;
}

/// Starts of concurrent callers share a write. See [`Client::start`].
impl<S: Store + ?Sized> DynExecutor for &Client<S> {
    fn create_one(&mut self, mut new: NewChain) -> BoxFuture<'_, Result<Created>> {
        Box::pin(async move {
            // Request the trace context here, not where the batch is written: that runs on another task,
            // where the caller's span is not current.
            let traces = self.shared.dispatcher.request_traces(std::slice::from_mut(&mut new));
            let (dispatcher, chain) = (&self.shared.dispatcher, new.id);
            match self.create_shared(new).await {
                Ok(created) => {
                    let missing = Why::of(&created).map(|why| (chain, why));
                    dispatcher.retain_written(traces, missing.as_slice()).forget();
                    Ok(created)
                }
                Err(error) => {
                    dispatcher.rolled_back(traces);
                    Err(error)
                }
            }
        })
    }

    fn complete(&mut self, job: Queried, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>> {
        Box::pin(outside::complete(*self, job, steps))
    }
}

impl<S: Transactional> DynExecutor for InTx<'_, S> {
    fn create_one(&mut self, new: NewChain) -> BoxFuture<'_, Result<Created>> {
        Box::pin(async move {
            let created = start::create(self, vec![new]).await?.pop();
            created.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the store returned no reply for a chain"))
        })
    }

    fn complete(&mut self, job: Queried, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>> {
        Box::pin(outside::complete(self, job, steps))
    }
}

impl<E: DynExecutor> DynExecutor for &mut E {
    fn create_one(&mut self, new: NewChain) -> BoxFuture<'_, Result<Created>> {
        (**self).create_one(new)
    }

    fn complete(&mut self, job: Queried, steps: Vec<Step>) -> BoxFuture<'_, Result<Status>> {
        (**self).complete(job, steps)
    }
}
