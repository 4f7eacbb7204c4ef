//! Schedules as applications and tools see them.

use std::time::Duration;

use crate::command::ScheduleRecord;
use crate::error::Result;
use crate::id::ScheduleId;
use crate::name::ScheduleName;
use crate::schedule::{Definition, ScheduleRun, ScheduleSpec, State, time};
use crate::time::Timestamp;

/// The number of next times that a [`Schedule`] has.
const NEXT_TIMES: usize = 5;

/// A stored schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schedule {
    /// The name.
    pub name: ScheduleName,
    /// The id, chosen when the schedule was created.
    pub id: ScheduleId,
    /// What the schedule starts and when, or why this program cannot read it.
    pub details: Result<ScheduleDetails, String>,
    /// When the schedule needs attention next: at its next occurrence, or to check on its latest run.
    pub due_at: Option<Timestamp>,
    /// The last occurrence that was started or dropped.
    pub handled: Option<Timestamp>,
    /// The store's time when the schedule was read.
    pub now: Timestamp,
}

/// The content of a [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleDetails {
    /// When the schedule fires, and its policies.
    pub spec: ScheduleSpec,
    /// The type of the job that it starts.
    pub job_type: String,
    /// The input of the job, if it is text.
    pub input: Option<String>,
    /// The next occurrences, without jitter. Empty while the schedule is paused, or if it has ended.
    pub next: Vec<Timestamp>,
    /// How long after each occurrence its chain is started. See [`ScheduleSpec::jitter`].
    pub jitter: Duration,
    /// When the schedule was created.
    pub created_at: Timestamp,
    /// When the schedule was paused, if it is paused.
    pub paused_at: Option<Timestamp>,
    /// When the schedule ended: it has no further occurrences, and is removed after its retention.
    pub ended_at: Option<Timestamp>,
    /// An occurrence that waits until the previous chain closes.
    pub waiting: Option<Timestamp>,
    /// The latest runs, oldest first: at most 20.
    pub runs: Vec<ScheduleRun>,
    /// The latest occurrence whose chain completed.
    pub last_success: Option<Timestamp>,
    /// The number of occurrences that were dropped because no worker started them in time. For each outage, at most 1,000
    /// are counted.
    pub missed: u64,
    /// The number of occurrences that were skipped because the previous chain was open.
    pub overlapped: u64,
    /// The number of occurrences that were skipped because another chain held the key, or because the chain was refused.
    pub key_held: u64,
    /// The number of occurrences that were dropped because the schedule was paused. For each pause, at most 1,000 are
    /// counted.
    pub paused: u64,
    /// The program that declared the schedule, if one did.
    pub program: Option<String>,
    /// When a worker last declared the schedule, accurate to 20 minutes, even if its declaration was not applied. If this is
    /// long ago, the program no longer runs.
    pub declared_at: Option<Timestamp>,
    /// When a worker of the program noticed that no live worker declares the schedule any more: it was probably removed
    /// from the code. That takes a minute or two. `None` again when a worker declares it.
    pub undeclared_at: Option<Timestamp>,
    /// The program whose declaration was not applied, because its content was superseded. See
    /// [`Schedules::accept`](super::Schedules::accept). `None` again when the program has not declared it for three hours and
    /// another program declares the current content.
    pub refused_program: Option<String>,
}

impl Schedule {
    /// Returns how late the schedule is, if it is due and no worker has visited it.
    #[must_use]
    pub fn overdue_by(&self) -> Option<Duration> {
        let due_at = self.due_at.filter(|due_at| *due_at < self.now)?;
        Some(self.now.since(due_at))
    }

    /// Reads a schedule from its stored row. `now` is the time in the store's reply.
    #[must_use]
    pub fn read(row: &ScheduleRecord, now: Timestamp) -> Self {
        Self {
            name: row.name.clone(),
            id: row.id,
            details: ScheduleDetails::read(row).map_err(|error| error.to_string()),
            due_at: row.due_at,
            handled: row.handled,
            now,
        }
    }
}

impl ScheduleDetails {
    fn read(row: &ScheduleRecord) -> Result<Self> {
        let (definition, state) = (Definition::decode(&row.definition)?, State::decode(&row.state)?);
        let is_active = state.paused_at.is_none() && state.ended_at.is_none();
        let base = row.handled.unwrap_or_default().max(time(state.since));
        let next = if is_active { definition.spec.upcoming(base, NEXT_TIMES)? } else { Vec::new() };
        let declaration = definition.declaration;
        Ok(Self {
            job_type: definition.job.job_type,
            input: definition.job.input,
            next,
            jitter: definition.spec.jitter_of(row.id).into(),
            created_at: time(state.created_at),
            paused_at: state.paused_at.map(time),
            ended_at: state.ended_at.map(time),
            waiting: state.waiting.map(time),
            runs: state.shown_runs(),
            last_success: state.last_success.map(time),
            missed: state.missed,
            overlapped: state.overlapped,
            key_held: state.key_held,
            paused: state.paused,
            declared_at: state.declared_at.map(time),
            undeclared_at: state.undeclared_at.map(time),
            program: declaration.as_ref().map(|declaration| declaration.program.clone()),
            refused_program: declaration.and_then(|declaration| Some(declaration.refused?.program)),
            spec: definition.spec,
        })
    }
}
