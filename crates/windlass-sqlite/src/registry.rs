//! Rows that are neither jobs nor chains: workers, leader locks, paused types, schedules and former outcomes.

use std::sync::Arc;

use rusqlite::{Row as SqlRow, params};
use windlass_core::command::{EndedJobs, ScheduleRecord, WorkerInfo};
use windlass_core::model::{Row, RowKey, Rows as _};
use windlass_core::{
    RequestId, Result, ScheduleId, ScheduleName, Status, Timestamp, TypeName, WorkerId, WorkerName,
};

use crate::rows::{Bind, SqliteRows, all};
use crate::statement::Sql;
use crate::table::{self, Columns, EnumText as _, id, unreadable};

impl SqliteRows<'_> {
    /// Replaces a row that is neither a job nor a chain, and returns its previous value. It is written at once.
    pub(crate) fn install_registered(&mut self, key: &RowKey, after: Option<Row>) -> Result<Option<Row>> {
        match key {
            RowKey::Worker(worker) => {
                let before = self.worker(*worker)?.map(Row::Worker);
                match after {
                    Some(Row::Worker(row)) => self.put_worker(&row)?,
                    _ => self.run(Sql::DeleteWorker, [Bind(id(worker.as_uuid()))])?,
                }
                Ok(before)
            }
            RowKey::Lock(name) => {
                let before = self.lock(name)?.map(Row::Lock);
                match after {
                    Some(Row::Lock(row)) => {
                        let values =
                            params![name.as_str(), Bind(id(row.token.as_uuid())), row.until.as_millis()];
                        self.run(Sql::PutLock, values)?;
                    }
                    _ => self.run(Sql::DeleteLock, [name.as_str()])?,
                }
                Ok(before)
            }
            RowKey::Paused(name) => {
                let before = self.is_paused(name)?.then_some(Row::Paused);
                self.run(if after.is_some() { Sql::Pause } else { Sql::Resume }, [name.as_str()])?;
                Ok(before)
            }
            RowKey::Schedule(name) => {
                let before = self.schedule(name)?.map(Row::Schedule);
                match after {
                    Some(Row::Schedule(row)) => self.put_schedule(&row)?,
                    _ => self.run(Sql::DeleteSchedule, [name.as_str()])?,
                }
                Ok(before)
            }
            RowKey::Former(name) => {
                let before = self.former(name)?;
                let after = match after {
                    Some(Row::Former(row)) => row,
                    _ => EndedJobs::default(),
                };
                self.put_former(name, before, after)?;
                Ok(Some(Row::Former(before)))
            }
            // Jobs and chains are cached: see `install`.
            RowKey::Job(_) | RowKey::Chain(_) => Ok(None),
        }
    }

    pub(crate) fn get_former(&mut self, job_type: &TypeName) -> Result<EndedJobs> {
        let read = |row: &SqlRow<'_>| {
            let mut columns = Columns { row, next: 0 };
            Ok((columns.value::<Status>()?, columns.number()?))
        };
        let mut former = EndedJobs::default();
        for (status, jobs) in all(self.prepared.get(Sql::GetFormer)?, [job_type.as_str()], read)? {
            if let Some(number) = of_outcome(&mut former, status) {
                *number = jobs;
            }
        }
        Ok(former)
    }

    fn put_former(&mut self, job_type: &TypeName, mut before: EndedJobs, mut after: EndedJobs) -> Result<()> {
        for status in [Status::Completed, Status::Failed, Status::Cancelled] {
            let (before, after) = (of_outcome(&mut before, status), of_outcome(&mut after, status));
            if let Some(number) = after.filter(|number| before.as_ref() != Some(number)) {
                self.run(Sql::PutFormer, params![job_type.as_str(), status.enum_text(), *number])?;
            }
        }
        Ok(())
    }

    fn put_worker(&mut self, row: &WorkerInfo) -> Result<()> {
        let types: Vec<_> = row.types.iter().map(TypeName::as_str).collect();
        let types = serde_json::to_string(&types).unwrap_or_default();
        let values = params![
            Bind(id(row.worker.as_uuid())),
            row.name.as_ref().map(WorkerName::as_str),
            types,
            row.concurrency,
            row.running,
            row.started_at.as_millis(),
            row.seen_at.as_millis(),
            row.expires_at.as_millis(),
        ];
        self.run(Sql::PutWorker, values)
    }

    fn put_schedule(&mut self, row: &ScheduleRecord) -> Result<()> {
        let values = params![
            row.name.as_str(),
            Bind(id(row.id.as_uuid())),
            Bind(id(row.revision.as_uuid())),
            row.due_at.map(Timestamp::as_millis),
            row.handled.map(Timestamp::as_millis),
            &*row.definition,
            &*row.state,
        ];
        self.run(Sql::PutSchedule, values)
    }
}

/// Reads `name, id, revision, due_at, handled, definition, state`.
pub(crate) fn read_schedule(row: &SqlRow<'_>) -> Result<Arc<ScheduleRecord>> {
    let mut columns = Columns { row, next: 0 };
    Ok(Arc::new(ScheduleRecord {
        name: columns.name(ScheduleName::new)?,
        id: ScheduleId::from_uuid(columns.id()?),
        revision: RequestId::from_uuid(columns.id()?),
        due_at: columns.maybe_time()?,
        handled: columns.maybe_time()?,
        definition: columns.text()?.into(),
        state: columns.text()?.into(),
    }))
}

/// Reads `id, name, types, concurrency, running, started_at, seen_at, expires_at`.
pub(crate) fn read_worker(row: &SqlRow<'_>) -> Result<WorkerInfo> {
    let mut columns = Columns { row, next: 0 };
    let (worker, name) = (WorkerId::from_uuid(columns.id()?), columns.maybe_name(WorkerName::new)?);
    let types: Vec<String> = serde_json::from_str(columns.text()?)
        .map_err(|error| table::corrupt(format_args!("the types of a worker cannot be decoded: {error}")))?;
    let types: Result<_, _> = types.into_iter().map(TypeName::new).collect();
    Ok(WorkerInfo {
        worker,
        name,
        types: types.map_err(unreadable)?,
        concurrency: columns.number()?,
        running: columns.number()?,
        started_at: columns.time()?,
        seen_at: columns.time()?,
        expires_at: columns.time()?,
    })
}

/// Returns the number of jobs that ended with a status. `None` if a job with this status has not ended.
pub(crate) const fn of_outcome(ended: &mut EndedJobs, status: Status) -> Option<&mut u64> {
    match status {
        Status::Completed => Some(&mut ended.completed),
        Status::Failed => Some(&mut ended.failed),
        Status::Cancelled => Some(&mut ended.cancelled),
        Status::Blocked | Status::Pending | Status::Running => None,
    }
}
