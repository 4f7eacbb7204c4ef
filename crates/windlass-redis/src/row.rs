//! Stored jobs and chains. Scripts return rows as they are stored; they are unpacked here.
//!
//! `lua/lib/layout.lua` describes a row. Its constants are packed here as well, and scripts store them unchanged.

use rmp_serde::Deserializer;
use rmp_serde::decode::ReadRefReader;
use serde::Deserialize;
use serde_bytes::ByteBuf;
use windlass_core::command::{Acquired, ClosedChain, JobSummary, NewChain, NewJob};
use windlass_core::{
    Blocker, ChainId, ChainKey, ChainRecord, Closed, ClosedAs, Codec, ErrorText, Fence, JobId, JobRecord,
    Key, KeyHold, Lease, Millis, OnBlockerFailure, Payload, RequestId, Retention, Status, Timestamp,
    TraceContext, TypeName, Version, WorkerId, WorkerName,
};

use crate::wire::{FromScript, Read};

/// Length of the text of an id.
const ID_LENGTH: usize = 36;

/// Number of digits of a job's number in the order of creation.
const SEQ_DIGITS: usize = 16;

const CANCEL: u8 = 1;
const BY_WORKER: u8 = 2;
const HELD: u8 = 4;
const HAS_ERROR: u8 = 32;

/// A job in a script's reply.
#[derive(Debug, Deserialize)]
pub(crate) struct JobIn {
    id: Read<JobId>,
    row: ByteBuf,
    /// `None` if the row contains it.
    input: Option<ByteBuf>,
    /// `None` if the row contains it, or if there is none.
    output: Option<ByteBuf>,
    /// Chains that the job still waits for.
    open: Option<Vec<Read<ChainId>>>,
}

/// A chain in a script's reply.
#[derive(Debug, Deserialize)]
pub(crate) struct ChainIn {
    first: JobIn,
    /// `None` while the first job is the latest.
    latest: Option<JobIn>,
}

/// An acquired job in a script's reply.
#[derive(Debug, Deserialize)]
pub(crate) struct TakenIn {
    job: JobIn,
    /// The row of the chain's first job, if this is another job.
    first: Option<ByteBuf>,
}

/// An unpacked row.
#[derive(Debug)]
pub(crate) struct Row {
    status: Status,
    flags: u8,
    priority: i8,
    attempt: u32,
    version: u32,
    fence: u64,
    due: Timestamp,
    lease_until: Option<Timestamp>,
    started: Option<Timestamp>,
    closed: Option<Timestamp>,
    retain_until: Option<Timestamp>,
    worker: Option<WorkerId>,
    request: Option<RequestId>,
    created: Timestamp,
    keep_completed: Option<Millis>,
    worker_name: Option<WorkerName>,
    job_type: TypeName,
    error: Option<ErrorText>,
    extra: Extra,
    constants: Constants,
}

/// The columns that a plain row lacks.
#[derive(Debug, Default)]
struct Extra {
    blockers: Vec<BlockerIn>,
    /// `None` for a first job, whose id is also the chain's id.
    chain: Option<ChainId>,
    index: u32,
    /// `None` for a first job, whose type is also the chain's type.
    chain_type: Option<TypeName>,
    /// The chain's end, if the row is the first of several.
    has_more_jobs: bool,
    chain_closed: Option<Timestamp>,
    closed_as: Option<ClosedAs>,
}

/// The columns of a job that are known when it is created and never change. In the row of a first job, also those of its
/// chain.
#[derive(Debug)]
struct Constants {
    max_attempts: Option<u32>,
    on_failure: OnBlockerFailure,
    trace: Option<TraceContext>,
    key: Option<Key>,
    hold: Option<KeyHold>,
    window: Option<Millis>,
    keep_failed: Option<Millis>,
    keep_cancelled: Option<Millis>,
    chain_trace: Option<TraceContext>,
}

#[derive(Debug, Deserialize)]
struct BlockerIn {
    chain: Read<ChainId>,
    trace: Option<Read<TraceContext>>,
}

