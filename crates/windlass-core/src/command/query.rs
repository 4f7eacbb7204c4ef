use crate::command::check_items;
use crate::command::manage::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};
use crate::job::Job;
use crate::limit::PAGE_MAX;
use crate::name::{Key, TypeName};
use crate::record::{AttemptRecord, ChainRecord, JobRecord, Status};
use crate::time::Timestamp;

/// A set of job types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Types {
    /// All types.
    All,
    /// Only these types.
    Only(Vec<TypeName>),
}

impl Types {
    /// Returns the set with the single type `J`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name of `J` is invalid.
    pub fn of<J: Job>() -> Result<Self> {
        Ok(Self::Only(vec![TypeName::of::<J>()?]))
    }

    /// Checks the number of types. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if there are too many types.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::All => Ok(()),
            Self::Only(types) => check_items("types", types.len()),
        }
    }
}

/// Request for the next due time and lease expiry. See [`Store::next_due`](crate::Store::next_due).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextDue {
    /// The job types to consider.
    pub types: Types,
}

/// The reply to [`NextDue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextDueReply {
    /// The time on the store's clock.
    pub now: Timestamp,
    /// When the earliest pending job is due, in the past or in the future.
    pub due_at: Option<Timestamp>,
    /// When the earliest lease expires, in the past or in the future.
    pub lease_until: Option<Timestamp>,
}

/// Request for chains by id, job or key. See [`Store::get_chains`](crate::Store::get_chains).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetChains {
    /// The chains to return.
    pub chains: Vec<Target>,
}

impl GetChains {
    /// Checks the size of the batch. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the batch exceeds a limit.
    pub fn check(&self) -> Result<()> {
        check_items("chains", self.chains.len())
    }
}

/// The reply to [`GetChains`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetChainsReply {
    /// Each requested chain, or `None` if it is not stored.
    pub chains: Vec<Option<ChainRecord>>,
}

/// Request for jobs by id. See [`Store::get_jobs`](crate::Store::get_jobs).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetJobs {
    /// The jobs to return.
    pub jobs: Vec<JobId>,
}

impl GetJobs {
    /// Checks the size of the batch. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the batch exceeds a limit.
    pub fn check(&self) -> Result<()> {
        check_items("jobs", self.jobs.len())
    }
}

/// The reply to [`GetJobs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetJobsReply {
    /// Each requested job, or `None` if it is not stored.
    pub jobs: Vec<Option<JobRecord>>,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Newest first. The default.
    #[default]
    Newest,
    /// Oldest first.
    Oldest,
}

/// The order and position of one page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The order of the list.
    pub order: Order,
    /// The cursor to continue after. `None` starts at the beginning.
    pub after: Option<Cursor>,
    /// The maximum number of rows, from 1 to [`PAGE_MAX`](crate::limit::PAGE_MAX). Default: 50.
    pub max: u32,
}

impl Default for Page {
    fn default() -> Self {
        Self { order: Order::Newest, after: None, max: 50 }
    }
}

impl Page {
    /// Checks `max` against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `max` is 0 or too large.
    pub fn check(&self) -> Result<()> {
        let max = self.max as usize;
        if max == 0 || max > PAGE_MAX {
            let text = format!("page size must be 1 to {PAGE_MAX}, got {max}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(())
    }
}

/// A position in a list. Its text is opaque: only the store that created it can interpret it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(pub String);

/// Request to list chains. See [`Store::list_chains`](crate::Store::list_chains).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListChains {
    /// The filter that listed chains match.
    pub filter: ChainFilter,
    /// The page to return.
    pub page: Page,
}

/// A filter for chains. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainFilter {
    /// Chains of these types.
    pub types: Vec<TypeName>,
    /// Chains with one of these statuses.
    pub statuses: Vec<Status>,
    /// Whether to list only chains that no stored job waits or waited for.
    pub top_level: bool,
    /// Chains created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Chains created at this time or earlier.
    pub created_to: Option<Timestamp>,
    /// Chains closed at this time or later. Open chains do not match.
    pub closed_from: Option<Timestamp>,
    /// Chains closed at this time or earlier. Open chains do not match.
    pub closed_to: Option<Timestamp>,
    /// Chains that were created with this key, whether they still hold it or not.
    ///
    /// To find only the chain that a key points at now, use [`GetChains`] with [`Target::Key`], which does not scan.
    pub key: Option<Key>,
}

