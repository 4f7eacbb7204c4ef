use crate::command::Size;
use crate::command::create::{Created, JobSummary, NewChain};
use crate::command::work::{NextJob, Ripple};
use crate::error::Result;
use crate::id::{JobId, RequestId, Version, WorkerId};
use crate::limit::{CARRIED_MAX, STEPS_MAX};
use crate::name::ErrorText;
use crate::payload::Payload;
use crate::record::Status;
use crate::refusal::Refusal;
use crate::time::Millis;

/// Request to end a job without a worker. See
/// [`Store::complete_from_outside`](crate::Store::complete_from_outside).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteFromOutside {
    /// The id of this call. A repeated call is recognized by it.
    pub request: RequestId,
    /// The job to end.
    pub job: JobId,
    /// The job's version when the caller read it.
    pub version: Version,
    /// The steps to apply in order. Each step after the first applies to the job that the previous step
    /// created.
    pub steps: Vec<Step>,
}

/// One step of a completion from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Completes the job and its chain.
    Complete {
        /// The chain's output.
        output: Payload,
        /// How long the completed chain is kept. `None` keeps the retention from its creation.
        retention: Option<Millis>,
        /// Chains to create in the same commit.
        create: Vec<NewChain>,
    },
    /// Completes the job and continues the chain.
    Continue {
        /// The next job.
        next: NextJob,
        /// Chains to create in the same commit. They are created before the next job, which may wait for
        /// them.
        create: Vec<NewChain>,
    },
    /// Fails the job and its chain, without further attempts.
    Fail {
        /// The reason.
        error: ErrorText,
        /// How long the failed chain is kept. `None` keeps the retention from its creation.
        retention: Option<Millis>,
    },
}

impl CompleteFromOutside {
    /// Checks the size of the command. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the command exceeds a limit.
    pub fn check_size(&self) -> Result<()> {
        self.steps.iter().map(Step::size).fold(Size::default(), Size::and).check("steps and carried chains")
    }

    /// Validates the steps without access to the store. Every store calls this before it writes.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] if there are no steps or too many, if a step other than the last ends the chain, or if a
    /// step carries too many chains or an invalid chain or job.
    pub fn check(&self) -> Result<(), Refusal> {
        let ends_early = self.steps.iter().rev().skip(1).any(|step| !matches!(step, Step::Continue { .. }));
        if self.steps.is_empty() || self.steps.len() > STEPS_MAX || ends_early {
            return Err(Refusal::StepsInvalid);
        }
        self.steps.iter().try_for_each(Step::check)
    }
}

impl Step {
    /// Returns the chains that the step carries.
    #[must_use]
    pub fn carried(&self) -> &[NewChain] {
        match self {
            Self::Complete { create, .. } | Self::Continue { create, .. } => create,
            Self::Fail { .. } => &[],
        }
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.carried().len() > CARRIED_MAX {
            return Err(Refusal::TooManyCarried);
        }
        self.carried().iter().try_for_each(NewChain::check)?;
        match self {
            Self::Continue { next, .. } => next.job.check(),
            _ => Ok(()),
        }
    }

    fn size(&self) -> Size {
        let own = match self {
            Self::Complete { output, .. } => Size { items: 1, bytes: output.bytes().len(), blockers: 0 },
            Self::Continue { next, .. } => next.job.size(),
            Self::Fail { .. } => Size::of_items(1),
        };
        self.carried().iter().fold(own, |size, chain| size.and(chain.job.size()))
    }
}

/// The reply to [`CompleteFromOutside`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompleteFromOutsideReply {
    /// All steps were applied.
    Applied(OutsideApplied),
    /// An earlier call with the same request id already applied the steps.
    AlreadyApplied,
    /// The job has changed since the caller read it. Nothing was written.
    Changed {
        /// The job's current status.
        status: Status,
        /// The job's current version.
        version: Version,
    },
    /// The job is not stored.
    NotFound,
    /// Another open transaction has locked the row. Try again.
    Busy,
    /// A step was refused. Nothing was written.
    Refused(Refusal),
}

/// The result of a completion from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideApplied {
    /// The chain's latest job after the last step.
    pub latest: JobSummary,
    /// The worker that was running the job, which should be notified.
    pub displaced: Option<WorkerId>,
    /// The results for the carried chains of all steps.
    pub created: Vec<Created>,
    /// The jobs that were unblocked and the chains that were closed.
    pub ripple: Ripple,
}
