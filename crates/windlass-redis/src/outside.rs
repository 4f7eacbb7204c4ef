//! Completing jobs from outside a worker.

use serde::{Deserialize, Serialize};
use windlass_core::command::{CompleteFromOutside, CompleteFromOutsideReply, Created, OutsideApplied, Step};
use windlass_core::{Millis, Result, Status, Version, WorkerId};

use crate::store::{Execute, RedisStore};
use crate::wire::{CreatedIn, NewChainOut, NewJobOut, Payloads, Read, RefusedIn, RippleIn, SummaryIn};

#[derive(Debug, Serialize)]
struct CompleteOut<'a> {
    now: Option<i64>,
    request: String,
    job: String,
    version: u64,
    /// Whether the request breaks a limit. The script refuses it, and this code adds the reason.
    invalid: bool,
    steps: Vec<StepOut<'a>>,
}

#[derive(Debug, Default, Serialize)]
struct StepOut<'a> {
    outcome: &'static str,
    output: Option<usize>,
    retention: Option<u64>,
    next: Option<NewJobOut<'a>>,
    create: Vec<NewChainOut<'a>>,
    error: Option<&'a str>,
}

impl<'a> StepOut<'a> {
    fn new(step: &'a Step, payloads: &mut Payloads) -> Self {
        let create = step.carried().iter().map(|chain| NewChainOut::new(chain, payloads)).collect();
        let base = Self { create, ..Self::default() };
        match step {
            Step::Complete { output, retention, .. } => Self {
                outcome: "complete",
                output: Some(payloads.add(output)),
                retention: retention.map(Millis::get),
                ..base
            },
            Step::Continue { next, .. } => Self {
                outcome: "continue",
                next: Some(NewJobOut::new(next.id, &next.job, None, payloads)),
                ..base
            },
            Step::Fail { error, retention } => Self {
                outcome: "fail",
                error: Some(error.as_str()),
                retention: retention.map(Millis::get),
                ..base
            },
        }
    }
}

#[derive(Debug, Deserialize)]
struct CompleteIn {
    reply: OutsideIn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutsideIn {
    Applied(AppliedIn),
    AlreadyApplied,
    Changed { status: Read<Status>, version: u64 },
    NotFound,
    Refused(RefusedIn),
}

#[derive(Debug, Deserialize)]
struct AppliedIn {
    latest: SummaryIn,
    displaced: Option<Read<WorkerId>>,
    /// Created chains, one list per step.
    created: Vec<Vec<CreatedIn>>,
    ripple: RippleIn,
}

impl AppliedIn {
    fn into_applied(self, steps: &[Step]) -> OutsideApplied {
        let created = self.created.into_iter().zip(steps).flat_map(|(created, step)| {
            let created = created.into_iter().zip(step.carried());
            created.map(|(created, chain)| created.into_created(chain)).collect::<Vec<Created>>()
        });
        OutsideApplied {
            created: created.collect(),
            latest: self.latest.into(),
            displaced: self.displaced.map(|worker| worker.0),
            ripple: self.ripple.into(),
        }
    }
}

impl OutsideIn {
    fn into_reply(self, request: &CompleteFromOutside) -> CompleteFromOutsideReply {
        match self {
            Self::Applied(applied) => CompleteFromOutsideReply::Applied(applied.into_applied(&request.steps)),
            Self::AlreadyApplied => CompleteFromOutsideReply::AlreadyApplied,
            Self::Changed { status, version } => {
                CompleteFromOutsideReply::Changed { status: status.0, version: Version(version) }
            }
            Self::NotFound => CompleteFromOutsideReply::NotFound,
            Self::Refused(refused) => {
                CompleteFromOutsideReply::Refused(refused.into_refusal(|| request.check()))
            }
        }
    }
}

impl Execute for CompleteFromOutside {
    async fn execute(self, store: &RedisStore) -> Result<CompleteFromOutsideReply> {
        self.check_size()?;
        let mut payloads = Payloads::default();
        let out = CompleteOut {
            now: store.time(),
            request: self.request.to_string(),
            job: self.job.to_string(),
            version: self.version.0,
            invalid: self.check().is_err(),
            steps: self.steps.iter().map(|step| StepOut::new(step, &mut payloads)).collect(),
        };
        let reply: CompleteIn = store.write(&store.scripts().complete_from_outside, &out, payloads).await?;
        Ok(reply.reply.into_reply(&self))
    }
}
