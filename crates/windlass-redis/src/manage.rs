//! Cancel, trigger, retry, delete, set retention, pause.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Cancel, CancelMode, CancelReply, Cancelled, Delete, DeleteReply, Deleted, DeletedChain, Pause,
    PauseReply, RetentionSet, Retried, Retry, RetryReply, SeenJob, SetRetention, SetRetentionReply, Trigger,
    TriggerReply, Triggered, Untriggerable,
};
use windlass_core::limit::BATCH_MAX_ITEMS;
use windlass_core::{
    ChainId, ClosedAs, Error, ErrorKind, JobId, Result, Status, Timestamp, TypeName, Version, WorkerId,
};

use crate::store::{Execute, RedisStore};
use crate::wire::{Found, Payloads, Read, RefusedIn, RippleIn, SummaryIn, TargetOut};

#[derive(Debug, Serialize)]
struct CancelOut<'a> {
    now: Option<i64>,
    chains: Vec<TargetOut<'a>>,
    ask: bool,
}

#[derive(Debug, Deserialize)]
struct CancelIn {
    chains: Vec<CancelledIn>,
    ripple: RippleIn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CancelledIn {
    Cancelled { chain: Read<ChainId>, job: Read<JobId> },
    Asked { chain: Read<ChainId>, job: Read<JobId>, worker: Read<WorkerId> },
    Running { chain: Read<ChainId> },
    Closed { chain: Read<ChainId>, closed_as: Read<ClosedAs> },
    NotFound,
}

impl From<CancelledIn> for Cancelled {
    fn from(cancelled: CancelledIn) -> Self {
        match cancelled {
            CancelledIn::Cancelled { chain, job } => Self::Cancelled { chain: chain.0, job: job.0 },
            CancelledIn::Asked { chain, job, worker } => {
                Self::Asked { chain: chain.0, job: job.0, worker: worker.0 }
            }
            CancelledIn::Running { chain } => Self::Running { chain: chain.0 },
            CancelledIn::Closed { chain, closed_as } => {
                Self::Closed { chain: chain.0, closed_as: closed_as.0 }
            }
            CancelledIn::NotFound => Self::NotFound,
        }
    }
}

#[derive(Debug, Serialize)]
struct TriggerOut<'a> {
    now: Option<i64>,
    jobs: Vec<TargetOut<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TriggerIn {
    Triggered(Vec<OpenedIn>),
    Refused(Vec<Found<UntriggerableIn>>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UntriggerableIn {
    NotFound,
    NotPending(Read<Status>),
}

/// A job that was triggered or retried.
#[derive(Debug, Deserialize)]
struct OpenedIn {
    job: SummaryIn,
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    chain_type: Read<TypeName>,
}

impl From<TriggerIn> for TriggerReply {
    fn from(reply: TriggerIn) -> Self {
        match reply {
            TriggerIn::Triggered(jobs) => Self::Triggered(
                jobs.into_iter()
                    .map(|opened| Triggered {
                        job: opened.job.into(),
                        job_type: opened.job_type.0,
                        chain_type: opened.chain_type.0,
                    })
                    .collect(),
            ),
            TriggerIn::Refused(jobs) => Self::Refused(
                jobs.into_iter()
                    .map(|job| {
                        job.found.map(|obstacle| match obstacle {
                            UntriggerableIn::NotFound => Untriggerable::NotFound,
                            UntriggerableIn::NotPending(status) => Untriggerable::NotPending(status.0),
                        })
                    })
                    .collect(),
            ),
        }
    }
}

#[derive(Debug, Serialize)]
struct RetryOut {
    now: Option<i64>,
    chains: Vec<SeenOut>,
}

/// A job with the version that the caller has read.
#[derive(Debug, Serialize)]
struct SeenOut {
    job: String,
    version: u64,
}

impl SeenOut {
    fn new(job: JobId, version: Version) -> Self {
        Self { job: job.to_string(), version: version.0 }
    }
}

#[derive(Debug, Deserialize)]
struct RetryIn {
    chains: Vec<RetriedIn>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RetriedIn {
    Retried(OpenedIn),
    AlreadyRetried,
    NotRetriable(Read<Status>),
    NotFound,
    Refused(RefusedIn),
}

impl From<RetriedIn> for Retried {
    fn from(retried: RetriedIn) -> Self {
        match retried {
            RetriedIn::Retried(opened) => Self::Retried {
                job: opened.job.into(),
                job_type: opened.job_type.0,
                chain_type: opened.chain_type.0,
            },
            RetriedIn::AlreadyRetried => Self::AlreadyRetried,
            RetriedIn::NotRetriable(status) => Self::NotRetriable(status.0),
            RetriedIn::NotFound => Self::NotFound,
            RetriedIn::Refused(refused) => Self::Refused(refused.into_refusal(|| Ok(()))),
        }
    }
}

#[derive(Debug, Serialize)]
struct DeleteOut<'a> {
    now: Option<i64>,
    chains: Vec<TargetOut<'a>>,
    cascade: bool,
    seen: Option<Vec<SeenOut>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DeleteIn {
    Deleted(Vec<DeletedIn>),
    Refused(Vec<RefusedIn>),
}

#[derive(Debug, Deserialize)]
struct DeletedIn {
    chain: Read<ChainId>,
    chain_type: Read<TypeName>,
    status: Read<Status>,
    running: Option<RunningIn>,
}

#[derive(Debug, Deserialize)]
struct RunningIn {
    job: Read<JobId>,
    worker: Read<WorkerId>,
}

impl From<DeleteIn> for DeleteReply {
    fn from(reply: DeleteIn) -> Self {
        match reply {
            DeleteIn::Deleted(chains) => {
                let chains = chains.into_iter().map(|deleted| DeletedChain {
                    chain: deleted.chain.0,
                    chain_type: deleted.chain_type.0,
                    status: deleted.status.0,
                    running: deleted.running.map(|running| (running.job.0, running.worker.0)),
                });
                Self::Deleted(Deleted { chains: chains.collect() })
            }
            DeleteIn::Refused(refused) => {
                Self::Refused(refused.into_iter().map(|refused| refused.into_refusal(|| Ok(()))).collect())
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct SetRetentionOut<'a> {
    now: Option<i64>,
    chains: Vec<TargetOut<'a>>,
    retention: u64,
}

#[derive(Debug, Deserialize)]
struct SetRetentionIn {
    chains: Vec<RetentionSetIn>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RetentionSetIn {
    Until(Read<Timestamp>),
    NotClosed,
    NotFound,
}

impl From<RetentionSetIn> for RetentionSet {
    fn from(set: RetentionSetIn) -> Self {
        match set {
            RetentionSetIn::Until(until) => Self::Until(until.0),
            RetentionSetIn::NotClosed => Self::NotClosed,
            RetentionSetIn::NotFound => Self::NotFound,
        }
    }
}

#[derive(Debug, Serialize)]
struct PauseOut<'a> {
    now: Option<i64>,
    types: Vec<&'a str>,
    paused: bool,
}

#[derive(Debug, Deserialize)]
struct PauseIn {
    were_paused: Vec<bool>,
}

impl Execute for Cancel {
    async fn execute(self, store: &RedisStore) -> Result<CancelReply> {
        check_items("chains", self.chains.len())?;
        let chains = self.chains.iter().map(TargetOut::from).collect();
        let out = CancelOut { now: store.time(), chains, ask: self.mode == CancelMode::Ask };
        let reply: CancelIn = store.write(&store.scripts().cancel, &out, Payloads::default()).await?;
        let chains = reply.chains.into_iter().map(Cancelled::from).collect();
        Ok(CancelReply { chains, ripple: reply.ripple.into() })
    }
}

impl Execute for Trigger {
    async fn execute(self, store: &RedisStore) -> Result<TriggerReply> {
        check_items("jobs", self.jobs.len())?;
        let out = TriggerOut { now: store.time(), jobs: self.jobs.iter().map(TargetOut::from).collect() };
        let reply: TriggerIn = store.write(&store.scripts().trigger, &out, Payloads::default()).await?;
        Ok(reply.into())
    }
}

impl Execute for Retry {
    async fn execute(self, store: &RedisStore) -> Result<RetryReply> {
        check_items("chains", self.chains.len())?;
        let chains = self.chains.iter().map(|target| SeenOut::new(target.job, target.version)).collect();
        let out = RetryOut { now: store.time(), chains };
        let reply: RetryIn = store.write(&store.scripts().retry, &out, Payloads::default()).await?;
        Ok(RetryReply { chains: reply.chains.into_iter().map(Retried::from).collect(), deferred: false })
    }
}

impl Execute for Delete {
    async fn execute(self, store: &RedisStore) -> Result<DeleteReply> {
        check_items("chains", self.chains.len())?;
        let chains = self.chains.iter().map(TargetOut::from).collect();
        check_items("jobs", self.seen.as_ref().map_or(0, Vec::len))?;
        let seen =
            |seen: Vec<SeenJob>| seen.iter().map(|seen| SeenOut::new(seen.job, seen.version)).collect();
        let out = DeleteOut { now: store.time(), chains, cascade: self.cascade, seen: self.seen.map(seen) };
        let reply: DeleteIn = store.write(&store.scripts().delete, &out, Payloads::default()).await?;
        Ok(reply.into())
    }
}

impl Execute for SetRetention {
    async fn execute(self, store: &RedisStore) -> Result<SetRetentionReply> {
        check_items("chains", self.chains.len())?;
        let chains = self.chains.iter().map(TargetOut::from).collect();
        let out = SetRetentionOut { now: store.time(), chains, retention: self.retention.get() };
        let reply: SetRetentionIn =
            store.write(&store.scripts().set_retention, &out, Payloads::default()).await?;
        Ok(SetRetentionReply { chains: reply.chains.into_iter().map(RetentionSet::from).collect() })
    }
}

impl Execute for Pause {
    async fn execute(self, store: &RedisStore) -> Result<PauseReply> {
        check_items("types", self.types.len())?;
        let types = self.types.iter().map(TypeName::as_str).collect();
        let out = PauseOut { now: store.time(), types, paused: self.paused };
        let reply: PauseIn = store.write(&store.scripts().pause, &out, Payloads::default()).await?;
        Ok(PauseReply { were_paused: reply.were_paused })
    }
}

/// Returns an error if a command has more than [`BATCH_MAX_ITEMS`] items.
pub(crate) fn check_items(what: &str, items: usize) -> Result<()> {
    if items <= BATCH_MAX_ITEMS {
        return Ok(());
    }
    let text = format!("a command has at most {BATCH_MAX_ITEMS} {what}, got {items}: split it");
    Err(Error::new(ErrorKind::Invalid, text))
}
