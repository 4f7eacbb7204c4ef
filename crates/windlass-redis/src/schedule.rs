//! Schedules.

use serde::{Deserialize, Serialize};
use windlass_core::command::{
    ChangeSchedules, ChangeSchedulesReply, DueSchedules, DueSchedulesReply, GetSchedules, GetSchedulesReply,
    ListSchedules, ListSchedulesReply, ScheduleAction, ScheduleChange, ScheduleChanged, ScheduleRecord,
    ScheduleTarget,
};
use windlass_core::{RequestId, Result, ScheduleId, ScheduleName, Timestamp};

use crate::store::{Execute, RedisStore};
use crate::wire::{CreatedIn, Found, NewChainOut, Payloads, Read};

#[derive(Debug, Serialize)]
struct ChangesOut<'a> {
    now: Option<i64>,
    changes: Vec<ChangeOut<'a>>,
}

#[derive(Debug, Default, Serialize)]
struct ChangeOut<'a> {
    name: &'a str,
    id: String,
    expected: Option<String>,
    revision: String,
    not_before: Option<i64>,
    not_after: Option<i64>,
    delete: bool,
    due: Option<i64>,
    handled: Option<i64>,
    /// The definition and the states are separate arguments.
    definition: Option<usize>,
    state: Option<usize>,
    other_state: Option<usize>,
    chain: Option<NewChainOut<'a>>,
}

impl<'a> ChangeOut<'a> {
    fn new(change: &'a ScheduleChange, payloads: &mut Payloads) -> Self {
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
        let out = Self {
            name: change.name.as_str(),
            id: change.id.to_string(),
            expected: change.expected.map(|revision| revision.to_string()),
            revision: change.revision.to_string(),
            not_before: millis(change.not_before),
            not_after: millis(change.not_after),
            ..Self::default()
        };
        let ScheduleAction::Put(put) = &change.action else { return Self { delete: true, ..out } };
        let mut add = |text: &str| payloads.add_bytes(text.as_bytes().to_vec());
        let definition = put.definition.as_deref().map(&mut add);
        let (state, other_state) = (Some(add(&put.state)), Some(add(&put.state_if_not_created)));
        let chain = put.chain.as_ref().map(|chain| NewChainOut::new(chain, payloads));
        let (due, handled) = (millis(put.due_at), millis(put.handled));
        Self { due, handled, definition, state, other_state, chain, ..out }
    }
}

#[derive(Debug, Deserialize)]
struct ChangesIn {
    now: Read<Timestamp>,
    changes: Vec<ChangedIn>,
}

#[derive(Debug, Deserialize)]
struct ChangedIn {
    result: ResultIn,
    created: Option<CreatedIn>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResultIn {
    Applied,
    Repeated,
    Conflict,
    NotDue,
    TooLate,
}

#[derive(Debug, Serialize)]
struct GetOut<'a> {
    now: Option<i64>,
    schedules: Vec<TargetOut<'a>>,
}

#[derive(Debug, Serialize)]
struct TargetOut<'a> {
    name: Option<&'a str>,
    id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct GetIn {
    now: Read<Timestamp>,
    schedules: Vec<Found<ScheduleIn>>,
}

#[derive(Debug, Serialize)]
struct ListOut<'a> {
    now: Option<i64>,
    after: Option<&'a str>,
    max: u32,
}

#[derive(Debug, Serialize)]
struct DueOut {
    now: Option<i64>,
    skip: u32,
    max: u32,
}

#[derive(Debug, Deserialize)]
struct SchedulesIn {
    now: Read<Timestamp>,
    schedules: Vec<ScheduleIn>,
    next_due: Option<Read<Timestamp>>,
}

#[derive(Debug, Deserialize)]
struct ScheduleIn {
    name: Read<ScheduleName>,
    id: Read<ScheduleId>,
    revision: Read<RequestId>,
    due: Option<Read<Timestamp>>,
    handled: Option<Read<Timestamp>>,
    definition: String,
    state: String,
}

