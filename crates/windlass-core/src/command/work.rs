use crate::command::create::{Created, NewChain, NewJob, Placed, Schedule};
use crate::command::query::Types;
use crate::command::{Size, check_items};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, Fence, JobId, RequestId, WorkerId};
use crate::limit::{CARRIED_MAX, REAP_EXCEPT_MAX};
use crate::name::{ErrorText, Key, TraceContext, TypeName};
use crate::payload::Payload;
use crate::record::{ClosedAs, JobRecord, Retention, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// Takes due jobs. See [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// This call, so that a repeated one gets the same jobs.
    pub request: RequestId,
    /// Who takes them.
    pub worker: WorkerId,
    /// The types it works on, each at most once.
    pub types: Vec<Quota>,
    /// At most this many jobs in all.
    pub max: u32,
}

/// How much of one type a worker takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The type.
    pub job_type: TypeName,
    /// At most this many jobs of it.
    pub max: u32,
    /// The length of their leases; at least a millisecond.
    pub lease: Millis,
}

impl Acquire {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        check_items("types", self.types.len())?;
        check_items("jobs", self.max as usize)?;
        if self.types.iter().any(|quota| quota.lease == Millis::ZERO) {
            return Err(Error::new(ErrorKind::Invalid, "a lease of no time: give at least a millisecond"));
        }
        let mut names: Vec<_> = self.types.iter().map(|quota| &quota.job_type).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a type stands twice in one acquire: give each type once",
            ));
        }
        Ok(())
    }
}

/// The reply to [`Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireReply {
    /// The jobs, in the order they are to be run.
    pub jobs: Vec<Acquired>,
    /// What else happened: see [`RIPPLE_MAX`](crate::limit::RIPPLE_MAX).
    pub ripple: Ripple,
    /// The store's time.
    pub now: Timestamp,
}

/// A job that a worker holds now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The job, with its attempt, fence and lease.
    pub job: JobRecord,
    /// Its chain's key.
    pub key: Option<Key>,
    /// Its chain's trace context.
    pub chain_trace: Option<TraceContext>,
    /// When its chain was created.
    pub chain_created_at: Timestamp,
    /// How long its chain stays once it has closed.
    pub retention: Retention,
    /// What its blockers gave, in the order in which they were declared.
    pub blockers: Vec<BlockerOutput>,
}

/// What a blocker chain gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockerOutput {
    /// The chain.
    pub chain: ChainId,
    /// Its type.
    pub chain_type: TypeName,
    /// Its latest job's type, which its output is of.
    pub job_type: TypeName,
    /// Where it stands: completed; or, for a job that receives failures, closed otherwise, or open again if
    /// it was retried since.
    pub status: Status,
    /// Its output, if it completed.
    pub output: Option<Payload>,
    /// Its error, if it failed.
    pub error: Option<ErrorText>,
}

/// Renews leases. See [`Store::renew`](crate::Store::renew).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The leases.
    pub leases: Vec<RenewLease>,
}

/// One lease to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewLease {
    /// The job.
    pub job: JobId,
    /// The fence of the attempt.
    pub fence: Fence,
    /// Its new length from now; at least a millisecond.
    pub lease: Millis,
}

impl Renew {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        check_items("leases", self.leases.len())?;
        if self.leases.iter().any(|renew| renew.lease == Millis::ZERO) {
            return Err(Error::new(ErrorKind::Invalid, "a lease of no time: give at least a millisecond"));
        }
        Ok(())
    }
}

/// The reply to [`Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewReply {
    /// What became of each lease.
    pub leases: Vec<Renewed>,
    /// The store's time.
    pub now: Timestamp,
}

/// What became of a lease to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// It is held.
    Held {
        /// Until this time.
        until: Timestamp,
        /// Whether the job was asked to stop.
        cancel_requested: bool,
    },
    /// Somebody's open transaction has the row: try it again alone.
    Busy,
    /// The attempt no longer holds the job.
    Lost(Lost),
}

/// Why an attempt no longer holds its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The job is gone: it was deleted.
    NotFound,
    /// The job was put back: the lease expired, or the attempt was settled.
    Requeued,
    /// Another attempt holds it.
    TakenOver,
    /// It was closed, from outside or by another attempt.
    Closed(ClosedAs),
}

/// Ends attempts. See [`Store::settle`](crate::Store::settle).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The attempts and how they ended.
    pub settlements: Vec<Settlement>,
}

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The job.
    pub job: JobId,
    /// The fence of the attempt.
    pub fence: Fence,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
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
    /// It failed: try again, unless it was the last attempt.
    Retry {
        /// When.
        schedule: Schedule,
        /// Why.
        error: ErrorText,
    },
    /// Run it again at another time. The attempt does not count.
    Reschedule {
        /// When.
        schedule: Schedule,
        /// Why; kept as the job's latest error.
        error: Option<ErrorText>,
    },
    /// The job failed for good, and its chain with it.
    Fail {
        /// Why.
        error: ErrorText,
        /// How long the failed chain stays, if other than it was created with.
        retention: Option<Millis>,
    },
    /// The worker gives it back at once. The attempt does not count.
    Release,
}

/// The continuation of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextJob {
    /// A fresh id.
    pub id: JobId,
    /// The job.
    pub job: NewJob,
}

impl Outcome {
    /// The job and its chain are done, and this is what they give.
    #[must_use]
    pub const fn complete(output: Payload) -> Self {
        Self::Complete { output, retention: None, create: Vec::new() }
    }

