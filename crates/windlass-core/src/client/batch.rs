use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::command::{NewChain, Size};
use crate::error::{Error, ErrorKind, Result};
use crate::limit::BATCH_MAX_ITEMS;
use crate::store::BoxFuture;

/// Groups items of concurrent callers into batches.
///
/// One batch is flushed at a time. An item that arrives while no flush is in progress is flushed immediately.
/// Items that arrive during a flush form the next batch. Batches therefore grow with the load, an idle
/// batcher adds no delay, and there is no timer to tune.
pub(crate) struct Batcher<I, R> {
    shared: Arc<Shared<I, R>>,
}

type Flush<I, R> = dyn Fn(Vec<I>) -> BoxFuture<'static, Result<Vec<R>>> + Send + Sync;

struct Shared<I, R> {
    queue: Mutex<Queue<I, R>>,
    flush: Arc<Flush<I, R>>,
    size: fn(&I) -> Size,
    tasks: TaskTracker,
}

/// Both fields change under one lock; see [`Batcher::add`].
struct Queue<I, R> {
    /// The items for the next flushes.
    waiting: Batch<I, R>,
    /// Whether a task is running that will take the waiting items.
    flushing: bool,
}

/// Items and the channels to the callers that wait for their answers, in the same order. Two lists, so that
/// the items can be moved into a command as they are.
struct Batch<I, R> {
    items: Vec<I>,
    senders: Vec<oneshot::Sender<Result<R>>>,
}

impl<I, R> Batch<I, R> {
    fn with_capacity(count: usize) -> Self {
        Self { items: Vec::with_capacity(count), senders: Vec::with_capacity(count) }
    }

    /// Removes and returns the first `count` items.
    fn take(&mut self, count: usize) -> Self {
        if count == self.items.len() {
            return std::mem::replace(self, Self::with_capacity(count));
        }
        Self { items: self.items.drain(..count).collect(), senders: self.senders.drain(..count).collect() }
    }
}

impl<I: Send + 'static, R: Send + 'static> Batcher<I, R> {
    /// Creates a batcher that passes batches to `flush`, each within the limits of a command. `flush` returns
    /// one answer per item, in order.
    pub(crate) fn new(
        size: fn(&I) -> Size,
        flush: impl Fn(Vec<I>) -> BoxFuture<'static, Result<Vec<R>>> + Send + Sync + 'static,
    ) -> Self {
        Self::over(Arc::new(flush), size)
    }

    /// Creates another batcher with the same `flush`. Neither waits for the batches of the other. An idle
    /// batcher runs no task.
    pub(crate) fn separate(&self) -> Self {
        Self::over(Arc::clone(&self.shared.flush), self.shared.size)
    }

    fn over(flush: Arc<Flush<I, R>>, size: fn(&I) -> Size) -> Self {
        let queue = Mutex::new(Queue { waiting: Batch::with_capacity(0), flushing: false });
        Self { shared: Arc::new(Shared { queue, flush, size, tasks: TaskTracker::new() }) }
    }

    /// Returns the tracker of the flush task. While the task runs, items may be on their way to the store
    /// even if their callers no longer wait for the answers.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }

    /// Adds an item and waits for its answer. If the caller stops waiting, the item is flushed nevertheless.
    pub(crate) async fn add(&self, item: I) -> Result<R> {
        let (sender, answer) = oneshot::channel();
        let is_first = {
            // Push the item and set `flushing` under one lock. The flush task finds the queue empty and
            // clears `flushing` under the same lock. So either that task sees this item, or this caller
            // starts a new task; the item cannot be left behind.
            let mut queue = self.shared.queue();
            queue.waiting.items.push(item);
            queue.waiting.senders.push(sender);
            !std::mem::replace(&mut queue.flushing, true)
        };
        if is_first {
            // Flush on a separate task: if this caller is dropped, the other callers still get their answers.
            // The guard exists before the task runs: a runtime that stops drops tasks that it has never polled.
            self.shared.tasks.spawn(flush_all(Guard(Some(Arc::clone(&self.shared)))));
        }
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the runtime stopped before the store answered: retry the command",
            ))
        })
    }
}

