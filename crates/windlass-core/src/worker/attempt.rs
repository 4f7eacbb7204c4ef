use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::BoxError;
use super::abort::Abort;
use super::any_attempt::AnyAttempt;
use super::hooks::{Closing, HookList, Stage};
use super::next::{ContinuationOf, Next, complete};
use crate::chain::Chain;
use crate::client::{Announcements, Client, InTx, IntoPlan};
use crate::command::{Outcome, Renew, RenewLease, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Blockers, Job};
use crate::record::JobRecord;
use crate::store::Transactional;
use crate::time::Millis;

/// An attempt of a job, as a handler receives it. Works on any store. Cheap to clone.
pub struct Ctx<J: Job> {
    shared: Arc<CtxShared<J>>,
}

struct CtxShared<J: Job> {
    input: J,
    blockers: <J::Blockers as Blockers>::Outputs,
    attempt: AnyAttempt,
}

impl<J: Job> Ctx<J> {
    /// Decodes the input and the outputs of blockers. Fails if they do not decode as the types of this
    /// program.
    pub(super) fn new(attempt: AnyAttempt) -> Result<Self> {
        let input = attempt.acquired.job.input.decode()?;
        let blockers = J::Blockers::decode(&attempt.acquired.blockers)?;
        Ok(Self { shared: Arc::new(CtxShared { input, blockers, attempt }) })
    }

    /// Returns the job's input.
    #[must_use]
    pub fn input(&self) -> &J {
        &self.shared.input
    }

    /// Returns the outputs of the job's blockers.
    #[must_use]
    pub fn blockers(&self) -> &<J::Blockers as Blockers>::Outputs {
        &self.shared.blockers
    }

    /// Returns the number of this attempt, counted from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.shared.attempt.attempt()
    }

    /// Whether this is the last allowed attempt: if it fails, the job fails.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.shared.attempt.is_last_attempt()
    }

    /// Returns the job as it was acquired.
    #[must_use]
    pub fn job(&self) -> &JobRecord {
        self.shared.attempt.job()
    }

    /// Returns the key of the job's chain, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.shared.attempt.key()
    }

    /// Returns a handle to the job's chain. `E` is the type of the chain's first job.
    #[must_use]
    pub fn chain<E: Job>(&self) -> Chain<E> {
        Chain::from_id(self.job().chain)
    }

    /// Returns the signal that asks the attempt to stop. [`AbortReason`](crate::AbortReason) lists when it fires.
    #[must_use]
    pub fn aborted(&self) -> &Abort {
        self.shared.attempt.aborted()
    }

    /// Returns the value of this type that middleware inserted.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.shared.attempt.get()
    }

    pub(super) fn any(&self) -> &AnyAttempt {
        &self.shared.attempt
    }
}

impl<J: Job> Clone for Ctx<J> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<J: Job> fmt::Debug for Ctx<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx")
            .field("job", &self.job().id)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

/// An attempt of a job on a store with transactions. Dereferences to [`Ctx`].
///
/// There are two ways to use it:
///
/// - *Staged*, the usual way. The handler reads and writes in a first transaction, from
///   [`prepare`](Self::prepare). It does its work outside of a transaction. Then it writes the result in the
///   transaction that ends the job, from [`begin`](Self::begin).
/// - *Atomic*. The handler calls [`atomic`](Self::atomic) first, and reads, works and writes in one
///   transaction.
///
/// ```
/// # use windlass_core::{Attempt, BoxError, Done, Job, MemoryStore};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Pay { order: u64 }
/// # impl Job for Pay { const NAME: &'static str = "pay"; type Output = u64; type Next = (); type Blockers = (); }
/// # async fn ask_the_bank(order: u64) -> Result<u64, BoxError> { Ok(order * 100) }
/// async fn pay(a: Attempt<Pay, MemoryStore>) -> Result<Done<Pay, MemoryStore>, BoxError> {
///     let cents = ask_the_bank(a.input().order).await?;    // no transaction is open
///     let step = a.begin().await?;
///     // … write the result with `step.tx()` …
///     Ok(step.done(cents)?)                                // the worker commits
/// }
/// ```
pub struct Attempt<J: Job, S: Transactional> {
    ctx: Ctx<J>,
    client: Client<S>,
    lease: Millis,
    prepared: AtomicBool,
    /// Whether the [`Prepare`] still exists. While it does, `begin` fails, because its transaction is open.
    preparing: Arc<AtomicBool>,
    finished: AtomicBool,
    hooks: HookList<S::Tx>,
    parked: Parked<S>,
}

/// The transaction of a [`Step`] that was dropped. A drop cannot await a rollback, so it leaves the
/// transaction here. If the handler returns an error, the worker rolls the transaction back before it settles
/// the attempt.
pub(super) type Parked<S> = Arc<Mutex<Option<<S as Transactional>::Tx>>>;