/// Packs the constants of a new job, and of its chain if it is the first.
pub(crate) fn constants(job: &NewJob, chain: Option<&NewChain>) -> Vec<u8> {
    let on_failure = match job.on_blocker_failure {
        OnBlockerFailure::Wait => None,
        OnBlockerFailure::Fail => Some("fail"),
        OnBlockerFailure::Receive => Some("receive"),
    };
    let trace = |trace: &Option<TraceContext>| trace.as_ref().map(|trace| trace.as_str().to_owned());
    let key = chain.and_then(|chain| chain.key.as_ref());
    let columns = (
        job.max_attempts,
        on_failure,
        trace(&job.trace),
        key.map(|key| key.key.as_str()),
        key.map(|key| hold(key.hold)),
        key.and_then(|key| key.window).map(Millis::get),
        chain.map(|chain| chain.retention.failed.get()),
        chain.map(|chain| chain.retention.cancelled.get()),
        chain.and_then(|chain| trace(&chain.trace)),
    );
    let mut packed = rmp_serde::to_vec(&columns).expect("these values can be packed into memory");
    // Without the header of the list.
    packed.remove(0);
    packed
}

/// The name of a key policy in scripts.
pub(crate) const fn hold(hold: KeyHold) -> &'static str {
    match hold {
        KeyHold::Open => "open",
        KeyHold::Completed => "completed",
        KeyHold::CompletedOrFailed => "completed_or_failed",
        KeyHold::Any => "any",
    }
}

/// Reads the parts of a row one after the other.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (part, rest) = self.0.split_at_checked(count).ok_or("a row is too short")?;
        self.0 = rest;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (part, rest) = self.0.split_first_chunk().ok_or("a row is too short")?;
        self.0 = rest;
        Ok(*part)
    }

    fn length(&mut self) -> Result<usize, String> {
        Ok(u16::from_le_bytes(self.array()?).into())
    }

    fn text(&mut self, count: usize) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes(count)?).map_err(|error| error.to_string())
    }

    /// A number, or `None` for -1.
    fn number(&mut self) -> Result<Option<u64>, String> {
        Ok(u64::try_from(i64::from_le_bytes(self.array()?)).ok())
    }

    fn time(&mut self) -> Result<Option<Timestamp>, String> {
        let millis = i64::from_le_bytes(self.array()?);
        (millis >= 0).then(|| Timestamp::from_millis(millis)).transpose().map_err(|error| error.to_string())
    }

    /// An id, or `None` for zero bytes.
    fn id<T: FromScript<Raw = String>>(&mut self) -> Result<Option<T>, String> {
        let text = self.text(ID_LENGTH)?;
        if text.starts_with('\0') { Ok(None) } else { T::from_script(text.to_owned()).map(Some) }
    }
}

/// Input and output in a row. They are empty if they have their own keys, or if there is no output.
struct InlinePayloads<'a> {
    input: &'a [u8],
    output: &'a [u8],
}

impl<'a> InlinePayloads<'a> {
    /// Splits the payloads from the end of a row. Returns also the rest, without their lengths.
    fn split(packed: &'a [u8]) -> Result<(Self, &'a [u8]), String> {
        let mut parts = Parts(packed);
        let (input_length, output_length) = (parts.length()?, parts.length()?);
        let Parts(rest) = parts;
        let input_at = rest.len().checked_sub(input_length + output_length).ok_or("a row is too short")?;
        let (rest, payloads) = rest.split_at(input_at);
        let (input, output) = payloads.split_at(input_length);
        Ok((Self { input, output }, rest))
    }

    /// Returns the input, which is in the row or separate.
    fn input(&self, apart: Option<&[u8]>) -> Result<Payload, String> {
        match (self.input, apart) {
            ([], Some(apart)) => payload(apart),
            ([], None) => Err("a job has no input".to_owned()),
            (input, _) => payload(input),
        }
    }