impl<I: Send + 'static, R: Send + 'static> Shared<I, R> {
    fn queue(&self) -> MutexGuard<'_, Queue<I, R>> {
        // A poisoned queue is still consistent: no code under this lock panics in the middle of a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes batches until no items are waiting.
    async fn run(&self) {
        while let Some(Batch { items, senders }) = self.collected().await {
            match (self.flush)(items).await {
                Ok(answers) => {
                    senders
                        .into_iter()
                        .zip(answers)
                        .for_each(|(sender, answer)| drop(sender.send(Ok(answer))));
                }
                Err(error) => senders.into_iter().for_each(|sender| drop(sender.send(Err(error.clone())))),
            }
        }
    }

    /// Returns the next batch, or `None` if no items are waiting.
    ///
    /// Yields once first, so that other ready tasks can add their items: the callers that were just answered,
    /// and tasks that became ready together with the first caller. Without the yield, their items would have
    /// to wait for another flush.
    async fn collected(&self) -> Option<Batch<I, R>> {
        tokio::task::yield_now().await;
        self.take()
    }

    /// Takes the first items that fit into one command. An item that exceeds the limits is sent alone, and
    /// only that item is refused.
    fn take(&self) -> Option<Batch<I, R>> {
        let mut queue = self.queue();
        let count = fitting(queue.waiting.items.iter().map(self.size));
        queue.flushing = count > 0;
        (count > 0).then(|| queue.waiting.take(count))
    }
}

/// Returns how many of these items fit into one command: at least one, if there are any.
fn fitting(sizes: impl Iterator<Item = Size>) -> usize {
    let mut total = Size::default();
    let mut count = 0;
    for size in sizes {
        total = total.and(size);
        if count > 0 && total.check("items").is_err() {
            break;
        }
        count += 1;
    }
    count
}

/// Splits chains into batches, each within the limits of a command.
pub(crate) fn batches(chains: Vec<NewChain>) -> Vec<Vec<NewChain>> {
    let (mut batches, mut size) =
        (vec![Vec::with_capacity(chains.len().min(BATCH_MAX_ITEMS))], Size::default());
    for new in chains {
        size = size.and(new.job.size());
        match batches.last_mut() {
            Some(batch) if batch.is_empty() || size.check("chains").is_ok() => batch.push(new),
            _ => {
                size = new.job.size();
                batches.push(vec![new]);
            }
        }
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

async fn flush_all<I: Send + 'static, R: Send + 'static>(mut guard: Guard<I, R>) {
    if let Some(shared) = &guard.0 {
        shared.run().await;
    }
    // `take` has cleared `flushing`. Since then, another caller may have added an item and started a new task. The
    // guard would discard that item.
    guard.0 = None;
}

/// Lets the next item start a new task if this one ends early: by a panic, or with its runtime. Items that wait for it
/// are dropped, so that their callers get an error.
struct Guard<I: Send + 'static, R: Send + 'static>(Option<Arc<Shared<I, R>>>);

impl<I: Send + 'static, R: Send + 'static> Drop for Guard<I, R> {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            let mut queue = shared.queue();
            queue.flushing = false;
            queue.waiting = Batch::with_capacity(0);
        }
    }
}

/// Clones share everything.
impl<I, R> Clone for Batcher<I, R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<I, R> fmt::Debug for Batcher<I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Batcher")
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_runtime_that_drops_the_flush_before_it_runs_leaves_no_item_waiting() {
        let size = |_: &u32| Size::default();
        let batcher = Batcher::new(size, |items: Vec<u32>| Box::pin(async move { Ok(items) }));
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let stopped = runtime();
        stopped.block_on(async {
            let mut adding = pin!(batcher.add(1));
            poll_fn(|context| Poll::Ready(adding.as_mut().poll(context).is_pending())).await
        });
        drop(stopped);
        assert_eq!(runtime().block_on(batcher.add(2)).unwrap(), 2);
    }
}
