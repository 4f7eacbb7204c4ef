//! Lists of chains, jobs, dependents and attempts; counts.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Count, CountReply, Cursor, EndedJobs, ListAttempts, ListAttemptsReply, ListChains, ListChainsReply,
    ListDependents, ListDependentsReply, ListJobs, ListJobsReply, Order, Page, TypeCount,
};
use windlass_core::{
    AttemptEnd, AttemptRecord, Error, ErrorKind, ErrorText, Fence, Key, Result, Status, Timestamp, TypeName,
    WorkerId, WorkerName,
};

use crate::error::corrupt;
use crate::row::{ChainIn, JobIn};
use crate::store::{Execute, RedisStore};
use crate::wire::{Payloads, Read, type_names};

#[derive(Debug, Serialize)]
struct PageOut {
    newest: bool,
    /// Sequence number of the last row of the previous page.
    after: Option<u64>,
    max: u32,
}

impl PageOut {
    fn new(page: &Page) -> Result<Self> {
        page.check()?;
        let not_ours = |_| {
            let text = "the cursor is not from this store: start from the first page";
            Error::new(ErrorKind::Invalid, text)
        };
        let after = page.after.as_ref().map(|Cursor(text)| text.parse().map_err(not_ours)).transpose()?;
        Ok(Self { newest: page.order == Order::Newest, after, max: page.max })
    }
}

#[derive(Debug, Serialize)]
struct ListChainsOut<'a> {
    now: Option<i64>,
    page: PageOut,
    types: Vec<&'a str>,
    statuses: Vec<String>,
    top_level: bool,
    created_from: Option<i64>,
    created_to: Option<i64>,
    closed_from: Option<i64>,
    closed_to: Option<i64>,
    key: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ListJobsOut<'a> {
    now: Option<i64>,
    page: PageOut,
    types: Vec<&'a str>,
    statuses: Vec<String>,
    chain_types: Vec<&'a str>,
    chain: Option<String>,
    created_from: Option<i64>,
    created_to: Option<i64>,
    closed_from: Option<i64>,
    closed_to: Option<i64>,
}

#[derive(Debug, Serialize)]
struct ListDependentsOut {
    now: Option<i64>,
    page: PageOut,
    chain: String,
}

#[derive(Debug, Deserialize)]
struct RowsIn<T> {
    rows: Vec<T>,
    next: Option<u64>,
}

impl<T> RowsIn<T> {
    fn next(&self) -> Option<Cursor> {
        self.next.map(|next| Cursor(next.to_string()))
    }
}

#[derive(Debug, Serialize)]
struct ListAttemptsOut {
    now: Option<i64>,
    job: String,
}

#[derive(Debug, Deserialize)]
struct ListAttemptsIn {
    attempts: Vec<AttemptIn>,
}

#[derive(Debug, Deserialize)]
struct AttemptIn {
    attempt: u32,
    fence: u64,
    worker: Read<WorkerId>,
    worker_name: Option<Read<WorkerName>>,
    started: Read<Timestamp>,
    ended: Option<Read<Timestamp>>,
    ended_as: Read<AttemptEnd>,
    error: Option<Read<ErrorText>>,
}

impl From<AttemptIn> for AttemptRecord {
    fn from(attempt: AttemptIn) -> Self {
        Self {
            attempt: attempt.attempt,
            fence: Fence(attempt.fence),
            worker: attempt.worker.0,
            worker_name: attempt.worker_name.map(|name| name.0),
            started_at: attempt.started.0,
            ended_at: attempt.ended.map(|ended| ended.0),
            end: attempt.ended_as.0,
            error: attempt.error.map(|error| error.0),
        }
    }
}

#[derive(Debug, Serialize)]
struct CountOut<'a> {
    now: Option<i64>,
    types: Option<Vec<&'a str>>,
}

#[derive(Debug, Deserialize)]
struct CountIn {
    types: Vec<TypeCountIn>,
}

#[derive(Debug, Deserialize)]
struct TypeCountIn {
    #[serde(rename = "type")]
    job_type: Read<TypeName>,
    #[serde(default)]
    blocked: u64,
    #[serde(default)]
    pending: u64,
    #[serde(default)]
    running: u64,
    #[serde(default)]
    completed: u64,
    #[serde(default)]
    failed: u64,
    #[serde(default)]
    cancelled: u64,
    #[serde(default)]
    former_completed: u64,
    #[serde(default)]
    former_failed: u64,
    #[serde(default)]
    former_cancelled: u64,
    oldest_ready: Option<Read<Timestamp>>,
    expired_leases: u64,
    paused: bool,
}

