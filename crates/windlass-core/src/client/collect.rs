//! [`Collector`]: groups items into batches.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::{Handle, Id};
use tokio::task::yield_now;
use tokio_util::task::TaskTracker;

use super::per_runtime::PerRuntime;
use crate::command::Size;
use crate::limit::BATCH_MAX_ITEMS;
use crate::store::BoxFuture;

/// Collects items of concurrent callers into batches.
///
/// An item that arrives while another flush is allowed is flushed as soon as the other tasks that are ready have run, because
/// they may add more. Items that arrive while all flushes are in progress form the next batch. Batches therefore grow with
/// the load, an idle collector adds no delay, and there is no timer to tune.
///
/// Each runtime has its own batches: see [`PerRuntime`].
pub(crate) struct Collector<I> {
    shared: Arc<Shared<I>>,
}

type Flush<I> = dyn Fn(Vec<I>) -> BoxFuture<'static, ()> + Send + Sync;
type SizeOf<I> = dyn Fn(&I) -> Size + Send + Sync;

struct Shared<I> {
    queues: PerRuntime<Queue<I>>,
    flush: Arc<Flush<I>>,
    size: Arc<SizeOf<I>>,
    /// The number of flushes that may be in progress at the same time.
    flushes_max: usize,
    tasks: TaskTracker,
}

/// The items of one runtime. All fields change under one lock; see [`Collector::push`].
struct Queue<I> {
    /// The items for the next flushes.
    waiting: Vec<I>,
    /// The number of flush tasks.
    tasks: usize,
    /// Whether one of them is about to take the waiting items.
    is_collecting: bool,
}

impl<I> Default for Queue<I> {
    fn default() -> Self {
        Self { waiting: Vec::new(), tasks: 0, is_collecting: false }
    }
}

impl<I: Send + 'static> Collector<I> {
    /// Creates a collector that passes batches to `flush`, each within the limits of a command.
    pub(crate) fn new(
        size: impl Fn(&I) -> Size + Send + Sync + 'static,
        flushes_max: usize,
        flush: impl Fn(Vec<I>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self::over(Arc::new(flush), Arc::new(size), flushes_max)
    }

    /// Creates another collector with the same `flush`. Neither waits for the batches of the other. An idle
    /// collector runs no task.
    pub(crate) fn separate(&self) -> Self {
        let (flush, size) = (Arc::clone(&self.shared.flush), Arc::clone(&self.shared.size));
        Self::over(flush, size, self.shared.flushes_max)
    }

    fn over(flush: Arc<Flush<I>>, size: Arc<SizeOf<I>>, flushes_max: usize) -> Self {
        let (queues, tasks) = (PerRuntime::default(), TaskTracker::new());
        Self { shared: Arc::new(Shared { queues, flush, size, flushes_max, tasks }) }
    }

    /// Returns the tracker of the flush tasks. While one runs, items may be on their way to the store.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }

    /// Adds an item to the next batch.
    ///
    /// Flushes on a separate task: if the caller is dropped, its item is still flushed. The item itself is dropped
    /// without a flush only if the flush before it panics, or if the runtime stops.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(crate) fn push(&self, item: I) {
        let runtime = Handle::current();
        let starts = self.shared.queues.with(runtime.id(), |queue| {
            // Push the item and claim the task under one lock. A task finds the queue empty and ends under the same
            // lock. So either a task will take this item, or this caller starts one; the item cannot be left behind.
            queue.waiting.push(item);
            let starts = !queue.is_collecting && queue.tasks < self.shared.flushes_max;
            if starts {
                (queue.is_collecting, queue.tasks) = (true, queue.tasks + 1);
            }
            starts
        });
        if starts {
            // The guard exists before the task runs: a runtime that stops drops tasks that it has never polled.
            let guard = Guard { shared: Arc::clone(&self.shared), runtime: runtime.id(), is_over: false };
            self.shared.tasks.spawn_on(flush_all(guard), &runtime);
        }
    }
}