/// What a [`ChainFilter`] compares.
#[derive(Clone, Copy, Debug)]
pub struct ChainFacts<'a> {
    /// The type of the chain.
    pub chain_type: &'a TypeName,
    /// The status of the latest job.
    pub status: Status,
    /// When the chain was created.
    pub created_at: Timestamp,
    /// When the chain was closed. `None` if it is open.
    pub closed_at: Option<Timestamp>,
    /// The key that the chain was created with.
    pub key: Option<&'a str>,
    /// Whether no stored job waits or waited for the chain.
    pub is_top_level: bool,
}

impl ChainFilter {
    /// Whether a chain matches.
    #[must_use]
    pub fn passes(&self, chain: ChainFacts<'_>) -> bool {
        any_or(&self.types, chain.chain_type)
            && any_or(&self.statuses, &chain.status)
            && within(chain.created_at, self.created_from, self.created_to)
            && closed_within(chain.closed_at, self.closed_from, self.closed_to)
            && self.key.as_ref().is_none_or(|key| chain.key == Some(key.as_str()))
            && (chain.is_top_level || !self.top_level)
    }
}

impl ListChains {
    /// Checks the filter and the page against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a limit is exceeded.
    pub fn check(&self) -> Result<()> {
        check_items("types", self.filter.types.len())?;
        check_items("statuses", self.filter.statuses.len())?;
        self.page.check()
    }
}

/// The reply to [`ListChains`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListChainsReply {
    /// The chains of this page.
    pub chains: Vec<ChainRecord>,
    /// The cursor for the next page. `None` on the last page.
    pub next: Option<Cursor>,
}

/// Request to list jobs. See [`Store::list_jobs`](crate::Store::list_jobs).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListJobs {
    /// The filter that listed jobs match.
    pub filter: JobFilter,
    /// The page to return.
    pub page: Page,
}

/// A filter for jobs. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Jobs of these types.
    pub types: Vec<TypeName>,
    /// Jobs with one of these statuses.
    pub statuses: Vec<Status>,
    /// Jobs in chains of these types.
    pub chain_types: Vec<TypeName>,
    /// Jobs of this chain.
    pub chain: Option<ChainId>,
    /// Jobs created at this time or later.
    pub created_from: Option<Timestamp>,
    /// Jobs created at this time or earlier.
    pub created_to: Option<Timestamp>,
    /// Jobs closed at this time or later. Open jobs do not match.
    pub closed_from: Option<Timestamp>,
    /// Jobs closed at this time or earlier. Open jobs do not match.
    pub closed_to: Option<Timestamp>,
}

/// What a [`JobFilter`] compares.
#[derive(Clone, Copy, Debug)]
pub struct JobFacts<'a> {
    /// The type of the job.
    pub job_type: &'a TypeName,
    /// The status of the job.
    pub status: Status,
    /// The type of the job's chain.
    pub chain_type: &'a TypeName,
    /// When the job was created.
    pub created_at: Timestamp,
    /// When the job was closed. `None` if it is open.
    pub closed_at: Option<Timestamp>,
}

impl JobFilter {
    /// Whether a job matches, apart from its chain's id.
    #[must_use]
    pub fn passes(&self, job: JobFacts<'_>) -> bool {
        any_or(&self.types, job.job_type)
            && any_or(&self.statuses, &job.status)
            && any_or(&self.chain_types, job.chain_type)
            && within(job.created_at, self.created_from, self.created_to)
            && closed_within(job.closed_at, self.closed_from, self.closed_to)
    }
}

