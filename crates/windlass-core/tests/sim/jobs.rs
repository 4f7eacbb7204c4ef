//! The job types of a simulation, and their handlers, which do what the input says.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_core::{
    Abort, AbortReason, Attempt, Backoff, BoxError, Chain, ChainId, Continuation, Ctx, Data, Done, Entry,
    Fallible, Fence, Job, JobOptions, JobRecord, Next, OnBlockerFailure, Ready, Then, next,
};

use super::invariant::Invariant;
use super::journal::{Row, RowKind};
use super::settings::Settings;
use super::store::SimStore;
use super::world::{NodeId, World, pass, short};

type Result<T, E = BoxError> = std::result::Result<T, E>;

/// The error of a handler that is interrupted because its worker stops.
pub(crate) const INTERRUPTED: &str = "interrupted by the stop";

/// The output of every handler: the fence of the attempt that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) fence: u64,
}

/// The input of every job: what each of its runs does, and which jobs follow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The fence of the attempt that created the job; 0 if a client did.
    pub(crate) by: u64,
    pub(crate) acts: Vec<Act>,
    /// The number of jobs that follow in the chain.
    pub(crate) hops: u32,
    /// Chains that a final `Gather` job waits for. If empty, there is no such job.
    pub(crate) waits_for: Vec<String>,
}

/// What one run of a handler does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Works for this many milliseconds, and stops when it is aborted.
    Work(u64),
    /// Works for this many milliseconds, and ignores an abort.
    Deaf(u64),
    /// Works for this many tenths of a lease.
    Leases(u64),
    Fail,
    Panic,
    /// Reschedules the job by this many milliseconds.
    Reschedule(u64),
    /// Fails the job for good.
    GiveUp,
    /// Finishes in its transaction, then drops the result and returns an error.
    Regret,
}

/// How a handler ends.
#[derive(Clone, Copy)]
enum Flow {
    Done,
    Reschedule(Duration),
    GiveUp,
    Regret,
}

macro_rules! job {
    ($type:ident, $name:expr, $next:ty, $blockers:ty, $options:expr) => {
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $type(pub(crate) Plan);

        impl Job for $type {
            const NAME: &'static str = $name;
            type Output = Mark;
            type Next = $next;
            type Blockers = $blockers;

            fn options() -> JobOptions {
                $options
            }
        }

        impl Entry for $type {}

        impl From<Plan> for $type {
            fn from(plan: Plan) -> Self {
                Self(plan)
            }
        }

        impl AsRef<Plan> for $type {
            fn as_ref(&self) -> &Plan {
                &self.0
            }
        }
    };
}

/// The name of the type with a timeout. Its leases may expire on purpose.
pub(crate) const TIMED: &str = "timed";

job!(Plain, "plain", (), (), options());
job!(Timed, TIMED, (), (), JobOptions { timeout: Some(Settings::present().timeout), ..options() });
// No worker handles this type; it is completed from outside.
job!(Approval, "approval", (), (), options());
job!(Hop, "hop", (Hop, Pay, Gather), (), options());
job!(Pay, "pay", (Plain,), (), options());
job!(Gather, "gather", (), Vec<Plain>, options());
job!(Lenient, "lenient", (), Vec<Fallible<Plain>>, options());
job!(
    Strict,
    "strict",
    (),
    Vec<Plain>,
    JobOptions { on_blocker_failure: OnBlockerFailure::Fail, ..options() }
);
impl Then<Self> for Hop {}
impl Then<Pay> for Hop {}
impl Then<Gather> for Hop {}
impl Then<Plain> for Pay {}

fn options() -> JobOptions {
    let Settings { lease, backoff, max_attempts, .. } = Settings::present();
    let backoff = Backoff { initial: backoff, max: 4 * backoff, jitter: 0.3, ..Backoff::default() };
    JobOptions { lease: Some(lease), backoff: Some(backoff), max_attempts, ..JobOptions::default() }
}

/// The state of a node's handlers.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) world: Arc<World>,
    pub(crate) node: NodeId,
}

pub(crate) async fn plain<J: Job<Output = Mark> + AsRef<Plan>>(
    job: Ctx<J>,
    Data(app): Data<App>,
) -> Result<Next<J>> {
    let flow = app.act(job.job(), job.input().as_ref(), job.aborted()).await?;
    end(job.job(), flow, |mark| Ok(Next::done(mark)))
}

pub(crate) async fn hop(job: Ctx<Hop>, Data(app): Data<App>) -> Result<Next<Hop>> {
    let flow = app.act(job.job(), &job.input().0, job.aborted()).await?;
    end(job.job(), flow, |mark| {
        let Plan { acts, hops, waits_for, .. } = job.input().0.clone();
        if hops == 0 && waits_for.is_empty() {
            return Ok(Next::done(mark));
        }
        let plan = Plan { by: mark.fence, acts, hops: hops.saturating_sub(1), waits_for };
        Ok(match hops {
            0 => Next::then(gather(plan)?),
            // A chain that waits for nothing ends with a `Pay` job.
            1 if plan.waits_for.is_empty() => Next::then(Pay(plan)),
            _ => Next::then(next(Hop(plan)).after(Duration::from_millis(u64::from(hops) * 100))),
        })
    })
}