impl<I: Send + 'static> Shared<I> {
    /// Takes the first items that fit into one command. An item that exceeds the limits is sent alone, and only that item
    /// is refused. If there are no items, ends the task and returns `None`.
    fn take(&self, runtime: Id) -> Option<Vec<I>> {
        let (batch, is_idle) = self.queues.with(runtime, |queue| {
            let count = fitting(queue.waiting.iter().map(|item| (self.size)(item)));
            queue.is_collecting = false;
            if count == 0 {
                queue.tasks -= 1;
                return (None, queue.tasks == 0);
            }
            let rest = if count == queue.waiting.len() {
                // The next batch is probably about as large.
                Vec::with_capacity(count)
            } else {
                queue.waiting.split_off(count)
            };
            (Some(std::mem::replace(&mut queue.waiting, rest)), false)
        });
        if is_idle {
            self.forget_idle();
        }
        batch
    }

    /// Whether this task takes the next batch, after it has flushed one. If not, the task has ended, because another one
    /// takes it.
    fn collects_next(&self, runtime: Id) -> bool {
        self.queues.with(runtime, |queue| {
            let is_taken = queue.is_collecting;
            if is_taken {
                queue.tasks -= 1;
            }
            queue.is_collecting = true;
            !is_taken
        })
    }

    /// Forgets runtimes without a task: they may have stopped.
    fn forget_idle(&self) {
        self.queues.retain(|queue| queue.tasks > 0);
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

/// Flushes batches until no items are waiting.
async fn flush_all<I: Send + 'static>(mut guard: Guard<I>) {
    loop {
        guard.let_others_add().await;
        let Some(batch) = guard.shared.take(guard.runtime) else { break };
        (guard.shared.flush)(batch).await;
        if !guard.shared.collects_next(guard.runtime) {
            break;
        }
    }
    // The task has left the queue. Since then, another caller may have added an item and started a new task. The guard
    // would discard that item.
    guard.is_over = true;
}

/// The maximum number of times that a flush lets other tasks run first.
const YIELDS_MAX: u32 = 4;

/// Lets the next item start a new task if this one ends early: by a panic, or with its runtime. Items that wait for it
/// are dropped, unless another task takes them.
struct Guard<I: Send + 'static> {
    shared: Arc<Shared<I>>,
    runtime: Id,
    is_over: bool,
}

impl<I: Send + 'static> Guard<I> {
    /// Yields before a batch is taken, so that other ready tasks can add their items: the callers that were just answered,
    /// and tasks that became ready together with the first caller. Otherwise, their items would have to wait for another
    /// flush. Some of these tasks run on other threads, so this yields again if items were added.
    async fn let_others_add(&self) {
        let mut before = 0;
        for _ in 0..YIELDS_MAX {
            yield_now().await;
            let waiting = self.shared.queues.with(self.runtime, |queue| queue.waiting.len());
            if waiting == before || waiting >= BATCH_MAX_ITEMS {
                break;
            }
            before = waiting;
        }
    }
}

impl<I: Send + 'static> Drop for Guard<I> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let is_last = self.shared.queues.with(self.runtime, |queue| {
            queue.is_collecting = false;
            queue.tasks = queue.tasks.saturating_sub(1);
            queue.tasks == 0
        });
        if is_last {
            // The items are dropped here, without the lock: their drop may run any code.
            drop(self.shared.queues.remove(self.runtime));
        }
    }
}

/// Clones share everything.
impl<I> Clone for Collector<I> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<I> fmt::Debug for Collector<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn a_batch_waits_for_tasks_that_are_about_to_add_an_item() {
        let batches = Arc::new(Mutex::new(Vec::new()));
        let flushed = Arc::clone(&batches);
        let flush = move |items: Vec<u32>| -> BoxFuture<'static, ()> {
            flushed.lock().unwrap_or_else(PoisonError::into_inner).push(items.len());
            Box::pin(async {})
        };
        let collector = Collector::new(|_: &u32| Size::default(), 1, flush);
        let mut callers = JoinSet::new();
        for turns in 0..3 {
            let collector = collector.clone();
            // Each caller needs one turn more than the one before.
            callers.spawn(async move {
                for _ in 0..turns {
                    yield_now().await;
                }
                collector.push(turns);
            });
        }
        callers.join_all().await;
        collector.tasks().close();
        collector.tasks().wait().await;
        assert_eq!(*batches.lock().unwrap_or_else(PoisonError::into_inner), [3]);
    }
}
