//! Schedules.

use windlass_core::command::{
    ChangeSchedules, ChangeSchedulesReply, Created, DueSchedules, DueSchedulesReply, GetSchedules,
    GetSchedulesReply, ListSchedules, ListSchedulesReply, ScheduleAction, ScheduleChanged, ScheduleRecord,
    ScheduleTarget,
};
use windlass_core::{RequestId, Result, ScheduleId, ScheduleName, Timestamp};

use crate::provider::{Parameter, Provider, Row};
use crate::reply::{Values, corrupt, in_order, put, unreadable};
use crate::request::{NewJobs, count};
use crate::store::{Call, Execute};

/// Changes, one array per column, in the order of `change_schedules_v1`.
#[derive(Debug, Default)]
struct Changes {
    names: Vec<Option<String>>,
    schedules: Vec<Option<uuid::Uuid>>,
    expected: Vec<Option<uuid::Uuid>>,
    revisions: Vec<Option<uuid::Uuid>>,
    not_before: Vec<Option<i64>>,
    not_after: Vec<Option<i64>>,
    deletes: Vec<Option<i64>>,
    due_at: Vec<Option<i64>>,
    handled: Vec<Option<i64>>,
    definitions: Vec<Option<String>>,
    states: Vec<Option<String>>,
    other_states: Vec<Option<String>>,
    chains: Vec<Option<i64>>,
    new_jobs: NewJobs,
    /// The change of each new job.
    indexes: Vec<usize>,
    /// The results for chains that break a limit. They are refused here and not sent.
    refused: Vec<Option<Created>>,
}

impl Changes {
    fn new(request: &ChangeSchedules) -> Self {
        let mut changes = Self::default();
        let millis = |at: Option<Timestamp>| at.map(Timestamp::as_millis);
        for (index, change) in request.changes.iter().enumerate() {
            changes.names.push(Some(change.name.to_string()));
            changes.schedules.push(Some(*change.id.as_uuid()));
            changes.expected.push(change.expected.map(|revision| *revision.as_uuid()));
            changes.revisions.push(Some(*change.revision.as_uuid()));
            changes.not_before.push(millis(change.not_before));
            changes.not_after.push(millis(change.not_after));
            let put = match &change.action {
                ScheduleAction::Put(put) => Some(put),
                ScheduleAction::Delete => None,
            };
            changes.deletes.push(Some(put.is_none().into()));
            changes.due_at.push(put.and_then(|put| millis(put.due_at)));
            changes.handled.push(put.and_then(|put| millis(put.handled)));
            changes.definitions.push(put.and_then(|put| put.definition.as_deref()).map(str::to_owned));
            changes.states.push(put.map(|put| put.state.to_string()));
            changes.other_states.push(put.map(|put| put.state_if_not_created.to_string()));
            let chain = put.and_then(|put| put.chain.as_ref());
            let refusal = chain.and_then(|chain| chain.check().err());
            changes.chains.push(match chain {
                None => None,
                Some(_) if refusal.is_some() => Some(0),
                Some(chain) => {
                    changes.new_jobs.push_chain(chain);
                    changes.indexes.push(index);
                    i64::try_from(changes.new_jobs.len()).ok()
                }
            });
            changes.refused.push(refusal.map(Created::Refused));
        }
        changes
    }

    fn parameters(self, time: Parameter) -> Vec<Parameter> {
        let own = [
            time,
            Parameter::Texts(Some(self.names)),
            Parameter::Ids(self.schedules),
            Parameter::Ids(self.expected),
            Parameter::Ids(self.revisions),
            Parameter::Numbers(self.not_before),
            Parameter::Numbers(self.not_after),
            Parameter::Numbers(self.deletes),
            Parameter::Numbers(self.due_at),
            Parameter::Numbers(self.handled),
            Parameter::Texts(Some(self.definitions)),
            Parameter::Texts(Some(self.states)),
            Parameter::Texts(Some(self.other_states)),
            Parameter::Numbers(self.chains),
        ];
        own.into_iter().chain(self.new_jobs.parameters()).collect()
    }
}

