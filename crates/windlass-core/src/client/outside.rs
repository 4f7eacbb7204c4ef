//! Ends jobs without a worker: [`Client::step`](crate::Client::step).

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::commands::{narrow, stored};
use super::executor::{DynExecutor, Executor};
use super::trace::{Unreported, Why, not_created};
use super::{Destination, IntoPlan};
use crate::chain::{ChainRef, is_of};
use crate::command::{
    CompleteFromOutside, CompleteFromOutsideReply, NewChain, NextJob, OutsideApplied, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, RequestId};
use crate::job::Job;
use crate::name::TraceContext;
use crate::observer::{About, NotWritten};
use crate::payload::Payload;
use crate::record::{ChainRecord, JobRecord, Status};
use crate::store::BoxFuture;
use crate::time::{Millis, Timestamp};
use crate::worker::{BoxError, ContinuationOf, carry, error_text};

/// A chain's current job, to be ended without a worker. See [`Client::step`](crate::Client::step).
///
/// [`of`](Self::of) converts it to the job's type. The job can then be completed or continued, whether it is pending,
/// blocked or running. If the job is running, its handler is asked to stop.
///
/// ```
/// # use windlass::{Client, Entry, Job, MemoryStore, Result, Status, Then};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Approve { order: u32 }
/// # impl Job for Approve {
/// #     const NAME: &'static str = "approve"; type Output = String; type Next = (Ship,); type Blockers = ();
/// # }
/// # impl Entry for Approve {}
/// # impl Then<Ship> for Approve {}
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Ship { order: u32 }
/// # impl Job for Ship { const NAME: &'static str = "ship"; type Output = String; type Next = (); type Blockers = (); }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let client = Client::new(MemoryStore::new());
/// let chain = client.start(Approve { order: 7 }).await?;
///
/// // The webhook: the order is approved, and a worker is to ship it.
/// let approval = client.step(chain).await?.of::<Approve>()?;
/// let order = approval.input().order;
/// approval.then(Ship { order }).await?;
///
/// // Shipped by hand after all.
/// let shipping = client.step(chain).await?.of::<Ship>()?;
/// assert_eq!(shipping.done("by hand".into()).await?, Status::Completed);
/// assert_eq!(client.wait(chain).await?, "by hand");
/// # Ok(()) }
/// ```
#[must_use = "this only queries the job: convert it with `of`, then complete it"]
pub struct Outside<'c> {
    to: Destination<'c>,
    queried: Queried,
}

/// The current job of a chain, and what observers learn about the chain.
pub(super) struct Queried {
    job: JobRecord,
    chain_trace: Option<TraceContext>,
    chain_created_at: Timestamp,
}

/// A chain's current job of type `J`, to be completed, continued or failed without a worker.
#[must_use = "this only queries the job: complete it with `done`, `then` or `fail`"]
pub struct OutsideStep<'c, J> {
    outside: Outside<'c>,
    input: J,
}

/// Describes how to end a job without a worker. Await it to apply its steps, all or none. Returns the status of the
/// chain after the last step.
///
/// `J` is the type of the job that the chain continues with. That job can be ended in the same command, or
/// left to workers. `J` is [`NoMore`] if the chain ends.
#[must_use = "a completion does nothing until it is awaited"]
pub struct Completion<'c, J = NoMore> {
    outside: Outside<'c>,
    /// The steps, or the first error. The error is returned when the completion is awaited.
    steps: Result<Vec<Step>>,
    latest: PhantomData<fn() -> J>,
}

/// Marks a [`Completion`] that ends its chain.
#[derive(Clone, Copy, Debug)]
pub struct NoMore;

impl<'c> Outside<'c> {
    pub(super) async fn query(mut on: impl Executor + DynExecutor + 'c, chain: ChainRef) -> Result<Self> {
        let ChainRecord { latest: job, trace: chain_trace, created_at: chain_created_at, .. } =
            stored(&mut on, &chain).await?;
        let queried = Queried { job, chain_trace, chain_created_at };
        Ok(Self { to: Destination(Box::new(on)), queried })
    }

    /// Returns the job as it was when [`step`](crate::Client::step) queried it.
    #[must_use]
    pub const fn job(&self) -> &JobRecord {
        &self.queried.job
    }

    /// Whether the job is of type `J`.
    #[must_use]
    pub fn is<J: Job>(&self) -> bool {
        is_of::<J>(&self.queried.job.job_type)
    }

