use schemars::JsonSchema;
use serde::Serialize;
use windlass_core::ChainRecord;

use super::{Job, State, Time};
use crate::payload::{Content, Sight};

/// A chain. Its status is that of its latest job.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Chain {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) chain_type: String,
    pub(crate) status: State,
    pub(crate) state: State,
    pub(crate) key: Option<String>,
    /// Whether the key still points at this chain.
    pub(crate) key_held: bool,
    pub(crate) created_at: Time,
    pub(crate) closed_at: Option<Time>,
    /// When the chain's retention ends.
    pub(crate) retain_until: Option<Time>,
    /// The latest job.
    pub(crate) job: String,
    pub(crate) job_type: String,
    /// The number of jobs so far.
    pub(crate) jobs: u32,
    pub(crate) attempt: u32,
    /// The version of the latest job.
    pub(crate) version: u64,
    pub(crate) error: Option<String>,
    pub(crate) error_hidden: bool,
    /// The input of the first job.
    pub(crate) input: Content,
    /// The output of the latest job, if the chain has completed.
    pub(crate) output: Option<Content>,
}

/// One page of chains.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChainPage {
    pub(crate) chains: Vec<Chain>,
    /// The cursor of the next page, for the parameter `after`. `null` on the last page. A page may be short, or even empty,
    /// without being the last one.
    pub(crate) next: Option<String>,
}

/// A chain with its first and latest jobs.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChainDetails {
    #[serde(flatten)]
    pub(crate) chain: Chain,
    /// Its jobs in order: at most 1,000.
    pub(crate) chain_jobs: Vec<Job>,
    /// The name of the schedule that started the chain, if one did.
    pub(crate) schedule: Option<String>,
    /// Why the latest job does not run, if it is open and should.
    pub(crate) why: Vec<String>,
}

/// A chain with its neighbors: the chains that its jobs wait for, and the jobs that wait for it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChainGraph {
    pub(crate) chain: Chain,
    /// The jobs of the chain, in order. Each is continued by the next one.
    pub(crate) jobs: Vec<Job>,
    /// The chains that a job of the chain waits or waited for, if they are still stored.
    pub(crate) blockers: Vec<Chain>,
    /// The jobs of other chains that wait or waited for this chain.
    pub(crate) dependents: Vec<Job>,
    /// Whether some jobs were left out, because there are too many.
    pub(crate) truncated: bool,
}

/// How a chain that was awaited stands now.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Ended {
    /// Whether the chain has closed. If not, the wait ended first.
    pub(crate) closed: bool,
    pub(crate) chain: Chain,
}

impl Chain {
    pub(crate) fn of(chain: &ChainRecord, sight: Sight<'_>) -> Self {
        let latest = &chain.latest;
        let error = sight.error_of_chain(chain);
        Self {
            id: chain.id.to_string(),
            chain_type: chain.chain_type.to_string(),
            status: chain.status().into(),
            state: State::of(latest),
            key: chain.key.as_ref().map(|key| key.key.to_string()),
            key_held: chain.key.as_ref().is_some_and(|key| key.held),
            created_at: chain.created_at.into(),
            closed_at: chain.closed.map(|closed| closed.at.into()),
            retain_until: chain.closed.map(|closed| closed.retain_until.into()),
            job: latest.id.to_string(),
            job_type: latest.job_type.to_string(),
            jobs: latest.index + 1,
            attempt: latest.attempt,
            version: latest.version.0,
            error_hidden: latest.error.is_some() && error.is_none(),
            error,
            input: sight.content(&chain.first.input),
            output: chain.output().map(|output| sight.content(output)),
        }
    }
}