impl From<TypeCountIn> for TypeCount {
    fn from(count: TypeCountIn) -> Self {
        let TypeCountIn { completed, failed, cancelled, .. } = count;
        let former = EndedJobs {
            completed: count.former_completed,
            failed: count.former_failed,
            cancelled: count.former_cancelled,
        };
        Self {
            job_type: count.job_type.0,
            blocked: count.blocked,
            pending: count.pending,
            running: count.running,
            completed,
            failed,
            cancelled,
            ended: EndedJobs { completed, failed, cancelled }.and(former),
            oldest_ready: count.oldest_ready.map(|ready| ready.0),
            expired_leases: count.expired_leases,
            paused: count.paused,
        }
    }
}

impl Execute for ListChains {
    async fn execute(self, store: &RedisStore) -> Result<ListChainsReply> {
        self.check()?;
        let filter = &self.filter;
        let out = ListChainsOut {
            now: store.time(),
            page: PageOut::new(&self.page)?,
            types: names(&filter.types),
            statuses: words(&filter.statuses),
            top_level: filter.top_level,
            created_from: filter.created_from.map(Timestamp::as_millis),
            created_to: filter.created_to.map(Timestamp::as_millis),
            closed_from: filter.closed_from.map(Timestamp::as_millis),
            closed_to: filter.closed_to.map(Timestamp::as_millis),
            key: filter.key.as_ref().map(Key::as_str),
        };
        let reply: RowsIn<ChainIn> =
            store.read(&store.scripts().list_chains, &out, Payloads::default()).await?;
        let next = reply.next();
        let chains = reply.rows.into_iter().map(ChainIn::into_chain);
        Ok(ListChainsReply { chains: chains.collect::<Result<_, _>>().map_err(corrupt)?, next })
    }
}

impl Execute for ListJobs {
    async fn execute(self, store: &RedisStore) -> Result<ListJobsReply> {
        self.check()?;
        let filter = &self.filter;
        let out = ListJobsOut {
            now: store.time(),
            page: PageOut::new(&self.page)?,
            types: names(&filter.types),
            statuses: words(&filter.statuses),
            chain_types: names(&filter.chain_types),
            chain: filter.chain.map(|chain| chain.to_string()),
            created_from: filter.created_from.map(Timestamp::as_millis),
            created_to: filter.created_to.map(Timestamp::as_millis),
            closed_from: filter.closed_from.map(Timestamp::as_millis),
            closed_to: filter.closed_to.map(Timestamp::as_millis),
        };
        let reply: RowsIn<JobIn> = store.read(&store.scripts().list_jobs, &out, Payloads::default()).await?;
        let next = reply.next();
        let jobs = reply.rows.into_iter().map(JobIn::into_job);
        Ok(ListJobsReply { jobs: jobs.collect::<Result<_, _>>().map_err(corrupt)?, next })
    }
}

impl Execute for ListDependents {
    async fn execute(self, store: &RedisStore) -> Result<ListDependentsReply> {
        let page = PageOut::new(&self.page)?;
        let out = ListDependentsOut { now: store.time(), page, chain: self.chain.to_string() };
        let reply: RowsIn<JobIn> =
            store.read(&store.scripts().list_dependents, &out, Payloads::default()).await?;
        let next = reply.next();
        let jobs = reply.rows.into_iter().map(JobIn::into_job);
        Ok(ListDependentsReply { jobs: jobs.collect::<Result<_, _>>().map_err(corrupt)?, next })
    }
}

impl Execute for ListAttempts {
    async fn execute(self, store: &RedisStore) -> Result<ListAttemptsReply> {
        let out = ListAttemptsOut { now: store.time(), job: self.job.to_string() };
        let reply: ListAttemptsIn =
            store.read(&store.scripts().list_attempts, &out, Payloads::default()).await?;
        Ok(ListAttemptsReply { attempts: reply.attempts.into_iter().map(AttemptRecord::from).collect() })
    }
}

impl Execute for Count {
    async fn execute(self, store: &RedisStore) -> Result<CountReply> {
        self.types.check()?;
        let out = CountOut { now: store.time(), types: type_names(&self.types) };
        let reply: CountIn = store.read(&store.scripts().count, &out, Payloads::default()).await?;
        let types = reply.types.into_iter().map(TypeCount::from).collect();
        Ok(CountReply { types, closed_estimated: false })
    }
}

fn names(types: &[TypeName]) -> Vec<&str> {
    types.iter().map(TypeName::as_str).collect()
}

fn words(statuses: &[Status]) -> Vec<String> {
    statuses.iter().map(ToString::to_string).collect()
}
