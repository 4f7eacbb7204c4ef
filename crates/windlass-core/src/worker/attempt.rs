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
use crate::client::{Announcements, Client, InTx};
use crate::command::{Outcome, Renew, RenewLease, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Blockers, Job};
use crate::record::JobRecord;
use crate::store::Transactional;
use crate::time::Millis;

/// One attempt of a job, on any store.
pub struct Ctx<J: Job> {
    shared: Arc<CtxShared<J>>,
}

struct CtxShared<J: Job> {
    input: J,
    blockers: <J::Blockers as Blockers>::Outputs,
    attempt: AnyAttempt,
}

impl<J: Job> Ctx<J> {
    /// Decodes what was acquired. An error means that the job cannot be run by this code.
    pub(super) fn new(attempt: AnyAttempt) -> Result<Self> {
        let input = attempt.acquired.job.input.decode()?;
        let blockers = J::Blockers::decode(&attempt.acquired.blockers)?;
        Ok(Self { shared: Arc::new(CtxShared { input, blockers, attempt }) })
    }

    /// What the job takes.
    #[must_use]
    pub fn input(&self) -> &J {
        &self.shared.input
    }

    /// What its blockers gave.
    #[must_use]
    pub fn blockers(&self) -> &<J::Blockers as Blockers>::Outputs {
        &self.shared.blockers
    }

    /// The number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.shared.attempt.attempt()
    }

    /// The job as it was acquired.
    #[must_use]
    pub fn job(&self) -> &JobRecord {
        self.shared.attempt.job()
    }

    /// The key of its chain.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.shared.attempt.key()
    }

    /// A handle on its chain, which a job of type `E` started.
    #[must_use]
    pub fn chain<E: Job>(&self) -> Chain<E> {
        Chain::from_id(self.job().chain)
    }

    /// Tells when to stop, and why.
    #[must_use]
    pub fn aborted(&self) -> &Abort {
        self.shared.attempt.aborted()
    }

    /// The value of this type that middleware handed inwards.
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

/// One attempt of a job on a store with transactions. Everything of [`Ctx`] is there too.
///
/// *Staged*, the usual way: [`prepare`](Self::prepare) reads and writes in a transaction of its own, then the
/// work is done without one, then [`finish`](Self::finish) writes the result in the transaction that ends the
/// job. *Atomic*: [`atomic`](Self::atomic) comes first, and one transaction serves to read, work and write.
pub struct Attempt<J: Job, S: Transactional> {
    ctx: Ctx<J>,
    client: Client<S>,
    lease: Millis,
    prepared: AtomicBool,
    /// Whether what `prepare` gave is still there.
    preparing: Arc<AtomicBool>,
    finished: AtomicBool,
    hooks: HookList<S::Tx>,
    parked: Parked<S>,
}

