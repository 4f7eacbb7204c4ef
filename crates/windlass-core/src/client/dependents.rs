//! Reports jobs that wait for a chain that has failed.
//!
//! Such a job waits until the chain is retried, so operators must learn of it. The stores do not return these jobs with
//! the command that closes the chain. A background task queries them afterwards, one failed chain after the other.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{mpsc, oneshot};

use super::Dispatcher;
use super::outbox::Outbox;
use super::send::send;
use super::store_time::StoreTime;
use crate::command::{GetChains, ListDependents, Page, Request, Target};
use crate::error::Result;
use crate::id::ChainId;
use crate::name::ErrorText;
use crate::observer::{About, Event};
use crate::record::{ClosedAs, JobRecord, OnBlockerFailure, Status};
use crate::store::AnyStore;

/// The maximum number of failed chains that wait for the task. Jobs that wait for further ones are not reported, which one
/// warning says.
const WAITING_MAX: usize = 1_000;

/// The number of jobs per query. Their inputs come with them, so a page must not be large.
const PAGE_JOBS: u32 = 20;

/// The maximum number of queries for a chain. If it has more dependents, the others are not reported, which a warning says.
const PAGES_MAX: u32 = 50;

pub(super) struct Dependents {
    store: Arc<AnyStore>,
    dispatcher: Weak<Dispatcher>,
    outbox: Outbox<Message>,
    /// The number of chains that found no place in the outbox since the latest warning.
    skipped: Arc<AtomicU64>,
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
        let (outbox, skipped) = (Outbox::new(WAITING_MAX), Arc::default());
        Self { store: Arc::new(store), dispatcher, outbox, skipped }
    }

    /// Reports the jobs that wait for these chains, in the background.
    pub(super) fn report(&self, chains: Vec<(ChainId, ClosedAs)>) {
        if chains.is_empty() {
            return;
        }
        let Some(sender) = self.sender() else { return };
        for (chain, closed_as) in chains {
            if sender.try_send(Message::Failed(chain, closed_as)).is_err() {
                self.skipped.fetch_add(1, Ordering::Relaxed);
            }
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
            let task = Task {
                store: Arc::clone(&self.store),
                dispatcher: self.dispatcher.clone(),
                skipped: Arc::clone(&self.skipped),
                has_failed: false,
            };
            runtime.spawn(task.run(receiver));
        })
    }
}

impl fmt::Debug for Dependents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependents").finish_non_exhaustive()
    }
}

/// The task that queries the jobs.
struct Task {
    store: Arc<AnyStore>,
    dispatcher: Weak<Dispatcher>,
    skipped: Arc<AtomicU64>,
    /// Whether the latest query failed. Only the first error of an outage is reported.
    has_failed: bool,
}

impl Task {
    async fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        while let Some(message) = messages.recv().await {
            match message {
                Message::Failed(chain, closed_as) => {
                    let Some(dispatcher) = self.dispatcher.upgrade() else { return };
                    let time = Arc::clone(dispatcher.time());
                    // Not held during the queries: see `sender`.
                    drop(dispatcher);
                    let waiting = waiting_for(&self.store, &time, chain, closed_as).await;
                    let Some(dispatcher) = self.dispatcher.upgrade() else { return };
                    self.report(&dispatcher, chain, closed_as, waiting);
                    // One warning after a burst, instead of one per chain.
                    if messages.is_empty() {
                        self.report_skipped();
                    }
                }
                Message::Flush(handled) => {
                    self.report_skipped();
                    let _ = handled.send(());
                }
            }
        }
    }

    fn report(
        &mut self,
        dispatcher: &Dispatcher,
        chain: ChainId,
        closed_as: ClosedAs,
        waiting: Result<Waiting>,
    ) {
        let Waiting { jobs, are_all } = match waiting {
            Ok(waiting) => {
                self.has_failed = false;
                waiting
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    let event = Event::StoreFailed(ListDependents::NAME, ErrorText::new(error.to_string()));
                    dispatcher.observe(&event);
                }
                return;
            }
        };
        let reported = jobs.len();
        for about in jobs {
            dispatcher.observe(&Event::BlockerFailed(about, chain, closed_as));
        }
        if !are_all {
            tracing::warn!(
                target: "windlass",
                %chain,
                reported,
                "more jobs wait for a chain that failed or was cancelled than are reported: retry the chain, or list \
                 its dependents"
            );
        }
    }

    /// Warns that chains were skipped because too many failed at the same time.
    fn report_skipped(&self) {
        let chains = self.skipped.swap(0, Ordering::Relaxed);
        if chains > 0 {
            tracing::warn!(
                target: "windlass",
                chains,
                "too many chains failed or were cancelled at the same time: jobs that wait for some of them are not \
                 reported; list the blocked jobs"
            );
        }
    }
}

/// The jobs that wait for a failed chain.
struct Waiting {
    /// Without inputs and outputs, which may be large.
    jobs: Vec<About>,
    /// Whether there are no others.
    are_all: bool,
}

/// Returns the jobs that keep waiting for a chain although it has failed. Returns none if the chain has been retried in
/// the meantime.
async fn waiting_for(
    store: &AnyStore,
    time: &StoreTime,
    chain: ChainId,
    closed_as: ClosedAs,
) -> Result<Waiting> {
    let is_waiting = |job: &JobRecord| {
        let is_awaited = job.blockers.iter().any(|blocker| blocker.chain == chain && !blocker.resolved);
        is_awaited && job.status == Status::Blocked && job.on_blocker_failure == OnBlockerFailure::Wait
    };
    let (mut jobs, mut are_all) = (Vec::new(), false);
    let mut page = Page { max: PAGE_JOBS, ..Page::default() };
    for _ in 0..PAGES_MAX {
        let reply = send(store, &ListDependents { chain, page: page.clone() }).await?;
        let waiting = reply.jobs.iter().filter(|job| is_waiting(job));
        jobs.extend(waiting.map(|job| About::of(time.now(), job)));
        match reply.next {
            Some(next) => page.after = Some(next),
            None => {
                are_all = true;
                break;
            }
        }
    }
    if jobs.is_empty() {
        return Ok(Waiting { jobs, are_all });
    }
    let chains = send(store, &GetChains { chains: vec![Target::Chain(chain)] }).await?.chains;
    let closed = chains.into_iter().flatten().find_map(|record| record.closed);
    if closed.is_none_or(|closed| closed.closed_as != closed_as) {
        return Ok(Waiting { jobs: Vec::new(), are_all: true });
    }
    Ok(Waiting { jobs, are_all })
}