impl ListJobs {
    /// Checks the filter and the page against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a limit is exceeded.
    pub fn check(&self) -> Result<()> {
        check_items("types", self.filter.types.len().max(self.filter.chain_types.len()))?;
        check_items("statuses", self.filter.statuses.len())?;
        self.page.check()
    }
}

/// The reply to [`ListJobs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListJobsReply {
    /// The jobs of this page.
    pub jobs: Vec<JobRecord>,
    /// The cursor for the next page. `None` on the last page.
    pub next: Option<Cursor>,
}

/// Request to list the jobs that wait or waited for a chain. See
/// [`Store::list_dependents`](crate::Store::list_dependents).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListDependents {
    /// The blocker chain.
    pub chain: ChainId,
    /// The page to return.
    pub page: Page,
}

/// The reply to [`ListDependents`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListDependentsReply {
    /// The jobs of this page.
    pub jobs: Vec<JobRecord>,
    /// The cursor for the next page. `None` on the last page.
    pub next: Option<Cursor>,
}

/// Request for the attempts of a job. See [`Store::list_attempts`](crate::Store::list_attempts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAttempts {
    /// The job.
    pub job: JobId,
}

/// The reply to [`ListAttempts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListAttemptsReply {
    /// The latest attempts, oldest first. Empty if the job is not stored.
    pub attempts: Vec<AttemptRecord>,
}

/// Request to count jobs. See [`Store::count`](crate::Store::count).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The job types to count.
    pub types: Types,
}

/// The reply to [`Count`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountReply {
    /// One entry for each requested type that has jobs or is paused, sorted by name.
    pub types: Vec<TypeCount>,
    /// Whether the counts of closed jobs are estimates.
    pub closed_estimated: bool,
}

/// The number of jobs of one type by status, and related figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeCount {
    /// The job type.
    pub job_type: TypeName,
    /// Jobs that wait for blockers.
    pub blocked: u64,
    /// Jobs that wait for their due time or for a worker.
    pub pending: u64,
    /// Running jobs.
    pub running: u64,
    /// Completed jobs.
    pub completed: u64,
    /// Failed jobs.
    pub failed: u64,
    /// Cancelled jobs.
    pub cancelled: u64,
    /// How many jobs have ever ended. Unlike the counts above, these numbers include removed jobs and only grow.
    pub ended: EndedJobs,
    /// The due time of the pending job that has been due the longest. `None` if no job is due.
    pub oldest_ready: Option<Timestamp>,
    /// Running jobs whose lease has expired.
    pub expired_leases: u64,
    /// Whether the type is paused.
    pub paused: bool,
}

/// The number of jobs of one type that have ever ended, by outcome.
///
/// Each number only grows, until the store is erased. A job that is retried counts again when it ends again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedJobs {
    /// Jobs that completed.
    pub completed: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
}

impl EndedJobs {
    /// Returns the sums of both numbers, by outcome.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            completed: self.completed.saturating_add(other.completed),
            failed: self.failed.saturating_add(other.failed),
            cancelled: self.cancelled.saturating_add(other.cancelled),
        }
    }

    /// Returns the increase since an earlier count, by outcome.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(earlier.completed),
            failed: self.failed.saturating_sub(earlier.failed),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
        }
    }
}

fn any_or<T: PartialEq>(wanted: &[T], value: &T) -> bool {
    wanted.is_empty() || wanted.contains(value)
}

fn closed_within(at: Option<Timestamp>, from: Option<Timestamp>, to: Option<Timestamp>) -> bool {
    at.map_or(from.is_none() && to.is_none(), |at| within(at, from, to))
}

fn within(at: Timestamp, from: Option<Timestamp>, to: Option<Timestamp>) -> bool {
    from.is_none_or(|from| at >= from) && to.is_none_or(|to| at <= to)
}
