//! Group commit.
//!
//! SQLite has one writer at a time, and the sync at commit costs more than most commands. So commands do not write
//! on their own: they queue, and one task executes all that wait in one transaction with one commit. While one group
//! runs, the next one collects. Under load, groups grow and throughput rises; when idle, a command runs alone and
//! immediately.
//!
//! A group runs on a thread that may block, from `begin` to `commit`, on the store's own connection: SQLite is a
//! library, and changing threads for each statement costs more than the statement.
//!
//! The commands of a group run one after the other, each in full. Between two groups the write lock is free, and a
//! transaction of the application or another process may get it.
//!
//! A group has no savepoints between its commands. If the database fails one command, the whole group is rolled back
//! and each command runs again in its own transaction, so that no command fails because of another. Running them
//! again is correct because every command is safe to repeat, and cheap because such errors are rare.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use windlass_core::command::{Command, Reply};
use windlass_core::{Error, ErrorKind, Result, Timestamp};

use crate::connection::{Location, closed};
use crate::error::{from_sqlite, write_timed_out};
use crate::provider::{Provider, Turn};
use crate::rows::{Kept, SqliteRows};
use crate::session::Base;

/// Maximum number of commands in a group, so that other writers of the file get a turn in between.
const GROUP_MAX: usize = 128;

/// Delay before a lock that another connection holds is retried.
const RETRY: Duration = Duration::from_millis(2);

/// How long closing waits for a group.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long SQLite itself waits for a lock. It blocks a thread, so the rest of the wait happens outside.
const BUSY_TIMEOUT: Duration = Duration::from_millis(30);

/// Queues the commands of a store and writes them in groups.
#[derive(Debug)]
pub(crate) struct Writer<P> {
    pub(crate) provider: P,
    pub(crate) base: Arc<Base>,
    location: Location,
    synchronous: i64,
    write_timeout: Duration,
    queue: Mutex<Queue>,
    /// The connection, while no group runs. It is opened when it is first needed, and again after an error.
    idle: Mutex<Option<Idle>>,
}