    /// Returns the output, which is in the row or separate.
    fn output(&self, apart: Option<&[u8]>) -> Result<Option<Payload>, String> {
        match self.output {
            [] => apart.map(payload).transpose(),
            output => payload(output).map(Some),
        }
    }
}

impl Row {
    pub(crate) fn unpack(packed: &[u8]) -> Result<Self, String> {
        Self::unpack_rest(InlinePayloads::split(packed)?.1)
    }

    /// Reads what remains without the payloads and their lengths.
    fn unpack_rest(rest: &[u8]) -> Result<Self, String> {
        let mut parts = Parts(rest);
        let [status, flags, _ended_as, priority, name_length, type_length] = parts.array()?;
        let error_length = parts.length()?;
        let extra_length = u32::from_le_bytes(parts.array()?);
        let attempt = u32::from_le_bytes(parts.array()?);
        let version = u32::from_le_bytes(parts.array()?);
        let fence = parts.number()?.unwrap_or_default();
        let due = parts.time()?.ok_or("a row has no due time")?;
        let (lease_until, started) = (parts.time()?, parts.time()?);
        let (closed, retain_until) = (parts.time()?, parts.time()?);
        let (worker, request) = (parts.id()?, parts.id()?);
        parts.bytes(SEQ_DIGITS)?;
        let created = parts.time()?.ok_or("a row has no creation time")?;
        let keep_completed = parts.number()?.map(Millis::from_script).transpose()?;
        let worker_name = parts.text(name_length.into())?;
        let worker_name = (!worker_name.is_empty()).then(|| WorkerName::from_script(worker_name.to_owned()));
        let job_type = TypeName::from_script(parts.text(type_length.into())?.to_owned())?;
        let error = parts.bytes(error_length)?;
        let error = (flags & HAS_ERROR != 0).then(|| ErrorText::new(String::from_utf8_lossy(error)));
        let extra = parts.bytes(usize::try_from(extra_length).map_err(|error| error.to_string())?)?;
        Ok(Self {
            status: unpack_status(status)?,
            flags,
            priority: i8::from_le_bytes([priority]),
            attempt,
            version,
            fence,
            due,
            lease_until,
            started,
            closed,
            retain_until,
            worker,
            request,
            created,
            keep_completed,
            worker_name: worker_name.transpose()?,
            job_type,
            error,
            extra: Extra::unpack(extra)?,
            constants: Constants::unpack(parts.0)?,
        })
    }

    /// How long the chain is kept, in the row of its first job.
    fn retention(&self) -> Result<Retention, String> {
        match (self.keep_completed, self.constants.keep_failed, self.constants.keep_cancelled) {
            (Some(completed), Some(failed), Some(cancelled)) => {
                Ok(Retention { completed, failed, cancelled })
            }
            _ => Err("a chain's first job has no retention".to_owned()),
        }
    }

    /// A plain row that a settlement has closed, as its reply contains it.
    pub(crate) fn into_closed(self, job: JobId) -> (JobSummary, ClosedChain) {
        let chain = ChainId::from_uuid(*job.as_uuid());
        let summary = JobSummary { job, chain, status: self.status, due_at: self.due };
        let closed = ClosedChain {
            chain,
            chain_type: self.job_type.clone(),
            job,
            job_type: self.job_type,
            closed_as: ClosedAs::Completed,
            error: self.error,
            created_at: self.created,
            trace: self.constants.chain_trace,
        };
        (summary, closed)
    }

