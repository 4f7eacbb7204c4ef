use std::sync::Arc;

use super::row::{LockRow, Row, RowKey};
use super::table::Tables;
use super::{Execution, Rows};
use crate::command::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkersReply, LockAction, LockState, Retire,
    RetireReply, WorkerInfo, check_items,
};
use crate::error::Result;

/// The maximum number of expired workers or leader locks that one command removes.
const CLEARED_MAX: usize = 10;

impl<R: Rows> Execution<'_, R> {
    pub(super) fn beat(&mut self, request: &Beat) -> Result<BeatReply> {
        check_items("types", request.types.len())?;
        for worker in self.rows.expired_workers(self.now, CLEARED_MAX)? {
            self.rows.set(RowKey::Worker(worker), None)?;
        }
        let started_at = self.rows.worker(request.worker)?.map_or(self.now, |known| known.started_at);
        let row = WorkerInfo {
            worker: request.worker,
            name: request.name.clone(),
            types: request.types.clone(),
            concurrency: request.concurrency,
            running: request.running,
            started_at,
            seen_at: self.now,
            expires_at: self.now + request.ttl,
        };
        self.rows.set(RowKey::Worker(request.worker), Some(Row::Worker(Arc::new(row))))?;
        Ok(BeatReply { now: self.now })
    }

    pub(super) fn retire(&mut self, request: Retire) -> Result<RetireReply> {
        let known = self.rows.worker(request.worker)?;
        if known.is_some() {
            self.rows.set(RowKey::Worker(request.worker), None)?;
        }
        Ok(RetireReply { was_known: known.is_some_and(|known| known.expires_at > self.now) })
    }

    pub(super) fn leader_lock(&mut self, request: &LeaderLock) -> Result<LeaderLockReply> {
        for name in self.rows.expired_locks(self.now, CLEARED_MAX)? {
            self.rows.set(RowKey::Lock(name), None)?;
        }
        let held = self.rows.lock(&request.name)?.filter(|row| row.until > self.now);
        if let Some(other) = held.filter(|row| row.token != request.token) {
            return Ok(LeaderLockReply { state: LockState::HeldByAnother(other.until) });
        }
        let key = RowKey::Lock(request.name.clone());
        let state = match request.action {
            LockAction::Hold(ttl) => {
                let until = self.now + ttl;
                self.rows.set(key, Some(Row::Lock(LockRow { token: request.token, until })))?;
                LockState::Held(until)
            }
            LockAction::Release => {
                if held.is_some() {
                    self.rows.set(key, None)?;
                }
                LockState::Free
            }
        };
        Ok(LeaderLockReply { state })
    }
}

impl Execution<'_, Tables> {
    pub(super) fn list_workers(&self) -> ListWorkersReply {
        let living = self.rows.workers().filter(|worker| worker.expires_at > self.now);
        ListWorkersReply { workers: living.map(|worker| WorkerInfo::clone(worker)).collect() }
    }
}
