//! Sends messages to background tasks, one for each runtime.

use std::fmt;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::per_runtime::PerRuntime;

/// The channels to background tasks, one for each runtime: see [`PerRuntime`]. If a task has ended, with its runtime or
/// by a panic, the next message starts a new one.
pub(super) struct Outbox<M> {
    senders: PerRuntime<Option<mpsc::Sender<M>>>,
    waiting_max: usize,
}

impl<M> Outbox<M> {
    /// Creates an outbox without tasks, whose channels hold up to `waiting_max` messages.
    pub(super) fn new(waiting_max: usize) -> Self {
        Self { senders: PerRuntime::default(), waiting_max }
    }

    /// Returns the channel of the current runtime. Calls `start` to start the task that receives its messages, unless it
    /// is running. Returns `None` outside a runtime.
    pub(super) fn sender(&self, start: impl FnOnce(&Handle, mpsc::Receiver<M>)) -> Option<mpsc::Sender<M>> {
        let runtime = Handle::try_current().ok()?;
        let known = self.senders.with(runtime.id(), |sender| sender.clone());
        if let Some(sender) = known.filter(|sender| !sender.is_closed()) {
            return Some(sender);
        }
        self.senders.retain(|sender| sender.as_ref().is_some_and(|sender| !sender.is_closed()));
        self.senders.with(runtime.id(), |known| match known {
            // Another thread was faster.
            Some(sender) if !sender.is_closed() => Some(sender.clone()),
            _ => {
                let (sender, receiver) = mpsc::channel(self.waiting_max);
                start(&runtime, receiver);
                Some(known.insert(sender).clone())
            }
        })
    }

    /// Waits until the tasks of all runtimes have handled the messages so far. `message` asks a task to answer.
    pub(super) async fn flush(&self, message: fn(oneshot::Sender<()>) -> M)
    where
        M: Send + 'static,
    {
        // Concurrently: a runtime that is not driven does not answer.
        let mut flushing = JoinSet::new();
        for sender in self.senders.map(Clone::clone).into_iter().flatten() {
            flushing.spawn(async move {
                let (answer, answered) = oneshot::channel();
                if sender.send(message(answer)).await.is_ok() {
                    let _ = answered.await;
                }
            });
        }
        while flushing.join_next().await.is_some() {}
    }
}

impl<M> fmt::Debug for Outbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outbox")
    }
}
