use std::sync::Arc;

use super::create::Aliases;
use super::row::{Row, RowKey};
use super::{Execution, Rows};
use crate::command::{
    ChangeSchedules, ChangeSchedulesReply, Created, DueSchedules, DueSchedulesReply, GetSchedules,
    GetSchedulesReply, ListSchedules, ListSchedulesReply, PutSchedule, ScheduleAction, ScheduleChange,
    ScheduleChanged, ScheduleRecord, ScheduleTarget,
};
use crate::error::Result;

impl<R: Rows> Execution<'_, R> {
    pub(super) fn change_schedules(&mut self, request: &ChangeSchedules) -> Result<ChangeSchedulesReply> {
        request.check()?;
        let changes =
            request.changes.iter().map(|change| self.change_schedule(change)).collect::<Result<_>>()?;
        Ok(ChangeSchedulesReply { now: self.now, changes })
    }

    fn change_schedule(&mut self, change: &ScheduleChange) -> Result<ScheduleChanged> {
        let stored = self.rows.schedule(&change.name)?;
        match (&stored, change.expected) {
            (Some(row), _) if row.revision == change.revision => return Ok(ScheduleChanged::Repeated),
            (None, _) if change.action == ScheduleAction::Delete => {
                return Ok(ScheduleChanged::Repeated);
            }
            (Some(row), Some(expected)) if row.id == change.id && row.revision == expected => {}
            (None, None) if self.rows.schedule_by_id(change.id)?.is_none() => {}
            _ => return Ok(ScheduleChanged::Conflict),
        }
        if change.not_before.is_some_and(|at| self.now < at) {
            return Ok(ScheduleChanged::NotDue);
        }
        if change.not_after.is_some_and(|at| self.now > at) {
            return Ok(ScheduleChanged::TooLate);
        }
        match &change.action {
            ScheduleAction::Put(put) => self.put_schedule(change, put, stored.as_deref()),
            ScheduleAction::Delete => {
                self.rows.set(RowKey::Schedule(change.name.clone()), None)?;
                Ok(ScheduleChanged::Applied { created: None })
            }
        }
    }

    fn put_schedule(
        &mut self,
        change: &ScheduleChange,
        put: &PutSchedule,
        stored: Option<&ScheduleRecord>,
    ) -> Result<ScheduleChanged> {
        if stored.is_some_and(|row| put.handled < row.handled) {
            return Ok(ScheduleChanged::Conflict);
        }
        let created = match &put.chain {
            Some(chain) => Some(self.create_chain(chain, &mut Aliases::new())?),
            None => None,
        };
        let is_created = matches!(created, None | Some(Created::New { .. }));
        let definition = match (&put.definition, stored) {
            (Some(definition), _) => Arc::clone(definition),
            (None, Some(row)) => Arc::clone(&row.definition),
            (None, None) => Arc::default(),
        };
        let row = ScheduleRecord {
            name: change.name.clone(),
            id: change.id,
            revision: change.revision,
            due_at: put.due_at,
            handled: put.handled,
            definition,
            state: Arc::clone(if is_created { &put.state } else { &put.state_if_not_created }),
        };
        self.rows.set(RowKey::Schedule(change.name.clone()), Some(Row::Schedule(Arc::new(row))))?;
        Ok(ScheduleChanged::Applied { created })
    }

    pub(super) fn get_schedules(&mut self, request: &GetSchedules) -> Result<GetSchedulesReply> {
        request.check()?;
        let get = |target: &ScheduleTarget| {
            let row = match target {
                ScheduleTarget::Name(name) => self.rows.schedule(name)?,
                ScheduleTarget::Id(id) => self.rows.schedule_by_id(*id)?,
            };
            Ok(row.map(Arc::unwrap_or_clone))
        };
        let schedules = request.schedules.iter().map(get).collect::<Result<_>>()?;
        Ok(GetSchedulesReply { now: self.now, schedules })
    }

    pub(super) fn list_schedules(&mut self, request: &ListSchedules) -> Result<ListSchedulesReply> {
        request.check()?;
        let rows = self.rows.schedules_after(request.after.as_ref(), request.max as usize)?;
        let schedules = rows.into_iter().map(Arc::unwrap_or_clone).collect();
        Ok(ListSchedulesReply { now: self.now, schedules })
    }

    pub(super) fn due_schedules(&mut self, request: DueSchedules) -> Result<DueSchedulesReply> {
        request.check()?;
        let (skip, max) = (request.skip as usize, request.max as usize);
        let rows = self.rows.schedules_by_due(self.now, skip, max)?;
        let next_due = self.rows.schedule_due_time(skip + rows.len())?;
        let schedules = rows.into_iter().map(Arc::unwrap_or_clone).collect();
        Ok(DueSchedulesReply { now: self.now, schedules, next_due })
    }
}