/// The connection between two groups.
#[derive(Debug)]
struct Idle {
    connection: Connection,
    /// Rows that the next group will need, and which are still valid unless another connection has written.
    kept: Kept,
    /// The value of `pragma data_version` in the last group. It changes when another connection commits.
    version: i64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task is draining the queue.
    running: bool,
    closed: bool,
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

/// A reply and where to send it.
type Answer = (oneshot::Sender<Result<Reply>>, Result<Reply>);

/// How an attempt to run a group ended.
enum Ended {
    /// The commands were executed. The task sends the replies: waking their callers from its thread is cheaper.
    Done(Vec<Answer>),
    /// The transaction could not begin. The commands are still in the queue.
    NotBegun(Error),
}

impl<P: Provider> Writer<P> {
    pub(crate) fn new(
        provider: P,
        base: Arc<Base>,
        location: Location,
        synchronous: i64,
        write_timeout: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            provider,
            base,
            location,
            synchronous,
            write_timeout,
            queue: Mutex::default(),
            idle: Mutex::default(),
        })
    }

    /// Executes a command with the next group. If the future is dropped before that group is taken from the queue, the
    /// command is not executed; after that, it is.
    pub(crate) async fn execute(self: &Arc<Self>, command: Command) -> Result<Reply> {
        let (reply, answer) = oneshot::channel();
        let (asked_at, queued_at) = (self.base.now(), Instant::now());
        if self.queue().push(Waiting { command, reply, asked_at, queued_at }) {
            tokio::spawn(Draining { writer: Arc::clone(self), done: false }.run());
        }
        answer.await.unwrap_or_else(|_| {
            let text = "the writer was stopped with the runtime that it ran on: repeat the command";
            Err(Error::new(ErrorKind::Unavailable, text))
        })
    }

    /// Begins a transaction of the application. It takes turns with the groups.
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

    /// Closes the connection. Waits for the group that uses it, up to a limit; a group that takes longer closes it.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.queue().closed = true;
        let began_at = Instant::now();
        while self.queue().running && began_at.elapsed() < CLOSE_TIMEOUT {
            sleep(RETRY).await;
        }
        let writer = Arc::clone(self);
        let close = move || drop(writer.idle().take());
        let _ = tokio::task::spawn_blocking(close).await;
    }

    /// Executes the next group. If the write lock cannot be acquired, fails the commands that have waited too long.
    async fn next_group(self: &Arc<Self>) {
        let waited = self.queue().longest_wait();
        let error = match timeout(self.write_timeout.saturating_sub(waited), self.provider.turn()).await {
            Ok(Ok(turn)) => {
                let writer = Arc::clone(self);
                match tokio::task::spawn_blocking(move || writer.run_group(turn)).await {
                    Ok(Ended::Done(answers)) => {
                        for (caller, reply) in answers {
                            let _ = caller.send(reply);
                        }
                        return;
                    }
                    Ok(Ended::NotBegun(error)) => error,
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    Err(_) => return,
                }
            }
            Ok(Err(error)) => error,
            Err(_) => write_timed_out(self.write_timeout),
        };
        // If the lock is busy, only commands whose own time is up fail. The others stay in the queue. Any other
        // error fails them all.
        let is_busy = error.kind() == ErrorKind::Busy;
        let failed = self.queue().take_failed(is_busy.then_some(self.write_timeout));
        self.note_stall(&failed);
        let error = if is_busy { write_timed_out(self.write_timeout) } else { error };
        for waiting in failed {
            let _ = waiting.reply.send(Err(error.clone()));
        }
        if is_busy {
            sleep(RETRY).await;
        }
    }

    /// Executes the commands that wait, in one transaction. Blocks the thread.
    fn run_group(&self, _turn: Turn) -> Ended {
        let mut idle = match self.open_connection() {
            Ok(idle) => idle,
            Err(error) => return Ended::NotBegun(error),
        };
        let begun = begin(&idle.connection);
        self.base.counted.round_trip();
        if let Err(error) = begun {
            if error.kind() == ErrorKind::Busy {
                *self.idle() = Some(idle);
            }
            return Ended::NotBegun(error);
        }
        // Take the group only now: commands that arrived while `begin` waited share this commit.
        let group = self.queue().take(GROUP_MAX);
        // This thread holds the write lock, so no transaction of the application is open. One that was dropped without
        // a commit or rollback is recorded as ended here.
        self.base.stalls.ended(self.base.now());
        self.note_stall(&group);
        let answers = self.execute_group(&mut idle, group);
        if idle.connection.is_autocommit() && !self.queue().closed {
            *self.idle() = Some(idle);
        }
        Ended::Done(answers)
    }

    fn execute_group(&self, idle: &mut Idle, group: Vec<Waiting>) -> Vec<Answer> {
        let error = match self.try_group(idle, &group) {
            Ok(replies) => {
                return group
                    .into_iter()
                    .zip(replies)
                    .map(|(waiting, reply)| (waiting.reply, reply))
                    .collect();
            }
            Err(error) => error,
        };
        // One command failed and the group was rolled back. Run each by itself, so that the others succeed.
        let is_alone = group.len() == 1;
        let answer = |waiting: Waiting| {
            let reply = if is_alone { Err(error.clone()) } else { self.execute_alone(idle, &waiting) };
            (waiting.reply, reply)
        };
        group.into_iter().map(answer).collect()
    }

    fn execute_alone(&self, idle: &mut Idle, waiting: &Waiting) -> Result<Reply> {
        while let Err(error) = begin(&idle.connection) {
            if error.kind() != ErrorKind::Busy || waiting.queued_at.elapsed() >= self.write_timeout {
                return Err(error);
            }
            std::thread::sleep(RETRY);
        }
        let mut replies = self.try_group(idle, std::slice::from_ref(waiting))?;
        replies.pop().unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Corrupt, "a command got no reply: report this as a bug"))
        })
    }

    /// Executes commands in the open transaction, and commits it.
    ///
    /// A command that is `Invalid` changed nothing, so it gets its error as a reply and the group continues.
    ///
    /// # Errors
    ///
    /// Any other error of a command, or of the commit. The transaction did not commit, and none of the commands took
    /// effect.
    fn try_group(&self, idle: &mut Idle, group: &[Waiting]) -> Result<Vec<Result<Reply>>> {
        let done = self.execute_all(idle, group).and_then(|done| {
            idle.connection.execute_batch("commit").map_err(|error| from_sqlite(&error))?;
            Ok(done)
        });
        match done {
            Ok((replies, kept)) => {
                idle.kept = kept;
                self.base.counted.commit();
                for (waiting, reply) in group.iter().zip(&replies) {
                    if let Ok(reply) = reply {
                        self.base.held.record(&waiting.command, reply);
                    }
                }
                Ok(replies)
            }
            Err(error) => {
                // SQLite may have rolled back by itself.
                if !idle.connection.is_autocommit() {
                    let _ = idle.connection.execute_batch("rollback");
                }
                Err(error)
            }
        }
    }

    /// Executes commands in the open transaction. Returns their replies, and the rows to keep once it is committed.
    fn execute_all(&self, idle: &mut Idle, group: &[Waiting]) -> Result<(Vec<Result<Reply>>, Kept)> {
        let kept = std::mem::take(&mut idle.kept);
        let mut rows = SqliteRows::new(&idle.connection, &self.base.texts);
        let version = rows.data_version()?;
        if std::mem::replace(&mut idle.version, version) == version {
            rows.reuse(kept);
        }
        let mut replies = Vec::with_capacity(group.len());
        for waiting in group {
            match self.base.execute(&mut rows, &waiting.command) {
                Err(error) if error.kind() != ErrorKind::Invalid => return Err(error),
                reply => replies.push(reply),
            }
        }
        rows.flush()?;
        Ok((replies, rows.keep()))
    }

    /// Records the longest wait of these commands as a stall: a renewal may have had to wait as long.
    fn note_stall(&self, group: &[Waiting]) {
        if let Some(asked_at) = group.iter().map(|waiting| waiting.asked_at).min() {
            self.base.stalls.note(asked_at, self.base.now());
        }
    }

    fn open_connection(&self) -> Result<Idle> {
        if self.queue().closed {
            return Err(closed());
        }
        if let Some(idle) = self.idle().take() {
            return Ok(idle);
        }
        let timeout = BUSY_TIMEOUT.min(self.write_timeout);
        let connection = self.location.open_writer(self.synchronous, timeout)?;
        Ok(Idle { connection, kept: Kept::default(), version: 0 })
    }

    fn idle(&self) -> MutexGuard<'_, Option<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn begin(connection: &Connection) -> Result<()> {
    connection.execute_batch("begin immediate").map_err(|error| from_sqlite(&error))
}

impl Queue {
    /// Adds a command. Returns whether the caller must start the task that drains the queue.
    fn push(&mut self, waiting: Waiting) -> bool {
        self.waiting.push_back(waiting);
        !std::mem::replace(&mut self.running, true)
    }

    /// Drops commands whose caller is gone. Returns whether any are left; if not, the next `push` starts a new task.
    /// Both happen under the queue's lock, so a command cannot be pushed between the check and the end of the task.
    fn has_waiting(&mut self) -> bool {
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
struct Draining<P: Provider> {
    writer: Arc<Writer<P>>,
    done: bool,
}

impl<P: Provider> Draining<P> {
    async fn run(mut self) {
        while self.writer.queue().has_waiting() {
            self.writer.next_group().await;
        }
        self.done = true;
    }
}

impl<P: Provider> Drop for Draining<P> {
    fn drop(&mut self) {
        if !self.done {
            // The runtime was shut down, or a command panicked. Dropping the queue fails the waiting commands with
            // `Unavailable`, and clearing `running` lets the next command start a new task.
            let mut queue = self.writer.queue();
            *queue = Queue { closed: queue.closed, ..Queue::default() };
        }
    }
}