    /// Converts to a record. Also returns the row, without the parts that the record has taken.
    fn into_record(
        mut self,
        id: JobId,
        input: Payload,
        output: Option<Payload>,
        open: &[Read<ChainId>],
    ) -> Result<(JobRecord, Self), String> {
        let lease = match (self.status, self.worker, self.request, self.lease_until) {
            (Status::Running, Some(worker), Some(request), Some(until)) => {
                Some(Lease { worker, worker_name: self.worker_name.take(), request, until })
            }
            (Status::Running, ..) => return Err(format!("job {id} runs without a lease")),
            _ => None,
        };
        let blockers = std::mem::take(&mut self.extra.blockers).into_iter().map(|blocker| Blocker {
            chain: blocker.chain.0,
            resolved: !open.iter().any(|open| open.0 == blocker.chain.0),
            trace: blocker.trace.map(|trace| trace.0),
        });
        let record = JobRecord {
            id,
            chain: self.extra.chain.unwrap_or_else(|| ChainId::from_uuid(*id.as_uuid())),
            index: self.extra.index,
            job_type: self.job_type.clone(),
            chain_type: self.extra.chain_type.as_ref().unwrap_or(&self.job_type).clone(),
            status: self.status,
            input,
            output,
            error: self.error.take(),
            priority: self.priority,
            due_at: self.due,
            attempt: self.attempt,
            max_attempts: self.constants.max_attempts,
            fence: Fence(self.fence),
            version: Version(self.version.into()),
            lease,
            cancel_requested: self.flags & CANCEL != 0,
            blockers: blockers.collect::<Vec<_>>().into(),
            on_blocker_failure: self.constants.on_failure,
            created_at: self.created,
            started_at: self.started,
            closed_at: self.closed,
            closed_by: self.worker.filter(|_| self.flags & BY_WORKER != 0),
            trace: self.constants.trace.take(),
        };
        Ok((record, self))
    }

    /// Reads the row of an acquired plain job. `apart` is the input, or empty if the row contains it.
    pub(crate) fn read_acquired(packed: &[u8], id: JobId, apart: &[u8]) -> Result<Acquired, String> {
        let (payloads, rest) = InlinePayloads::split(packed)?;
        let input = payloads.input(Some(apart))?;
        let (job, row) = Self::unpack_rest(rest)?.into_record(id, input, None, &[])?;
        row.acquired(job)
    }

    /// Adds the fields of the chain, which are in its first job's row, to an acquired job. The blockers' outputs are left
    /// empty.
    fn acquired(self, job: JobRecord) -> Result<Acquired, String> {
        Ok(Acquired {
            job,
            retention: self.retention()?,
            key: self.constants.key,
            chain_trace: self.constants.chain_trace,
            chain_created_at: self.created,
            blockers: Vec::new(),
        })
    }

    /// The chain's end, in the row of its first job.
    fn chain_end(&self) -> (Option<Timestamp>, Option<ClosedAs>) {
        match self.extra.has_more_jobs {
            true => (self.extra.chain_closed, self.extra.closed_as),
            false => (self.closed, self.status.closed_as()),
        }
    }
}

fn unpack_status(number: u8) -> Result<Status, String> {
    match number {
        1 => Ok(Status::Blocked),
        2 => Ok(Status::Pending),
        3 => Ok(Status::Running),
        4 => Ok(Status::Completed),
        5 => Ok(Status::Failed),
        6 => Ok(Status::Cancelled),
        _ => Err(format!("unknown status {number}")),
    }
}

/// Reads packed values one after the other.
struct Columns<'a>(Deserializer<ReadRefReader<'a, [u8]>>);

impl<'a> Columns<'a> {
    fn new(packed: &'a [u8]) -> Self {
        Self(Deserializer::from_read_ref(packed))
    }

    fn next<T: Deserialize<'a>>(&mut self) -> Result<T, String> {
        T::deserialize(&mut self.0).map_err(|error| error.to_string())
    }

    fn read<T: FromScript>(&mut self) -> Result<Option<T>, String> {
        Ok(self.next::<Option<Read<T>>>()?.map(|read| read.0))
    }
}