/// A transaction that a step left when it was dropped. The worker rolls it back before it settles anything
/// else.
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

    /// Begins a transaction for what comes before the work. At most once, and before `finish`.
    pub async fn prepare(&self) -> Result<Prepare<J, S>> {
        if self.finished.load(Ordering::Acquire) || self.prepared.swap(true, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::Invalid, "prepare comes once, and before finish"));
        }
        let tx = self.begin(Stage::Prepare, &self.prepared).await?;
        let (client, ctx, hooks) = (self.client.clone(), self.ctx.clone(), self.hooks.clone());
        let announcements = self.announcements();
        self.preparing.store(true, Ordering::Release);
        let preparing = Arc::clone(&self.preparing);
        Ok(Prepare { client, ctx, hooks, tx: Some(tx), lease: self.lease, announcements, preparing })
    }

    /// Begins the transaction that ends the job. At most once.
    pub async fn finish(&self) -> Result<Step<J, S>> {
        if self.preparing.load(Ordering::Acquire) {
            let text = "the transaction of `prepare` is still open: commit it, or drop it, before `finish`";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.finished.swap(true, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::Invalid, "finish comes once"));
        }
        let tx = self.begin(Stage::Finish, &self.finished).await?;
        let (client, parked) = (self.client.clone(), Arc::clone(&self.parked));
        let announcements = self.announcements();
        let begun_at = Instant::now();
        Ok(Step { client, tx: Some(tx), begun_at, announcements, parked, job: PhantomData })
    }

    /// Begins the transaction that ends the job as the first act, so that what is read in it stays true until
    /// its end. It is held open while the handler works: keep that short.
    pub async fn atomic(&self) -> Result<Step<J, S>> {
        if self.prepared.load(Ordering::Acquire) {
            let text = "an attempt that was prepared is staged: call finish, or atomic alone";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.finish().await
    }

    fn announcements(&self) -> Announcements {
        Announcements::by(&self.client.shared.dispatcher)
    }

    /// Begins a transaction. If that fails it may be tried again.
    async fn begin(&self, stage: Stage, once: &AtomicBool) -> Result<S::Tx> {
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

/// Lets a transaction be begun again, if this was in vain: it failed, was given up, or panicked.
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

/// A transaction before the work. Dropped, it is rolled back.
pub struct Prepare<J: Job, S: Transactional> {
    client: Client<S>,
    ctx: Ctx<J>,
    hooks: HookList<S::Tx>,
    /// None after the end.
    tx: Option<S::Tx>,
    lease: Millis,
    announcements: Announcements,
    preparing: Arc<AtomicBool>,
}

impl<J: Job, S: Transactional> Prepare<J, S> {
    /// The driver's own transaction.
    pub fn tx(&mut self) -> &mut S::Tx {
        self.tx.as_mut().expect(OPEN)
    }

    /// Commands inside the transaction: `prepare.client().start(job)` starts a chain that exists when it
    /// commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        InTx::over(&self.client, self.tx.as_mut().expect(OPEN), &mut self.announcements)
    }

    /// Commits, unless the attempt has lost its job in the meantime: a stale attempt writes nothing.
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

    /// What comes before the commit: the hooks, and a look whether the attempt still holds its job.
    async fn close(&mut self) -> Result<()> {
        let tx = self.tx.as_mut().expect(OPEN);
        self.hooks.closing(self.ctx.any(), Closing::Prepare, tx).await?;
        let JobRecord { id: job, fence, .. } = *self.ctx.job();
        let renew = Renew { leases: vec![RenewLease { job, fence, lease: self.lease }] };
        let reply = self.client.store().run_in(S::lend(tx), renew).await?;
        match reply.leases.first() {
            Some(Renewed::Held { .. }) => Ok(()),
            Some(Renewed::Busy) => {
                Err(Error::new(ErrorKind::Busy, "somebody's open transaction has the job"))
            }
            Some(Renewed::Lost(_)) | None => {
                Err(Error::new(ErrorKind::LeaseLost, "the attempt no longer holds its job: stop"))
            }
        }
    }
}

/// What was to be announced of it ends with it: hooks and traces are told of the roll-back.
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

/// The transaction that ends a job. It ends by [`done`](Self::done), [`then`](Self::then),
/// [`fail`](Self::fail) or [`reschedule`](Self::reschedule), whose result the handler returns; dropped, it is
/// rolled back.
pub struct Step<J: Job, S: Transactional> {
    client: Client<S>,
    tx: Option<S::Tx>,
    begun_at: Instant,
    announcements: Announcements,
    parked: Parked<S>,
    job: PhantomData<fn() -> J>,
}

/// Why a step and a preparation have their transaction.
const OPEN: &str = "only the methods that end it take the transaction";

impl<J: Job, S: Transactional> Step<J, S> {
    /// The driver's own transaction.
    pub fn tx(&mut self) -> &mut S::Tx {
        self.tx.as_mut().expect(OPEN)
    }

    /// Commands inside the transaction: `step.client().start(job)` starts a chain that exists when it commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        InTx::over(&self.client, self.tx.as_mut().expect(OPEN), &mut self.announcements)
    }

    /// The chain is done, and this is what it gives.
    #[expect(clippy::needless_pass_by_value, reason = "an output is given away")]
    pub fn done(self, output: J::Output) -> Result<Done<J, S>> {
        self.end(complete(&output))
    }

    /// The chain goes on with this job.
    pub fn then(self, continuation: impl ContinuationOf<J>) -> Result<Done<J, S>> {
        self.end(continuation.into_continuation().outcome())
    }

    /// The job failed for good. What was written in the transaction is kept.
    pub fn fail(self, error: impl Into<BoxError>) -> Result<Done<J, S>> {
        self.end(Next::<J>::fail(error).0)
    }

    /// Run it again after this delay, uncounted. What was written in the transaction is kept.
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

/// The end of a job in its transaction. The worker settles the job in it and commits, last: a handler that
/// fails after it takes everything back.
#[must_use = "a handler returns this"]
pub struct Done<J: Job, S: Transactional> {
    step: Step<J, S>,
    outcome: Outcome,
}

impl<J: Job, S: Transactional> Done<J, S> {
    /// How long its transaction has been open.
    pub(super) fn open_for(&self) -> Duration {
        self.step.begun_at.elapsed()
    }

    /// The transaction, how the job ends in it, and what is to be announced after its commit.
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