impl Execute for ChangeSchedules {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ChangeSchedulesReply> {
        self.check()?;
        let mut changes = Changes::new(&self);
        let indexes = std::mem::take(&mut changes.indexes);
        let mut created = std::mem::take(&mut changes.refused);
        let mut replies: Vec<Option<ScheduleChanged>> = vec![None; self.changes.len()];
        let mut now = None;
        let parameters = changes.parameters(call.time());
        for row in call.run(&call.statements().change_schedules, parameters).await? {
            let mut values = Values::from(row);
            match values.part.as_str() {
                "now" => now = Some(values.time()?),
                "created" => {
                    let index = indexes.get(values.item_index()?).copied().unwrap_or(usize::MAX);
                    let reply = values.created()?;
                    *created.get_mut(index).ok_or_else(|| corrupt("a chain that was not sent"))? =
                        Some(reply);
                }
                _ => {
                    let index = values.item_index()?;
                    let created = created.get_mut(index).and_then(Option::take);
                    put(&mut replies, index, changed(&values.text()?, created)?)?;
                }
            }
        }
        let now = now.ok_or_else(|| corrupt("a reply lacks its time"))?;
        Ok(ChangeSchedulesReply { now, changes: in_order(replies)? })
    }
}

fn changed(result: &str, created: Option<Created>) -> Result<ScheduleChanged> {
    Ok(match result {
        "apply" => ScheduleChanged::Applied { created },
        "repeated" => ScheduleChanged::Repeated,
        "conflict" => ScheduleChanged::Conflict,
        "not_due" => ScheduleChanged::NotDue,
        "too_late" => ScheduleChanged::TooLate,
        "busy" => ScheduleChanged::Busy,
        _ => return Err(corrupt("a change has an unknown result")),
    })
}

impl Execute for GetSchedules {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<GetSchedulesReply> {
        self.check()?;
        let names = self.schedules.iter().map(|target| match target {
            ScheduleTarget::Name(name) => Some(name.to_string()),
            ScheduleTarget::Id(_) => None,
        });
        let ids = self.schedules.iter().map(|target| match target {
            ScheduleTarget::Name(_) => None,
            ScheduleTarget::Id(id) => Some(*id.as_uuid()),
        });
        let parameters =
            vec![call.time(), Parameter::Texts(Some(names.collect())), Parameter::Ids(ids.collect())];
        let rows = call.run(&call.statements().get_schedules, parameters).await?;
        let (now, found) = read(rows)?;
        let mut schedules = vec![None; self.schedules.len()];
        for (index, schedule) in found {
            let slot = index.and_then(|index| schedules.get_mut(index));
            *slot.ok_or_else(|| corrupt("a schedule that was not requested"))? = Some(schedule);
        }
        Ok(GetSchedulesReply { now, schedules })
    }
}

impl Execute for ListSchedules {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<ListSchedulesReply> {
        self.check()?;
        let after = self.after.as_ref().map(ToString::to_string);
        let parameters = vec![call.time(), Parameter::Text(after), count(self.max)];
        let (now, found) = read(call.run(&call.statements().list_schedules, parameters).await?)?;
        Ok(ListSchedulesReply { now, schedules: found.into_iter().map(|(_, schedule)| schedule).collect() })
    }
}

impl Execute for DueSchedules {
    async fn execute<P: Provider>(self, mut call: Call<'_, P>) -> Result<DueSchedulesReply> {
        self.check()?;
        let parameters = vec![call.time(), count(self.skip), count(self.max)];
        let (now, next_due, found) = read_due(call.run(&call.statements().due_schedules, parameters).await?)?;
        let schedules = found.into_iter().map(|(_, schedule)| schedule).collect();
        Ok(DueSchedulesReply { now, schedules, next_due })
    }
}

/// A schedule, and the index of the item that requested it.
type Found = (Option<usize>, ScheduleRecord);

/// Reads the store's time and the schedules.
fn read(rows: Vec<Row>) -> Result<(Timestamp, Vec<Found>)> {
    read_due(rows).map(|(now, _, found)| (now, found))
}

/// The same, with the time at which the next schedule is due.
fn read_due(rows: Vec<Row>) -> Result<(Timestamp, Option<Timestamp>, Vec<Found>)> {
    let (mut now, mut next_due, mut found) = (None, None, Vec::new());
    for row in rows {
        let mut values = Values::from(row);
        if values.part == "now" {
            now = Some(values.time()?);
            next_due = values.maybe_time()?;
            continue;
        }
        let schedule = ScheduleRecord {
            id: ScheduleId::from_uuid(values.id()?),
            revision: RequestId::from_uuid(values.id()?),
            name: ScheduleName::new(values.text()?).map_err(unreadable)?,
            definition: values.text()?.into(),
            state: values.text()?.into(),
            due_at: values.maybe_time()?,
            handled: values.maybe_time()?,
        };
        found.push((values.item_index().ok(), schedule));
    }
    Ok((now.ok_or_else(|| corrupt("a reply lacks its time"))?, next_due, found))
}
