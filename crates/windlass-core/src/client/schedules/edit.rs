//! Changes of schedules: what they need to know, and the command that they become.

use std::sync::Arc;

use crate::command::{PutSchedule, ScheduleAction, ScheduleChange, ScheduleRecord};
use crate::error::Result;
use crate::id::{ChainId, RequestId, ScheduleId};
use crate::name::ScheduleName;
use crate::schedule::{Definition, State, due_at, set_aside, time};
use crate::time::Timestamp;

/// The context of a change of a schedule.
pub(super) struct Edit {
    pub(super) definition: Definition,
    pub(super) state: State,
    /// Whether the definition has changed.
    pub(super) is_redefined: bool,
    /// The last occurrence handled, if the change handles occurrences.
    pub(super) handled: Option<Timestamp>,
    pub(super) chain: Option<ChainId>,
}

impl Edit {
    /// Creates an edit that keeps the definition.
    pub(super) const fn new(definition: Definition, state: State) -> Self {
        Self { definition, state, is_redefined: false, handled: None, chain: None }
    }

    /// Creates an edit that writes another definition.
    pub(super) fn redefined(definition: Definition, state: State) -> Self {
        Self { is_redefined: true, ..Self::new(definition, state) }
    }
}

/// A stored schedule that a change is computed from.
pub(super) struct StoredSchedule<'r> {
    pub(super) row: &'r ScheduleRecord,
    pub(super) definition: Definition,
    pub(super) state: State,
}

impl<'r> StoredSchedule<'r> {
    pub(super) fn decode(row: &'r ScheduleRecord) -> Result<Self> {
        Ok(Self { row, definition: Definition::decode(&row.definition)?, state: State::decode(&row.state)? })
    }
}

/// Returns an edit with another definition. If the times have changed, occurrences before now do not count, except those
/// that were due already.
pub(super) fn redefined(
    row: &ScheduleRecord,
    known: &Definition,
    definition: Definition,
    mut state: State,
    now: Timestamp,
) -> Edit {
    let mut handled = None;
    if !definition.spec.fires_like(&known.spec) {
        let due_until = state.paused_at.map_or(now, time);
        // If this program cannot compute the former times, it cannot keep their occurrences.
        handled = set_aside(row.id, known, &mut state, row.handled, (due_until, now)).ok().flatten();
        state.since = state.since.max(now.as_millis());
        state.ended_at = None;
    }
    Edit { is_redefined: definition != *known, definition, state, handled, chain: None }
}

/// Returns the command of an edit.
pub(super) fn change(
    name: &ScheduleName,
    row: Option<&ScheduleRecord>,
    edit: Edit,
    now: Timestamp,
) -> Result<ScheduleChange> {
    let Edit { definition, mut state, is_redefined, handled, chain } = edit;
    let id = row.map_or_else(ScheduleId::new, |row| row.id);
    let handled = handled.max(row.and_then(|row| row.handled));
    // A schedule that is not stored has no run to check.
    let due_at = due_at(id, &definition, &mut state, handled, now)?;
    let text: Arc<str> = state.encode().into();
    let mut other = state.clone();
    let chain = chain.map(|chain| definition.job.decode(chain)).transpose()?;
    if chain.is_some() {
        other.runs.pop_back();
    }
    let put = PutSchedule {
        due_at,
        handled,
        definition: is_redefined.then(|| definition.encode().into()),
        state: text,
        chain,
        state_if_not_created: other.encode().into(),
    };
    Ok(ScheduleChange {
        name: name.clone(),
        id,
        expected: row.map(|row| row.revision),
        revision: RequestId::new(),
        not_before: None,
        not_after: None,
        action: ScheduleAction::Put(put),
    })
}
