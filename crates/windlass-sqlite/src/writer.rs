//! The one writer: commands that wait for it are carried out together, in one transaction and with one commit.
//!
//! While one group is under way the next collects, so that load buys throughput and idleness latency. A group runs
//! without savepoints: where a command meets an error of the database, the group is rolled back and each of its commands
//! is carried out alone, so that nobody suffers for another. That is right because every command is safe to repeat, and
//! cheap because it is rare.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use windlass_core::command::{Command, Reply};
use windlass_core::{Error, ErrorKind, Result, Timestamp};

use crate::provider::Provider;
use crate::session::{Base, Session, Writing, execute};

/// The most commands of one group: others on the file get their turn in between.
const GROUP_MAX: usize = 128;

/// The writer of a store.
#[derive(Debug)]
pub(crate) struct Writer<P> {
    pub(crate) provider: P,
    pub(crate) base: Base,
    patience: Duration,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task carries out what waits.
    running: bool,
}

/// A command that waits for its turn.
#[derive(Debug)]
struct Waiting {
    command: Command,
    reply: oneshot::Sender<Result<Reply>>,
    asked_at: Timestamp,
    queued_at: Instant,
}

impl<P: Provider> Writer<P> {
    pub(crate) fn new(provider: P, base: Base, patience: Duration) -> Arc<Self> {
        Arc::new(Self { provider, base, patience, queue: Mutex::default() })
    }

    /// Carries a command out with the next group. Dropped, it is not carried out, unless its group has begun.
    pub(crate) async fn carry_out(self: &Arc<Self>, command: Command) -> Result<Reply> {
        let (reply, answer) = oneshot::channel();
        let (asked_at, queued_at) = (self.base.now(), Instant::now());
        if self.queue().push(Waiting { command, reply, asked_at, queued_at }) {
            tokio::spawn(Turn { writer: Arc::clone(self), done: false }.run());
        }
        answer.await.unwrap_or_else(|_| {
            let text = "the writer was stopped with the runtime that it ran on: repeat the command";
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    /// Begins a transaction of the application.
    pub(crate) async fn begin(&self) -> Result<P::Tx> {
        let asked_at = self.base.now();
        let begun = self.provider.begin(self.patience).await;
        self.base.counted.round_trip();
        let now = self.base.now();
        if begun.is_ok() {
            self.base.stalls.begun(asked_at, now);
        } else {
            self.base.stalls.note(asked_at, now);
        }
        begun
    }

    /// Carries out what waits for it now, or fails those that have waited for too long.
    async fn next_group(&self) {
        let waited = self.queue().longest_wait();
        let begun = self.provider.begin(self.patience.saturating_sub(waited)).await;
        self.base.counted.round_trip();
        match begun {
            Ok(tx) => {
                let group = self.queue().take(GROUP_MAX);
                self.base.stalls.ended(self.base.now());
                self.note_stall(&group);
                self.carry_out_group(tx, group).await;
            }
            Err(error) => {
                let patience = (error.kind() == ErrorKind::Busy).then_some(self.patience);
                let failed = self.queue().take_failed(patience);
                self.note_stall(&failed);
                for waiting in failed {
                    let _ = waiting.reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Notes for how long this group, and with it everybody, could not write.
    fn note_stall(&self, group: &[Waiting]) {
        if let Some(asked_at) = group.iter().map(|waiting| waiting.asked_at).min() {
            self.base.stalls.note(asked_at, self.base.now());
        }
    }

    async fn carry_out_group(&self, tx: P::Tx, group: Vec<Waiting>) {
        let alone = group.len() == 1;
        match self.try_group(tx, &group).await {
            Ok(replies) => {
                for (waiting, reply) in group.into_iter().zip(replies) {
                    let _ = waiting.reply.send(reply);
                }
            }
            Err(error) if alone => {
                for waiting in group {
                    let _ = waiting.reply.send(Err(error.clone()));
                }
            }
            Err(_) => {
                for waiting in group {
                    let reply = self.carry_out_alone(&waiting).await;
                    let _ = waiting.reply.send(reply);
                }
            }
        }
    }

    async fn carry_out_alone(&self, waiting: &Waiting) -> Result<Reply> {
        let tx = self.provider.begin(self.patience).await?;
        let mut replies = self.try_group(tx, std::slice::from_ref(waiting)).await?;
        replies.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Corrupt, "a command without a reply")))
    }

    /// Carries commands out in one transaction. An error means that none of them was.
    async fn try_group(&self, mut tx: P::Tx, group: &[Waiting]) -> Result<Vec<Result<Reply>>> {
        let mut replies = Vec::with_capacity(group.len());
        for waiting in group {
            let mut connection = Writing { provider: &self.provider, tx: &mut tx };
            let reply = execute(&mut Session::new(&mut connection, &self.base), &waiting.command).await;
            match reply {
                Err(error) if error.kind() != ErrorKind::Invalid => {
                    // The error that counts is this one: SQLite may have rolled back by itself.
                    let _ = self.provider.rollback(tx).await;
                    return Err(error);
                }
                reply => replies.push(reply),
            }
        }
        self.provider.commit(tx).await?;
        self.base.counted.commit();
        Ok(replies)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Adds a command. Says whether somebody must begin to carry out what waits.
    fn push(&mut self, waiting: Waiting) -> bool {
        self.waiting.push_back(waiting);
        !std::mem::replace(&mut self.running, true)
    }

    /// Whether there is still something to do. If not, the next command needs somebody to begin.
    fn goes_on(&mut self) -> bool {
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        self.running = !self.waiting.is_empty();
        self.running
    }

    fn longest_wait(&self) -> Duration {
        self.waiting.iter().map(|waiting| waiting.queued_at.elapsed()).max().unwrap_or_default()
    }

    /// Takes the first commands, renewals before the others: a lease that expires is worse than a start that waits.
    fn take(&mut self, max: usize) -> Vec<Waiting> {
        let (renewals, others): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|waiting| matches!(waiting.command, Command::Renew(_)));
        let mut all = renewals.into_iter().chain(others).filter(|waiting| !waiting.reply.is_closed());
        let group = all.by_ref().take(max).collect();
        self.waiting = all.collect();
        group
    }

    /// Takes those that have waited for so long, or all.
    fn take_failed(&mut self, patience: Option<Duration>) -> Vec<Waiting> {
        let fails =
            |waiting: &Waiting| patience.is_none_or(|patience| waiting.queued_at.elapsed() >= patience);
        let (failed, left): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(fails);
        self.waiting = left.into();
        failed
    }
}

/// The task that carries out what waits.
struct Turn<P: Provider> {
    writer: Arc<Writer<P>>,
    done: bool,
}

impl<P: Provider> Turn<P> {
    async fn run(mut self) {
        while self.writer.queue().goes_on() {
            self.writer.next_group().await;
        }
        self.done = true;
    }
}

impl<P: Provider> Drop for Turn<P> {
    fn drop(&mut self) {
        if !self.done {
            // Its runtime was shut down, or a command panicked: who waits is told, and the next command begins anew.
            *self.writer.queue() = Queue::default();
        }
    }
}
