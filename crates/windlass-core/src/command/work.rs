use crate::command::create::{Create, CreateReply, Created, DueTime, JobSummary, NewChain, NewJob};
use crate::command::query::Types;
use crate::command::{Size, check_items};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, Fence, JobId, RequestId, WorkerId};
use crate::limit::{CARRIED_MAX, REAP_EXCEPT_MAX};
use crate::name::{ErrorText, Key, TraceContext, TypeName, WorkerName};
use crate::payload::Payload;
use crate::record::{ClosedAs, JobRecord, Retention, Status};
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// Request to acquire due jobs. See [`Store::acquire`](crate::Store::acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The id of this call. A repeated call with the same id returns the same jobs.
    pub request: RequestId,
    /// The worker that acquires the jobs.
    pub worker: WorkerId,
    /// The worker's name, if it has one. Stored with the leases and the attempts.
    pub worker_name: Option<WorkerName>,
    /// The job types that the worker handles, each at most once.
    pub types: Vec<Quota>,
    /// The maximum number of jobs in total.
    pub max: u32,
}

/// How many jobs of one type to acquire, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The job type.
    pub job_type: TypeName,
    /// The maximum number of jobs of this type.
    pub max: u32,
    /// The length of the leases: at least 1 ms.
    pub lease: Millis,
}

impl Acquire {
    /// Checks the request against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a limit is exceeded, if a lease is 0 ms, or if a type is listed twice.
    pub fn check(&self) -> Result<()> {
        check_items("types", self.types.len())?;
        check_items("jobs", self.max as usize)?;
        if self.types.iter().any(|quota| quota.lease == Millis::ZERO) {
            return Err(Error::new(ErrorKind::Invalid, "lease must be at least 1 ms, got 0"));
        }
        let mut names: Vec<_> = self.types.iter().map(|quota| &quota.job_type).collect();
        names.sort_unstable();
        if let Some([name, _]) = names.windows(2).find(|pair| pair.first() == pair.last()) {
            let text = format!("job type `{name}` is listed twice in one acquire: list it once");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }
}

/// The reply to [`Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireReply {
    /// The acquired jobs, in the order in which to run them.
    pub jobs: Vec<Acquired>,
    /// The jobs that were unblocked and the chains that were closed by deferred unblocking. See
    /// [`RIPPLE_MAX`](crate::limit::RIPPLE_MAX).
    pub ripple: Ripple,
    /// The time on the store's clock.
    pub now: Timestamp,
}

/// A job that the worker now holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The job with its attempt number, fence and lease.
    pub job: JobRecord,
    /// The chain's key.
    pub key: Option<Key>,
    /// The chain's trace context.
    pub chain_trace: Option<TraceContext>,
    /// When the chain was created.
    pub chain_created_at: Timestamp,
    /// How long the chain is kept after it closes.
    pub retention: Retention,
    /// The outputs of the job's blockers, in the order in which they were declared.
    pub blockers: Vec<BlockerOutput>,
}

/// The result of a blocker chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockerOutput {
    /// The chain's id.
    pub chain: ChainId,
    /// The chain's type.
    pub chain_type: TypeName,
    /// The type of the chain's latest job, which determines the type of `output`.
    pub job_type: TypeName,
    /// The chain's status. Normally completed. If the waiting job receives failures, the chain may also be
    /// failed or cancelled, or open again if it was retried since.
    pub status: Status,
    /// The chain's output, if it completed.
    pub output: Option<Payload>,
    /// The chain's error, if it failed.
    pub error: Option<ErrorText>,
}

/// Request to renew leases. See [`Store::renew`](crate::Store::renew).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renew {
    /// The leases to renew.
    pub leases: Vec<RenewLease>,
}

/// A lease to renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewLease {
    /// The job.
    pub job: JobId,
    /// The fence of the attempt.
    pub fence: Fence,
    /// The new length of the lease, counted from now: at least 1 ms.
    pub lease: Millis,
}

impl Renew {
    /// Checks the request against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if there are too many leases, or if a lease is 0 ms.
    pub fn check(&self) -> Result<()> {
        check_items("leases", self.leases.len())?;
        if self.leases.iter().any(|renew| renew.lease == Millis::ZERO) {
            return Err(Error::new(ErrorKind::Invalid, "lease must be at least 1 ms, got 0"));
        }
        Ok(())
    }
}

