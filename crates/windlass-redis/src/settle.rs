//! Settling attempts.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Applied, Exchange, ExchangeReply, Outcome, Settle, SettleReply, Settled, Settlement,
};
use windlass_core::{ErrorText, Millis, Result};

use crate::acquire::{AcquireIn, AcquireOut, read_work, work_arguments};
use crate::script::{self, Answer};
use crate::store::{Execute, RedisStore};
use crate::wire::{
    CreatedIn, LostIn, NewChainOut, NewJobOut, Payloads, RefusedIn, RippleIn, ScheduleOut, SummaryIn,
};

/// A settle request. `now` is `None` inside an exchange, which has its own.
#[derive(Debug, Serialize)]
struct SettleOut<'a> {
    now: Option<i64>,
    settlements: Vec<SettlementOut<'a>>,
}

impl<'a> SettleOut<'a> {
    fn new(request: &'a Settle, now: Option<i64>, payloads: &mut Payloads) -> Self {
        let settlements =
            request.settlements.iter().map(|settlement| SettlementOut::new(settlement, payloads));
        Self { now, settlements: settlements.collect() }
    }
}

#[derive(Debug, Serialize)]
struct ExchangeOut<'a> {
    now: Option<i64>,
    settle: SettleOut<'a>,
    acquire: AcquireOut<'a>,
}

#[derive(Debug, Deserialize)]
struct ExchangeIn {
    settle: SettleIn,
    acquire: AcquireIn,
}

#[derive(Debug, Default, Serialize)]
struct SettlementOut<'a> {
    job: String,
    fence: u64,
    /// Whether the settlement breaks a limit. The script refuses it when it reaches it, and this code adds the reason.
    invalid: bool,
    outcome: &'static str,
    output: Option<usize>,
    retention: Option<u64>,
    next: Option<NewJobOut<'a>>,
    create: Vec<NewChainOut<'a>>,
    #[serde(flatten)]
    schedule: ScheduleOut,
    error: Option<&'a str>,
}

impl<'a> SettlementOut<'a> {
    fn new(settlement: &'a Settlement, payloads: &mut Payloads) -> Self {
        let outcome = &settlement.outcome;
        let base = Self {
            job: settlement.job.to_string(),
            fence: settlement.fence.0,
            invalid: outcome.check().is_err(),
            create: outcome.carried().iter().map(|chain| NewChainOut::new(chain, payloads)).collect(),
            ..Self::default()
        };
        match outcome {
            Outcome::Complete { output, retention, .. } => Self {
                outcome: "complete",
                output: Some(payloads.add(output)),
                retention: retention.map(Millis::get),
                ..base
            },
            Outcome::Continue { next, .. } => Self {
                outcome: "continue",
                next: Some(NewJobOut::new(next.id, &next.job, None, payloads)),
                ..base
            },
            Outcome::Retry { schedule, error } => {
                Self { outcome: "retry", schedule: (*schedule).into(), error: Some(error.as_str()), ..base }
            }
            Outcome::Reschedule { schedule, error } => Self {
                outcome: "reschedule",
                schedule: (*schedule).into(),
                error: error.as_ref().map(ErrorText::as_str),
                ..base
            },
            Outcome::Fail { error, retention } => Self {
                outcome: "fail",
                error: Some(error.as_str()),
                retention: retention.map(Millis::get),
                ..base
            },
            Outcome::Release => Self { outcome: "release", ..base },
        }
    }
}

#[derive(Debug, Deserialize)]
struct SettleIn {
    settled: Vec<SettledIn>,
    ripple: RippleIn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SettledIn {
    Applied { job: SummaryIn, next: Option<SummaryIn>, created: Vec<CreatedIn> },
    AlreadyApplied(SummaryIn),
    Lost(LostIn),
    Refused(RefusedIn),
}

impl SettledIn {
    fn into_settled(self, outcome: &Outcome) -> Settled {
        match self {
            Self::Applied { job, next, created } => {
                let created = created.into_iter().zip(outcome.carried());
                Settled::Applied(Applied {
                    job: job.into(),
                    next: next.map(Into::into),
                    created: created.map(|(created, chain)| created.into_created(chain)).collect(),
                })
            }
            Self::AlreadyApplied(job) => Settled::AlreadyApplied(job.into()),
            Self::Lost(lost) => Settled::Lost(lost.into()),
            Self::Refused(refused) => Settled::Refused(refused.into_refusal(|| outcome.check())),
        }
    }
}

impl SettleIn {
    fn into_reply(self, request: &Settle) -> SettleReply {
        let settled = self.settled.into_iter().zip(&request.settlements);
        SettleReply {
            settled: settled.map(|(settled, asked)| settled.into_settled(&asked.outcome)).collect(),
            ripple: self.ripple.into(),
        }
    }
}

impl Execute for Settle {
    async fn execute(self, store: &RedisStore) -> Result<SettleReply> {
        self.check()?;
        let arguments = match work_arguments(&self.settlements, None, store.time()) {
            Some(arguments) => arguments,
            None => {
                let mut payloads = Payloads::default();
                let out = SettleOut::new(&self, store.time(), &mut payloads);
                script::arguments(&out, payloads)?
            }
        };
        match store.write_flat::<SettleIn>(&store.scripts().settle, arguments).await? {
            Answer::Full(reply) => Ok(reply.into_reply(&self)),
            Answer::Flat(values) => Ok(read_work(&self.settlements, values)?.0),
        }
    }
}

impl Execute for Exchange {
    async fn execute(self, store: &RedisStore) -> Result<ExchangeReply> {
        self.settle.check()?;
        self.acquire.check()?;
        let settlements = &self.settle.settlements;
        let arguments = match work_arguments(settlements, Some(&self.acquire), store.time()) {
            Some(arguments) => arguments,
            None => {
                let mut payloads = Payloads::default();
                let out = ExchangeOut {
                    now: store.time(),
                    settle: SettleOut::new(&self.settle, None, &mut payloads),
                    acquire: AcquireOut::new(&self.acquire),
                };
                script::arguments(&out, payloads)?
            }
        };
        match store.write_flat::<ExchangeIn>(&store.scripts().exchange, arguments).await? {
            Answer::Full(reply) => Ok(ExchangeReply {
                settle: reply.settle.into_reply(&self.settle),
                acquire: reply.acquire.into_reply()?,
            }),
            Answer::Flat(values) => {
                let (settle, acquire) = read_work(settlements, values)?;
                Ok(ExchangeReply { settle, acquire })
            }
        }
    }
}
