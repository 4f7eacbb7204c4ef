//! The single writer of a store, with group commit.
//!
//! SQLite allows one writer at a time, and the sync at commit costs more than most commands. So commands do not write
//! on their own: they queue, and one task executes all that wait in one transaction with one commit. While one group
//! runs, the next one collects. Under load, groups grow and throughput rises; when idle, a command runs alone and
//! immediately.
//!
//! The commands of a group run one after the other, each in full. Between two groups the write lock is free, and a
//! transaction of the application or another process may get it.
//!
//! A group has no savepoints between its commands. If the database fails one command, the whole group is rolled back
//! and each command runs again in a transaction of its own, so that no command fails because of another. Running them
//! again is correct because every command is safe to repeat, and cheap because such errors are rare.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use windlass_core::command::{Command, Reply};
use windlass_core::{Error, ErrorKind, Result, Timestamp};

use crate::provider::Provider;
use crate::session::{Base, Session, Writing, execute};

/// Maximum number of commands in a group, so that other writers of the file get a turn in between.
const GROUP_MAX: usize = 128;

/// Queues the commands of a store and writes them in groups.
#[derive(Debug)]
pub(crate) struct Writer<P> {
    pub(crate) provider: P,
    pub(crate) base: Base,
    write_timeout: Duration,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task is draining the queue.
    running: bool,
}

/// A command in the queue.
#[derive(Debug)]
struct Waiting {
    command: Command,
    reply: oneshot::Sender<Result<Reply>>,
    /// When the command was queued, on the store's clock. For stalls.
    asked_at: Timestamp,
    /// When the command was queued, on the monotonic clock. For the timeout.
    queued_at: Instant,
}

impl<P: Provider> Writer<P> {
    pub(crate) fn new(provider: P, base: Base, write_timeout: Duration) -> Arc<Self> {
        Arc::new(Self { provider, base, write_timeout, queue: Mutex::default() })
    }

    /// Executes a command with the next group. If the future is dropped before that group is taken from the queue, the
    /// command is not executed; after that, it is.
    pub(crate) async fn execute(self: &Arc<Self>, command: Command) -> Result<Reply> {
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

    /// Begins a transaction of the application. It competes with the groups for the write lock.
    pub(crate) async fn begin(&self) -> Result<P::Tx> {
        let asked_at = self.base.now();
        let begun = self.provider.begin(self.write_timeout).await;
        self.base.counted.round_trip();
        let now = self.base.now();
        if begun.is_ok() {
            self.base.stalls.begun(asked_at, now);
        } else {
            self.base.stalls.note(asked_at, now);
        }
        begun
    }

    /// Executes the next group. If the write lock cannot be acquired, fails the commands that have waited too long.
    async fn next_group(&self) {
        let waited = self.queue().longest_wait();
        let begun = self.provider.begin(self.write_timeout.saturating_sub(waited)).await;
        self.base.counted.round_trip();
        match begun {
            Ok(tx) => {
                // Take the group only now: commands that arrived while `begin` waited share this commit.
                let group = self.queue().take(GROUP_MAX);
                // This task holds the write lock, so no transaction of the application is open any more. One that was
                // dropped without a commit or rollback is recorded as ended here.
                self.base.stalls.ended(self.base.now());
                self.note_stall(&group);
                self.carry_out_group(tx, group).await;
            }
            Err(error) => {
                // If the lock is busy, only commands whose own time is up fail. The others stay in the queue. Any other
                // error fails them all.
                let write_timeout = (error.kind() == ErrorKind::Busy).then_some(self.write_timeout);
                let failed = self.queue().take_failed(write_timeout);
                self.note_stall(&failed);
                for waiting in failed {
                    let _ = waiting.reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Records the longest wait of these commands as a stall: a renewal may have had to wait as long.
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
            // One command failed and the group was rolled back. Run each by itself, so that the others succeed.
            Err(_) => {
                for waiting in group {
                    let reply = self.carry_out_alone(&waiting).await;
                    let _ = waiting.reply.send(reply);
                }
            }
        }
    }

    async fn carry_out_alone(&self, waiting: &Waiting) -> Result<Reply> {
        let tx = self.provider.begin(self.write_timeout).await?;
        let mut replies = self.try_group(tx, std::slice::from_ref(waiting)).await?;
        replies.pop().unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Corrupt, "a command got no reply: report this as a bug"))
        })
    }

    /// Executes commands in one transaction.
    ///
    /// A command that is `Invalid` wrote nothing, so it gets its error as a reply and the group continues.
    ///
    /// # Errors
    ///
    /// Any other error of a command, or of the commit. The transaction did not commit, and none of the commands took
    /// effect.
    async fn try_group(&self, mut tx: P::Tx, group: &[Waiting]) -> Result<Vec<Result<Reply>>> {
        let mut replies = Vec::with_capacity(group.len());
        for waiting in group {
            let mut connection = Writing { provider: &self.provider, tx: &mut tx };
            let reply = execute(&mut Session::new(&mut connection, &self.base), &waiting.command).await;
            match reply {
                Err(error) if error.kind() != ErrorKind::Invalid => {
                    // Return the command's error rather than that of the rollback, which fails if SQLite has already
                    // rolled back by itself.
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
    /// Adds a command. Returns whether the caller must start the task that drains the queue.
    fn push(&mut self, waiting: Waiting) -> bool {
        self.waiting.push_back(waiting);
        !std::mem::replace(&mut self.running, true)
    }

    /// Drops commands whose caller is gone. Returns whether any are left; if not, the next `push` starts a new task.
    /// Both happen under the queue's lock, so a command cannot be pushed between the check and the end of the task.
    fn goes_on(&mut self) -> bool {
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        self.running = !self.waiting.is_empty();
        self.running
    }

    fn longest_wait(&self) -> Duration {
        self.waiting.iter().map(|waiting| waiting.queued_at.elapsed()).max().unwrap_or_default()
    }

    /// Takes up to `max` commands, renewals first: an expired lease is worse than a delayed start.
    fn take(&mut self, max: usize) -> Vec<Waiting> {
        let (renewals, others): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|waiting| matches!(waiting.command, Command::Renew(_)));
        let mut all = renewals.into_iter().chain(others).filter(|waiting| !waiting.reply.is_closed());
        let group = all.by_ref().take(max).collect();
        self.waiting = all.collect();
        group
    }

    /// Takes the commands that have waited for at least `write_timeout`, or all of them if it is `None`.
    fn take_failed(&mut self, write_timeout: Option<Duration>) -> Vec<Waiting> {
        let fails = |waiting: &Waiting| {
            write_timeout.is_none_or(|write_timeout| waiting.queued_at.elapsed() >= write_timeout)
        };
        let (failed, left): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(fails);
        self.waiting = left.into();
        failed
    }
}

/// The task that drains the queue. At most one per store does so at a time.
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
            // The runtime was shut down, or a command panicked. Dropping the queue fails the waiting commands with
            // `Unavailable`, and clearing `running` lets the next command start a new task.
            *self.writer.queue() = Queue::default();
        }
    }
}
