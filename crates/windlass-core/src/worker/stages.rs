//! The transactions of an attempt, which are the same for a job and for a job of a queue.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::any_attempt::AnyAttempt;
use super::followed::StageGuard;
use super::hooks::{AnyHooks, Closing, HookList, Stage};
use crate::client::{Announcements, Client, InTx};
use crate::command::{Renew, RenewLease, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::record::JobRecord;
use crate::store::{BoxFuture, Transactional};
use crate::time::Millis;

/// An attempt as its handler sees it: a [`Ctx`](super::Ctx), or an [`Item`](crate::queue::Item) of a queue.
pub(crate) trait View: Clone + Send + Sync + 'static {
    /// Returns the attempt without the type of its input.
    fn attempt(&self) -> &AnyAttempt;
}

/// The context of an attempt's transactions.
#[doc(hidden)]
pub struct Scope<S: ?Sized> {
    pub(super) client: Client<S>,
    pub(super) lease: Millis,
    pub(super) hooks: Arc<[AnyHooks]>,
}

impl<S: ?Sized> Scope<S> {
    /// Returns the scope for another type of the same store.
    pub(super) fn with_client<T: ?Sized>(self, client: Client<T>) -> Scope<T> {
        Scope { client, lease: self.lease, hooks: self.hooks }
    }
}

impl<S: Transactional> Scope<S> {
    pub(crate) const fn client(&self) -> &Client<S> {
        &self.client
    }

    pub(super) fn hooks(&self) -> HookList<S::Tx> {
        HookList::new(Arc::clone(&self.hooks))
    }
}

impl<S: ?Sized> Clone for Scope<S> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), lease: self.lease, hooks: Arc::clone(&self.hooks) }
    }
}

impl<S: ?Sized> fmt::Debug for Scope<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// The transaction of a step that was dropped. A drop cannot await a rollback, so it leaves the transaction here. If
/// the handler returns an error, the worker rolls the transaction back before it settles the attempt.
pub(crate) struct Parked<S: Transactional>(Arc<Mutex<Option<S::Tx>>>);

impl<S: Transactional> Parked<S> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Returns a future that rolls the transaction back, if there is one.
    pub(crate) fn undo(&self, scope: Scope<S>) -> Option<BoxFuture<'static, Result<()>>> {
        let tx = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Box::pin(async move { scope.client.roll_back_tx(tx).await }))
    }

    fn park(&self, tx: S::Tx) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tx);
    }
}

impl<S: Transactional> Clone for Parked<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Begins the transactions of one attempt, in the allowed order.
pub(crate) struct Stages<S: Transactional> {
    scope: Scope<S>,
    prepared: AtomicBool,
    /// Whether the [`OpenPrepare`] still exists. While it does, `begin` fails, because its transaction is open.
    preparing: Arc<AtomicBool>,
    finished: AtomicBool,
    parked: Parked<S>,
}

impl<S: Transactional> Stages<S> {
    pub(crate) fn new(scope: Scope<S>, parked: Parked<S>) -> Self {
        let (prepared, finished) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { scope, prepared, preparing: Arc::default(), finished, parked }
    }

    pub(crate) async fn prepare<V: View>(&self, view: &V) -> Result<OpenPrepare<V, S>> {
        if self.finished.load(Ordering::Acquire) || self.prepared.swap(true, Ordering::AcqRel) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "`prepare` can be called only once, and only before `begin`",
            ));
        }
        let (tx, guard) = self.begin_stage(view, Stage::Prepare, &self.prepared).await?;
        let (view, scope, announcements) = (view.clone(), self.scope.clone(), self.announcements());
        self.preparing.store(true, Ordering::Release);
        let preparing = Arc::clone(&self.preparing);
        Ok(OpenPrepare { scope, view, tx: Some(tx), announcements, preparing, guard: Some(guard) })
    }

    pub(crate) async fn begin<V: View>(&self, view: &V) -> Result<OpenStep<S>> {
        if self.preparing.load(Ordering::Acquire) {
            let text = "the transaction of `prepare` is still open: commit or drop it before `begin`";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.finished.swap(true, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::Invalid, "`begin` or `atomic` can be called only once"));
        }
        let (tx, guard) = self.begin_stage(view, Stage::Finish, &self.finished).await?;
        let (client, parked) = (self.scope.client.clone(), self.parked.clone());
        let announcements = self.announcements();
        Ok(OpenStep {
            client,
            tx: Some(tx),
            begun_at: Instant::now(),
            announcements,
            parked,
            guard: Some(guard),
        })
    }

    pub(crate) async fn atomic<V: View>(&self, view: &V) -> Result<OpenStep<S>> {
        if self.prepared.load(Ordering::Acquire) {
            let text = "`atomic` cannot be called after `prepare`: call `begin` instead";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.begin(view).await
    }

    fn announcements(&self) -> Announcements {
        Announcements::new(&self.scope.client.shared.dispatcher)
    }

    /// Begins a transaction. Resets `once` if that fails, so that the caller can try again.
    async fn begin_stage(
        &self,
        view: &impl View,
        stage: Stage,
        once: &AtomicBool,
    ) -> Result<(S::Tx, StageGuard)> {
        let (client, attempt) = (&self.scope.client, view.attempt());
        let guard = attempt.held.begin_stage(stage);
        let begun = async {
            let begin = client.store().begin_attempt(lease(attempt, self.scope.lease));
            let mut tx = client.measured("begin", begin).await?;
            if let Err(error) = self.scope.hooks().opened(attempt, stage, &mut tx).await {
                client.roll_back_tx(tx).await?;
                return Err(error);
            }
            Ok(tx)
        };
        let again = Again(once);
        match begun.await {
            Ok(tx) => {
                std::mem::forget(again);
                Ok((tx, guard))
            }
            Err(error) => {
                guard.close(Some(&error.to_string()));
                Err(error)
            }
        }
    }
}

