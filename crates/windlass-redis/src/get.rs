//! Reading jobs and chains by id or key, and the time of the next due job.

use serde::{Deserialize, Serialize};
use windlass_core::command::{GetChains, GetChainsReply, GetJobs, GetJobsReply, NextDue, NextDueReply};
use windlass_core::{Result, Timestamp};

use crate::error::corrupt;
use crate::row::{ChainIn, JobIn};
use crate::store::{Execute, RedisStore};
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

impl Execute for GetChains {
    async fn execute(self, store: &RedisStore) -> Result<GetChainsReply> {
        self.check()?;
        let chains = self.chains.iter().map(TargetOut::from).collect();
        let out = GetChainsOut { now: store.time(), chains };
        let reply: GetChainsIn = store.read(&store.scripts().get_chains, &out, Payloads::default()).await?;
        let chains = reply.chains.into_iter().map(|chain| chain.found.map(ChainIn::into_chain).transpose());
        Ok(GetChainsReply { chains: chains.collect::<Result<_, _>>().map_err(corrupt)? })
    }
}

impl Execute for GetJobs {
    async fn execute(self, store: &RedisStore) -> Result<GetJobsReply> {
        self.check()?;
        let out = GetJobsOut { now: store.time(), jobs: self.jobs.iter().map(ToString::to_string).collect() };
        let reply: GetJobsIn = store.read(&store.scripts().get_jobs, &out, Payloads::default()).await?;
        let jobs = reply.jobs.into_iter().map(|job| job.found.map(JobIn::into_job).transpose());
        Ok(GetJobsReply { jobs: jobs.collect::<Result<_, _>>().map_err(corrupt)? })
    }
}

impl Execute for NextDue {
    async fn execute(self, store: &RedisStore) -> Result<NextDueReply> {
        self.types.check()?;
        let out = NextDueOut { now: store.time(), types: type_names(&self.types) };
        let reply: NextDueIn = store.read(&store.scripts().next_due, &out, Payloads::default()).await?;
        Ok(NextDueReply {
            now: reply.now.0,
            due_at: reply.due.map(|due| due.0),
            lease_until: reply.lease_until.map(|until| until.0),
        })
    }
}
