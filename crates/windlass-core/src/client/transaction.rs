//! Transactions that a client begins, and commands inside any transaction.

use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::commands::{self, commands};
use super::send::send;
use super::start;
use super::watch::{JobState, Written, WrittenJob, watch, written};
use super::{AnnouncementGuard, Announcements, Client, Dispatcher, Start, plan};
use crate::command::{Command, GetJobs, Reply, Request};
use crate::error::Result;
use crate::job::{Blockers, Entry};
use crate::maintenance::resolve_waits;
use crate::store::{Transactional, TxId};

/// A transaction of the store, begun by [`Client::begin`]. Its changes are announced after the commit. If it
/// is dropped, it is rolled back.
///
/// It dereferences to [`InTx`], which has the commands, hooks and savepoints.
///
/// ```
/// # use windlass::{Client, Entry, Job, MemoryStore};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail { to: String }
/// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
/// # impl Entry for Mail {}
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let client = Client::new(MemoryStore::new());
/// let mut tx = client.begin().await?;
/// let chain = tx.start(Mail { to: "ada".into() }).await?;
/// tx.after_commit(|| println!("the mail is on its way"));
/// assert!(client.chain(chain).await?.is_none(), "not visible outside before the commit");
/// tx.commit().await?;
/// assert!(client.chain(chain).await?.is_some());
/// # Ok(()) }
/// ```
#[must_use = "a dropped transaction is rolled back: call `commit`"]
pub struct Tx<S: Transactional> {
    /// `None` after the end of the transaction.
    inside: Option<InTx<'static, S>>,
}

impl<S: Transactional> Tx<S> {
    pub(super) async fn begin(client: &Client<S>) -> Result<Self> {
        let tx = Transaction::Own(client.measured("begin", client.store().begin()).await?);
        let announcements = Held::Own(Announcements::new(&client.shared.dispatcher));
        Ok(Self { inside: Some(InTx { client: client.clone(), tx, is_open: true, announcements }) })
    }

    /// Commits the transaction: makes its changes durable and announces them.
    ///
    /// # Errors
    ///
    /// An error means that the transaction was rolled back. The exception is
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): in that case it is unknown whether the transaction
    /// was committed. The rollback hooks run after any error.
    pub async fn commit(mut self) -> Result<()> {
        let Some((client, tx, announcements)) = self.take() else { return Ok(()) };
        let committed = client.commit_tx(tx).await;
        announcements.commit_ended(&committed, &client.shared.dispatcher);
        committed
    }

    /// Rolls the transaction back and discards its changes.
    pub async fn rollback(mut self) -> Result<()> {
        let Some((client, tx, announcements)) = self.take() else { return Ok(()) };
        let rolled_back = client.roll_back_tx(tx).await;
        announcements.roll_back(&client.shared.dispatcher);
        rolled_back
    }

    fn take(&mut self) -> Option<(Client<S>, S::Tx, Announcements)> {
        match self.inside.take()? {
            InTx { client, tx: Transaction::Own(tx), announcements: Held::Own(announcements), .. } => {
                Some((client, tx, announcements))
            }
            _ => None,
        }
    }
}

impl<S: Transactional> Client<S> {
    /// Commits a transaction, and reports the call to the observers.
    pub(crate) async fn commit_tx(&self, tx: S::Tx) -> Result<()> {
        self.measured("commit", self.store().commit(tx)).await
    }

    /// Rolls a transaction back, and reports the call to the observers.
    pub(crate) async fn roll_back_tx(&self, tx: S::Tx) -> Result<()> {
        self.measured("rollback", self.store().rollback(tx)).await
    }

    /// Awaits a call to the store that concerns one transaction, and reports it to the observers.
    pub(crate) async fn measured<T>(
        &self,
        command: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.shared.dispatcher.measured(command, |_| 1, call).await
    }
}

impl<S: Transactional> Drop for Tx<S> {
    fn drop(&mut self) {
        if let Some((client, tx, announcements)) = self.take() {
            // End the transaction before the rollback hooks run.
            drop(tx);
            announcements.roll_back(&client.shared.dispatcher);
        }
    }
}

/// Why `inside` is never `None` here: only `commit`, `rollback` and `drop` take it, and they consume the
/// `Tx`.
const OPEN: &str = "only methods that consume the `Tx` take the transaction";

impl<S: Transactional> Deref for Tx<S> {
    type Target = InTx<'static, S>;

    fn deref(&self) -> &Self::Target {
        self.inside.as_ref().expect(OPEN)
    }
}

impl<S: Transactional> DerefMut for Tx<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.inside.as_mut().expect(OPEN)
    }
}

impl<S: Transactional> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tx").field(&self.inside).finish()
    }
}

