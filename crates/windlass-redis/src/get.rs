//! Looking jobs and chains up, and when there is something to do.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    GetChains, GetChainsReply, GetJobs, GetJobsReply, NextDue, NextDueReply, Target,
};
use windlass_core::{ChainRecord, JobRecord, Result, Timestamp};

use crate::row::{ChainIn, JobIn};
use crate::store::RedisStore;
use crate::wire::{Found, Payloads, Read, type_names};

#[derive(Debug, Serialize)]
struct GetChainsOut<'a> {
    now: Option<i64>,
    chains: Vec<TargetOut<'a>>,
}

/// A chain, by exactly one of id, job, and type with key.
#[derive(Debug, Default, Serialize)]
struct TargetOut<'a> {
    chain: Option<String>,
    job: Option<String>,
    #[serde(rename = "type")]
    chain_type: Option<&'a str>,
    key: Option<&'a str>,
}

impl<'a> From<&'a Target> for TargetOut<'a> {
    fn from(target: &'a Target) -> Self {
        match target {
            Target::Chain(chain) => Self { chain: Some(chain.to_string()), ..Self::default() },
            Target::Job(job) => Self { job: Some(job.to_string()), ..Self::default() },
            Target::Key(chain_type, key) => {
                Self { chain_type: Some(chain_type.as_str()), key: Some(key.as_str()), ..Self::default() }
            }
        }
    }
}

#[derive(Debug, Deserialize)]
struct GetChainsIn {
    chains: Vec<Found<ChainIn>>,
}

#[derive(Debug, Serialize)]
struct GetJobsOut {
    now: Option<i64>,
    jobs: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct GetJobsIn {
    jobs: Vec<Found<JobIn>>,
}

#[derive(Debug, Serialize)]
struct NextDueOut<'a> {
    now: Option<i64>,
    types: Option<Vec<&'a str>>,
}

#[derive(Debug, Deserialize)]
struct NextDueIn {
    now: Read<Timestamp>,
    due: Option<Read<Timestamp>>,
    lease_until: Option<Read<Timestamp>>,
}

impl RedisStore {
    pub(crate) async fn run_get_chains(&self, request: GetChains) -> Result<GetChainsReply> {
        request.check()?;
        let chains = request.chains.iter().map(TargetOut::from).collect();
        let out = GetChainsOut { now: self.time(), chains };
        let reply: GetChainsIn = self.read(&self.scripts().get_chains, &out, Payloads::default()).await?;
        Ok(GetChainsReply {
            chains: reply.chains.into_iter().map(|found| found.found.map(ChainRecord::from)).collect(),
        })
    }

    pub(crate) async fn run_get_jobs(&self, request: GetJobs) -> Result<GetJobsReply> {
        request.check()?;
        let out =
            GetJobsOut { now: self.time(), jobs: request.jobs.iter().map(ToString::to_string).collect() };
        let reply: GetJobsIn = self.read(&self.scripts().get_jobs, &out, Payloads::default()).await?;
        Ok(GetJobsReply {
            jobs: reply.jobs.into_iter().map(|found| found.found.map(JobRecord::from)).collect(),
        })
    }

    pub(crate) async fn run_next_due(&self, request: NextDue) -> Result<NextDueReply> {
        request.types.check()?;
        let out = NextDueOut { now: self.time(), types: type_names(&request.types) };
        let reply: NextDueIn = self.read(&self.scripts().next_due, &out, Payloads::default()).await?;
        Ok(NextDueReply {
            now: reply.now.0,
            due_at: reply.due.map(|due| due.0),
            lease_until: reply.lease_until.map(|until| until.0),
        })
    }
}
