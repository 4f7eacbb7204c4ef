//! Queries by id or key. Each is one statement, and so sees one state of the database.

use std::collections::BTreeSet;

use windlass_core::command::{
    GetChains, GetChainsReply, GetJobs, GetJobsReply, NextDue, NextDueReply, Target, Types,
};
use windlass_core::{ChainRecord, Result};

use crate::provider::{Row, Value};
use crate::row::{ChainRow, hex};
use crate::session::{Execute, Session};
use crate::statement::set;

impl Execute for GetChains {
    async fn execute(&self, session: &mut Session<'_>) -> Result<GetChainsReply> {
        self.check()?;
        let mut chains = vec![None; self.chains.len()];
        if chains.is_empty() {
            return Ok(GetChainsReply { chains });
        }
        let asked: Vec<_> = self.chains.iter().map(asked).collect();
        let now = session.now();
        for row in session.rows(&session.statements.get_chains, vec![set(&asked)?]).await? {
            let facts = ChainRow::read(&row)?;
            if row.flag("by_key")? && !facts.is_found_by_key(now) {
                continue;
            }
            let Some(chain) = chains.get_mut(row.number::<usize>("item")?) else { continue };
            read_into(chain, facts, &row)?;
        }
        Ok(GetChainsReply { chains })
    }
}

impl Execute for GetJobs {
    async fn execute(&self, session: &mut Session<'_>) -> Result<GetJobsReply> {
        self.check()?;
        let mut jobs = vec![None; self.jobs.len()];
        if jobs.is_empty() {
            return Ok(GetJobsReply { jobs });
        }
        let asked: Vec<_> = self.jobs.iter().map(|job| hex(job.as_uuid())).collect();
        for row in session.rows(&session.statements.get_jobs, vec![set(&asked)?]).await? {
            if let Some(job) = jobs.get_mut(row.number::<usize>("item")?) {
                *job = Some(row.job()?);
            }
        }
        Ok(GetJobsReply { jobs })
    }
}

impl Execute for NextDue {
    async fn execute(&self, session: &mut Session<'_>) -> Result<NextDueReply> {
        self.types.check()?;
        let (types, now) = (type_set(&self.types)?, session.now());
        let rows = session.rows(&session.statements.next_due, vec![types]).await?;
        let time = |column| rows.first().map_or(Ok(None), |row| row.maybe_time(column));
        Ok(NextDueReply { now, due_at: time("due_at")?, lease_until: time("lease_until")? })
    }
}

/// Encodes the types as a parameter; null means all.
pub(crate) fn type_set(types: &Types) -> Result<Value> {
    match types {
        Types::All => Ok(Value::Null),
        Types::Only(types) => set(&types.iter().map(AsRef::<str>::as_ref).collect::<BTreeSet<_>>()),
    }
}

type Asked<'a> = (&'static str, Option<String>, Option<&'a str>, Option<&'a str>);

fn asked(target: &Target) -> Asked<'_> {
    match target {
        Target::Chain(id) => ("chain", Some(hex(id.as_uuid())), None, None),
        Target::Job(id) => ("job", Some(hex(id.as_uuid())), None, None),
        Target::Key(chain_type, key) => ("key", None, Some(chain_type.as_str()), Some(key.as_str())),
    }
}

/// Reads a row into a chain: the first row has the chain's first job, a second row its latest.
pub(crate) fn read_into(chain: &mut Option<ChainRecord>, facts: ChainRow, row: &Row) -> Result<()> {
    let job = row.job()?;
    match chain {
        Some(chain) => chain.latest = job,
        None => {
            *chain = Some(ChainRecord {
                id: facts.id,
                chain_type: facts.chain_type,
                key: facts.key,
                retention: facts.retention,
                created_at: facts.created_at,
                closed: facts.closed,
                trace: facts.trace,
                first: job.clone(),
                latest: job,
            });
        }
    }
    Ok(())
}