/// A handle that runs commands inside a transaction. The transaction is a [`Tx`], or one that the caller has
/// begun and will end ([`Client::in_tx`]). Changes are announced after the commit, and discarded by a
/// rollback.
pub struct InTx<'a, S: Transactional> {
    client: Client<S>,
    tx: Transaction<'a, S>,
    /// Whether the transaction is known to be open: it was begun here or checked, and has not been passed to
    /// the caller since. The check costs a round trip on some stores.
    is_open: bool,
    announcements: Held<'a, S>,
}

enum Transaction<'a, S: Transactional> {
    Own(S::Tx),
    Borrowed(S::TxRef<'a>),
}

impl<S: Transactional> Transaction<'_, S> {
    fn tx(&mut self) -> S::TxRef<'_> {
        match self {
            Self::Own(tx) => S::tx_ref(tx),
            Self::Borrowed(tx) => S::reborrow(tx),
        }
    }
}

/// The announcements of a transaction.
enum Held<'a, S: Transactional> {
    /// Sent by the [`Tx`] that commits the transaction.
    Own(Announcements),
    /// Sent by the owner of the transaction.
    Borrowed(&'a mut Announcements),
    /// Sent when the client finds that the transaction has been committed.
    Watched(Watched<S>),
}

impl<S: Transactional> Held<'_, S> {
    fn get(&mut self) -> &mut Announcements {
        match self {
            Self::Own(held) => held,
            Self::Borrowed(held) => held,
            Self::Watched(watched) => &mut watched.announcements,
        }
    }
}

/// Announcements of a transaction that the application ends. When this is dropped, the client starts to watch the
/// transaction.
struct Watched<S: Transactional> {
    client: Client<S>,
    /// Known from the first command on.
    tx: Option<TxId>,
    announcements: Announcements,
}

impl<S: Transactional> Drop for Watched<S> {
    fn drop(&mut self) {
        let announcements = std::mem::take(&mut self.announcements);
        if let (Some(tx), false) = (self.tx, announcements.is_empty()) {
            watch(&self.client, tx, announcements);
        }
    }
}

impl<'a, S: Transactional> InTx<'a, S> {
    pub(super) fn new(client: &Client<S>, tx: S::TxRef<'a>) -> Self {
        let announcements = Announcements::new(&client.shared.dispatcher);
        let watched = Watched { client: client.clone(), tx: None, announcements };
        let (tx, announcements) = (Transaction::Borrowed(tx), Held::Watched(watched));
        Self { client: client.clone(), tx, is_open: false, announcements }
    }

    /// Creates a handle for a transaction whose owner sends the announcements.
    pub(crate) fn over(client: &Client<S>, tx: &'a mut S::Tx, announcements: &'a mut Announcements) -> Self {
        let (tx, announcements) = (Transaction::Borrowed(S::tx_ref(tx)), Held::Borrowed(announcements));
        Self { client: client.clone(), tx, is_open: false, announcements }
    }

    /// Starts a chain. It exists once the transaction commits.
    pub fn start<J: Entry>(&mut self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        plan(job).to(self)
    }

