use crate::command::Size;
use crate::command::create::{Created, NewChain, Placed};
use crate::command::work::{NextJob, Ripple};
use crate::error::Result;
use crate::id::{JobId, RequestId, Version, WorkerId};
use crate::limit::{CARRIED_MAX, STEPS_MAX};
use crate::name::ErrorText;
use crate::payload::Payload;
use crate::record::Status;
use crate::refusal::Refusal;
use crate::time::Millis;

/// Ends a job without a worker. See [`Store::complete_from_outside`](crate::Store::complete_from_outside).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteFromOutside {
    /// This call, so that a repeated one is recognized.
    pub request: RequestId,
    /// The job the caller looked at.
    pub job: JobId,
    /// Its version then.
    pub version: Version,
    /// What to do, one after the other: each continues the job that the step before it created.
    pub steps: Vec<Step>,
}

/// One step from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The job and its chain are done.
    Complete {
        /// What the chain gives.
        output: Payload,
        /// How long the completed chain stays, if other than it was created with.
        retention: Option<Millis>,
        /// Chains to start in the same write.
        create: Vec<NewChain>,
    },
    /// The job is done and the chain goes on.
    Continue {
        /// The next job.
        next: NextJob,
        /// Chains to start in the same write, before the next job, which may wait for them.
        create: Vec<NewChain>,
    },
    /// The job failed for good, and its chain with it.
    Fail {
        /// Why.
        error: ErrorText,
        /// How long the failed chain stays, if other than it was created with.
        retention: Option<Millis>,
    },
}

impl CompleteFromOutside {
    /// Refuses a command over its limits. Every store does so first.
    pub fn check_size(&self) -> Result<()> {
        self.steps.iter().map(Step::size).fold(Size::default(), Size::and).check("steps and carried chains")
    }

    /// Checks what can be checked without the store. Every store does so before it writes.
    pub fn check(&self) -> Result<(), Refusal> {
        let ends_early = self.steps.iter().rev().skip(1).any(|step| !matches!(step, Step::Continue { .. }));
        if self.steps.is_empty() || self.steps.len() > STEPS_MAX || ends_early {
            return Err(Refusal::StepsInvalid);
        }
        self.steps.iter().try_for_each(Step::check)
    }
}

impl Step {
    /// Chains it carries.
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
    /// All steps are written.
    Applied(OutsideApplied),
    /// An earlier call had written them.
    AlreadyApplied,
    /// The job has changed since the caller looked. Nothing was written.
    Changed {
        /// Where it stands now.
        status: Status,
        /// Its version now.
        version: Version,
    },
    /// There is no such job.
    NotFound,
    /// Somebody's open transaction has the row: try again.
    Busy,
    /// A step was refused. Nothing was written.
    Refused(Refusal),
}

/// What a completion from outside did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideApplied {
    /// The chain's latest job as it stands now.
    pub latest: Placed,
    /// The worker that was running the job; it is to be told.
    pub displaced: Option<WorkerId>,
    /// The carried chains of all steps.
    pub created: Vec<Created>,
    /// What followed.
    pub ripple: Ripple,
}
