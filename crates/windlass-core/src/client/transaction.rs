use std::fmt;
use std::future::Future;

use super::{Announcements, Client, Creator, Start, start};
use crate::chain::Chain;
use crate::command::{Create, Created, NewChain, Request};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Blockers, Entry};
use crate::store::{BoxFuture, Transactional};

/// A transaction of the store, begun by [`Client::begin`]. What is started in it is announced after its
/// commit. Dropped, it is rolled back.
pub struct Tx<S: Transactional> {
    client: Client<S>,
    tx: Option<S::Tx>,
    announcements: Announcements,
    savepoints: Vec<Announcements>,
}

impl<S: Transactional> Tx<S> {
    pub(super) async fn begin(client: &Client<S>) -> Result<Self> {
        let tx = client.store().begin().await?;
        let announcements = Announcements::default();
        Ok(Self { client: client.clone(), tx: Some(tx), announcements, savepoints: Vec::new() })
    }

    /// Starts a chain: it exists when the transaction commits.
    pub fn start<J: Entry>(&mut self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        Start::new(self, job)
    }

    /// Starts chains of one type, and gives their handles in order.
    pub async fn start_many<J: Entry<Blockers = ()>>(
        &mut self,
        jobs: impl IntoIterator<Item = J> + Send,
    ) -> Result<Vec<Chain<J>>> {
        let mut started = Vec::new();
        for batch in start::batches(jobs)? {
            for created in self.create(batch).await? {
                started.push(start::handle(created)?);
            }
        }
        Ok(started)
    }

    /// Creates chains with one command.
    pub async fn create(&mut self, chains: Vec<NewChain>) -> Result<Vec<Created>> {
        let reply = self.run(Create { chains: chains.clone() }).await?;
        chains.iter().zip(&reply.chains).for_each(|(new, created)| self.announcements.created(new, created));
        Ok(reply.chains)
    }

    /// Carries a command of the store contract out in the transaction. What it changes is not announced.
    pub async fn run<R: Request>(&mut self, request: R) -> Result<R::Reply> {
        let tx = self.tx.as_mut().ok_or_else(ended)?;
        self.client.shared.store.run_in(tx, request).await
    }

    /// Marks a place that can be returned to. What is announced is returned to it as well.
    pub async fn savepoint(&mut self) -> Result<()> {
        self.client.shared.store.savepoint(self.tx.as_mut().ok_or_else(ended)?).await?;
        self.savepoints.push(self.announcements.clone());
        Ok(())
    }

    /// Keeps what was done since the latest savepoint.
    pub async fn release(&mut self) -> Result<()> {
        self.client.shared.store.release(self.tx.as_mut().ok_or_else(ended)?).await?;
        self.savepoints.pop();
        Ok(())
    }

    /// Forgets what was done since the latest savepoint.
    pub async fn rollback_to(&mut self) -> Result<()> {
        self.client.shared.store.rollback_to(self.tx.as_mut().ok_or_else(ended)?).await?;
        self.announcements = self.savepoints.pop().unwrap_or_default();
        Ok(())
    }

    /// Makes everything in it durable, and announces it.
    pub async fn commit(mut self) -> Result<()> {
        let tx = self.tx.take().ok_or_else(ended)?;
        self.client.shared.store.commit(tx).await?;
        std::mem::take(&mut self.announcements).send(&self.client.shared.teller);
        Ok(())
    }

    /// Forgets everything in it.
    pub async fn rollback(mut self) -> Result<()> {
        let tx = self.tx.take().ok_or_else(ended)?;
        self.client.shared.store.rollback(tx).await
    }
}

/// The driver's own transaction, for the application's rows.
impl<S: Transactional> AsMut<S::Tx> for Tx<S> {
    fn as_mut(&mut self) -> &mut S::Tx {
        self.tx.as_mut().expect("only commit and rollback take the transaction, and they end this")
    }
}

impl<S: Transactional> Creator for &mut Tx<S> {
    fn create_one<'a>(&'a mut self, new: NewChain) -> BoxFuture<'a, Result<Created>> {
        Box::pin(async move { self.create(vec![new]).await?.pop().ok_or_else(no_answer) })
    }
}

impl<S: Transactional> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("announcements", &self.announcements).finish_non_exhaustive()
    }
}

/// Commands inside a transaction that somebody else began and will end; see [`Client::in_tx`].
pub struct InTx<'a, S: Transactional> {
    client: &'a Client<S>,
    tx: &'a mut S::Tx,
    announcements: Announcements,
}

impl<'a, S: Transactional> InTx<'a, S> {
    pub(super) fn new(client: &'a Client<S>, tx: &'a mut S::Tx) -> Self {
        Self { client, tx, announcements: Announcements::default() }
    }

    /// Starts a chain: it exists when the transaction commits.
    pub fn start<J: Entry>(&mut self, job: J) -> Start<'_, J, <J::Blockers as Blockers>::Initial> {
        Start::new(self, job)
    }

    /// What is to be announced after the commit; see [`Client::announce_after`].
    pub fn announcements(self) -> Announcements {
        self.announcements
    }
}

impl<S: Transactional> Creator for &mut InTx<'_, S> {
    fn create_one<'a>(&'a mut self, new: NewChain) -> BoxFuture<'a, Result<Created>> {
        Box::pin(async move {
            let create = Create { chains: vec![new.clone()] };
            let mut reply = self.client.shared.store.run_in(self.tx, create).await?;
            let created = reply.chains.pop().ok_or_else(no_answer)?;
            self.announcements.created(&new, &created);
            Ok(created)
        })
    }
}

impl<S: Transactional> fmt::Debug for InTx<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTx").field("announcements", &self.announcements).finish_non_exhaustive()
    }
}

impl<S: Transactional> Client<S> {
    /// Awaits the commit of somebody else's transaction, and announces what was done in it if it succeeded.
    pub async fn announce_after<T, E>(
        &self,
        announcements: Announcements,
        commit: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        let committed = commit.await?;
        announcements.send(&self.shared.teller);
        Ok(committed)
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Invalid, "the transaction has ended")
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Corrupt, "the store gave no answer for a chain")
}
