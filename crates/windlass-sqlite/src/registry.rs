//! The worker registry, and leader locks.

use windlass_core::command::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkers, ListWorkersReply, LockAction, LockState,
    Retire, RetireReply, WorkerInfo,
};
use windlass_core::{RequestId, Result, TypeName, WorkerId, WorkerName};

use crate::manage::check_items;
use crate::provider::Row;
use crate::row::unreadable;
use crate::session::{Execute, Session};
use crate::statement::set;

/// Maximum number of expired entries that one command removes.
const CLEARED_MAX: usize = 10;

impl Execute for Beat {
    async fn execute(&self, session: &mut Session<'_>) -> Result<BeatReply> {
        check_items("types", self.types.len())?;
        let (now, statements) = (session.now(), session.statements);
        session.run(&statements.forget_workers, vec![now.as_millis().into(), CLEARED_MAX.into()]).await?;
        let values = vec![
            self.worker.as_uuid().into(),
            self.name.as_ref().map(AsRef::<str>::as_ref).into(),
            set(&self.types.iter().map(AsRef::<str>::as_ref).collect::<Vec<_>>())?,
            self.concurrency.into(),
            self.running.into(),
            now.as_millis().into(),
            (now + self.ttl).as_millis().into(),
        ];
        session.run(&statements.beat_worker, values).await?;
        Ok(BeatReply { now })
    }
}

impl Execute for Retire {
    async fn execute(&self, session: &mut Session<'_>) -> Result<RetireReply> {
        let now = session.now();
        let values = vec![self.worker.as_uuid().into()];
        let rows = session.rows(&session.statements.retire_worker, values).await?;
        let expires_at = rows.first().map(|row| row.time("expires_at")).transpose()?;
        Ok(RetireReply { was_known: expires_at > Some(now) })
    }
}

impl Execute for ListWorkers {
    async fn execute(&self, session: &mut Session<'_>) -> Result<ListWorkersReply> {
        let values = vec![session.now().as_millis().into()];
        let rows = session.rows(&session.statements.list_workers, values).await?;
        Ok(ListWorkersReply { workers: rows.iter().map(worker).collect::<Result<_>>()? })
    }
}

impl Execute for LeaderLock {
    async fn execute(&self, session: &mut Session<'_>) -> Result<LeaderLockReply> {
        let (now, statements) = (session.now(), session.statements);
        let name = || self.name.as_ref().into();
        session.run(&statements.forget_leaders, vec![now.as_millis().into(), CLEARED_MAX.into()]).await?;
        let rows = session.rows(&statements.get_leader, vec![name()]).await?;
        let held = match rows.first() {
            Some(row) => Some((RequestId::from_uuid(row.uuid("token")?), row.time("until")?)),
            None => None,
        };
        let held = held.filter(|(_, until)| *until > now);
        if let Some((_, until)) = held.filter(|(token, _)| *token != self.token) {
            return Ok(LeaderLockReply { state: LockState::HeldByAnother(until) });
        }
        let state = match self.action {
            LockAction::Hold(ttl) => {
                let until = now + ttl;
                let values = vec![name(), self.token.as_uuid().into(), until.as_millis().into()];
                session.run(&statements.hold_leader, values).await?;
                LockState::Held(until)
            }
            LockAction::Release => {
                if held.is_some() {
                    session.run(&statements.release_leader, vec![name()]).await?;
                }
                LockState::Free
            }
        };
        Ok(LeaderLockReply { state })
    }
}

fn worker(row: &Row) -> Result<WorkerInfo> {
    let types: Vec<String> = row.json("types")?;
    let types: Result<_, _> = types.into_iter().map(TypeName::new).collect();
    Ok(WorkerInfo {
        worker: WorkerId::from_uuid(row.uuid("id")?),
        name: row.maybe_text("name")?.map(WorkerName::new).transpose().map_err(unreadable)?,
        types: types.map_err(unreadable)?,
        concurrency: row.number("concurrency")?,
        running: row.number("running")?,
        started_at: row.time("started_at")?,
        seen_at: row.time("seen_at")?,
        expires_at: row.time("expires_at")?,
    })
}