impl Extra {
    fn unpack(packed: &[u8]) -> Result<Self, String> {
        if packed.is_empty() {
            return Ok(Self::default());
        }
        let mut columns = Columns::new(packed);
        let (_waits, _outside): (u32, Option<String>) = (columns.next()?, columns.next()?);
        let blockers: Option<ByteBuf> = columns.next()?;
        let (chain, index, chain_type) = (columns.read()?, columns.next()?, columns.read()?);
        let latest: Option<String> = columns.next()?;
        let (_latest_index, _needed): (Option<u32>, Option<u64>) = (columns.next()?, columns.next()?);
        let (chain_closed, closed_as) = (columns.read()?, columns.read()?);
        let blockers = blockers.map(|packed| rmp_serde::from_slice(&packed)).transpose();
        Ok(Self {
            blockers: blockers.map_err(|error| error.to_string())?.unwrap_or_default(),
            chain,
            index,
            chain_type,
            has_more_jobs: latest.is_some(),
            chain_closed,
            closed_as,
        })
    }
}

impl Constants {
    fn unpack(packed: &[u8]) -> Result<Self, String> {
        let mut columns = Columns::new(packed);
        Ok(Self {
            max_attempts: columns.next()?,
            on_failure: columns.read()?.unwrap_or_default(),
            trace: columns.read()?,
            key: columns.read()?,
            hold: columns.read()?,
            window: columns.read()?,
            keep_failed: columns.read()?,
            keep_cancelled: columns.read()?,
            chain_trace: columns.read()?,
        })
    }
}

/// Reads a payload: the codec's name, a colon, and the bytes.
pub(crate) fn payload(raw: &[u8]) -> Result<Payload, String> {
    let mut parts = raw.splitn(2, |byte| *byte == b':');
    let (Some(codec), Some(bytes)) = (parts.next(), parts.next()) else {
        return Err("a payload has no codec".to_owned());
    };
    let codec = Codec::new(std::str::from_utf8(codec).map_err(|error| error.to_string())?);
    Payload::new(codec.map_err(|error| error.to_string())?, bytes.to_vec()).map_err(|error| error.to_string())
}

impl JobIn {
    /// Converts to a record and the row, or returns what is wrong with it.
    fn into_record(self) -> Result<(JobRecord, Row), String> {
        let (payloads, rest) = InlinePayloads::split(&self.row)?;
        let input = payloads.input(self.input.as_deref().map(|input| &**input))?;
        let output = payloads.output(self.output.as_deref().map(|output| &**output))?;
        Row::unpack_rest(rest)?.into_record(self.id.0, input, output, &self.open.unwrap_or_default())
    }

    pub(crate) fn into_job(self) -> Result<JobRecord, String> {
        Ok(self.into_record()?.0)
    }
}

impl TakenIn {
    /// Converts to an acquired job with the fields of its chain. The blockers' outputs are left empty.
    pub(crate) fn into_acquired(self) -> Result<Acquired, String> {
        let (job, own) = self.job.into_record()?;
        self.first.map_or(Ok(own), |first| Row::unpack(&first))?.acquired(job)
    }
}

impl ChainIn {
    /// A chain with one job, which has no blockers.
    pub(crate) fn plain(id: JobId, row: Vec<u8>, input: Option<Vec<u8>>, output: Option<Vec<u8>>) -> Self {
        let (input, output) = (input.map(ByteBuf::from), output.map(ByteBuf::from));
        Self { first: JobIn { id: Read(id), row: row.into(), input, output, open: None }, latest: None }
    }

    pub(crate) fn into_chain(self) -> Result<ChainRecord, String> {
        let (first, row) = self.first.into_record()?;
        let latest = self.latest.map_or_else(|| Ok(first.clone()), JobIn::into_job)?;
        let retention = row.retention()?;
        let closed = match (row.chain_end(), row.retain_until) {
            ((Some(at), Some(closed_as)), Some(retain_until)) => Some(Closed { at, closed_as, retain_until }),
            _ => None,
        };
        let key = match (row.constants.key, row.constants.hold) {
            (Some(key), Some(hold)) => {
                Some(ChainKey { key, hold, window: row.constants.window, held: row.flags & HELD != 0 })
            }
            _ => None,
        };
        Ok(ChainRecord {
            id: first.chain,
            chain_type: first.chain_type.clone(),
            key,
            retention,
            created_at: first.created_at,
            closed,
            trace: row.constants.chain_trace,
            first,
            latest,
        })
    }
}
