//! Resolves the chains that were named on the command line: by chain id, job id or key.

use windlass::client::Target;
use windlass::name::{Key, TypeName};
use windlass::record::{ChainRecord, JobRecord};
use windlass::{Client, JobId, Store};

use crate::arguments::{ChainNames, ChainSelection};
use crate::exit::{Failure, Result};

/// A stored chain that was named on the command line.
#[derive(Debug)]
pub(crate) struct Found {
    /// The name as it was given.
    pub(crate) name: String,
    pub(crate) chain: ChainRecord,
    /// The named job, unless it is the chain's first: that one shares the chain's id.
    job: Option<JobId>,
}

impl Found {
    /// Returns the named job, or the chain if the name was a chain id or a key.
    pub(crate) fn target(&self) -> Target {
        self.job.map_or(Target::Chain(self.chain.id), Target::Job)
    }
}

/// Resolves all names. Returns an error if one of them is not stored.
pub(crate) async fn all(client: &Client<dyn Store>, chains: &ChainNames) -> Result<Vec<Found>> {
    each(client, &chains.names, chains.key_type.as_ref()).await
}

/// Resolves all names of a selection without a filter. Returns an error if one of them is not stored.
pub(crate) async fn selected(client: &Client<dyn Store>, chains: &ChainSelection) -> Result<Vec<Found>> {
    each(client, &chains.names, one_type(&chains.types)?).await
}

/// Returns the type of the keys, if one was given.
pub(crate) fn one_type(types: &[TypeName]) -> Result<Option<&TypeName>> {
    match types {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(Failure::usage("a key belongs to one type: pass --type once")),
    }
}

async fn each(
    client: &Client<dyn Store>,
    names: &[String],
    key_type: Option<&TypeName>,
) -> Result<Vec<Found>> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        found.push(one(client, name, key_type).await?);
    }
    Ok(found)
}

/// Resolves one name.
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

/// Resolves the name of a job: its id, or the key of its chain. A key names the latest job of the chain.
pub(crate) async fn job(
    client: &Client<dyn Store>,
    name: &str,
    key_type: Option<&TypeName>,
) -> Result<JobRecord> {
    match parse(name, key_type)? {
        Target::Job(id) => client.job(id).await?.ok_or_else(|| {
            Failure::not_found(format!(
                "job {id} not found: it may have expired; check --store and --namespace"
            ))
        }),
        _ => Ok(one(client, name, key_type).await?.chain.latest),
    }
}

/// Parses the id of a chain or job, or the key of a chain of this type.
pub(crate) fn parse(name: &str, key_type: Option<&TypeName>) -> Result<Target> {
    if let Some(key_type) = key_type {
        return Ok(Target::Key(key_type.clone(), Key::new(name)?));
    }
    // A chain's id is also the id of its first job, so a job id covers both.
    name.parse().map(Target::Job).map_err(|_| {
        Failure::usage(format!(
            "invalid id `{name}`: pass the id of a chain or job, or a key with --type TYPE"
        ))
    })
}

fn not_found(name: &str, key_type: Option<&TypeName>) -> Failure {
    Failure::not_found(match key_type {
        Some(key_type) => {
            format!(
                "no chain of type `{key_type}` has the key `{name}`: check the key, --store and --namespace"
            )
        }
        None => format!("chain or job {name} not found: it may have expired; check --store and --namespace"),
    })
}
