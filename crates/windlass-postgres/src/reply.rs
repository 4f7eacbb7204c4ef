//! Conversion of reply rows into the store's types.

use std::fmt;
use std::vec::IntoIter;

use bytes::Bytes;
use uuid::Uuid;
use windlass_core::command::{
    Acquire, Acquired, Applied, BlockerOutput, ClosedChain, Created, Existing, JobSummary, Lost, Ripple,
    Unblocked,
};
use windlass_core::{
    Blocker, ChainId, ChainKey, ChainRecord, Closed, ClosedAs, Codec, Error, ErrorKind, ErrorText, Fence,
    JobId, JobRecord, Key, Lease, Millis, Payload, Refusal, RequestId, Result, Retention, Status, Timestamp,
    TraceContext, TypeName, Version, WorkerId, WorkerName,
};

use crate::enum_text::EnumText;
use crate::provider::{JobColumns, Row};

/// A row read value by value, in the order in which the statement returns them.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) part: String,
    pub(crate) item: Option<i32>,
    ids: IntoIter<Option<Uuid>>,
    texts: IntoIter<Option<String>>,
    numbers: IntoIter<Option<i64>>,
    bytes: IntoIter<Option<Bytes>>,
    job: Option<Box<JobColumns>>,
}

impl From<Row> for Values {
    fn from(row: Row) -> Self {
        Self {
            part: row.part,
            item: row.item,
            ids: row.ids.into_iter(),
            texts: row.texts.into_iter(),
            numbers: row.numbers.into_iter(),
            bytes: row.bytes.into_iter(),
            job: row.job,
        }
    }
}

impl Values {
    /// Index of the item that the row belongs to.
    pub(crate) fn item_index(&self) -> Result<usize> {
        let item = self.item.and_then(|item| usize::try_from(item).ok()).filter(|item| *item > 0);
        item.map(|item| item - 1).ok_or_else(|| corrupt("a reply row has no item number"))
    }

    pub(crate) fn maybe_id(&mut self) -> Option<Uuid> {
        self.ids.next().flatten()
    }

    pub(crate) fn id(&mut self) -> Result<Uuid> {
        self.maybe_id().ok_or_else(|| corrupt("a reply row lacks an id"))
    }

    pub(crate) fn job_id(&mut self) -> Result<JobId> {
        self.id().map(JobId::from_uuid)
    }

    pub(crate) fn chain_id(&mut self) -> Result<ChainId> {
        self.id().map(ChainId::from_uuid)
    }

    pub(crate) fn worker_id(&mut self) -> Result<WorkerId> {
        self.id().map(WorkerId::from_uuid)
    }

    pub(crate) fn worker_name(&mut self) -> Result<Option<WorkerName>> {
        self.maybe_text().map(WorkerName::new).transpose().map_err(unreadable)
    }

    pub(crate) fn maybe_text(&mut self) -> Option<String> {
        self.texts.next().flatten()
    }

    /// Whether a text is left.
    pub(crate) fn has_text(&self) -> bool {
        self.texts.len() > 0
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        self.maybe_text().ok_or_else(|| corrupt("a reply row lacks a text"))
    }

    pub(crate) fn type_name(&mut self) -> Result<TypeName> {
        TypeName::new(self.text()?).map_err(unreadable)
    }

    pub(crate) fn maybe_enum<T: EnumText>(&mut self) -> Result<Option<T>> {
        self.maybe_text().map(|text| enum_value(&text)).transpose()
    }

    pub(crate) fn enum_value<T: EnumText>(&mut self) -> Result<T> {
        self.maybe_enum()?.ok_or_else(|| corrupt("a reply row lacks an enum value"))
    }

    pub(crate) fn error(&mut self) -> Option<ErrorText> {
        self.maybe_text().map(ErrorText::new)
    }

    pub(crate) fn trace(&mut self) -> Result<Option<TraceContext>> {
        trace(self.maybe_text())
    }

