//! Workers and leader locks.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkers, ListWorkersReply, LockAction, LockState,
    Retire, RetireReply, WorkerInfo,
};
use windlass_core::{Millis, Result, Timestamp, TypeName, WorkerId, WorkerName};

use crate::manage::check_items;
use crate::store::{Execute, RedisStore};
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
    expires: Read<Timestamp>,
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
            expires_at: worker.expires.0,
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

impl Execute for Beat {
    async fn execute(self, store: &RedisStore) -> Result<BeatReply> {
        check_items("types", self.types.len())?;
        let out = BeatOut {
            now: store.time(),
            worker: self.worker.to_string(),
            name: self.name.as_ref().map(WorkerName::as_str),
            types: self.types.iter().map(TypeName::as_str).collect(),
            concurrency: self.concurrency,
            running: self.running,
            ttl: self.ttl.get(),
        };
        let reply: BeatIn = store.write(&store.scripts().beat, &out, Payloads::default()).await?;
        Ok(BeatReply { now: reply.now.0 })
    }
}

impl Execute for Retire {
    async fn execute(self, store: &RedisStore) -> Result<RetireReply> {
        let out = RetireOut { now: store.time(), worker: self.worker.to_string() };
        let reply: RetireIn = store.write(&store.scripts().retire, &out, Payloads::default()).await?;
        Ok(RetireReply { was_known: reply.was_known })
    }
}

impl Execute for ListWorkers {
    async fn execute(self, store: &RedisStore) -> Result<ListWorkersReply> {
        let out = ListWorkersOut { now: store.time() };
        let reply: ListWorkersIn =
            store.read(&store.scripts().list_workers, &out, Payloads::default()).await?;
        Ok(ListWorkersReply { workers: reply.workers.into_iter().map(WorkerInfo::from).collect() })
    }
}

impl Execute for LeaderLock {
    async fn execute(self, store: &RedisStore) -> Result<LeaderLockReply> {
        let hold = match self.action {
            LockAction::Hold(hold) => Some(hold),
            LockAction::Release => None,
        };
        let out = LeaderLockOut {
            now: store.time(),
            name: self.name.as_str(),
            token: self.token.to_string(),
            hold: hold.map(Millis::get),
        };
        let reply: LeaderLockIn =
            store.write(&store.scripts().leader_lock, &out, Payloads::default()).await?;
        Ok(LeaderLockReply { state: reply.state.into() })
    }
}
