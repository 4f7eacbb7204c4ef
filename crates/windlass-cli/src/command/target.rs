//! Which chains are meant: by id, by one of their jobs, or by key.

use windlass::{ChainRecord, Client, JobId, Key, Store, Target, TypeName};

use crate::arguments::Chosen;
use crate::exit::{Failure, Result};

/// A chain that was named, and is stored.
#[derive(Debug)]
pub(crate) struct Found {
    /// As it was named.
    pub(crate) name: String,
    pub(crate) chain: ChainRecord,
    /// The very job that was named; none if the chain was.
    job: Option<JobId>,
}

impl Found {
    /// The job, if one was named that is not its chain's first; else the chain.
    pub(crate) fn target(&self) -> Target {
        self.job.map_or(Target::Chain(self.chain.id), Target::Job)
    }
}

/// All chains that were named. One that is not stored is an error.
pub(crate) async fn all(client: &Client<dyn Store>, chosen: &Chosen) -> Result<Vec<Found>> {
    let mut found = Vec::with_capacity(chosen.names.len());
    for name in &chosen.names {
        found.push(one(client, name, chosen.key_type.as_ref()).await?);
    }
    Ok(found)
}

/// One chain.
pub(crate) async fn one(
    client: &Client<dyn Store>,
    name: &str,
    key_type: Option<&TypeName>,
) -> Result<Found> {
    let target = parse(name, key_type)?;
    let chain = client.chain(target.clone()).await?.ok_or_else(|| not_found(name, key_type))?;
    let job = match target {
        Target::Job(job) if job != chain.id.first_job() => Some(job),
        _ => None,
    };
    Ok(Found { name: name.to_owned(), chain, job })
}

fn parse(name: &str, key_type: Option<&TypeName>) -> Result<Target> {
    if let Some(key_type) = key_type {
        return Ok(Target::Key(key_type.clone(), Key::new(name)?));
    }
    // A chain's id is its first job's.
    name.parse().map(Target::Job).map_err(|_| {
        Failure::usage(format!(
            "`{name}` is not an id: give the id of a chain or job, or a key with --type TYPE"
        ))
    })
}

fn not_found(name: &str, key_type: Option<&TypeName>) -> Failure {
    Failure::not_found(match key_type {
        Some(key_type) => {
            format!("no chain of type `{key_type}` has the key `{name}`: is it the right store?")
        }
        None => format!("{name} is not stored, or no longer: is it the right store?"),
    })
}
