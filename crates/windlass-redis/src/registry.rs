//! Workers and leader locks.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkersReply, LockAction, LockState, Retire,
    RetireReply, WorkerInfo,
};
use windlass_core::{Millis, Result, Timestamp, TypeName, WorkerId, WorkerName};

use crate::manage::check_items;
use crate::store::RedisStore;
use crate::wire::{Payloads, Read};

#[derive(Debug, Serialize)]
struct BeatOut<'a> {
    now: Option<i64>,
    worker: String,
    name: Option<&'a str>,
    types: Vec<&'a str>,
    concurrency: u32,
    running: u32,
    ttl: u64,
}

#[derive(Debug, Deserialize)]
struct BeatIn {
    now: Read<Timestamp>,
}

#[derive(Debug, Serialize)]
struct RetireOut {
    now: Option<i64>,
    worker: String,
}

#[derive(Debug, Deserialize)]
struct RetireIn {
    was_known: bool,
}

#[derive(Debug, Serialize)]
struct ListWorkersOut {
    now: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct ListWorkersIn {
    workers: Vec<WorkerIn>,
}

#[derive(Debug, Deserialize)]
struct WorkerIn {
    worker: Read<WorkerId>,
    name: Option<Read<WorkerName>>,
    types: Vec<Read<TypeName>>,
    concurrency: u32,
    running: u32,
    started: Read<Timestamp>,
    seen: Read<Timestamp>,
    gone: Read<Timestamp>,
}

impl From<WorkerIn> for WorkerInfo {
    fn from(worker: WorkerIn) -> Self {
        Self {
            worker: worker.worker.0,
            name: worker.name.map(|name| name.0),
            types: worker.types.into_iter().map(|job_type| job_type.0).collect(),
            concurrency: worker.concurrency,
            running: worker.running,
            started_at: worker.started.0,
            seen_at: worker.seen.0,
            gone_at: worker.gone.0,
        }
    }
}

#[derive(Debug, Serialize)]
struct LeaderLockOut<'a> {
    now: Option<i64>,
    name: &'a str,
    token: String,
    /// How long to hold the lock, in milliseconds. `None` releases it.
    hold: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct LeaderLockIn {
    state: LockStateIn,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LockStateIn {
    Held(Read<Timestamp>),
    HeldByAnother(Read<Timestamp>),
    Free,
}

impl From<LockStateIn> for LockState {
    fn from(state: LockStateIn) -> Self {
        match state {
            LockStateIn::Held(until) => Self::Held(until.0),
            LockStateIn::HeldByAnother(until) => Self::HeldByAnother(until.0),
            LockStateIn::Free => Self::Free,
        }
    }
}

impl RedisStore {
    pub(crate) async fn run_beat(&self, request: Beat) -> Result<BeatReply> {
        check_items("types", request.types.len())?;
        let out = BeatOut {
            now: self.time(),
            worker: request.worker.to_string(),
            name: request.name.as_ref().map(WorkerName::as_str),
            types: request.types.iter().map(TypeName::as_str).collect(),
            concurrency: request.concurrency,
            running: request.running,
            ttl: request.ttl.get(),
        };
        let reply: BeatIn = self.write(&self.scripts().beat, &out, Payloads::default()).await?;
        Ok(BeatReply { now: reply.now.0 })
    }

    pub(crate) async fn run_retire(&self, request: Retire) -> Result<RetireReply> {
        let out = RetireOut { now: self.time(), worker: request.worker.to_string() };
        let reply: RetireIn = self.write(&self.scripts().retire, &out, Payloads::default()).await?;
        Ok(RetireReply { was_known: reply.was_known })
    }

    pub(crate) async fn run_list_workers(&self) -> Result<ListWorkersReply> {
        let out = ListWorkersOut { now: self.time() };
        let reply: ListWorkersIn = self.read(&self.scripts().list_workers, &out, Payloads::default()).await?;
        Ok(ListWorkersReply { workers: reply.workers.into_iter().map(WorkerInfo::from).collect() })
    }

    pub(crate) async fn run_leader_lock(&self, request: LeaderLock) -> Result<LeaderLockReply> {
        let hold = match request.action {
            LockAction::Hold(hold) => Some(hold),
            LockAction::Release => None,
        };
        let out = LeaderLockOut {
            now: self.time(),
            name: request.name.as_str(),
            token: request.token.to_string(),
            hold: hold.map(Millis::get),
        };
        let reply: LeaderLockIn = self.write(&self.scripts().leader_lock, &out, Payloads::default()).await?;
        Ok(LeaderLockReply { state: reply.state.into() })
    }
}
