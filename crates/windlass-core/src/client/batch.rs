//! [`Batcher`]: groups items into batches, and answers the caller of each.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::collect::Collector;
use crate::command::{NewChain, Size};
use crate::error::{Error, ErrorKind, Result};
use crate::limit::BATCH_MAX_ITEMS;
use crate::store::BoxFuture;

/// Groups items of concurrent callers into batches, and answers each caller. One batch is flushed at a time.
pub(crate) struct Batcher<I, R> {
    items: Collector<Asked<I, R>>,
}

/// An item, and the channel to the caller that waits for its answer.
struct Asked<I, R> {
    item: I,
    answer: oneshot::Sender<Result<R>>,
}

impl<I: Send + 'static, R: Send + 'static> Batcher<I, R> {
    /// Creates a batcher that passes batches to `flush`, each within the limits of a command. `flush` returns
    /// one answer per item, in order.
    pub(crate) fn new(
        size: fn(&I) -> Size,
        flush: impl Fn(Vec<I>) -> BoxFuture<'static, Result<Vec<R>>> + Send + Sync + 'static,
    ) -> Self {
        let flush = Arc::new(flush);
        let answer_all = move |asked: Vec<Asked<I, R>>| -> BoxFuture<'static, ()> {
            let flush = Arc::clone(&flush);
            Box::pin(async move {
                let (items, answers): (_, Vec<_>) =
                    asked.into_iter().map(|Asked { item, answer }| (item, answer)).unzip();
                match flush(items).await {
                    Ok(replies) => {
                        answers
                            .into_iter()
                            .zip(replies)
                            .for_each(|(answer, reply)| drop(answer.send(Ok(reply))));
                    }
                    Err(error) => {
                        answers.into_iter().for_each(|answer| drop(answer.send(Err(error.clone()))))
                    }
                }
            })
        };
        Self { items: Collector::new(move |asked| size(&asked.item), 1, answer_all) }
    }

    /// Creates another batcher with the same `flush`. Neither waits for the batches of the other. An idle
    /// batcher runs no task.
    pub(crate) fn separate(&self) -> Self {
        Self { items: self.items.separate() }
    }

    /// Returns the tracker of the flush tasks. While one runs, items may be on their way to the store even if their
    /// callers no longer wait for the answers.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        self.items.tasks()
    }

    /// Adds an item and waits for its reply. If the caller stops waiting, the item is still flushed.
    pub(crate) async fn add(&self, item: I) -> Result<R> {
        let (sender, answer) = oneshot::channel();
        self.items.push(Asked { item, answer: sender });
        answer.await.unwrap_or_else(|_| Err(unanswered()))
    }
}

/// Returns the error of a caller whose item was dropped.
pub(crate) fn unanswered() -> Error {
    Error::new(ErrorKind::Unavailable, "the runtime stopped before the store answered: retry the command")
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

/// Clones share everything.
impl<I, R> Clone for Batcher<I, R> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone() }
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
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::time::timeout;

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

    #[test]
    fn a_runtime_that_is_not_driven_does_not_delay_the_others() {
        let size = |_: &u32| Size::default();
        let batcher = Batcher::new(size, |items: Vec<u32>| Box::pin(async move { Ok(items) }));
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (idle, driven) = (runtime(), runtime());
        let mut waiting = Box::pin(batcher.add(1));
        let poll = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
        assert!(idle.block_on(poll), "its flush has not run");
        let answered = driven.block_on(async { timeout(Duration::from_secs(10), batcher.add(2)).await });
        assert_eq!(answered.expect("the other runtime must not be needed").unwrap(), 2);
        assert_eq!(idle.block_on(waiting).unwrap(), 1);
    }
}
