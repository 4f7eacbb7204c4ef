//! Reading jobs and chains by id or key.

use std::collections::BTreeMap;

use windlass_core::command::{Cursor, GetChains, GetChainsReply, GetJobs, GetJobsReply};
use windlass_core::{ChainRecord, JobRecord, Result};

use crate::provider::{Parameter, Provider, Row};
use crate::reply::{ChainFacts, Values, put};
use crate::request::targets;
use crate::store::{Call, Execute};

impl Execute for GetJobs {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<GetJobsReply> {
        self.check()?;
        let ids = self.jobs.iter().map(|job| Some(*job.as_uuid())).collect();
        let rows = call.run(&call.statements().get_jobs, vec![Parameter::Ids(ids)]).await?;
        let mut jobs: Vec<Option<JobRecord>> = self.jobs.iter().map(|_| None).collect();
        for row in rows {
            let mut values = Values::from(row);
            put(&mut jobs, values.item_index()?, values.job()?)?;
        }
        Ok(GetJobsReply { jobs })
    }
}

impl Execute for GetChains {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<GetChainsReply> {
        self.check()?;
        let parameters = [call.time()].into_iter().chain(targets(&self.chains)).collect();
        let rows = call.run(&call.statements().get_chains, parameters).await?;
        let mut chains: Vec<Option<ChainRecord>> = self.chains.iter().map(|_| None).collect();
        for (index, chain) in chains_by_item(rows)?.0 {
            put(&mut chains, index, chain)?;
        }
        Ok(GetChainsReply { chains })
    }
}

/// Returns chains with their first and latest jobs, by index of their item, and the cursor of the next page.
pub(crate) fn chains_by_item(rows: Vec<Row>) -> Result<(BTreeMap<usize, ChainRecord>, Option<Cursor>)> {
    let mut facts = BTreeMap::<usize, ChainFacts>::new();
    let mut jobs = BTreeMap::<usize, Vec<JobRecord>>::new();
    let mut next = None;
    for row in rows {
        let mut values = Values::from(row);
        match values.part.as_str() {
            "next" => next = Some(cursor(&mut values)?),
            "chain" => drop(facts.insert(values.item_index()?, values.chain()?)),
            _ => jobs.entry(values.item_index()?).or_default().push(values.job()?),
        }
    }
    let with_jobs = |(index, facts): (usize, ChainFacts)| {
        let jobs = jobs.get(&index).map_or(&[][..], Vec::as_slice);
        Ok((index, facts.with_jobs(jobs)?))
    };
    Ok((facts.into_iter().map(with_jobs).collect::<Result<_>>()?, next))
}

pub(crate) fn cursor(values: &mut Values) -> Result<Cursor> {
    Ok(Cursor(values.number::<i64>()?.to_string()))
}
