//! The outcomes that a handler can return: output, continuation, failure or another run.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::BoxError;
use super::failure::error_text;
use crate::client::{IntoPlan, change_planned, job_options, new_job};
use crate::command::{DueTime, NewBlocker, NewChain, NewJob, NextJob, Outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::id::JobId;
use crate::job::{Blockers, IsReady, Job, NeedsBlockedBy, Ready, Then};
use crate::limit::CARRIED_MAX;
use crate::payload::Payload;
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// The outcome of a job of type `J`, returned by its handler.
///
/// If the outcome is invalid, for example because the output cannot be encoded, the attempt fails with the first
/// error. If the outcome exceeds a [limit](crate::limit), the job fails without further attempts.
#[must_use = "return this from the handler"]
pub struct Next<J>(pub(super) Result<Outcome>, PhantomData<fn() -> J>);

impl<J: Job> Next<J> {
    /// Completes the job and its chain with this output.
    #[expect(clippy::needless_pass_by_value, reason = "the outcome owns the output")]
    pub fn done(output: J::Output) -> Self {
        Self(complete(&output), PhantomData)
    }

    /// Completes the job and continues the chain with this job: a job of a declared continuation type, or one
    /// with options from [`next()`].
    pub fn then(continuation: impl ContinuationOf<J>) -> Self {
        Self(continuation.into_continuation().outcome(), PhantomData)
    }

    /// Runs the job again after this delay. The attempt does not count.
    pub fn reschedule(delay: Duration) -> Self {
        let schedule = Millis::try_from(delay).map(DueTime::After);
        Self(
            schedule.map(|schedule| Outcome::Reschedule { schedule, error: None }).map_err(Into::into),
            PhantomData,
        )
    }

    /// Runs the job again at this time, a [`SystemTime`](std::time::SystemTime) or a [`Timestamp`]. The attempt does
    /// not count.
    pub fn reschedule_at(at: impl Into<Timestamp>) -> Self {
        Self(Ok(Outcome::Reschedule { schedule: DueTime::At(at.into()), error: None }), PhantomData)
    }

    /// Stores the reason for a reschedule. Invalid with any other outcome.
    pub fn because(mut self, reason: impl Into<BoxError>) -> Self {
        match &mut self.0 {
            Ok(Outcome::Reschedule { error, .. }) => *error = Some(error_text(&reason.into())),
            Ok(_) => {
                let text = "only a reschedule can have a reason: call `because` after `reschedule`";
                self.0 = Err(Error::new(ErrorKind::Invalid, text));
            }
            Err(_) => {}
        }
        self
    }

    /// Fails the job and its chain, without further attempts.
    pub fn fail(error: impl Into<BoxError>) -> Self {
        Self(Ok(Outcome::Fail { error: error_text(&error.into()), retention: None }), PhantomData)
    }

    /// Starts a chain in the commit that ends the job: either both happen or neither does. Only valid if the job
    /// completes or continues.
    ///
    /// The continuation may wait for the new chain. The new chain may also take over the key of the chain
    /// that ends:
    ///
    /// ```
    /// # use windlass::{Ctx, Entry, Job, Next, Then, next, plan};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Order { id: u32 }
    /// # impl Job for Order {
    /// #     const NAME: &'static str = "order"; type Output = (); type Next = (Pack,); type Blockers = ();
    /// # }
    /// # impl Entry for Order {}
    /// # impl Then<Pack> for Order {}
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Pay { order: u32 }
    /// # impl Job for Pay { const NAME: &'static str = "pay"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Pay {}
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Pack { order: u32 }
    /// # impl Job for Pack {
    /// #     const NAME: &'static str = "pack"; type Output = (); type Next = (); type Blockers = (Pay,);
    /// # }
    /// async fn order(job: Ctx<Order>) -> windlass::Result<Next<Order>> {
    ///     let order = job.input().id;
    ///     let payment = plan(Pay { order });
    ///     let packing = next(Pack { order }).blocked_by((payment.handle(),));
    ///     Ok(Next::then(packing).start(payment))
    /// }
    /// ```
    pub fn start(self, plan: impl IntoPlan) -> Self {
        self.start_many([plan])
    }

    /// Starts chains of one type in the commit that ends the job. See [`start`](Self::start). An outcome can start at
    /// most 100 chains. To start more, take an [`Attempt`](crate::Attempt) and call
    /// [`Step::start_many`](crate::Step::start_many).
    pub fn start_many<P: IntoPlan>(self, plans: impl IntoIterator<Item = P>) -> Self {
        self.with(|outcome| match outcome {
            Outcome::Complete { create, .. } | Outcome::Continue { create, .. } => carry(create, plans),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                "only a job that completes or continues can start chains: start the chain separately",
            )),
        })
    }

    /// Sets how long the chain is kept after this outcome has closed it. Default: the retention that the
    /// chain was started with. Only valid if the job completes or fails.
    pub fn retention(self, keep: Duration) -> Self {
        self.with(|outcome| match outcome {
            Outcome::Complete { retention, .. } | Outcome::Fail { retention, .. } => {
                *retention = Some(Millis::try_from(keep)?);
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::Invalid,
                "only an outcome that ends the chain can set its retention: call it after `done` or `fail`",
            )),
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Outcome) -> Result<()>) -> Self {
        if let Ok(outcome) = &mut self.0
            && let Err(error) = change(outcome)
        {
            self.0 = Err(error);
        }
        self
    }
}