impl<J: Job, S: Transactional> Attempt<J, S> {
    pub(super) fn new(
        ctx: Ctx<J>,
        client: Client<S>,
        lease: Millis,
        hooks: HookList<S::Tx>,
        parked: Parked<S>,
    ) -> Self {
        let (prepared, finished) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { ctx, client, lease, prepared, preparing: Arc::default(), finished, hooks, parked }
    }

    /// Begins the transaction that comes before the work. Can be called once, before `begin`. If it fails to
    /// begin, it can be called again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it was called before, or after `begin`, or if a hook refuses the
    /// transaction.
    pub async fn prepare(&self) -> Result<Prepare<J, S>> {
        if self.finished.load(Ordering::Acquire) || self.prepared.swap(true, Ordering::AcqRel) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "`prepare` can be called only once, and only before `begin`",
            ));
        }
        let tx = self.begin_stage(Stage::Prepare, &self.prepared).await?;
        let (client, ctx, hooks) = (self.client.clone(), self.ctx.clone(), self.hooks.clone());
        let announcements = self.announcements();
        self.preparing.store(true, Ordering::Release);
        let preparing = Arc::clone(&self.preparing);
        Ok(Prepare { client, ctx, hooks, tx: Some(tx), lease: self.lease, announcements, preparing })
    }

    /// Begins the transaction that ends the job. Can be called once. If it fails to begin, it can be called
    /// again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it was called before, if the transaction of `prepare` is still open, or if a
    /// hook refuses the transaction.
    pub async fn begin(&self) -> Result<Step<J, S>> {
        if self.preparing.load(Ordering::Acquire) {
            let text = "the transaction of `prepare` is still open: commit or drop it before `begin`";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.finished.swap(true, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::Invalid, "`begin` or `atomic` can be called only once"));
        }
        let tx = self.begin_stage(Stage::Finish, &self.finished).await?;
        let (client, parked) = (self.client.clone(), Arc::clone(&self.parked));
        let announcements = self.announcements();
        let begun_at = Instant::now();
        Ok(Step { client, tx: Some(tx), begun_at, announcements, parked, job: PhantomData })
    }

    /// Begins the transaction that ends the job, before the work. Data read in it stays valid until the job
    /// ends. The transaction stays open while the handler works, so the work should be short.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `prepare`, `begin` or `atomic` was called before, or if a hook refuses the
    /// transaction.
    pub async fn atomic(&self) -> Result<Step<J, S>> {
        if self.prepared.load(Ordering::Acquire) {
            let text = "`atomic` cannot be called after `prepare`: call `begin` instead";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.begin().await
    }

    fn announcements(&self) -> Announcements {
        Announcements::new(&self.client.shared.dispatcher)
    }

    /// Begins a transaction. Resets `once` if that fails, so that the caller can try again.
    async fn begin_stage(&self, stage: Stage, once: &AtomicBool) -> Result<S::Tx> {
        let begun = async {
            let JobRecord { id: job, fence, .. } = *self.ctx.job();
            let lease = RenewLease { job, fence, lease: self.lease };
            let mut tx = self.client.store().begin_attempt(lease).await?;
            if let Err(error) = self.hooks.opened(self.any(), stage, &mut tx).await {
                self.client.store().rollback(tx).await?;
                return Err(error);
            }
            Ok(tx)
        };
        let again = Again(once);
        let tx = begun.await?;
        std::mem::forget(again);
        Ok(tx)
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

impl<J: Job, S: Transactional> Deref for Attempt<J, S> {
    type Target = Ctx<J>;

    fn deref(&self) -> &Ctx<J> {
        &self.ctx
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Attempt<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("ctx", &self.ctx).finish_non_exhaustive()
    }
}

/// The transaction before the work. If it is dropped, it is rolled back.
pub struct Prepare<J: Job, S: Transactional> {
    client: Client<S>,
    ctx: Ctx<J>,
    hooks: HookList<S::Tx>,
    /// `None` after the commit or rollback.
    tx: Option<S::Tx>,
    lease: Millis,
    announcements: Announcements,
    preparing: Arc<AtomicBool>,
}

impl<J: Job, S: Transactional> Prepare<J, S> {
    /// Returns the connection of the transaction, on which the handler runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        S::connection(S::tx_ref(self.tx.as_mut().expect(OPEN)))
    }

    /// Returns a client for commands inside the transaction. For example, `prepare.client().start(job)`
    /// starts a chain that exists once the transaction commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        InTx::over(&self.client, self.tx.as_mut().expect(OPEN), &mut self.announcements)
    }

    /// Commits the transaction, unless the attempt has lost its job in the meantime: a stale attempt writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeaseLost`] if the attempt no longer holds its job, [`ErrorKind::Busy`] if another
    /// transaction has locked the job, [`ErrorKind::Invalid`] if a hook refuses the commit. The transaction
    /// is rolled back in these cases.
    pub async fn commit(mut self) -> Result<()> {
        let closed = self.close().await;
        let (store, tx) = (self.client.store(), self.tx.take().expect(OPEN));
        let ended = match closed {
            Ok(()) => store.commit(tx).await,
            Err(error) => store.rollback(tx).await.and(Err(error)),
        };
        std::mem::take(&mut self.announcements).end(ended.is_ok(), &self.client.shared.dispatcher);
        ended
    }

    /// Runs the closing hooks, then checks that the attempt still holds its job by renewing its lease.
    async fn close(&mut self) -> Result<()> {
        let tx = self.tx.as_mut().expect(OPEN);
        self.hooks.closing(self.ctx.any(), Closing::Prepare, tx).await?;
        let JobRecord { id: job, fence, .. } = *self.ctx.job();
        let renew = Renew { leases: vec![RenewLease { job, fence, lease: self.lease }] };
        let reply = self.client.store().run_in(S::tx_ref(tx), renew).await?;
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
impl<J: Job, S: Transactional> Drop for Prepare<J, S> {
    fn drop(&mut self) {
        drop(self.tx.take());
        self.preparing.store(false, Ordering::Release);
        std::mem::take(&mut self.announcements).end(false, &self.client.shared.dispatcher);
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Prepare<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepare").field("ctx", &self.ctx).finish_non_exhaustive()
    }
}

/// The transaction that ends a job.
///
/// Call [`done`](Self::done), [`then`](Self::then), [`fail`](Self::fail) or [`reschedule`](Self::reschedule),
/// and return the result from the handler. These methods return an error of kind [`ErrorKind::Invalid`] if the
/// outcome is invalid, for example if the output cannot be encoded. If the step is dropped, the transaction is
/// rolled back.
pub struct Step<J: Job, S: Transactional> {
    client: Client<S>,
    tx: Option<S::Tx>,
    begun_at: Instant,
    announcements: Announcements,
    parked: Parked<S>,
    job: PhantomData<fn() -> J>,
}

/// Why the transaction of a [`Step`] or [`Prepare`] is present.
const OPEN: &str = "only methods that consume the value take the transaction";

impl<J: Job, S: Transactional> Step<J, S> {
    /// Returns the connection of the transaction, on which the handler runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        S::connection(S::tx_ref(self.tx.as_mut().expect(OPEN)))
    }

    /// Returns a client for commands inside the transaction. For example, `step.client().start(job)` starts a
    /// chain that exists once the transaction commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        InTx::over(&self.client, self.tx.as_mut().expect(OPEN), &mut self.announcements)
    }

    /// Starts chains in the transaction: they exist once it commits. See
    /// [`Client::start_many`](crate::Client::start_many).
    pub async fn start_many<P: IntoPlan>(
        &mut self,
        plans: impl IntoIterator<Item = P> + Send,
    ) -> Result<Vec<Chain<P::Job>>> {
        self.client().start_many(plans).await
    }

    /// Completes the job and its chain with this output.
    #[expect(clippy::needless_pass_by_value, reason = "the outcome owns the output")]
    pub fn done(self, output: J::Output) -> Result<Done<J, S>> {
        self.end(complete(&output))
    }

    /// Completes the job and continues the chain with this job.
    pub fn then(self, continuation: impl ContinuationOf<J>) -> Result<Done<J, S>> {
        self.end(continuation.into_continuation().outcome())
    }

    /// Fails the job and its chain, with no more attempts. The writes of the transaction are kept.
    pub fn fail(self, error: impl Into<BoxError>) -> Result<Done<J, S>> {
        self.end(Next::<J>::fail(error).0)
    }

    /// Runs the job again after this delay. The attempt does not count. The writes of the transaction are
    /// kept.
    pub fn reschedule(self, delay: Duration) -> Result<Done<J, S>> {
        self.end(Next::<J>::reschedule(delay).0)
    }

    fn end(self, outcome: Result<Outcome>) -> Result<Done<J, S>> {
        Ok(Done { outcome: outcome?, step: self })
    }
}

impl<J: Job, S: Transactional> Drop for Step<J, S> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(tx);
            std::mem::take(&mut self.announcements).end(false, &self.client.shared.dispatcher);
        }
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Step<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").finish_non_exhaustive()
    }
}

/// The outcome of a job, with the transaction that ends it. The handler returns it.
///
/// The worker settles the job in the transaction and commits it after the handler has returned. If the
/// handler fails after creating this value, everything is rolled back.
#[must_use = "return this from the handler"]
pub struct Done<J: Job, S: Transactional> {
    step: Step<J, S>,
    outcome: Outcome,
}

impl<J: Job, S: Transactional> Done<J, S> {
    /// Returns how long the transaction has been open.
    pub(super) fn open_for(&self) -> Duration {
        self.step.begun_at.elapsed()
    }

    /// Returns the transaction, the outcome to settle in it, and the announcements to send after its commit.
    pub(super) fn take(mut self) -> (S::Tx, Outcome, Announcements) {
        let tx = self.step.tx.take().expect(OPEN);
        (tx, self.outcome, std::mem::take(&mut self.step.announcements))
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Done<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}
