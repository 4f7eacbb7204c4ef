//! The typed attempts that handlers receive: [`Ctx`] on any store, [`Attempt`] on a store with transactions.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::BoxError;
use super::abort::Abort;
use super::any_attempt::AnyAttempt;
use super::next::{ContinuationOf, Next, complete};
use super::schedule::ScheduledBy;
use super::stages::{OpenPrepare, OpenStep, Stages, View};
use crate::chain::Chain;
use crate::client::{InTx, IntoPlan, Start};
use crate::command::Outcome;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::id::Occurrence;
use crate::job::{Blockers, Entry, Job};
use crate::record::JobRecord;
use crate::schedule::time;
use crate::store::Transactional;
use crate::time::Timestamp;

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
        let input = attempt.held.acquired.job.input.decode()?;
        let blockers = J::Blockers::decode(&attempt.held.acquired.blockers)?;
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

    /// Returns the occurrence that the job's chain was started for, if a schedule started it: the planned time.
    #[must_use]
    pub fn occurrence(&self) -> Option<Occurrence> {
        self.shared.attempt.occurrence()
    }

    /// Returns the latest occurrence of the schedule whose chain completed. A job can use it to process what has happened
    /// since then.
    ///
    /// Returns `None` if no schedule started the chain, if none of its runs has completed, or if it was deleted.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub async fn last_success(&self) -> Result<Option<Timestamp>> {
        let (Some(occurrence), Some(ScheduledBy(client))) = (self.occurrence(), self.get()) else {
            return Ok(None);
        };
        let state = client.schedules().state(occurrence.schedule).await?;
        Ok(state.and_then(|state| state.last_success).map(time))
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
}

impl<J: Job> View for Ctx<J> {
    fn attempt(&self) -> &AnyAttempt {
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
/// # use windlass::{Attempt, BoxError, Done, Job, MemoryStore};
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
    stages: Stages<S>,
}

impl<J: Job, S: Transactional> Attempt<J, S> {
    pub(super) const fn new(ctx: Ctx<J>, stages: Stages<S>) -> Self {
        Self { ctx, stages }
    }

    /// Begins the transaction that comes before the work. Can be called once, before `begin`. If it fails to
    /// begin, it can be called again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it was called before, or after `begin`, or if a hook refuses the
    /// transaction.
    pub async fn prepare(&self) -> Result<Prepare<J, S>> {
        Ok(Prepare { open: self.stages.prepare(&self.ctx).await? })
    }

    /// Begins the transaction that ends the job. Can be called once. If it fails to begin, it can be called
    /// again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it was called before, if the transaction of `prepare` is still open, or if a
    /// hook refuses the transaction.
    pub async fn begin(&self) -> Result<Step<J, S>> {
        Ok(Step { open: self.stages.begin(&self.ctx).await?, job: PhantomData })
    }

    /// Begins the transaction that ends the job, before the work. Data read in it stays valid until the job
    /// ends. The transaction stays open while the handler works, so the work should be short.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `prepare`, `begin` or `atomic` was called before, or if a hook refuses the
    /// transaction.
    pub async fn atomic(&self) -> Result<Step<J, S>> {
        Ok(Step { open: self.stages.atomic(&self.ctx).await?, job: PhantomData })
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
    open: OpenPrepare<Ctx<J>, S>,
}

impl<J: Job, S: Transactional> Prepare<J, S> {
    /// Returns the connection of the transaction, on which the handler runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        self.open.tx()
    }

    /// Returns a client for commands inside the transaction. For example, `prepare.client().start(job)`
    /// starts a chain that exists once the transaction commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        self.open.client()
    }

    /// Commits the transaction, unless the attempt has lost its job in the meantime: a stale attempt writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeaseLost`] if the attempt no longer holds its job, [`ErrorKind::Busy`] if another
    /// transaction has locked the job, [`ErrorKind::Invalid`] if a hook refuses the commit. The transaction
    /// is rolled back in these cases.
    pub async fn commit(self) -> Result<()> {
        self.open.commit().await
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Prepare<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepare").field("ctx", self.open.view()).finish_non_exhaustive()
    }
}

/// The transaction that ends a job.
///
/// Call [`done`](Self::done), [`then`](Self::then), [`fail`](Self::fail) or [`reschedule`](Self::reschedule),
/// and return the result from the handler. These methods return an error of kind [`ErrorKind::Invalid`] if the
/// outcome is invalid, for example if the output cannot be encoded. If the step is dropped, the transaction is
/// rolled back.
pub struct Step<J: Job, S: Transactional> {
    open: OpenStep<S>,
    job: PhantomData<fn() -> J>,
}

impl<J: Job, S: Transactional> Step<J, S> {
    /// Returns the connection of the transaction, on which the handler runs its own statements.
    pub fn tx(&mut self) -> S::Connection<'_> {
        self.open.tx()
    }

    /// Returns a client for commands inside the transaction. For example, `step.client().start(job)` starts a
    /// chain that exists once the transaction commits.
    pub fn client(&mut self) -> InTx<'_, S> {
        self.open.client()
    }

    /// Starts a chain in the transaction: it exists once the transaction commits. See
    /// [`Client::start`](crate::Client::start).
    pub fn start<N: Entry>(&mut self, job: N) -> Start<'_, N, <N::Blockers as Blockers>::Initial> {
        self.client().into_start(job)
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

    /// Fails the job and its chain, without further attempts. The writes of the transaction are kept.
    pub fn fail(self, error: impl Into<BoxError>) -> Result<Done<J, S>> {
        self.end(Next::<J>::fail(error).0)
    }

    /// Runs the job again after this delay. The attempt does not count. The writes of the transaction are
    /// kept.
    pub fn reschedule(self, delay: Duration) -> Result<Done<J, S>> {
        self.end(Next::<J>::reschedule(delay).0)
    }

    fn end(self, outcome: Result<Outcome>) -> Result<Done<J, S>> {
        Ok(Done { outcome: outcome.map_err(Error::of_outcome)?, step: self })
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Step<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").finish_non_exhaustive()
    }
}

/// The outcome of a job, with the transaction that ends the job. The handler returns it.
///
/// The worker settles the job in the transaction and commits it after the handler has returned. If the
/// handler fails after creating this value, everything is rolled back.
#[must_use = "return this from the handler"]
pub struct Done<J: Job, S: Transactional> {
    step: Step<J, S>,
    outcome: Outcome,
}

impl<J: Job, S: Transactional> Done<J, S> {
    /// Returns the open transaction, and the outcome to settle in it.
    pub(super) fn take(self) -> (OpenStep<S>, Outcome) {
        (self.step.open, self.outcome)
    }
}

impl<J: Job, S: Transactional> fmt::Debug for Done<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}
