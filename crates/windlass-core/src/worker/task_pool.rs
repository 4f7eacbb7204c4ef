//! Tasks that run attempts, one after the other.
//!
//! A task for each attempt would cost about 1,600 instructions more: for its allocations, and for the lists of the runtime.
//! So a task that has run an attempt waits for the next one. At most as many tasks wait as attempts may run at the same
//! time.
//!
//! If an attempt's lease ends after its timeout, the keeper still aborts its task. So an attempt gives its task back before
//! it is settled ([`AbortSignal::returns`]), and a task that was aborted by then runs no other attempt.
//!
//! [`AbortSignal::returns`]: super::abort::AbortSignal::returns

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

use super::any_attempt::{AnyAttempt, HeldJob};
use super::engine::Engine;
use super::task::AttemptTask;
use crate::store::Store;

/// The tasks of a worker that wait for an attempt.
pub(super) struct TaskPool<S: Store + ?Sized>(Mutex<Vec<PoolTask<S>>>);

/// A task that runs attempts, and waits for one while it is in the pool.
struct PoolTask<S: Store + ?Sized> {
    mailbox: Arc<Mailbox<S>>,
    task: AbortHandle,
    runtime: Id,
}

/// Where a task receives attempts.
struct Mailbox<S: Store + ?Sized>(Mutex<Received<S>>);

struct Received<S: Store + ?Sized> {
    next: Option<Work<S>>,
    waker: Option<Waker>,
    /// Whether the task has ended, or is to end.
    is_closed: bool,
}

/// An attempt to run.
struct Work<S: Store + ?Sized> {
    task: AttemptTask<S>,
    attempt: AnyAttempt,
}

impl<S: Store + ?Sized> Engine<S> {
    /// Runs an attempt on a task that waits, or on a new one.
    pub(super) fn run_in_pool(&self, held: &HeldJob, task: AttemptTask<S>, attempt: AnyAttempt) {
        let mut work = Work { task, attempt };
        loop {
            let (pool_task, is_new) = match self.task_pool.take(Handle::current().id()) {
                Some(pool_task) => (pool_task, false),
                None => (PoolTask::spawn(), true),
            };
            let PoolTask { mailbox, task, runtime } = pool_task;
            // Before the task receives the attempt: afterwards, it may run another one already.
            if let Err(task) = held.signal.takes(task) {
                // The attempt has been ended. Its drop frees the slot.
                return self.task_pool.add(PoolTask { mailbox, task, runtime }, self.concurrency);
            }
            match mailbox.put(work) {
                None => return,
                // The runtime is shutting down.
                Some(_) if is_new => return,
                // The task has ended with its runtime.
                Some(refused) => work = refused,
            }
        }
    }
}

impl<S: Store + ?Sized> Default for TaskPool<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Store + ?Sized> TaskPool<S> {
    fn lock(&self) -> MutexGuard<'_, Vec<PoolTask<S>>> {
        // No code panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a task of this runtime. One of another runtime might never run: a client may be shared with a runtime that is
    /// not driven.
    fn take(&self, runtime: Id) -> Option<PoolTask<S>> {
        let mut idle = self.lock();
        let at = idle.iter().rposition(|task| task.runtime == runtime)?;
        Some(idle.swap_remove(at))
    }

    /// Adds a task that waits. If enough tasks wait, it ends instead.
    fn add(&self, task: PoolTask<S>, concurrency: u32) {
        let mut idle = self.lock();
        if idle.len() < concurrency as usize {
            return idle.push(task);
        }
        drop(idle);
        task.mailbox.close();
    }
}

impl<S: Store + ?Sized> Drop for TaskPool<S> {
    fn drop(&mut self) {
        // Without the lock: a task that ends may run any code.
        let idle = std::mem::take(&mut *self.lock());
        idle.iter().for_each(|task| task.mailbox.close());
    }
}

impl<S: Store + ?Sized> PoolTask<S> {
    fn spawn() -> Self {
        let received = Received { next: None, waker: None, is_closed: false };
        let mailbox = Arc::new(Mailbox(Mutex::new(received)));
        let task = tokio::spawn(run_all(Running(Arc::clone(&mailbox)))).abort_handle();
        Self { mailbox, task, runtime: Handle::current().id() }
    }
}

/// Closes the mailbox when the task ends, however it ends.
struct Running<S: Store + ?Sized>(Arc<Mailbox<S>>);

impl<S: Store + ?Sized> Drop for Running<S> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The body of the task.
async fn run_all<S: Store + ?Sized>(running: Running<S>) {
    let mailbox = &running.0;
    while let Some(Work { task, attempt }) = poll_fn(|context| mailbox.poll(context)).await {
        let Some((engine, task)) = task.run(attempt).await else { return };
        let (mailbox, runtime) = (Arc::clone(mailbox), Handle::current().id());
        engine.task_pool.add(PoolTask { mailbox, task, runtime }, engine.concurrency);
    }
}

impl<S: Store + ?Sized> Mailbox<S> {
    fn lock(&self) -> MutexGuard<'_, Received<S>> {
        // No code panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes an attempt to the task. Returns it if the task has ended.
    fn put(&self, work: Work<S>) -> Option<Work<S>> {
        let mut received = self.lock();
        if received.is_closed {
            return Some(work);
        }
        received.next = Some(work);
        if let Some(waker) = &received.waker {
            waker.wake_by_ref();
        }
        None
    }

    /// Returns the next attempt, or `None` if the task is to end.
    fn poll(&self, context: &Context<'_>) -> Poll<Option<Work<S>>> {
        let mut received = self.lock();
        if let Some(work) = received.next.take() {
            return Poll::Ready(Some(work));
        }
        if received.is_closed {
            return Poll::Ready(None);
        }
        if !received.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            received.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Ends the task. An attempt that it has not started is dropped, which frees the slot.
    fn close(&self) {
        let mut received = self.lock();
        received.is_closed = true;
        let (next, waker) = (received.next.take(), received.waker.take());
        drop(received);
        if let Some(waker) = waker {
            waker.wake();
        }
        drop(next);
    }
}