    pub(crate) fn maybe_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        self.numbers.next().flatten().map(number).transpose()
    }

    pub(crate) fn number<T: TryFrom<i64>>(&mut self) -> Result<T> {
        self.maybe_number()?.ok_or_else(|| corrupt("a reply row lacks a number"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        Ok(self.number::<i64>()? != 0)
    }

    pub(crate) fn maybe_time(&mut self) -> Result<Option<Timestamp>> {
        self.numbers.next().flatten().map(time).transpose()
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        self.maybe_time()?.ok_or_else(|| corrupt("a reply row lacks a time"))
    }

    fn maybe_span(&mut self) -> Result<Option<Millis>> {
        self.maybe_number()?.map(Millis::new).transpose().map_err(unreadable)
    }

    fn span(&mut self) -> Result<Millis> {
        self.maybe_span()?.ok_or_else(|| corrupt("a reply row lacks a duration"))
    }

    /// Reads the bytes of a payload. Its codec has been read before.
    fn payload(&mut self, codec: Option<String>) -> Result<Option<Payload>> {
        let (Some(codec), Some(bytes)) = (codec, self.bytes.next().flatten()) else { return Ok(None) };
        Codec::new(codec).and_then(|codec| Payload::new(codec, bytes)).map(Some).map_err(unreadable)
    }

    /// Reads a job's ids, status and due time.
    pub(crate) fn summary(&mut self) -> Result<JobSummary> {
        Ok(JobSummary {
            job: self.job_id()?,
            chain: self.chain_id()?,
            status: self.enum_value()?,
            due_at: self.time()?,
        })
    }

    /// Reads the result of a settlement, without the chains it created.
    pub(crate) fn applied(&mut self) -> Result<Applied> {
        let job = self.summary()?;
        let next = match self.maybe_id().map(JobId::from_uuid) {
            None => None,
            Some(next) => Some(JobSummary {
                job: next,
                chain: job.chain,
                status: self.enum_value()?,
                due_at: self.time()?,
            }),
        };
        Ok(Applied { job, next, created: Vec::new() })
    }

    /// Reads why an attempt no longer holds its job.
    pub(crate) fn lost(&mut self) -> Result<Lost> {
        let text = self.text()?;
        Ok(match (text.as_str(), Status::from_text(&text).map(Status::closed_as)) {
            ("not_found", _) => Lost::NotFound,
            ("running", _) => Lost::TakenOver,
            (_, Some(Some(closed_as))) => Lost::Closed(closed_as),
            (_, Some(None)) => Lost::Requeued,
            _ => return Err(corrupt(&format!("a reply row contains the unknown value {text:?}"))),
        })
    }

    /// Reads a refusal. `invalid` is the reason if the item breaks a limit, which is found without the store.
    pub(crate) fn refusal(&mut self, invalid: Option<Refusal>) -> Result<Refusal> {
        let text = self.text()?;
        Ok(match text.as_str() {
            "invalid" => invalid.ok_or_else(|| corrupt("a refusal has no reason"))?,
            "id_taken" => Refusal::IdTaken,
            "cancel_requested" => Refusal::CancelRequested,
            "too_many_chains" => Refusal::TooManyChains,
            "blocker_not_found" => Refusal::BlockerNotFound(self.chain_id()?),
            "blocker_failed" => Refusal::BlockerFailed(self.chain_id()?),
            "waits_for_itself" => Refusal::WaitsForItself(self.chain_id()?),
            "key_taken" => Refusal::KeyTaken(self.chain_id()?),
            "changed" => Refusal::Changed(self.chain_id()?),
            "needed" => Refusal::Needed { chain: self.chain_id()?, by: self.job_id()? },
            _ => return Err(corrupt(&format!("a refusal has the unknown reason {text:?}"))),
        })
    }

    pub(crate) fn created(&mut self) -> Result<Created> {
        let text = self.text()?;
        Ok(match text.as_str() {
            "new" => Created::New { job: self.summary()?, repeated: self.flag()? },
            "existing" => Created::Existing(self.existing()?),
            "busy" => Created::Busy,
            _ => Created::Refused(self.refusal(None)?),
        })
    }

    /// Reads the due times of `jobs` jobs. If all are due at the same time, the row contains it once.
    pub(crate) fn due_times(&mut self, jobs: usize) -> Result<Vec<Timestamp>> {
        if self.numbers.len() == 1 {
            return Ok(vec![self.time()?; jobs]);
        }
        (0..jobs).map(|_| self.time()).collect()
    }

    /// Reads the first jobs of chains that were stored as a set: chain ids and due times.
    pub(crate) fn stored(&mut self) -> Result<Vec<JobSummary>> {
        let summary = |values: &mut Self| {
            let chain = values.chain_id()?;
            let due_at = values.time()?;
            Ok(JobSummary { job: chain.first_job(), chain, status: Status::Pending, due_at })
        };
        (0..self.ids.len()).map(|_| summary(self)).collect()
    }

    /// Reads jobs that were completed as a set, and their chains. The row holds all values of one column, then those of
    /// the next.
    pub(crate) fn completed(&mut self) -> Result<Vec<(JobSummary, ClosedChain)>> {
        let count = self.ids.len() / 2;
        let mut all = Vec::with_capacity(count);
        let jobs = (0..count).map(|_| self.job_id()).collect::<Result<Vec<_>>>()?;
        let chain_types = (0..count).map(|_| self.type_name()).collect::<Result<Vec<_>>>()?;
        let job_types = (0..count).map(|_| self.type_name()).collect::<Result<Vec<_>>>()?;
        let due = (0..count).map(|_| self.time()).collect::<Result<Vec<_>>>()?;
        for (((job, chain_type), job_type), due_at) in
            jobs.into_iter().zip(chain_types).zip(job_types).zip(due)
        {
            let (chain, trace, created_at) = (self.chain_id()?, self.trace()?, self.time()?);
            let closed_as = ClosedAs::Completed;
            let closed =
                ClosedChain { chain, chain_type, job, job_type, closed_as, error: None, created_at, trace };
            all.push((JobSummary { job, chain, status: Status::Completed, due_at }, closed));
        }
        Ok(all)
    }

    fn existing(&mut self) -> Result<Existing> {
        let (chain, status, job_type, codec) =
            (self.chain_id()?, self.enum_value()?, self.type_name()?, self.maybe_text());
        let (error, trace) = (self.error(), self.trace()?);
        Ok(Existing { chain, status, job_type, output: self.payload(codec)?, error, trace })
    }

    fn unblocked(&mut self) -> Result<Unblocked> {
        let (job, job_type, chain_type) = (self.summary()?, self.type_name()?, self.type_name()?);
        let traces = self.texts.by_ref().map(trace).collect::<Result<_>>()?;
        Ok(Unblocked { job, job_type, chain_type, traces })
    }

    fn closed(&mut self) -> Result<ClosedChain> {
        Ok(ClosedChain {
            chain: self.chain_id()?,
            job: self.job_id()?,
            chain_type: self.type_name()?,
            job_type: self.type_name()?,
            closed_as: self.enum_value::<ClosedAs>()?,
            error: self.error(),
            trace: self.trace()?,
            created_at: self.time()?,
        })
    }

    pub(crate) fn output(&mut self) -> Result<BlockerOutput> {
        let chain = self.chain_id()?;
        let (chain_type, job_type, status) = (self.type_name()?, self.type_name()?, self.enum_value()?);
        let (codec, error) = (self.maybe_text(), self.error());
        Ok(BlockerOutput { chain, chain_type, job_type, status, output: self.payload(codec)?, error })
    }

    /// Returns the job of the row.
    pub(crate) fn job(&mut self) -> Result<JobRecord> {
        job(*self.job_columns()?)
    }

    fn job_columns(&mut self) -> Result<Box<JobColumns>> {
        self.job.take().ok_or_else(|| corrupt("a reply row lacks a job"))
    }

    /// Returns when a job that was created as running was started.
    pub(crate) fn started_at(&self) -> Result<Timestamp> {
        let started_at = self.job.as_ref().and_then(|columns| columns.started_at);
        started_at.map(time).transpose()?.ok_or_else(|| corrupt("a reply row lacks the start of a job"))
    }

    /// Returns a job that this request acquired, without its blockers and their outputs, and its place in the order of
    /// creation. The row contains null for what the request determines, unless the request was repeated.
    pub(crate) fn acquired(&mut self, request: &Acquire, now: Timestamp) -> Result<(Acquired, i64)> {
        let mut columns = self.job_columns()?;
        let seq = columns.seq;
        columns.worker.get_or_insert(*request.worker.as_uuid());
        columns.request.get_or_insert(*request.request.as_uuid());
        columns.started_at.get_or_insert(now.as_millis());
        if columns.worker_name.is_none() {
            columns.worker_name = request.worker_name.as_ref().map(ToString::to_string);
        }
        if columns.lease_until.is_none() {
            let quota = request.types.iter().find(|quota| quota.job_type.as_str() == columns.job_type);
            let quota = quota.ok_or_else(|| corrupt("an acquired job has another type than requested"))?;
            columns.lease_until = Some((now + quota.lease).as_millis());
        }
        let acquired = Acquired {
            key: columns.key.take().map(Key::new).transpose().map_err(unreadable)?,
            chain_trace: trace(columns.chain_trace.take())?,
            chain_created_at: time(columns.chain_created_at.unwrap_or(columns.created_at))?,
            retention: Retention {
                completed: millis(columns.keep_completed)?,
                failed: millis(columns.keep_failed)?,
                cancelled: millis(columns.keep_cancelled)?,
            },
            job: job(*columns)?,
            blockers: Vec::new(),
        };
        Ok((acquired, seq))
    }

    /// Reads the blockers of a job whose id has been read before.
    pub(crate) fn blockers(&mut self) -> Result<Vec<Blocker>> {
        let blocker = |values: &mut Self| {
            Ok(Blocker { chain: values.chain_id()?, resolved: values.flag()?, trace: values.trace()? })
        };
        (0..self.ids.len()).map(|_| blocker(self)).collect()
    }

    /// Reads a chain without its jobs, in the order of `chain_reply_v1`.
    pub(crate) fn chain(&mut self) -> Result<ChainFacts> {
        let (id, latest, chain_type) = (self.chain_id()?, self.job_id()?, self.type_name()?);
        let (key, hold) = (self.maybe_text(), self.maybe_enum()?);
        let (closed_as, trace) = (self.maybe_enum::<ClosedAs>()?, self.trace()?);
        let created_at = self.time()?;
        let retention = Retention { completed: self.span()?, failed: self.span()?, cancelled: self.span()? };
        let (closed_at, retain_until) = (self.maybe_time()?, self.maybe_time()?);
        let (window, held) = (self.maybe_span()?, self.flag()?);
        let closed = closed_at.zip(closed_as).zip(retain_until);
        let key = key.map(Key::new).transpose().map_err(unreadable)?;
        Ok(ChainFacts {
            id,
            latest,
            chain_type,
            key: key.zip(hold).map(|(key, hold)| ChainKey { key, hold, window, held }),
            retention,
            created_at,
            closed: closed.map(|((at, closed_as), retain_until)| Closed { at, closed_as, retain_until }),
            trace,
        })
    }
}

fn job(columns: JobColumns) -> Result<JobRecord> {
    let status = columns.status.map_or(Ok(Status::Running), |status| enum_value(&status))?;
    let lease = columns.worker.zip(columns.request).zip(columns.lease_until);
    let lease = match lease.filter(|_| status == Status::Running) {
        None => None,
        Some(((worker, request), until)) => Some(Lease {
            worker: WorkerId::from_uuid(worker),
            worker_name: columns.worker_name.map(WorkerName::new).transpose().map_err(unreadable)?,
            request: RequestId::from_uuid(request),
            until: time(until)?,
        }),
    };
    let blockers = columns.blockers.unwrap_or_default().into_iter();
    let resolved = columns.blockers_resolved.unwrap_or_default();
    let traces = columns.blocker_traces.unwrap_or_default();
    let blocker = |((chain, resolved), text)| {
        Ok(Blocker { chain: ChainId::from_uuid(chain), resolved, trace: trace(text)? })
    };
    let output = match columns.output_codec.zip(columns.output) {
        None => None,
        Some((codec, bytes)) => Some(payload(codec, bytes)?),
    };
    let job_type = TypeName::new(columns.job_type).map_err(unreadable)?;
    let chain_type = columns.chain_type.map(TypeName::new).transpose().map_err(unreadable)?;
    let on_blocker_failure = columns.on_blocker_failure.map(|text| enum_value(&text)).transpose()?;
    Ok(JobRecord {
        id: JobId::from_uuid(columns.id),
        chain: ChainId::from_uuid(columns.chain.unwrap_or(columns.id)),
        index: number(columns.position)?,
        chain_type: chain_type.unwrap_or_else(|| job_type.clone()),
        job_type,
        status,
        input: match columns.input_codec {
            Some(codec) => payload(codec, columns.input)?,
            None => Payload::new(Codec::json(), columns.input).map_err(unreadable)?,
        },
        output,
        error: columns.error.map(ErrorText::new),
        priority: number(columns.priority)?,
        due_at: time(columns.due_at)?,
        attempt: number(columns.attempt)?,
        max_attempts: columns.max_attempts.map(number).transpose()?,
        fence: Fence(number(columns.fence)?),
        version: Version(number(columns.version)?),
        lease,
        cancel_requested: columns.cancel_requested,
        on_blocker_failure: on_blocker_failure.unwrap_or_default(),
        created_at: time(columns.created_at)?,
        started_at: columns.started_at.map(time).transpose()?,
        closed_at: columns.closed_at.map(time).transpose()?,
        closed_by: columns.closed_by.map(WorkerId::from_uuid),
        trace: trace(columns.trace)?,
        blockers: blockers.zip(resolved).zip(traces).map(blocker).collect::<Result<_>>()?,
    })
}

fn payload(codec: String, bytes: Vec<u8>) -> Result<Payload> {
    Codec::new(codec).and_then(|codec| Payload::new(codec, bytes)).map_err(unreadable)
}

fn time(millis: i64) -> Result<Timestamp> {
    Timestamp::from_millis(millis).map_err(unreadable)
}

fn millis(span: i64) -> Result<Millis> {
    Millis::new(number(span)?).map_err(unreadable)
}

fn trace(text: Option<String>) -> Result<Option<TraceContext>> {
    text.map(TraceContext::new).transpose().map_err(unreadable)
}

fn number<N: Copy + fmt::Display, T: TryFrom<N>>(number: N) -> Result<T> {
    T::try_from(number)
        .map_err(|_| corrupt(&format!("a reply row contains the number {number}, which is out of range")))
}

fn enum_value<T: EnumText>(text: &str) -> Result<T> {
    T::from_text(text).ok_or_else(|| corrupt(&format!("a reply row contains the unknown value {text:?}")))
}

/// A chain without its jobs.
#[derive(Debug)]
pub(crate) struct ChainFacts {
    id: ChainId,
    latest: JobId,
    chain_type: TypeName,
    pub(crate) key: Option<ChainKey>,
    pub(crate) retention: Retention,
    pub(crate) created_at: Timestamp,
    closed: Option<Closed>,
    pub(crate) trace: Option<TraceContext>,
}

impl ChainFacts {
    /// Adds the first and the latest job, found in `jobs`.
    pub(crate) fn with_jobs(self, jobs: &[JobRecord]) -> Result<ChainRecord> {
        let job = |id: JobId| jobs.iter().find(|job| job.id == id).cloned();
        let latest = job(self.latest).ok_or_else(|| corrupt("the latest job of a chain is missing"))?;
        Ok(ChainRecord {
            id: self.id,
            chain_type: self.chain_type,
            key: self.key,
            retention: self.retention,
            created_at: self.created_at,
            closed: self.closed,
            trace: self.trace,
            first: job(self.id.first_job()).unwrap_or_else(|| latest.clone()),
            latest,
        })
    }
}

/// Adds a row about a side effect of a command to `ripple`.
pub(crate) fn ripple(ripple: &mut Ripple, values: &mut Values) -> Result<()> {
    match values.part.as_str() {
        "unblocked" => ripple.unblocked.push(values.unblocked()?),
        "closed" => ripple.closed.push(values.closed()?),
        "deferred" => ripple.deferred = true,
        part => return Err(corrupt(&format!("a reply has the unknown part {part:?}"))),
    }
    Ok(())
}

/// Returns the results in order. Fails if an item has none.
pub(crate) fn in_order<T>(results: Vec<Option<T>>) -> Result<Vec<T>> {
    results.into_iter().map(|result| result.ok_or_else(|| corrupt("a reply lacks an item"))).collect()
}

/// Stores the result of an item. Fails if the item was not sent or already has a result.
pub(crate) fn put<T>(results: &mut [Option<T>], index: usize, result: T) -> Result<()> {
    let slot = results.get_mut(index).ok_or_else(|| corrupt("a reply contains an item that was not sent"))?;
    match slot.replace(result) {
        None => Ok(()),
        Some(_) => Err(corrupt("a reply contains an item twice")),
    }
}

/// Returns an error of kind `Corrupt`, for a row that this crate never writes.
pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the PostgreSQL store is inconsistent: {what}: inspect its tables before you continue"),
    )
}

#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes it by value")]
pub(crate) fn unreadable(refusal: Refusal) -> Error {
    corrupt(&format!("a stored value is invalid: {refusal}"))
}
