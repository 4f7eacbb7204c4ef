use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::command::Size;
use crate::error::{Error, ErrorKind, Result};
use crate::store::BoxFuture;

/// Collects items that come one by one into batches, naturally: while one batch is under way the next one
/// collects; an item that finds nothing under way goes at once. Load buys throughput, idleness buys latency,
/// and there is no timer to tune.
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

struct Queue<I, R> {
    waiting: Batch<I, R>,
    flushing: bool,
}

/// Items, and those who wait for their answers. Two lists, so that the items go into a command as they are.
struct Batch<I, R> {
    items: Vec<I>,
    senders: Vec<oneshot::Sender<Result<R>>>,
}

impl<I, R> Batch<I, R> {
    fn with_capacity(count: usize) -> Self {
        Self { items: Vec::with_capacity(count), senders: Vec::with_capacity(count) }
    }

    /// Takes the first of them out.
    fn take(&mut self, count: usize) -> Self {
        if count == self.items.len() {
            return std::mem::replace(self, Self::with_capacity(count));
        }
        Self { items: self.items.drain(..count).collect(), senders: self.senders.drain(..count).collect() }
    }
}

impl<I: Send + 'static, R: Send + 'static> Batcher<I, R> {
    /// Gives batches within the limits of a command to `flush`, which answers for each item in order.
    pub(crate) fn new(
        size: fn(&I) -> Size,
        flush: impl Fn(Vec<I>) -> BoxFuture<'static, Result<Vec<R>>> + Send + Sync + 'static,
    ) -> Self {
        Self::over(Arc::new(flush), size)
    }

    /// Another that flushes in the same way: neither waits for the other's batches. Idle, it costs nothing.
    pub(crate) fn apart(&self) -> Self {
        Self::over(Arc::clone(&self.shared.flush), self.shared.size)
    }

    fn over(flush: Arc<Flush<I, R>>, size: fn(&I) -> Size) -> Self {
        let queue = Mutex::new(Queue { waiting: Batch::with_capacity(0), flushing: false });
        Self { shared: Arc::new(Shared { queue, flush, size, tasks: TaskTracker::new() }) }
    }

    /// Tracks the task that flushes, while there is one: items are under way though nobody waits for their
    /// answers any more.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.shared.tasks
    }

    /// Adds an item and waits for its answer.
    pub(crate) async fn add(&self, item: I) -> Result<R> {
        let (sender, answer) = oneshot::channel();
        let is_first = {
            let mut queue = self.shared.queue();
            queue.waiting.items.push(item);
            queue.waiting.senders.push(sender);
            !std::mem::replace(&mut queue.flushing, true)
        };
        if is_first {
            // A task of its own, so that a caller that gives up does not leave the others waiting.
            self.shared.tasks.spawn(Arc::clone(&self.shared).run());
        }
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the runtime stopped before the store answered: repeat it",
            ))
        })
    }
}

impl<I: Send + 'static, R: Send + 'static> Shared<I, R> {
    fn queue(&self) -> MutexGuard<'_, Queue<I, R>> {
        // Nothing under this lock can panic half-way through a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes until nothing waits.
    async fn run(self: Arc<Self>) {
        let guard = Guard(&self);
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
        std::mem::forget(guard);
    }

    /// What waits, after a turn for those who are about to add something: whoever was just answered, and
    /// whatever ran beside the first item. Without it they would be a batch behind.
    async fn collected(&self) -> Option<Batch<I, R>> {
        tokio::task::yield_now().await;
        self.take()
    }

    /// The first items that fit into one command; one that fits into none goes alone, to be refused.
    fn take(&self) -> Option<Batch<I, R>> {
        let mut queue = self.queue();
        let count = fitting(queue.waiting.items.iter().map(self.size));
        queue.flushing = count > 0;
        (count > 0).then(|| queue.waiting.take(count))
    }
}

/// How many of these fit into one command; one at least, if there is one.
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

/// Lets the next item start anew when the task ends before its time: by a panic, or with its runtime.
struct Guard<'a, I: Send + 'static, R: Send + 'static>(&'a Shared<I, R>);

impl<I: Send + 'static, R: Send + 'static> Drop for Guard<'_, I, R> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.flushing = false;
        queue.waiting = Batch::with_capacity(0);
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
