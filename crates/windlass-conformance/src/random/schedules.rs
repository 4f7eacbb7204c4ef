//! Random commands for schedules.

use windlass_core::command::{
    ChangeSchedules, Command, DueSchedules, GetSchedules, ListSchedules, PutSchedule, Reply, ScheduleAction,
    ScheduleChange, ScheduleRecord, ScheduleTarget,
};
use windlass_core::model::Model;
use windlass_core::{Occurrence, RequestId, ScheduleId, ScheduleName, Timestamp};

use super::generator::{Generator, remember};
use crate::subject::millis;

/// Few names, so that commands meet.
const NAMES: [&str; 4] = ["a", "a b", "B", "\u{e4}"];

/// Returns a query for every schedule that the generator uses.
pub(super) fn all_schedules() -> GetSchedules {
    let target = |name| ScheduleTarget::Name(ScheduleName::new(name).expect("a valid name"));
    GetSchedules { schedules: NAMES.map(target).to_vec() }
}

impl Generator {
    pub(super) fn schedules(&mut self, model: &mut Model, now: Timestamp) -> Command {
        match self.rng().u32(..10) {
            0 => DueSchedules { skip: self.rng().u32(..3), max: self.rng().u32(1..4) }.into(),
            1 => {
                let after = self.rng().bool().then(|| self.schedule_name());
                ListSchedules { after, max: self.rng().u32(1..4) }.into()
            }
            2 => {
                let by_id = stored(model, now).into_iter().flatten().map(|row| ScheduleTarget::Id(row.id));
                let mut schedules = all_schedules().schedules;
                schedules.extend(by_id);
                GetSchedules { schedules }.into()
            }
            _ => {
                let rows = stored(model, now);
                let count = self.rng().usize(1..4);
                let changes = (0..count).map(|_| self.schedule_change(&rows, now)).collect();
                ChangeSchedules { changes }.into()
            }
        }
    }

    fn schedule_name(&mut self) -> ScheduleName {
        let name = self.rng().choice(NAMES).unwrap_or("a");
        ScheduleName::new(name).expect("a valid name")
    }

    /// Usually a change that applies; sometimes one that was generated before, or one for another revision or schedule.
    fn schedule_change(&mut self, rows: &[Option<ScheduleRecord>], now: Timestamp) -> ScheduleChange {
        if let Some(change) = self.changes.back().cloned().filter(|_| self.rng().u32(..8) == 0) {
            return change;
        }
        let name = self.schedule_name();
        let stored = rows.iter().flatten().find(|row| row.name == name).cloned();
        let id = stored.as_ref().map(|row| row.id).filter(|_| self.rng().u32(..12) > 0);
        let id = id.unwrap_or_else(|| ScheduleId::from_uuid(self.parts.uuid()));
        let expected = stored.as_ref().map(|row| row.revision).filter(|_| self.rng().u32(..12) > 0);
        let in_future = self.rng().u32(..8) == 0;
        let not_before = if in_future { Some(now + millis(self.rng().u64(1..50))) } else { Some(now) };
        let is_late = self.rng().u32(..8) == 0;
        let not_after = self.rng().bool().then(|| if is_late { before(now) } else { now });
        let action = if self.rng().u32(..6) == 0 {
            ScheduleAction::Delete
        } else {
            ScheduleAction::Put(self.put_schedule(id, stored.and_then(|row| row.handled), now))
        };
        let revision = RequestId::from_uuid(self.parts.uuid());
        let change = ScheduleChange { name, id, expected, revision, not_before, not_after, action };
        remember(&mut self.changes, change.clone());
        change
    }

    fn put_schedule(&mut self, id: ScheduleId, handled: Option<Timestamp>, now: Timestamp) -> PutSchedule {
        let known = self.known_chains();
        let chain = self.rng().bool().then(|| {
            let mut chain = self.parts.chain(&known, &[]);
            chain.job.blockers.clear();
            if self.rng().bool() {
                chain.id = Occurrence { schedule: id, at: now, is_manual: false }.chain();
            }
            chain
        });
        let number = self.rng().u32(..);
        let moves = self.rng().u32(..12) > 0;
        PutSchedule {
            due_at: self.rng().bool().then(|| now + millis(self.rng().u64(..1_000))),
            handled: if moves { handled.max(self.rng().bool().then_some(now)) } else { None },
            definition: self.rng().bool().then(|| format!("definition {number}").into()),
            state: format!("state {number}").into(),
            chain,
            state_if_not_created: format!("not created {number}").into(),
        }
    }
}

fn before(time: Timestamp) -> Timestamp {
    Timestamp::from_millis(time.as_millis() - 1).unwrap_or_default()
}

fn stored(model: &mut Model, now: Timestamp) -> Vec<Option<ScheduleRecord>> {
    match model.apply(now, &all_schedules().into()) {
        Ok((Reply::GetSchedules(reply), _)) => reply.schedules,
        _ => Vec::new(),
    }
}
