use std::sync::Arc;

use crate::command::create::{Created, NewChain};
use crate::command::{Size, check_items};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{RequestId, ScheduleId};
use crate::limit::{SCHEDULE_PAGE_MAX, SCHEDULE_TEXT_MAX_BYTES};
use crate::name::ScheduleName;
use crate::time::Timestamp;

/// A stored schedule.
///
/// A store compares ids, revisions and times. It does not interpret the definition and the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRecord {
    /// The name. No two schedules have the same name.
    pub name: ScheduleName,
    /// The id, chosen when the schedule was created. A schedule that is deleted and created again has another id.
    pub id: ScheduleId,
    /// The revision: the id of the change that wrote this row.
    pub revision: RequestId,
    /// When the schedule needs attention: the time of its next occurrence, or of a check. `None` means never.
    pub due_at: Option<Timestamp>,
    /// The last occurrence handled. It never decreases.
    pub handled: Option<Timestamp>,
    /// What to start and when. Written by the library.
    pub definition: Arc<str>,
    /// What has happened so far. Written by the library.
    pub state: Arc<str>,
}

/// Request to create, change, fire or delete schedules. See
/// [`Store::change_schedules`](crate::Store::change_schedules).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSchedules {
    /// The changes, in order.
    pub changes: Vec<ScheduleChange>,
}

/// A change to one schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleChange {
    /// The name of the schedule.
    pub name: ScheduleName,
    /// The id of the schedule.
    pub id: ScheduleId,
    /// The revision that the change was computed from. `None` means that the schedule must not be stored yet.
    pub expected: Option<RequestId>,
    /// The revision that the change writes: a new id, by which a repeated change is recognized.
    pub revision: RequestId,
    /// The change is not applied before this time.
    pub not_before: Option<Timestamp>,
    /// The change is not applied after this time. Otherwise a suspended process could apply an outdated decision.
    pub not_after: Option<Timestamp>,
    /// What to do.
    pub action: ScheduleAction,
}

/// What a [`ScheduleChange`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all changes write a schedule")]
pub enum ScheduleAction {
    /// Writes the schedule.
    Put(PutSchedule),
    /// Deletes the schedule. Its chains are kept.
    Delete,
}

/// The new content of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutSchedule {
    /// When the schedule needs attention next.
    pub due_at: Option<Timestamp>,
    /// The last occurrence handled.
    pub handled: Option<Timestamp>,
    /// The definition. `None` keeps the stored one.
    pub definition: Option<Arc<str>>,
    /// The state.
    pub state: Arc<str>,
    /// A chain to create in the same commit. It has no blockers.
    pub chain: Option<NewChain>,
    /// The state to write instead if the chain is not created, because another chain holds its key or because it is
    /// refused.
    pub state_if_not_created: Arc<str>,
}

impl ChangeSchedules {
    /// Checks the size of the command. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the command exceeds a limit, if a text contains NUL, or if a chain has blockers.
    pub fn check(&self) -> Result<()> {
        let mut size = Size::of_items(self.changes.len());
        for change in &self.changes {
            let ScheduleAction::Put(put) = &change.action else { continue };
            let texts = [put.definition.as_ref(), Some(&put.state), Some(&put.state_if_not_created)];
            for text in texts.into_iter().flatten() {
                check_text(&change.name, text)?;
                size.bytes = size.bytes.saturating_add(text.len());
            }
            if let Some(chain) = &put.chain {
                if !chain.job.blockers.is_empty() {
                    let text =
                        format!("the chain of the schedule `{}` has blockers: remove them", change.name);
                    return Err(Error::new(ErrorKind::Invalid, text));
                }
                size.bytes = size.bytes.saturating_add(chain.job.input.bytes().len());
            }
        }
        size.check("changes of schedules")
    }
}

/// Checks a definition or a state of a schedule.
pub(crate) fn check_text(name: &ScheduleName, text: &str) -> Result<()> {
    let error = |text| Err(Error::new(ErrorKind::Invalid, text));
    if text.len() > SCHEDULE_TEXT_MAX_BYTES {
        let length = text.len();
        return error(format!(
            "the schedule `{name}` takes {length} bytes, more than {SCHEDULE_TEXT_MAX_BYTES}: shorten its input"
        ));
    }
    if text.contains('\0') {
        return error(format!("the schedule `{name}` contains a NUL character: encode it"));
    }
    Ok(())
}

