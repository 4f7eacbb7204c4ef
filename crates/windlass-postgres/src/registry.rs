//! Workers and leader locks.

use windlass_core::Result;
use windlass_core::command::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkers, ListWorkersReply, LockAction, LockState,
    Retire, RetireReply, WorkerInfo,
};

use crate::manage::check_items;
use crate::provider::{Parameter, Provider, Row};
use crate::reply::{Values, corrupt};
use crate::request::{count, id, names, span};
use crate::store::{Call, Execute};

impl Execute for Beat {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<BeatReply> {
        check_items("types", self.types.len())?;
        let parameters = vec![
            call.time(),
            id(self.worker.as_uuid()),
            Parameter::Text(self.name.as_ref().map(ToString::to_string)),
            names(&self.types),
            count(self.concurrency),
            count(self.running),
            Parameter::Number(Some(span(self.ttl))),
        ];
        let mut values = only(call.run(&call.statements().beat, parameters).await?)?;
        Ok(BeatReply { now: values.time()? })
    }
}

impl Execute for Retire {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<RetireReply> {
        let parameters = vec![call.time(), id(self.worker.as_uuid())];
        let mut values = only(call.run(&call.statements().retire, parameters).await?)?;
        Ok(RetireReply { was_known: values.flag()? })
    }
}

impl Execute for ListWorkers {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ListWorkersReply> {
        let rows = call.run(&call.statements().list_workers, vec![call.time()]).await?;
        let worker = |row: Row| {
            let mut values = Values::from(row);
            let worker = values.worker_id()?;
            let name = values.worker_name()?;
            let mut types = Vec::new();
            while values.has_text() {
                types.push(values.type_name()?);
            }
            Ok(WorkerInfo {
                worker,
                name,
                types,
                concurrency: values.number()?,
                running: values.number()?,
                started_at: values.time()?,
                seen_at: values.time()?,
                expires_at: values.time()?,
            })
        };
        Ok(ListWorkersReply { workers: rows.into_iter().map(worker).collect::<Result<_>>()? })
    }
}

impl Execute for LeaderLock {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<LeaderLockReply> {
        let ttl = match self.action {
            LockAction::Hold(ttl) => Some(span(ttl)),
            LockAction::Release => None,
        };
        let parameters = vec![
            call.time(),
            Parameter::Text(Some(self.name.to_string())),
            id(self.token.as_uuid()),
            Parameter::Number(ttl),
        ];
        let mut values = only(call.run(&call.statements().leader_lock, parameters).await?)?;
        let state = match values.text()?.as_str() {
            "free" => LockState::Free,
            "held" => LockState::Held(values.time()?),
            _ => LockState::HeldByAnother(values.time()?),
        };
        Ok(LeaderLockReply { state })
    }
}

fn only(rows: Vec<Row>) -> Result<Values> {
    rows.into_iter().next().map(Values::from).ok_or_else(|| corrupt("no reply"))
}