fn gather(plan: Plan) -> Result<Continuation<Gather, Ready>> {
    let chains = plan.waits_for.iter().map(|id| Ok(Chain::from_id(id.parse::<ChainId>()?)));
    let chains = chains.collect::<Result<_>>()?;
    Ok(next(Gather(plan)).blocked_by(chains))
}

/// Prepares, works and finishes in separate transactions, or does everything in one if the plan has an even
/// number of acts.
pub(crate) async fn pay(
    attempt: Attempt<Pay, SimStore>,
    Data(app): Data<App>,
) -> Result<Done<Pay, SimStore>> {
    let (job, plan) = (attempt.job().clone(), attempt.input().0.clone());
    let row = |kind| Row { job: job.id, fence: job.fence, kind };
    let mut step = None;
    if plan.acts.len().is_multiple_of(2) {
        step = Some(attempt.begin().await?);
    } else {
        let mut prepare = attempt.prepare().await?;
        prepare.tx().write(row(RowKind::Prepared));
        prepare.commit().await?;
    }
    let flow = app.act(&job, &plan, attempt.aborted()).await?;
    let mut step = match step {
        Some(step) => step,
        None => attempt.begin().await?,
    };
    app.world.alive(app.node).await;
    step.tx().write(row(RowKind::Finished));
    let mark = Mark { fence: job.fence.0 };
    match flow {
        Flow::Reschedule(delay) => Ok(step.reschedule(delay)?),
        Flow::GiveUp => Ok(step.fail(error(&job, "gives up"))?),
        Flow::Regret => {
            drop(step.done(mark)?);
            Err(error(&job, "regrets"))
        }
        Flow::Done if plan.hops > 0 => {
            app.world.count("continued in a transaction");
            let plan = Plan { by: mark.fence, hops: plan.hops - 1, ..plan };
            Ok(step.then(Plain(plan))?)
        }
        Flow::Done => Ok(step.done(mark)?),
    }
}

impl App {
    /// Performs the act that the plan has for this run.
    async fn act(&self, job: &JobRecord, plan: &Plan, abort: &Abort) -> Result<Flow> {
        self.world.alive(self.node).await;
        let ran_before = self.world.state().journal.run(job.id, job.fence);
        let Some(ran_before) = ran_before else {
            let what = format!("attempt {} of job {} runs twice", job.attempt, short(job.id.as_uuid()));
            self.world.violate(Invariant::AttemptsRunOnce, what);
            return Ok(Flow::Done);
        };
        let act = plan.acts.get(ran_before).copied().unwrap_or(Act::Work(0));
        self.world.trace(Some(self.node), format_args!("runs {} {act:?}", short(job.id.as_uuid())));
        self.world.count(format!("act {act:?}").split('(').next().unwrap_or_default());
        let flow = match act {
            Act::Work(time) => self.work(job, Duration::from_millis(time), abort).await?,
            Act::Leases(tenths) => {
                let time = Settings::present().lease * u32::try_from(tenths)? / 10;
                self.work(job, time, abort).await?
            }
            Act::Deaf(time) => {
                pass(Duration::from_millis(time)).await;
                Flow::Done
            }
            Act::Fail => return Err(error(job, "fails")),
            // Skip the panic hook, whose output would drown the trace.
            Act::Panic => std::panic::resume_unwind(Box::new("as planned")),
            Act::Reschedule(time) => Flow::Reschedule(Duration::from_millis(time)),
            Act::GiveUp => Flow::GiveUp,
            Act::Regret => Flow::Regret,
        };
        self.world.alive(self.node).await;
        Ok(flow)
    }

    /// Works for this long, or until the attempt is aborted.
    async fn work(&self, job: &JobRecord, time: Duration, abort: &Abort) -> Result<Flow> {
        let reason = tokio::select! {
            biased;
            reason = abort.wait() => reason,
            () = pass(time) => return Ok(Flow::Done),
        };
        self.world.count(format!("abort {reason:?}"));
        Err(match reason {
            AbortReason::WorkerStopping => error(job, INTERRUPTED),
            reason => error(job, &format!("aborted: {reason:?}")),
        })
    }
}

/// Ends a handler that has no transaction.
fn end<J: Job>(job: &JobRecord, flow: Flow, done: impl FnOnce(Mark) -> Result<Next<J>>) -> Result<Next<J>> {
    match flow {
        Flow::Done => done(Mark { fence: job.fence.0 }),
        Flow::Reschedule(delay) => Ok(Next::reschedule(delay)),
        Flow::GiveUp => Ok(Next::fail(error(job, "gives up"))),
        Flow::Regret => Err(error(job, "regrets")),
    }
}

/// Returns an error that contains the fence of its attempt.
fn error(job: &JobRecord, what: &str) -> BoxError {
    format!("fence {}: {what}", job.fence.0).into()
}

/// Returns the fence that an error contains.
pub(crate) fn error_fence(text: &str) -> Option<Fence> {
    text.strip_prefix("fence ")?.split(':').next()?.parse().ok().map(Fence)
}