    /// Converts this to a step of type `J` and decodes the job's input.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the job is of another type, or if its input cannot be decoded.
    pub fn of<J: Job>(self) -> Result<OutsideStep<'c, J>> {
        let input = narrow(&self.queried.job)?;
        Ok(OutsideStep { outside: self, input })
    }

    /// Ends the job with untyped steps of the store contract. For tools that do not know job types.
    pub fn steps(self, steps: Vec<Step>) -> Completion<'c> {
        Completion { outside: self, steps: Ok(steps), latest: PhantomData }
    }
}

impl<'c, J: Job> OutsideStep<'c, J> {
    /// Returns the job as it was when [`step`](crate::Client::step) queried it.
    #[must_use]
    pub const fn job(&self) -> &JobRecord {
        &self.outside.queried.job
    }

    /// Returns the job's input.
    #[must_use]
    pub const fn input(&self) -> &J {
        &self.input
    }

    /// Completes the job and its chain with this output.
    pub fn done(self, output: J::Output) -> Completion<'c> {
        self.begin().done(output)
    }

    /// Fails the job and its chain, without further attempts.
    pub fn fail(self, error: impl Into<BoxError>) -> Completion<'c> {
        self.begin().fail(error)
    }

    /// Completes the job and continues the chain with another job: a declared continuation, or one with
    /// options made by [`next()`](crate::next()).
    pub fn then<N: ContinuationOf<J>>(self, continuation: N) -> Completion<'c, N::Job> {
        self.begin().then(continuation)
    }

    fn begin(self) -> Completion<'c, J> {
        Completion { outside: self.outside, steps: Ok(Vec::new()), latest: PhantomData }
    }
}

impl<'c, J: Job> Completion<'c, J> {
    /// Also completes the job that the chain continues with, and closes the chain with this output.
    #[expect(clippy::needless_pass_by_value, reason = "the outcome owns the output")]
    pub fn done(self, output: J::Output) -> Completion<'c> {
        self.add(Payload::encode(&output).map(|output| Step::Complete {
            output,
            retention: None,
            create: Vec::new(),
        }))
    }

    /// Also fails the job that the chain continues with, and the chain, without further attempts.
    pub fn fail(self, error: impl Into<BoxError>) -> Completion<'c> {
        self.add(Ok(Step::Fail { error: error_text(&error.into()), retention: None }))
    }

    /// Also completes the job that the chain continues with, and continues the chain with another job.
    pub fn then<N: ContinuationOf<J>>(self, continuation: N) -> Completion<'c, N::Job> {
        self.add(
            continuation
                .into_continuation()
                .build()
                .map(|next: NextJob| Step::Continue { next, create: Vec::new() }),
        )
    }

    fn add<N>(self, step: Result<Step>) -> Completion<'c, N> {
        let Self { outside, steps, .. } = self;
        let steps = steps.and_then(|mut steps| {
            steps.push(step?);
            Ok(steps)
        });
        Completion { outside, steps, latest: PhantomData }
    }
}

impl<J> Completion<'_, J> {
    /// Starts a chain in the same write as the latest step, which must not be a failure.
    pub fn start(self, plan: impl IntoPlan) -> Self {
        self.start_many([plan])
    }

    /// Starts chains of one type in the same write as the latest step, at most 100. See [`start`](Self::start).
    pub fn start_many<P: IntoPlan>(self, plans: impl IntoIterator<Item = P>) -> Self {
        self.with(|step| match step {
            Step::Complete { create, .. } | Step::Continue { create, .. } => carry(create, plans),
            Step::Fail { .. } => Err(Error::new(
                ErrorKind::Invalid,
                "a failed job cannot start chains: start the chain separately, or complete the job",
            )),
        })
    }

    /// Sets how long the closed chain is kept. The latest step must end the chain. Default: the retention
    /// that the chain was started with.
    pub fn retention(self, keep: Duration) -> Self {
        self.with(|step| match step {
            Step::Complete { retention, .. } | Step::Fail { retention, .. } => {
                *retention = Some(Millis::try_from(keep)?);
                Ok(())
            }
            Step::Continue { .. } => {
                let text =
                    "only a step that ends the chain can set its retention: call it after `done` or `fail`";
                Err(Error::new(ErrorKind::Invalid, text))
            }
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Step) -> Result<()>) -> Self {
        if let Ok(steps) = &mut self.steps
            && let Some(step) = steps.last_mut()
            && let Err(error) = change(step)
        {
            self.steps = Err(error);
        }
        self
    }
}

