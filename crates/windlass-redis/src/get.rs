//! Reading jobs and chains by id or key, and the time of the next due job.

use serde::{Deserialize, Serialize};
use windlass_core::command::{GetChains, GetChainsReply, GetJobs, GetJobsReply, NextDue, NextDueReply};
use windlass_core::{Result, Timestamp};

use crate::error::corrupt;
use crate::row::{ChainIn, JobIn};
use crate::store::RedisStore;
use crate::wire::{Found, Payloads, Read, TargetOut, type_names};

#[derive(Debug, Serialize)]
struct GetChainsOut<'a> {
    now: Option<i64>,
    chains: Vec<TargetOut<'a>>,
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
        let chains = reply.chains.into_iter().map(|chain| chain.found.map(ChainIn::into_chain).transpose());
        Ok(GetChainsReply { chains: chains.collect::<Result<_, _>>().map_err(corrupt)? })
    }

    pub(crate) async fn run_get_jobs(&self, request: GetJobs) -> Result<GetJobsReply> {
        request.check()?;
        let out =
            GetJobsOut { now: self.time(), jobs: request.jobs.iter().map(ToString::to_string).collect() };
        let reply: GetJobsIn = self.read(&self.scripts().get_jobs, &out, Payloads::default()).await?;
        let jobs = reply.jobs.into_iter().map(|job| job.found.map(JobIn::into_job).transpose());
        Ok(GetJobsReply { jobs: jobs.collect::<Result<_, _>>().map_err(corrupt)? })
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