/// The reply to [`Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewReply {
    /// The result for each lease.
    pub leases: Vec<Renewed>,
    /// The time on the store's clock.
    pub now: Timestamp,
}

/// The result of renewing one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease is held.
    Held {
        /// The time at which the lease expires.
        until: Timestamp,
        /// Whether the job was asked to stop.
        cancel_requested: bool,
    },
    /// Another open transaction has locked the row. Try again with this lease alone.
    Busy,
    /// The attempt no longer holds the job.
    Lost(Lost),
}

/// Why an attempt no longer holds a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// The job was deleted.
    NotFound,
    /// The job was requeued: its lease expired, or the attempt was settled.
    Requeued,
    /// Another attempt holds the job.
    TakenOver,
    /// The job was closed, from outside or by another attempt.
    Closed(ClosedAs),
}

/// Request to end attempts. See [`Store::settle`](crate::Store::settle).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The attempts and their outcomes.
    pub settlements: Vec<Settlement>,
}

/// An attempt and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The job.
    pub job: JobId,
    /// The fence of the attempt.
    pub fence: Fence,
    /// The outcome of the attempt.
    pub outcome: Outcome,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
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
    /// The attempt failed. Retries the job, or fails it if this was the last attempt.
    Retry {
        /// When to retry.
        schedule: DueTime,
        /// The error of the attempt.
        error: ErrorText,
    },
    /// Runs the job again at another time. The attempt does not count.
    Reschedule {
        /// When to run the job again.
        schedule: DueTime,
        /// The reason, stored as the job's latest error. `None` keeps the previous error.
        error: Option<ErrorText>,
    },
    /// Fails the job and its chain, without further attempts.
    Fail {
        /// The reason.
        error: ErrorText,
        /// How long the failed chain is kept. `None` keeps the retention from its creation.
        retention: Option<Millis>,
    },
    /// Requeues the job as it was before the acquire. The attempt does not count.
    Release,
}

/// The next job of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextJob {
    /// A new id.
    pub id: JobId,
    /// The job to create.
    pub job: NewJob,
}

impl Outcome {
    /// Returns the outcome that completes the job and its chain with `output`.
    #[must_use]
    pub const fn complete(output: Payload) -> Self {
        Self::Complete { output, retention: None, create: Vec::new() }
    }

    /// Returns the outcome that fails the job and its chain with `error`, without further attempts.
    #[must_use]
    pub fn fail(error: impl AsRef<str>) -> Self {
        Self::Fail { error: ErrorText::new(error), retention: None }
    }

    /// Returns the outcome that runs the job again after `delay`. The attempt does not count.
    #[must_use]
    pub const fn reschedule(delay: Millis) -> Self {
        Self::Reschedule { schedule: DueTime::After(delay), error: None }
    }

    /// Returns the chains that the outcome carries.
    #[must_use]
    pub fn carried(&self) -> &[NewChain] {
        match self {
            Self::Complete { create, .. } | Self::Continue { create, .. } => create,
            _ => &[],
        }
    }

    /// Validates the outcome without access to the store. Every store calls this before it writes.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] if the outcome carries too many chains, or if a carried chain or the next job is
    /// invalid.
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
    /// Checks the size of the batch. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the batch exceeds a limit.
    pub fn check(&self) -> Result<()> {
        let sizes = self.settlements.iter().map(|settlement| settlement.outcome.size());
        sizes.fold(Size::default(), Size::and).check("settlements and carried chains")
    }
}

/// The reply to [`Settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleReply {
    /// The result of each settlement.
    pub settled: Vec<Settled>,
    /// The jobs that were unblocked and the chains that were closed.
    pub ripple: Ripple,
}

/// The result of one settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The settlement was written.
    Applied(Applied),
    /// An earlier call already wrote the settlement. Contains the current state of the job.
    AlreadyApplied(JobSummary),
    /// Another open transaction has locked a row that the settlement needs. Nothing was written. Try again
    /// with this settlement alone.
    Busy,
    /// The attempt no longer holds the job. Nothing was written.
    Lost(Lost),
    /// The settlement was refused. Nothing was written, and the attempt still holds the job.
    Refused(Refusal),
}