impl<'c, J: 'c> IntoFuture for Completion<'c, J> {
    type Output = Result<Status>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { outside: Outside { to: Destination(mut executor), queried }, steps, .. } = self;
        Box::pin(async move { executor.complete(queried, steps?).await })
    }
}

/// Applies the steps with one command. If the reply is lost, the command is repeated with the same request
/// id, by which the store recognizes it.
pub(super) async fn complete(
    mut on: impl Executor,
    queried: Queried,
    mut steps: Vec<Step>,
) -> Result<Status> {
    let Queried { job, chain_trace, chain_created_at } = queried;
    let mut about = About::of(on.dispatcher().now(), &job);
    about.chain_age = Some(about.at.since(chain_created_at));
    about.shared_mut().chain_trace = chain_trace;
    let traces = on.dispatcher().request_step_traces(&mut steps, &about);
    let request = CompleteFromOutside { request: RequestId::new(), job: job.id, version: job.version, steps };
    let reply = on.execute(&request).await;
    match reply {
        Ok(CompleteFromOutsideReply::Applied(applied)) => {
            let carried: Vec<_> = request.steps.iter().flat_map(Step::carried).cloned().collect();
            let missing = not_written(&carried, &applied, job.chain);
            let traces = on.dispatcher().retain_written(traces, &missing);
            on.announce(|announcements| {
                announcements.outside(about, &request.steps, &applied);
                announcements.traced(traces);
            });
            Ok(applied.latest.status)
        }
        Ok(CompleteFromOutsideReply::AlreadyApplied) => {
            // The first reply was lost, and with it which of the chains are new: no event follows.
            drop(traces);
            Ok(stored(&mut on, &job.chain.into()).await?.status())
        }
        refused => {
            let error = why(&job, refused);
            on.dispatcher().failed_to_write(traces, error.kind());
            Err(error)
        }
    }
}

/// Returns the chains for which no event follows although the command was applied.
fn not_written<'a>(carried: &[NewChain], applied: &'a OutsideApplied, chain: ChainId) -> Vec<Unreported<'a>> {
    if applied.latest.status == Status::Cancelled {
        // The job had been asked to stop and was cancelled instead: no chain and no next job was written. The
        // next jobs belong to `chain`.
        let why = Why::NotWritten(NotWritten::Failed(ErrorKind::ChainCancelled));
        return carried.iter().map(|new| new.id).chain([chain]).map(|chain| (chain, why)).collect();
    }
    not_created(carried, &applied.created)
}

/// Returns the error for a command that was not applied.
fn why(job: &JobRecord, reply: Result<CompleteFromOutsideReply>) -> Error {
    let JobRecord { id, chain, .. } = job;
    match reply {
        Err(error) => error,
        Ok(CompleteFromOutsideReply::NotFound) => {
            Error::new(ErrorKind::NotFound, format!("job {id} was not found: it was deleted or expired"))
        }
        Ok(CompleteFromOutsideReply::Busy) => Error::new(
            ErrorKind::Busy,
            format!("job {id} is locked by another open transaction: retry after it ends"),
        ),
        Ok(CompleteFromOutsideReply::Refused(refusal)) => refusal.into(),
        Ok(CompleteFromOutsideReply::Changed { status, .. }) => {
            let now = match status {
                Status::Completed => "it has completed",
                Status::Failed => "it has failed",
                Status::Cancelled => "it was cancelled",
                Status::Blocked | Status::Pending | Status::Running => {
                    "its state has changed since the query, although it is still open"
                }
            };
            let text = format!("job {id} of chain {chain} was not changed because {now}: query it again");
            Error::new(ErrorKind::Changed, text)
        }
        Ok(CompleteFromOutsideReply::Applied(_) | CompleteFromOutsideReply::AlreadyApplied) => {
            Error::new(ErrorKind::Corrupt, format!("the store returned an unexpected reply for job {id}"))
        }
    }
}

impl fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").field("job", &self.queried.job).finish_non_exhaustive()
    }
}

impl<J> fmt::Debug for OutsideStep<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutsideStep").field("job", &self.outside.queried.job).finish_non_exhaustive()
    }
}

impl<J> fmt::Debug for Completion<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("steps", &self.steps).finish_non_exhaustive()
    }
}