/// The reply to [`ChangeSchedules`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSchedulesReply {
    /// The time on the store's clock.
    pub now: Timestamp,
    /// The result for each change.
    pub changes: Vec<ScheduleChanged>,
}

/// The result of one [`ScheduleChange`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleChanged {
    /// The change was applied.
    Applied {
        /// The result for the chain, if the change has one.
        created: Option<Created>,
    },
    /// An earlier call already applied the change. Or it deletes a schedule that is not stored.
    Repeated,
    /// The stored schedule has another id or revision, is not stored, or was expected not to be stored. Nothing was
    /// written. Read the schedule and compute the change again.
    Conflict,
    /// The time in [`ScheduleChange::not_before`] has not come. Nothing was written.
    NotDue,
    /// The time in [`ScheduleChange::not_after`] has passed. Nothing was written. Read the schedule and compute the change
    /// again.
    TooLate,
    /// Another open transaction has locked a row that decides the result. Nothing was written. Try again.
    Busy,
}

/// Request for schedules by name or id. See [`Store::get_schedules`](crate::Store::get_schedules).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetSchedules {
    /// The schedules to return.
    pub schedules: Vec<ScheduleTarget>,
}

/// Refers to a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ScheduleTarget {
    /// By name.
    Name(ScheduleName),
    /// By id.
    Id(ScheduleId),
}

impl GetSchedules {
    /// Checks the size of the batch. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if there are more than [`SCHEDULE_PAGE_MAX`].
    pub fn check(&self) -> Result<()> {
        check_items("schedules", self.schedules.len())?;
        check_page(self.schedules.len())
    }
}

/// The reply to [`GetSchedules`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetSchedulesReply {
    /// The time on the store's clock.
    pub now: Timestamp,
    /// Each requested schedule, or `None` if it is not stored.
    pub schedules: Vec<Option<ScheduleRecord>>,
}

/// Request to list schedules by name. See [`Store::list_schedules`](crate::Store::list_schedules).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSchedules {
    /// Return schedules whose name comes after this one. `None` starts at the beginning.
    pub after: Option<ScheduleName>,
    /// The maximum number of schedules, from 1 to [`SCHEDULE_PAGE_MAX`].
    pub max: u32,
}

impl ListSchedules {
    /// Checks `max` against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `max` is 0 or too large.
    pub fn check(&self) -> Result<()> {
        check_max(self.max)
    }
}

/// The reply to [`ListSchedules`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSchedulesReply {
    /// The time on the store's clock.
    pub now: Timestamp,
    /// The schedules, sorted by name. Fewer than `max` if there are no more.
    pub schedules: Vec<ScheduleRecord>,
}

/// Request for the schedules that are due. See [`Store::due_schedules`](crate::Store::due_schedules).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSchedules {
    /// The number of due schedules to skip.
    pub skip: u32,
    /// The maximum number of schedules, from 1 to [`SCHEDULE_PAGE_MAX`].
    pub max: u32,
}

impl DueSchedules {
    /// Checks `max` against the limits. Every store calls this first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `max` is 0 or too large.
    pub fn check(&self) -> Result<()> {
        check_max(self.max)
    }
}

/// The reply to [`DueSchedules`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueSchedulesReply {
    /// The time on the store's clock.
    pub now: Timestamp,
    /// The due schedules, by due time and name.
    pub schedules: Vec<ScheduleRecord>,
    /// When the next schedule after these is due, in the past or in the future.
    pub next_due: Option<Timestamp>,
}

fn check_max(max: u32) -> Result<()> {
    if max == 0 {
        let text = format!("max schedules must be 1 to {SCHEDULE_PAGE_MAX}, got 0");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    check_page(max as usize)
}

fn check_page(count: usize) -> Result<()> {
    if count > SCHEDULE_PAGE_MAX {
        let text = format!(
            "{count} schedules exceed the limit of {SCHEDULE_PAGE_MAX} per command: split the command"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}