impl From<ScheduleIn> for ScheduleRecord {
    fn from(schedule: ScheduleIn) -> Self {
        Self {
            name: schedule.name.0,
            id: schedule.id.0,
            revision: schedule.revision.0,
            due_at: schedule.due.map(|at| at.0),
            handled: schedule.handled.map(|at| at.0),
            definition: schedule.definition.into(),
            state: schedule.state.into(),
        }
    }
}

impl Execute for ChangeSchedules {
    async fn execute(self, store: &RedisStore) -> Result<ChangeSchedulesReply> {
        self.check()?;
        let mut payloads = Payloads::default();
        let changes = self.changes.iter().map(|change| ChangeOut::new(change, &mut payloads)).collect();
        let out = ChangesOut { now: store.time(), changes };
        let reply: ChangesIn = store.write(&store.scripts().change_schedules, &out, payloads).await?;
        let changed = |(changed, change): (ChangedIn, &ScheduleChange)| match changed.result {
            ResultIn::Applied => {
                let chain = match &change.action {
                    ScheduleAction::Put(put) => put.chain.as_ref(),
                    ScheduleAction::Delete => None,
                };
                let created = changed.created.zip(chain);
                ScheduleChanged::Applied {
                    created: created.map(|(created, chain)| created.into_created(chain)),
                }
            }
            ResultIn::Repeated => ScheduleChanged::Repeated,
            ResultIn::Conflict => ScheduleChanged::Conflict,
            ResultIn::NotDue => ScheduleChanged::NotDue,
            ResultIn::TooLate => ScheduleChanged::TooLate,
        };
        let changes = reply.changes.into_iter().zip(&self.changes).map(changed).collect();
        Ok(ChangeSchedulesReply { now: reply.now.0, changes })
    }
}

impl Execute for GetSchedules {
    async fn execute(self, store: &RedisStore) -> Result<GetSchedulesReply> {
        self.check()?;
        let target = |target: &'_ ScheduleTarget| match target {
            ScheduleTarget::Name(name) => (Some(name.clone()), None),
            ScheduleTarget::Id(id) => (None, Some(id.to_string())),
        };
        let targets: Vec<_> = self.schedules.iter().map(target).collect();
        let schedules = targets
            .iter()
            .map(|(name, id)| TargetOut { name: name.as_ref().map(ScheduleName::as_str), id: id.clone() })
            .collect();
        let out = GetOut { now: store.time(), schedules };
        let reply: GetIn = store.read(&store.scripts().get_schedules, &out, Payloads::default()).await?;
        let schedules = reply.schedules.into_iter().map(|found| found.found.map(Into::into)).collect();
        Ok(GetSchedulesReply { now: reply.now.0, schedules })
    }
}

impl Execute for ListSchedules {
    async fn execute(self, store: &RedisStore) -> Result<ListSchedulesReply> {
        self.check()?;
        let after = self.after.as_ref().map(ScheduleName::as_str);
        let out = ListOut { now: store.time(), after, max: self.max };
        let reply: SchedulesIn =
            store.read(&store.scripts().list_schedules, &out, Payloads::default()).await?;
        let schedules = reply.schedules.into_iter().map(Into::into).collect();
        Ok(ListSchedulesReply { now: reply.now.0, schedules })
    }
}

impl Execute for DueSchedules {
    async fn execute(self, store: &RedisStore) -> Result<DueSchedulesReply> {
        self.check()?;
        let out = DueOut { now: store.time(), skip: self.skip, max: self.max };
        let reply: SchedulesIn =
            store.read(&store.scripts().due_schedules, &out, Payloads::default()).await?;
        let schedules = reply.schedules.into_iter().map(Into::into).collect();
        Ok(DueSchedulesReply { now: reply.now.0, schedules, next_due: reply.next_due.map(|at| at.0) })
    }
}