    /// Like [`start`](Self::start), for a handle that only this start uses.
    pub(crate) fn into_start<J: Entry>(self, job: J) -> Start<'a, J, <J::Blockers as Blockers>::Initial> {
        plan(job).to(self)
    }

    /// Executes a command of the store contract in the transaction. Its changes are not announced.
    pub async fn run<R: Request>(&mut self, request: R) -> Result<R::Reply> {
        let store = self.client.store();
        let command: Command = request.into();
        // A query outside a transaction does no harm.
        if !self.is_open && !command.is_query() {
            let id = store.identify(self.tx.tx()).await?;
            self.is_open = true;
            if let Held::Watched(watched) = &mut self.announcements {
                watched.tx = Some(id);
            }
        }
        let items = command.items();
        let call = store.execute_in(self.tx.tx(), command);
        let reply = self.client.shared.dispatcher.measured(R::NAME, |_| items, call).await?;
        if matches!(self.announcements, Held::Watched(_)) {
            self.note_written(&reply).await?;
        }
        if reply.is_deferred() {
            self.announcements.get().resolve_waits(resolve_waits(&self.client));
        }
        reply.try_into()
    }

    /// Notes what a command has written, so that the client can tell later whether it was committed.
    async fn note_written(&mut self, reply: &Reply) -> Result<()> {
        let Some(job) = written(reply) else { return Ok(()) };
        let written = match job {
            WrittenJob::Created(job) => Written::Created(job),
            WrittenJob::Deleted(job) => {
                // A job that this transaction created is gone after a rollback too.
                let before = send(self.client.store(), &GetJobs { jobs: vec![job] }).await?;
                let Some(Some(_)) = before.jobs.first() else { return Ok(()) };
                Written::Deleted(job)
            }
            WrittenJob::Changed(job) => {
                let query = Command::GetJobs(GetJobs { jobs: vec![job] });
                let found = self.client.store().execute_in(self.tx.tx(), query).await?;
                let Reply::GetJobs(found) = found else { return Ok(()) };
                let Some(Some(record)) = found.jobs.first() else { return Ok(()) };
                Written::Changed(job, JobState::of(record))
            }
        };
        self.announcements.get().wrote(written);
        Ok(())
    }

    /// Returns the connection of the transaction, on which the application runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        // The caller may end the transaction with its own statement, so check it before the next
        // command.
        self.is_open = false;
        S::connection(self.tx.tx())
    }

    /// Adds a hook that runs after the commit. Hooks run in the order in which they were added. A rollback, including
    /// one to an earlier savepoint, discards the hook. A panic in a hook affects neither the other hooks nor the
    /// commit.
    ///
    /// If the caller commits the transaction itself, the client compares the changes with the store afterwards. It cannot
    /// always distinguish a commit from a rollback:
    ///
    /// - No command wrote anything, or another client changed the same job before the check. Then neither this hook nor an
    ///   [`after_rollback`](Self::after_rollback) hook runs, and observers do not receive the events of the change. Workers
    ///   and waits are still notified.
    /// - The transaction changed only schedules, retentions or pauses, which leave no job to compare. Then no hook runs
    ///   either, except on PostgreSQL, which knows how its transactions ended.
    /// - Another client deleted a chain that the transaction had started, or created one again that the transaction had
    ///   deleted, before the check. That looks the same as a rollback to a savepoint. Then the
    ///   [`after_rollback`](Self::after_rollback) hooks run although the change was committed, and it is not announced.
    ///
    /// To avoid these cases, commit with [`Tx::commit`], or call
    /// [`announcements`](Self::announcements) before the commit.
    pub fn after_commit(&mut self, hook: impl FnOnce() + Send + 'static) {
        self.announcements.get().after_commit(Box::new(hook));
    }

    /// Adds a hook that runs after a rollback, including one to an earlier savepoint, and when the transaction is
    /// dropped. A commit discards the hook. For exceptions, see [`after_commit`](Self::after_commit).
    pub fn after_rollback(&mut self, hook: impl FnOnce() + Send + 'static) {
        self.announcements.get().after_rollback(Box::new(hook));
    }

    /// Sets a savepoint. Savepoints nest, and also apply to announcements and hooks.
    pub async fn savepoint(&mut self) -> Result<()> {
        self.client.shared.store.savepoint(self.tx.tx()).await?;
        self.announcements.get().savepoint();
        Ok(())
    }

    /// Removes the latest savepoint and keeps the changes made since.
    pub async fn release(&mut self) -> Result<()> {
        self.client.shared.store.release(self.tx.tx()).await?;
        self.announcements.get().release();
        Ok(())
    }

    /// Discards the changes made since the latest savepoint and removes the savepoint.
    pub async fn rollback_to(&mut self) -> Result<()> {
        // Take the announcements out before the rollback. If this future is dropped during it, the changes
        // may already be undone, so they must not be announced after a commit.
        let announcements = self.announcements.get().split_off();
        let pending =
            AnnouncementGuard { announcements, dispatcher: Arc::clone(&self.client.shared.dispatcher) };
        let rolled_back = self.client.shared.store.rollback_to(self.tx.tx()).await;
        if rolled_back.is_err() {
            self.announcements.get().put_back(pending.take());
        }
        rolled_back
    }

    /// Ends the borrow of the transaction, so that it can be committed, and returns the announcements to send after the
    /// commit. They are empty if the owner of the transaction sends them, as [`Tx`] does.
    ///
    /// Without this call, the client polls for the end of the transaction, which takes a few milliseconds longer.
    pub fn announcements(self) -> PendingAnnouncements {
        let announcements = match self.announcements {
            Held::Own(announcements) => announcements,
            Held::Borrowed(_) => Announcements::default(),
            Held::Watched(mut watched) => std::mem::take(&mut watched.announcements),
        };
        PendingAnnouncements { dispatcher: Arc::clone(&self.client.shared.dispatcher), announcements }
    }

    pub(super) fn announcements_mut(&mut self) -> &mut Announcements {
        self.announcements.get()
    }

    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.client.shared.dispatcher
    }

    commands!([&mut self] self);
}

impl<S: Transactional> fmt::Debug for InTx<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTx").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Announcements of changes in a transaction that the caller commits. See [`Client::in_tx`].
///
/// If this is dropped, workers and waits still find the changes when they poll. Observers receive no events,
/// and hooks do not run.
#[derive(Debug)]
#[must_use = "call `announce_after`: otherwise workers and waits notice the changes only by polling"]
pub struct PendingAnnouncements {
    dispatcher: Arc<Dispatcher>,
    announcements: Announcements,
}

impl PendingAnnouncements {
    /// Awaits the commit. Announces the changes if it succeeded; otherwise treats them as rolled back.
    pub async fn announce_after<T, E>(
        self,
        commit: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let committed = commit.await;
        match committed {
            Ok(_) => self.announcements.send(&self.dispatcher),
            Err(_) => self.announcements.roll_back(&self.dispatcher),
        }
        committed
    }
}
