//! Reports jobs that wait for a chain that has failed.
//!
//! Such a job waits until the chain is retried, so operators must learn of it. The stores do not return these jobs with
//! the command that closes the chain. A background task queries them afterwards, one failed chain after the other.

use std::fmt;
use std::sync::{Arc, Weak};

use tokio::sync::{mpsc, oneshot};

use super::Dispatcher;
use super::outbox::Outbox;
use super::send::send;
use crate::command::{GetChains, ListDependents, Page, Target};
use crate::error::Result;
use crate::id::ChainId;
use crate::observer::{About, Event};
use crate::record::{ClosedAs, JobRecord, OnBlockerFailure, Status};
use crate::store::AnyStore;

/// The maximum number of failed chains that wait for the task. Further ones are not reported.
const WAITING_MAX: usize = 1_000;

/// The number of jobs per query.
const PAGE_JOBS: u32 = 100;

/// The maximum number of queries for a chain. If it has more dependents, the others are not reported.
const PAGES_MAX: u32 = 10;

pub(super) struct Dependents {
    store: Arc<AnyStore>,
    dispatcher: Weak<Dispatcher>,
    outbox: Outbox<Message>,
}

/// A message to the task.
enum Message {
    /// This chain failed or was cancelled.
    Failed(ChainId, ClosedAs),
    /// Asks the task to answer when it has handled all messages before this one.
    Flush(oneshot::Sender<()>),
}

impl Dependents {
    pub(super) fn new(store: AnyStore, dispatcher: Weak<Dispatcher>) -> Self {
        Self { store: Arc::new(store), dispatcher, outbox: Outbox::new(WAITING_MAX) }
    }

    /// Reports the jobs that wait for these chains, in the background.
    pub(super) fn report(&self, chains: Vec<(ChainId, ClosedAs)>) {
        if chains.is_empty() {
            return;
        }
        let Some(sender) = self.sender() else { return };
        for (chain, closed_as) in chains {
            let _ = sender.try_send(Message::Failed(chain, closed_as));
        }
    }

    /// Waits until all chains so far have been handled.
    pub(super) async fn flush(&self) {
        self.outbox.flush(Message::Flush).await;
    }

    /// Returns the sender to the task of this runtime.
    fn sender(&self) -> Option<mpsc::Sender<Message>> {
        self.outbox.sender(|runtime, receiver| {
            // The task must not hold the dispatcher, which owns the sender: the channel would never close.
            runtime.spawn(run(receiver, Arc::clone(&self.store), self.dispatcher.clone()));
        })
    }
}

impl fmt::Debug for Dependents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependents").finish_non_exhaustive()
    }
}

async fn run(mut messages: mpsc::Receiver<Message>, store: Arc<AnyStore>, dispatcher: Weak<Dispatcher>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Flush(handled) => {
                let _ = handled.send(());
            }
            Message::Failed(chain, closed_as) => {
                // No need to report an error: other commands fail for the same reason.
                let jobs = waiting_for(&store, chain, closed_as).await.unwrap_or_default();
                let Some(dispatcher) = dispatcher.upgrade() else { return };
                for job in jobs {
                    dispatcher.observe(&Event::BlockerFailed(
                        About::of(dispatcher.now(), &job),
                        chain,
                        closed_as,
                    ));
                }
            }
        }
    }
}

/// Returns the jobs that keep waiting for a chain although it has failed. Returns none if the chain has been retried in
/// the meantime.
async fn waiting_for(store: &AnyStore, chain: ChainId, closed_as: ClosedAs) -> Result<Vec<JobRecord>> {
    let is_waiting = |job: &JobRecord| {
        let is_awaited = job.blockers.iter().any(|blocker| blocker.chain == chain && !blocker.resolved);
        is_awaited && job.status == Status::Blocked && job.on_blocker_failure == OnBlockerFailure::Wait
    };
    let (mut jobs, mut page) = (Vec::new(), Page { max: PAGE_JOBS, ..Page::default() });
    for _ in 0..PAGES_MAX {
        let reply = send(store, &ListDependents { chain, page: page.clone() }).await?;
        jobs.extend(reply.jobs.into_iter().filter(is_waiting));
        match reply.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    if jobs.is_empty() {
        return Ok(jobs);
    }
    let chains = send(store, &GetChains { chains: vec![Target::Chain(chain)] }).await?.chains;
    let closed = chains.into_iter().flatten().find_map(|record| record.closed);
    Ok(if closed.is_some_and(|closed| closed.closed_as == closed_as) { jobs } else { Vec::new() })
}
