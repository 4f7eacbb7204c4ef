//! Reading jobs and chains by id or key.

use redis::Value;
use serde::{Deserialize, Serialize};
use windlass_core::command::{GetChains, GetChainsReply, GetJobs, GetJobsReply, Target};
use windlass_core::{ChainRecord, Result};

use crate::error::corrupt;
use crate::flat::{self, Arguments};
use crate::row::{ChainIn, JobIn};
use crate::script::{self, Answer};
use crate::store::{Execute, RedisStore};
use crate::wire::{Found, Payloads, TargetOut};

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

impl Execute for GetChains {
    async fn execute(self, store: &RedisStore) -> Result<GetChainsReply> {
        self.check()?;
        let arguments = match flat_arguments(&self, store.time()) {
            Some(arguments) => arguments,
            None => {
                let chains = self.chains.iter().map(TargetOut::from).collect();
                script::arguments(&GetChainsOut { now: store.time(), chains }, Payloads::default())?
            }
        };
        let chains: Result<_, _> =
            match store.read_flat::<GetChainsIn>(&store.scripts().get_chains, arguments).await? {
                Answer::Full(reply) => reply
                    .chains
                    .into_iter()
                    .map(|chain| chain.found.map(ChainIn::into_chain).transpose())
                    .collect(),
                Answer::Flat(values) => read_flat(&self, values)?,
            };
        Ok(GetChainsReply { chains: chains.map_err(corrupt)? })
    }
}

/// Returns the arguments of the script's short path, which `lua/hot/get_chains.lua` describes; or `None` if a chain is
/// not named by its id.
fn flat_arguments(request: &GetChains, now: Option<i64>) -> Option<Vec<Vec<u8>>> {
    let mut arguments = Arguments::new(now);
    for target in &request.chains {
        let Target::Chain(chain) = target else { return None };
        arguments.text(&chain.to_string());
    }
    Some(arguments.with(Vec::new()))
}

/// Reads the reply of the short path.
fn read_flat(request: &GetChains, values: Vec<Value>) -> Result<Result<Vec<Option<ChainRecord>>, String>> {
    let mut values = values.into_iter();
    let mut chains = Vec::with_capacity(request.chains.len());
    for target in &request.chains {
        let (row, input) = (flat::string(values.next())?, flat::string(values.next())?);
        let output = flat::string(values.next())?;
        let (Target::Chain(chain), Some(row)) = (target, row) else {
            chains.push(Ok(None));
            continue;
        };
        chains.push(ChainIn::plain(chain.first_job(), row, input, output).into_chain().map(Some));
    }
    Ok(chains.into_iter().collect())
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