/// Resets the flag on drop, unless it is forgotten after a success. Covers a call that failed, was dropped or
/// panicked.
struct Again<'a>(&'a AtomicBool);

impl Drop for Again<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn lease(attempt: &AnyAttempt, lease: Millis) -> RenewLease {
    let JobRecord { id: job, fence, .. } = *attempt.job();
    RenewLease { job, fence, lease }
}

/// Why the transaction of an [`OpenStep`] or [`OpenPrepare`] is present.
const OPEN: &str = "only methods that consume the value take the transaction";

/// The open transaction before the work.
pub(crate) struct OpenPrepare<V, S: Transactional> {
    scope: Scope<S>,
    view: V,
    /// `None` after the commit or rollback.
    tx: Option<S::Tx>,
    announcements: Announcements,
    preparing: Arc<AtomicBool>,
    guard: Option<StageGuard>,
}

impl<V, S: Transactional> OpenPrepare<V, S> {
    pub(crate) const fn view(&self) -> &V {
        &self.view
    }

    pub(crate) fn tx(&mut self) -> S::Connection<'_> {
        S::connection(S::tx_ref(self.tx.as_mut().expect(OPEN)))
    }

    pub(crate) fn client(&mut self) -> InTx<'_, S> {
        InTx::over(&self.scope.client, self.tx.as_mut().expect(OPEN), &mut self.announcements)
    }
}

impl<V: View, S: Transactional> OpenPrepare<V, S> {
    pub(crate) async fn commit(mut self) -> Result<()> {
        let closed = self.close().await;
        let (client, tx) = (&self.scope.client, self.tx.take().expect(OPEN));
        let (announcements, dispatcher) =
            (std::mem::take(&mut self.announcements), &client.shared.dispatcher);
        let ended = match closed {
            Ok(()) => {
                let committed = client.commit_tx(tx).await;
                announcements.commit_ended(&committed, dispatcher);
                committed
            }
            Err(error) => {
                let rolled_back = client.roll_back_tx(tx).await;
                announcements.end(false, dispatcher);
                rolled_back.and(Err(error))
            }
        };
        if let Some(guard) = self.guard.take() {
            guard.close(ended.as_ref().err().map(Error::to_string).as_deref());
        }
        ended
    }

    /// Runs the closing hooks, then checks that the attempt still holds its job by renewing its lease.
    async fn close(&mut self) -> Result<()> {
        let (tx, attempt) = (self.tx.as_mut().expect(OPEN), self.view.attempt());
        self.scope.hooks().closing(attempt, Closing::Prepare, tx).await?;
        let renew = Renew { leases: vec![lease(attempt, self.scope.lease)] };
        let reply = self.scope.client.store().run_in(S::tx_ref(tx), renew).await?;
        match reply.leases.first() {
            Some(Renewed::Held { .. }) => Ok(()),
            Some(Renewed::Busy) => {
                Err(Error::new(ErrorKind::Busy, "the job is locked by another open transaction"))
            }
            Some(Renewed::Lost(_)) | None => Err(Error::new(
                ErrorKind::LeaseLost,
                "the attempt no longer holds the lease of its job: stop the handler",
            )),
        }
    }
}

/// Rolls back an open transaction, and reports the rollback to hooks and observers.
impl<V, S: Transactional> Drop for OpenPrepare<V, S> {
    fn drop(&mut self) {
        drop(self.tx.take());
        self.preparing.store(false, Ordering::Release);
        std::mem::take(&mut self.announcements).end(false, &self.scope.client.shared.dispatcher);
    }
}

/// The open transaction that ends a job.
pub(crate) struct OpenStep<S: Transactional> {
    client: Client<S>,
    tx: Option<S::Tx>,
    begun_at: Instant,
    announcements: Announcements,
    parked: Parked<S>,
    guard: Option<StageGuard>,
}

impl<S: Transactional> OpenStep<S> {
    pub(crate) fn tx(&mut self) -> S::Connection<'_> {
        S::connection(S::tx_ref(self.tx.as_mut().expect(OPEN)))
    }

    pub(crate) fn client(&mut self) -> InTx<'_, S> {
        InTx::over(&self.client, self.tx.as_mut().expect(OPEN), &mut self.announcements)
    }

    /// Returns how long the transaction has been open.
    pub(super) fn open_for(&self) -> Duration {
        self.begun_at.elapsed()
    }

    /// Returns the transaction, the announcements to send after its commit, and what reports its end.
    pub(super) fn take(mut self) -> (S::Tx, Announcements, StageGuard) {
        let guard = self.guard.take().expect(OPEN);
        (self.tx.take().expect(OPEN), std::mem::take(&mut self.announcements), guard)
    }
}

impl<S: Transactional> Drop for OpenStep<S> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.parked.park(tx);
            std::mem::take(&mut self.announcements).end(false, &self.client.shared.dispatcher);
        }
    }
}