    /// The job failed for good: no more attempts.
    #[must_use]
    pub fn fail(error: impl AsRef<str>) -> Self {
        Self::Fail { error: ErrorText::new(error), retention: None }
    }

    /// Run it again after this delay. The attempt does not count.
    #[must_use]
    pub const fn reschedule(delay: Millis) -> Self {
        Self::Reschedule { schedule: Schedule::After(delay), error: None }
    }

    /// Chains it carries.
    #[must_use]
    pub fn carried(&self) -> &[NewChain] {
        match self {
            Self::Complete { create, .. } | Self::Continue { create, .. } => create,
            _ => &[],
        }
    }

    /// Checks what can be checked without the store. Every store does so before it writes.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.carried().len() > CARRIED_MAX {
            return Err(Refusal::TooManyCarried);
        }
        self.carried().iter().try_for_each(NewChain::check)?;
        match self {
            Self::Continue { next, .. } => next.job.check(),
            _ => Ok(()),
        }
    }

    pub(crate) fn size(&self) -> Size {
        let own = match self {
            Self::Complete { output, .. } => Size { items: 1, bytes: output.bytes().len(), blockers: 0 },
            Self::Continue { next, .. } => next.job.size(),
            _ => Size::of_items(1),
        };
        self.carried().iter().fold(own, |size, chain| size.and(chain.job.size()))
    }
}

impl Settle {
    /// Refuses a batch over its limits. Every store does so first.
    pub fn check(&self) -> Result<()> {
        let sizes = self.settlements.iter().map(|settlement| settlement.outcome.size());
        sizes.fold(Size::default(), Size::and).check("settlements and carried chains")
    }
}

/// The reply to [`Settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleReply {
    /// What became of each settlement.
    pub settled: Vec<Settled>,
    /// What followed from them.
    pub ripple: Ripple,
}

/// What became of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is written.
    Applied(Applied),
    /// An earlier call had written it. The job as it stands now.
    AlreadyApplied(Placed),
    /// Somebody's open transaction has a row that it needs: try it again alone. Nothing was written.
    Busy,
    /// The attempt no longer holds the job. Nothing was written.
    Lost(Lost),
    /// It was refused. Nothing was written, and the attempt still holds the job.
    Refused(Refusal),
}

/// What a settlement did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The job as it stands now.
    pub job: Placed,
    /// The continuation.
    pub next: Option<Placed>,
    /// The carried chains.
    pub created: Vec<Created>,
}

/// What else a command did: jobs that it unblocked, and chains that it closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ripple {
    /// Jobs that no longer wait for a blocker.
    pub unblocked: Vec<Unblocked>,
    /// Chains that closed, those that were settled among them. A chain that was created closed, because a
    /// blocker had failed, is told where it was created.
    pub closed: Vec<ClosedChain>,
    /// Whether waits are left, with a stored mark, that a later command could resolve at once: another
    /// transaction holds their rows, or this command ran in a transaction that reads from a snapshot.
    pub deferred: bool,
}

/// A job that no longer waits for a blocker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unblocked {
    /// The job: pending now.
    pub job: Placed,
    /// Its type.
    pub job_type: TypeName,
    /// Its chain's type.
    pub chain_type: TypeName,
    /// The trace contexts of its waits, one for each of its blockers.
    pub traces: Vec<Option<TraceContext>>,
}

/// A chain that closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedChain {
    /// The chain.
    pub chain: ChainId,
    /// Its type.
    pub chain_type: TypeName,
    /// The job that closed it.
    pub job: JobId,
    /// That job's type.
    pub job_type: TypeName,
    /// How.
    pub closed_as: ClosedAs,
    /// That job's error.
    pub error: Option<ErrorText>,
    /// When the chain was created.
    pub created_at: Timestamp,
    /// The chain's trace context.
    pub trace: Option<TraceContext>,
}

/// Settles, then acquires. See [`Store::exchange`](crate::Store::exchange).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// First this.
    pub settle: Settle,
    /// Then this.
    pub acquire: Acquire,
}

/// The reply to [`Exchange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeReply {
    /// The reply to the first part.
    pub settle: SettleReply,
    /// The reply to the second.
    pub acquire: AcquireReply,
}

/// Puts jobs back whose lease expired. See [`Store::reap`](crate::Store::reap).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reap {
    /// Of these types.
    pub types: Types,
    /// At most this many.
    pub max: u32,
    /// Not these: the jobs that the caller is running.
    pub except: Vec<JobId>,
    /// How often owners renew. Where one writer stops all, a reap after a time in which nobody could renew
    /// leaves them this long.
    pub renewal_interval: Millis,
}

impl Reap {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        if self.except.len() > REAP_EXCEPT_MAX {
            let text =
                format!("{} jobs to leave out of one reap: at most {REAP_EXCEPT_MAX}", self.except.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.types.check()?;
        check_items("jobs to reap", self.max as usize)
    }
}

/// The reply to [`Reap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReapReply {
    /// The jobs, longest expired first.
    pub reaped: Vec<Reaped>,
    /// What followed.
    pub ripple: Ripple,
}

/// A job whose lease had expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// The job as it stands now: pending, failed after its last attempt, or cancelled if it was asked to
    /// stop.
    pub job: Placed,
    /// Its type.
    pub job_type: TypeName,
    /// Its chain's type.
    pub chain_type: TypeName,
    /// The attempt that ended.
    pub attempt: u32,
    /// Who had held it.
    pub worker: WorkerId,
    /// When the lease had expired.
    pub lease_until: Timestamp,
}