impl<J> fmt::Debug for Next<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Next").field(&self.0).finish()
    }
}

/// The next job of a chain, with options. See [`next()`].
#[must_use = "a continuation does nothing until it is passed to `then`"]
pub struct Continuation<N, State> {
    id: JobId,
    /// The job, or the first error in building it, which is returned when the job ends.
    job: Result<NewJob>,
    next: PhantomData<fn() -> (N, State)>,
}

/// Creates the next job of a chain, to set its id, blockers, schedule, priority or maximum attempts.
#[expect(clippy::needless_pass_by_value, reason = "the continuation owns the job")]
pub fn next<N: Job>(job: N) -> Continuation<N, <N::Blockers as Blockers>::Initial> {
    Continuation { id: JobId::new(), job: new_job(&job), next: PhantomData }
}

impl<N: Job, State> Continuation<N, State> {
    /// Sets the id of the job. It must not be in use.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self
    }

    job_options!(max_attempts);

    fn with_job(mut self, change: impl FnOnce(&mut NewJob) -> Result<()>) -> Self {
        change_planned(&mut self.job, change);
        self
    }
}

impl<N: Job> Continuation<N, NeedsBlockedBy> {
    /// Sets the chains that the job waits for.
    #[expect(clippy::needless_pass_by_value, reason = "passing handles by value reads better")]
    pub fn blocked_by(self, chains: <N::Blockers as Blockers>::Chains) -> Continuation<N, Ready> {
        let job = self.job.map(|job| {
            let blockers = N::Blockers::ids(&chains).into_iter().map(NewBlocker::from).collect();
            NewJob { blockers, ..job }
        });
        Continuation { id: self.id, job, next: PhantomData }
    }
}

impl<N: Job> Continuation<N, Ready> {
    pub(crate) fn build(self) -> Result<NextJob> {
        Ok(NextJob { id: self.id, job: self.job? })
    }

    pub(super) fn outcome(self) -> Result<Outcome> {
        self.build().map(|next| Outcome::Continue { next, create: Vec::new() })
    }
}

/// A job that can continue a chain after a job of type `J`. Its type must be declared as a continuation of
/// `J`. It is either a job whose type has no blockers, or a job with options from [`next()`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not declared as a continuation of `{J}`",
    label = "not a continuation of `{J}`",
    note = "add `then({Self})` to the #[job(...)] attribute of `{J}`",
    note = "if the job type declares blockers, pass `next(job).blocked_by(…)`"
)]
pub trait ContinuationOf<J> {
    /// The type of the job.
    type Job: Job;

    /// Converts into the next job.
    fn into_continuation(self) -> Continuation<Self::Job, Ready>;
}

impl<J: Then<N>, N: Job> ContinuationOf<J> for N
where
    <N::Blockers as Blockers>::Initial: IsReady,
{
    type Job = N;

    fn into_continuation(self) -> Continuation<N, Ready> {
        ContinuationOf::<J>::into_continuation(next(self))
    }
}

impl<J: Then<N>, N: Job, State: IsReady> ContinuationOf<J> for Continuation<N, State> {
    type Job = N;

    fn into_continuation(self) -> Continuation<N, Ready> {
        Continuation { id: self.id, job: self.job, next: PhantomData }
    }
}

impl<N: Job, State> fmt::Debug for Continuation<N, State> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Continuation").field("job_type", &N::NAME).finish_non_exhaustive()
    }
}

/// Adds chains to those that start with an outcome.
pub(crate) fn carry<P: IntoPlan>(
    carried: &mut Vec<NewChain>,
    plans: impl IntoIterator<Item = P>,
) -> Result<()> {
    for plan in plans {
        if carried.len() >= CARRIED_MAX {
            return Err(Refusal::TooManyCarried.into());
        }
        carried.push(plan.into_plan().build()?);
    }
    Ok(())
}

pub(super) fn complete<T: serde::Serialize>(output: &T) -> Result<Outcome> {
    Ok(Outcome::Complete { output: Payload::encode(output)?, retention: None, create: Vec::new() })
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::job::Entry;

    #[derive(Serialize, Deserialize)]
    struct Plain;

    impl Job for Plain {
        const NAME: &'static str = "plain";
        type Output = ();
        type Next = ();
        type Blockers = ();
    }

    impl Entry for Plain {}

    #[test]
    fn the_101st_chain_is_refused_at_the_call() {
        let next = Next::<Plain>::done(()).start_many((0..100).map(|_| Plain));
        assert!(next.0.is_ok());
        let error = next.start(Plain).0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("more than 100 chains"), "{error}");
    }
}
