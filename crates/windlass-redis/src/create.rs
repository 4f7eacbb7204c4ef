//! Creating chains.

use redis::Value;
use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Create, CreateAndAcquire, CreateAndAcquireReply, CreateReply, Created, DueTime, JobSummary, NewChain,
    Request,
};
use windlass_core::{Error, Result, Status, Timestamp};

use crate::flat::{self, Arguments};
use crate::row;
use crate::script::{self, Answer};
use crate::store::{Execute, RedisStore};
use crate::wire::{CreatedIn, NewChainOut, Payloads};

/// Maximum number of kinds in one flat request. The script reads the kind of a chain from one byte.
const KINDS_MAX: usize = 255;

/// Added to the schedule of a chain with a key.
const KEYED: u8 = 4;

#[derive(Debug, Serialize)]
struct CreateOut<'a> {
    now: Option<i64>,
    chains: Vec<NewChainOut<'a>>,
}

#[derive(Debug, Deserialize)]
struct CreateIn {
    chains: Vec<CreatedIn>,
}

/// The values that plain chains of one request have in common.
struct Kind<'a> {
    /// The first chain of this kind.
    first: &'a NewChain,
    constants: Vec<u8>,
}

impl Kind<'_> {
    fn fits(&self, chain: &NewChain) -> bool {
        let (one, other) = (&self.first.job, &chain.job);
        one.job_type == other.job_type
            && one.priority == other.priority
            && self.first.retention.completed == chain.retention.completed
    }

    /// Whether a chain of this kind also has its constants.
    fn has_constants_of(&self, chain: &NewChain) -> bool {
        let (one, other) = (&self.first.job, &chain.job);
        one.max_attempts == other.max_attempts
            && one.on_blocker_failure == other.on_blocker_failure
            && one.trace == other.trace
            && self.first.trace == chain.trace
            && self.first.retention == chain.retention
            && chain.key.is_none()
            && self.first.key.is_none()
    }
}

/// Whether the script's short path can create a chain, if no chain has its id.
fn is_plain(chain: &NewChain) -> bool {
    chain.key.as_ref().is_none_or(|key| key.replaces.is_none())
        && chain.job.blockers.is_empty()
        && chain.job.input.bytes().len() <= flat::INPUT_MAX_BYTES
        && chain.check().is_ok()
}

/// Returns the arguments of the script's short path, which `lua/hot/create.lua` describes; or `None` if a chain is not
/// plain.
fn flat_arguments(request: &Create, now: Option<i64>) -> Option<Vec<Vec<u8>>> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    let mut chains = Vec::with_capacity(2 * request.chains.len());
    let mut latest = 0;
    for chain in &request.chains {
        if !is_plain(chain) {
            return None;
        }
        if !kinds.get(latest).is_some_and(|kind| kind.fits(chain)) {
            latest = kinds.iter().position(|kind| kind.fits(chain)).unwrap_or(kinds.len());
            if latest == kinds.len() {
                kinds.push(Kind { first: chain, constants: row::constants(&chain.job, Some(chain)) });
            }
        }
        let (schedule, time) = match chain.job.schedule {
            DueTime::Now => (0, 0),
            DueTime::At(at) => (1, at.as_millis()),
            DueTime::After(delay) => (2, i64::try_from(delay.get()).ok()?),
        };
        let schedule = schedule + if chain.key.is_some() { KEYED } else { 0 };
        let mut item = vec![u8::try_from(latest + 1).ok()?, schedule];
        item.extend_from_slice(&time.to_le_bytes());
        flat::push_id(&mut item, chain.id);
        if !kinds.get(latest)?.has_constants_of(chain) {
            item.extend_from_slice(&row::constants(&chain.job, Some(chain)));
        }
        chains.push(item);
        chains.push(flat::payload(&chain.job.input));
    }
    if kinds.len() > KINDS_MAX {
        return None;
    }
    let mut arguments = Arguments::new(now);
    arguments.number(&kinds.len());
    for kind in kinds {
        arguments.text(kind.first.job.job_type.as_str());
        arguments.number(&kind.first.job.priority);
        arguments.number(&kind.first.retention.completed.get());
        arguments.bytes(kind.constants);
    }
    Some(arguments.with(chains))
}

/// Returns the reply for a chain that the short path created at this time.
fn created(chain: &NewChain, now: Timestamp) -> Created {
    let due_at = match chain.job.schedule {
        DueTime::Now => now,
        DueTime::At(at) => at.max(now),
        DueTime::After(delay) => now + delay,
    };
    let job = JobSummary { job: chain.id.first_job(), chain: chain.id, status: Status::Pending, due_at };
    Created::New { job, repeated: false }
}

fn read_flat(request: &Create, values: Vec<Value>) -> Result<Vec<Created>> {
    let now = flat::time(values.into_iter().next())?;
    Ok(request.chains.iter().map(|chain| created(chain, now)).collect())
}

impl Execute for Create {
    async fn execute(self, store: &RedisStore) -> Result<CreateReply> {
        self.check()?;
        let arguments = match flat_arguments(&self, store.time()) {
            Some(arguments) => arguments,
            None => {
                let mut payloads = Payloads::default();
                let chains = self.chains.iter().map(|chain| NewChainOut::new(chain, &mut payloads)).collect();
                script::arguments(&CreateOut { now: store.time(), chains }, payloads)?
            }
        };
        let (answer, durability) = store.write_durably(&store.scripts().create, arguments).await?;
        let chains = match answer {
            Answer::Flat(values) => read_flat(&self, values)?,
            Answer::Full(CreateIn { chains }) => chains
                .into_iter()
                .zip(&self.chains)
                .map(|(created, chain)| created.into_created(chain))
                .collect(),
        };
        Ok(CreateReply { chains, durability, deferred: false })
    }
}

/// Two scripts that are sent together cost no more than one that does both.
impl Execute for CreateAndAcquire {
    async fn execute(self, _: &RedisStore) -> Result<CreateAndAcquireReply> {
        Err(Error::unsupported(Self::NAME))
    }
}
