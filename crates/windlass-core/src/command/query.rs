use crate::command::check_items;
use crate::command::manage::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};
use crate::job::Job;
use crate::limit::PAGE_MAX;
use crate::name::TypeName;
use crate::record::{AttemptRecord, ChainRecord, JobRecord, Status};
use crate::time::Timestamp;

/// Which job types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Types {
    /// Every one.
    All,
    /// These.
    Only(Vec<TypeName>),
}

impl Types {
    /// This one.
    pub fn of<J: Job>() -> Result<Self> {
        Ok(Self::Only(vec![TypeName::of::<J>()?]))
    }

    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::All => Ok(()),
            Self::Only(types) => check_items("types", types.len()),
        }
    }
}

/// Asks when there is something to do. See [`Store::next_due`](crate::Store::next_due).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextDue {
    /// Of these types.
    pub types: Types,
}

/// The reply to [`NextDue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextDueReply {
    /// The store's time.
    pub now: Timestamp,
    /// When the earliest pending job is due, past or to come.
    pub due_at: Option<Timestamp>,
    /// When the earliest lease expires, past or to come.
    pub lease_until: Option<Timestamp>,
}

/// Looks chains up. See [`Store::get_chains`](crate::Store::get_chains).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetChains {
    /// Which.
    pub chains: Vec<Target>,
}

impl GetChains {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        check_items("chains", self.chains.len())
    }
}

/// The reply to [`GetChains`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetChainsReply {
    /// Each chain, or none.
    pub chains: Vec<Option<ChainRecord>>,
}

/// Looks jobs up. See [`Store::get_jobs`](crate::Store::get_jobs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetJobs {
    /// Which.
    pub jobs: Vec<JobId>,
}

impl GetJobs {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        check_items("jobs", self.jobs.len())
    }
}

/// The reply to [`GetJobs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetJobsReply {
    /// Each job, or none.
    pub jobs: Vec<Option<JobRecord>>,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Latest created first. The default.
    #[default]
    Newest,
    /// Earliest created first.
    Oldest,
}

/// Which part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In which order.
    pub order: Order,
    /// Go on behind this place.
    pub after: Option<Cursor>,
    /// At most this many rows: 1 to [`PAGE_MAX`](crate::limit::PAGE_MAX); 50 by default.
    pub max: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self { order: Order::Newest, after: None, max: 50 }
    }
}

impl Page {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        let max = self.max as usize;
        if max == 0 || max > PAGE_MAX {
            let text = format!("a page of {max} rows: ask for 1 to {PAGE_MAX}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }
}

/// A place in a list. Its text is the store's affair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(pub String);

/// Lists chains. See [`Store::list_chains`](crate::Store::list_chains).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListChains {
    /// Which.
    pub filter: ChainFilter,
    /// Which part.
    pub page: Page,
}

/// Which chains. Empty lists mean all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainFilter {
    /// Of these types.
    pub types: Vec<TypeName>,
    /// With these statuses.
    pub statuses: Vec<Status>,
    /// Only chains that no stored job waits for or waited for.
    pub top_level: bool,
    /// Created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Created at this time or earlier.
    pub created_to: Option<Timestamp>,
}

impl ListChains {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        check_items("types", self.filter.types.len())?;
        check_items("statuses", self.filter.statuses.len())?;
        self.page.check()
    }
}

/// The reply to [`ListChains`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListChainsReply {
    /// The chains.
    pub chains: Vec<ChainRecord>,
    /// Where to go on; none at the end.
    pub next: Option<Cursor>,
}

/// Lists jobs. See [`Store::list_jobs`](crate::Store::list_jobs).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListJobs {
    /// Which.
    pub filter: JobFilter,
    /// Which part.
    pub page: Page,
}

/// Which jobs. Empty lists mean all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Of these types.
    pub types: Vec<TypeName>,
    /// With these statuses.
    pub statuses: Vec<Status>,
    /// Of chains of these types.
    pub chain_types: Vec<TypeName>,
    /// Of this chain.
    pub chain: Option<ChainId>,
    /// Created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Created at this time or earlier.
    pub created_to: Option<Timestamp>,
}

impl ListJobs {
    /// Refuses what breaks a limit. Every store does so first.
    pub fn check(&self) -> Result<()> {
        check_items("types", self.filter.types.len().max(self.filter.chain_types.len()))?;
        check_items("statuses", self.filter.statuses.len())?;
        self.page.check()
    }
}

/// The reply to [`ListJobs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListJobsReply {
    /// The jobs.
    pub jobs: Vec<JobRecord>,
    /// Where to go on; none at the end.
    pub next: Option<Cursor>,
}

/// Lists the jobs that wait or waited for a chain. See
/// [`Store::list_dependents`](crate::Store::list_dependents).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListDependents {
    /// The blocker chain.
    pub chain: ChainId,
    /// Which part.
    pub page: Page,
}

/// The reply to [`ListDependents`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListDependentsReply {
    /// The jobs.
    pub jobs: Vec<JobRecord>,
    /// Where to go on; none at the end.
    pub next: Option<Cursor>,
}

/// Asks for the attempts of a job. See [`Store::list_attempts`](crate::Store::list_attempts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAttempts {
    /// The job.
    pub job: JobId,
}

/// The reply to [`ListAttempts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListAttemptsReply {
    /// The latest attempts, oldest first; empty for a job that is not stored.
    pub attempts: Vec<AttemptRecord>,
}

/// Counts jobs. See [`Store::count`](crate::Store::count).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// Of these types.
    pub types: Types,
}

/// The reply to [`Count`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountReply {
    /// For each type that has jobs or is paused, by name.
    pub types: Vec<TypeCount>,
    /// Whether the counts of closed jobs are estimates.
    pub closed_estimated: bool,
}

/// The jobs of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeCount {
    /// The type.
    pub job_type: TypeName,
    /// How many wait for blockers.
    pub blocked: u64,
    /// How many wait for their time or a worker.
    pub pending: u64,
    /// How many run.
    pub running: u64,
    /// How many completed.
    pub completed: u64,
    /// How many failed.
    pub failed: u64,
    /// How many were cancelled.
    pub cancelled: u64,
    /// Since when the longest ready job has been due.
    pub oldest_ready: Option<Timestamp>,
    /// How many leases have expired.
    pub expired_leases: u64,
    /// Whether the type is paused.
    pub paused: bool,
}
