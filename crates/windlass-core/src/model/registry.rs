use std::sync::Arc;

use super::Execution;
use super::row::{LockRow, Row, RowKey};
use crate::command::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkersReply, LockAction, LockState, Retire,
    RetireReply, WorkerInfo, check_items,
};
use crate::error::Result;

/// The maximum number of expired workers or leader locks that one command removes.
const CLEARED_MAX: usize = 10;

impl Execution<'_> {
    pub(super) fn beat(&mut self, request: &Beat) -> Result<BeatReply> {
        check_items("types", request.types.len())?;
        let gone = self.tables.worker_ends.iter().take_while(|(at, _)| *at <= self.now).take(CLEARED_MAX);
        for worker in gone.map(|(_, worker)| *worker).collect::<Vec<_>>() {
            self.tables.set(RowKey::Worker(worker), None);
        }
        let started_at = self.tables.worker(request.worker).map_or(self.now, |known| known.started_at);
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
        self.tables.set(RowKey::Worker(request.worker), Some(Row::Worker(Arc::new(row))));
        Ok(BeatReply { now: self.now })
    }

    pub(super) fn retire(&mut self, request: Retire) -> RetireReply {
        let was_known = self.tables.worker(request.worker).is_some_and(|known| known.expires_at > self.now);
        if self.tables.worker(request.worker).is_some() {
            self.tables.set(RowKey::Worker(request.worker), None);
        }
        RetireReply { was_known }
    }

    pub(super) fn list_workers(&self) -> ListWorkersReply {
        let living = self.tables.workers().filter(|worker| worker.expires_at > self.now);
        ListWorkersReply { workers: living.map(|worker| WorkerInfo::clone(worker)).collect() }
    }

    pub(super) fn leader_lock(&mut self, request: &LeaderLock) -> LeaderLockReply {
        let ended = self.tables.lock_ends.iter().take_while(|(at, _)| *at <= self.now).take(CLEARED_MAX);
        for name in ended.map(|(_, name)| name.clone()).collect::<Vec<_>>() {
            self.tables.set(RowKey::Lock(name), None);
        }
        let held = self.tables.lock(&request.name).filter(|row| row.until > self.now);
        if let Some(other) = held.filter(|row| row.token != request.token) {
            return LeaderLockReply { state: LockState::HeldByAnother(other.until) };
        }
        let key = RowKey::Lock(request.name.clone());
        let state = match request.action {
            LockAction::Hold(ttl) => {
                let until = self.now + ttl;
                self.tables.set(key, Some(Row::Lock(LockRow { token: request.token, until })));
                LockState::Held(until)
            }
            LockAction::Release => {
                if held.is_some() {
                    self.tables.set(key, None);
                }
                LockState::Free
            }
        };
        LeaderLockReply { state }
    }
}
