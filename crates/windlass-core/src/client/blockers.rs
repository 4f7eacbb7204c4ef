//! Queries the trace contexts of the chains that a new job waits for, for the observers that request them.
//!
//! The caller knows only the ids of these chains, and the stores do not return their contexts with the command that
//! creates the job. A background task queries them afterwards.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::outbox::Outbox;
use super::send::send;
use crate::command::{GetChains, Target};
use crate::id::ChainId;
use crate::observer::{BlockerTrace, BlockersFound};
use crate::store::AnyStore;

/// The maximum number of jobs that wait for the task. The contexts of further ones are not queried.
const WAITING_MAX: usize = 1_000;

/// The maximum number of blockers of a job that are queried. The links of a span are limited too.
const BLOCKERS_MAX: usize = 100;

/// The number of chains per query. Their inputs come with them, so a query must not have many.
const QUERY_CHAINS: usize = 20;

pub(super) struct Blockers {
    store: Arc<AnyStore>,
    outbox: Outbox<Message>,
}

/// A message to the task.
enum Message {
    /// Asks the task to query the contexts of these chains.
    Find(Vec<ChainId>, Callbacks),
    /// Asks the task to answer when it has handled all messages before this one.
    Flush(oneshot::Sender<()>),
}

impl Blockers {
    pub(super) fn new(store: AnyStore) -> Self {
        Self { store: Arc::new(store), outbox: Outbox::new(WAITING_MAX) }
    }

    /// Queries the chains in the background, and calls the functions with their contexts.
    pub(super) fn find(&self, chains: &[ChainId], callbacks: Vec<BlockersFound>) {
        let message = Message::Find(chains.to_vec(), Callbacks(callbacks));
        if let Some(sender) = self.sender() {
            // If the task is too slow, or outside a runtime, the functions are dropped.
            let _ = sender.try_send(message);
        }
    }

    /// Waits until all queries so far have been answered.
    pub(super) async fn flush(&self) {
        self.outbox.flush(Message::Flush).await;
    }

    /// Returns the sender to the task of this runtime.
    fn sender(&self) -> Option<mpsc::Sender<Message>> {
        self.outbox.sender(|runtime, receiver| {
            runtime.spawn(answer(Arc::clone(&self.store), receiver));
        })
    }
}

async fn answer(store: Arc<AnyStore>, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Find(chains, callbacks) => callbacks.call(&query(&store, &chains).await),
            Message::Flush(handled) => {
                let _ = handled.send(());
            }
        }
    }
}

/// Returns the contexts of those chains that exist and have one. If the store fails, the spans have no links.
async fn query(store: &AnyStore, chains: &[ChainId]) -> Vec<BlockerTrace> {
    let mut found = Vec::new();
    for part in chains.get(..BLOCKERS_MAX).unwrap_or(chains).chunks(QUERY_CHAINS) {
        let request = GetChains { chains: part.iter().copied().map(Target::Chain).collect() };
        let Ok(reply) = send(store, &request).await else { break };
        let records = reply.chains.into_iter().flatten();
        found.extend(records.filter_map(|record| {
            Some(BlockerTrace { chain: record.id, chain_type: record.chain_type, trace: record.trace? })
        }));
    }
    found
}

/// Functions of observers, which may panic when they are called or dropped.
struct Callbacks(Vec<BlockersFound>);

impl Callbacks {
    fn call(mut self, found: &[BlockerTrace]) {
        for callback in self.0.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| callback(found)));
        }
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        for callback in self.0.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(callback)));
        }
    }
}

impl fmt::Debug for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blockers").finish_non_exhaustive()
    }
}