/// The effects of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The job after the settlement.
    pub job: JobSummary,
    /// The next job of the chain, if the settlement continued it.
    pub next: Option<JobSummary>,
    /// The results for the carried chains.
    pub created: Vec<Created>,
}

/// The consequences of a command: the jobs that it unblocked and the chains that it closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ripple {
    /// Jobs that no longer wait for any blocker.
    pub unblocked: Vec<Unblocked>,
    /// Chains that closed, including those closed by a settlement itself. A chain that closed on creation,
    /// because a blocker had failed, is not listed; the result of its creation reports it.
    pub closed: Vec<ClosedChain>,
    /// Whether the command left waits, with a stored mark, that a later command may be able to resolve
    /// immediately. Either another transaction has locked their rows, or this command ran in a transaction
    /// that reads from a snapshot.
    pub deferred: bool,
}

/// A job that no longer waits for any blocker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unblocked {
    /// The job, now pending.
    pub job: JobSummary,
    /// The job's type.
    pub job_type: TypeName,
    /// The type of the job's chain.
    pub chain_type: TypeName,
    /// The trace contexts of the job's waits, one for each blocker.
    pub traces: Vec<Option<TraceContext>>,
}

/// A chain that closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedChain {
    /// The chain's id.
    pub chain: ChainId,
    /// The chain's type.
    pub chain_type: TypeName,
    /// The job that closed it.
    pub job: JobId,
    /// The type of that job.
    pub job_type: TypeName,
    /// How the chain ended.
    pub closed_as: ClosedAs,
    /// The error of that job.
    pub error: Option<ErrorText>,
    /// When the chain was created.
    pub created_at: Timestamp,
    /// The chain's trace context.
    pub trace: Option<TraceContext>,
}

/// Request to settle, then acquire. See [`Store::exchange`](crate::Store::exchange).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The attempts to settle first.
    pub settle: Settle,
    /// The jobs to acquire afterwards.
    pub acquire: Acquire,
}

/// The reply to [`Exchange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeReply {
    /// The reply to `settle`.
    pub settle: SettleReply,
    /// The reply to `acquire`.
    pub acquire: AcquireReply,
}

/// Request to create, then acquire. See [`Store::create_and_acquire`](crate::Store::create_and_acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateAndAcquire {
    /// The chains to create first.
    pub create: Create,
    /// The jobs to acquire afterwards.
    pub acquire: Acquire,
}

/// The reply to [`CreateAndAcquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateAndAcquireReply {
    /// The reply to `create`.
    pub create: CreateReply,
    /// The reply to `acquire`.
    pub acquire: AcquireReply,
}

/// Request to requeue jobs whose lease has expired. See [`Store::reap`](crate::Store::reap).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reap {
    /// The job types to reap.
    pub types: Types,
    /// The maximum number of jobs to requeue.
    pub max: u32,
    /// Jobs to leave alone: those that the caller is running.
    pub except: Vec<JobId>,
    /// How often owners renew their leases. In a store with a single writer, a long transaction keeps all
    /// workers from renewing. After such a stall, reaps wait for this interval before they requeue jobs.
    pub renewal_interval: Millis,
}

impl Reap {
    /// Checks the request against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a limit is exceeded.
    pub fn check(&self) -> Result<()> {
        if self.except.len() > REAP_EXCEPT_MAX {
            let text =
                format!("a reap can exclude at most {REAP_EXCEPT_MAX} jobs, got {}", self.except.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.types.check()?;
        check_items("jobs to reap", self.max as usize)
    }
}

/// The reply to [`Reap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReapReply {
    /// The requeued or closed jobs, longest expired first.
    pub reaped: Vec<Reaped>,
    /// The jobs that were unblocked and the chains that were closed.
    pub ripple: Ripple,
}

/// A job whose lease expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// The job after the reap: pending, failed after its last attempt, or cancelled if it was asked to stop.
    pub job: JobSummary,
    /// The job's type.
    pub job_type: TypeName,
    /// The type of the job's chain.
    pub chain_type: TypeName,
    /// The attempt that ended.
    pub attempt: u32,
    /// The worker that held the lease.
    pub worker: WorkerId,
    /// The worker's name, if it has one.
    pub worker_name: Option<WorkerName>,
    /// When the lease expired.
    pub lease_until: Timestamp,
}
