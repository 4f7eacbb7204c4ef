//! The queue of work for the writer.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use windlass_core::command::{Command, Reply};
use windlass_core::{Result, Timestamp};

/// Maximum number of commands in a batch, so that other processes get a turn.
pub(crate) const BATCH_MAX: usize = 256;

/// The queued work, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Waiting>,
}

/// A piece of work in the queue.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) work: Work,
    /// When it was queued, on the store's clock. For stalls.
    pub(crate) asked_at: Timestamp,
    /// When it was queued, on the monotonic clock. For the timeout.
    pub(crate) queued_at: Instant,
}

#[derive(Debug)]
pub(crate) enum Work {
    Command(Command, oneshot::Sender<Result<Reply>>),
    /// Begins a transaction. The writer waits until the returned sender sends the end, or is dropped.
    Begin(oneshot::Sender<Result<mpsc::Sender<End>>>),
    Erase(oneshot::Sender<Result<()>>),
    /// Finds the end of the journal, as when the folder is opened.
    Settle(mpsc::Sender<Result<()>>),
    /// Seals the journal and continues in this generation. Returns the number of its first record.
    Rotate(u64, mpsc::Sender<Result<u64>>),
}

/// How a transaction ends. Dropping the sender rolls it back.
#[derive(Debug)]
pub(crate) enum End {
    Commit(oneshot::Sender<Result<()>>),
    Rollback(oneshot::Sender<Result<()>>),
}

/// The next step of the writer.
#[derive(Debug)]
pub(crate) enum Turn {
    Batch(Vec<Waiting>),
    Alone(Waiting),
}

impl Waiting {
    /// Whether the caller has stopped waiting for the result.
    fn is_abandoned(&self) -> bool {
        match &self.work {
            Work::Command(_, reply) => reply.is_closed(),
            Work::Begin(reply) => reply.is_closed(),
            Work::Erase(reply) => reply.is_closed(),
            Work::Settle(_) | Work::Rotate(..) => false,
        }
    }

    const fn is_command(&self) -> bool {
        matches!(self.work, Work::Command(..))
    }

    const fn is_renewal(&self) -> bool {
        matches!(self.work, Work::Command(Command::Renew(_), _))
    }

    /// Reports an error.
    pub(crate) fn fail(self, error: windlass_core::Error) {
        match self.work {
            Work::Command(_, reply) => drop(reply.send(Err(error))),
            Work::Begin(reply) => drop(reply.send(Err(error))),
            Work::Erase(reply) => drop(reply.send(Err(error))),
            Work::Settle(reply) => drop(reply.send(Err(error))),
            Work::Rotate(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

impl Queue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Returns work to the queue that did not fit into a batch.
    pub(crate) fn put_back(&mut self, left: Vec<Waiting>) {
        left.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
    }

    /// Removes abandoned work. Returns whether any is left.
    pub(crate) fn has_work(&mut self) -> bool {
        while self.waiting.front().is_some_and(Waiting::is_abandoned) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }

    /// Returns the number of commands if there is nothing else in the queue.
    pub(crate) fn only_commands(&self) -> Option<usize> {
        self.waiting.iter().all(Waiting::is_command).then_some(self.waiting.len())
    }

    /// Takes the commands before the next work that must run alone, renewals first: an expired lease is worse than a
    /// delayed start. If such work is first in the queue, takes only that.
    pub(crate) fn take(&mut self) -> Option<Turn> {
        self.waiting.retain(|waiting| !waiting.is_abandoned());
        let first = self.waiting.pop_front_if(|first| !first.is_command());
        if let Some(first) = first {
            return Some(Turn::Alone(first));
        }
        let commands = self.waiting.iter().take_while(|waiting| waiting.is_command()).count();
        if commands == 0 {
            return None;
        }
        let (renewals, others): (Vec<_>, Vec<_>) =
            self.waiting.drain(..commands).partition(Waiting::is_renewal);
        let mut batch: Vec<_> = renewals.into_iter().chain(others).collect();
        let left = batch.split_off(batch.len().min(BATCH_MAX));
        self.put_back(left);
        Some(Turn::Batch(batch))
    }

    /// Takes the work that has waited for at least `timeout`.
    pub(crate) fn take_overdue(&mut self, timeout: Duration) -> Vec<Waiting> {
        if self.waiting.front().is_none_or(|first| first.queued_at.elapsed() < timeout) {
            return Vec::new();
        }
        let is_overdue = |waiting: &Waiting| waiting.queued_at.elapsed() >= timeout;
        let (overdue, left): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(is_overdue);
        self.waiting = left.into();
        overdue
    }

    /// Takes everything.
    pub(crate) fn take_all(&mut self) -> Vec<Waiting> {
        self.waiting.drain(..).collect()
    }
}
