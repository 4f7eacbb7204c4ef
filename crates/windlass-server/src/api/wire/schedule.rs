use schemars::JsonSchema;
use serde::Serialize;
use windlass_core::schedule::{self, RunOutcome, ScheduleRun};
use windlass_core::{Payload, ScheduleName, Timestamp, TypeName};

use super::Time;
use crate::payload::{Content, Sight};

/// A schedule.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Schedule {
    pub(crate) name: String,
    /// Its id. `null` if a schedule was stored and cannot be queried afterwards.
    pub(crate) id: Option<String>,
    pub(crate) state: ScheduleState,
    /// When it fires, in words.
    pub(crate) when: Option<String>,
    /// The type of the job that it starts.
    #[serde(rename = "type")]
    pub(crate) job_type: Option<String>,
    pub(crate) input: Option<Content>,
    pub(crate) next: Vec<Time>,
    pub(crate) created_at: Option<Time>,
    pub(crate) paused_at: Option<Time>,
    pub(crate) ended_at: Option<Time>,
    /// An occurrence that waits until the previous chain closes.
    pub(crate) waiting: Option<Time>,
    pub(crate) last_success: Option<Time>,
    /// Occurrences that were dropped because no worker started them in time.
    pub(crate) missed: u64,
    /// Occurrences that were skipped because the previous chain was open.
    pub(crate) overlapped: u64,
    /// Occurrences that were skipped because another chain held the key.
    pub(crate) key_held: u64,
    /// Occurrences that were dropped during pauses.
    pub(crate) dropped_in_pauses: u64,
    /// The program that declared the schedule.
    pub(crate) program: Option<String>,
    /// The program whose declaration was not applied, because a newer one had replaced it.
    pub(crate) refused_program: Option<String>,
    /// Its latest runs, oldest first.
    pub(crate) runs: Vec<Run>,
    /// Why this server cannot read the schedule.
    pub(crate) error: Option<String>,
}

/// The state of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScheduleState {
    Active,
    Paused,
    /// It has no further occurrences.
    Ended,
    /// It is due, and no worker has visited it.
    Overdue,
    /// An occurrence waits for the previous chain.
    Waiting,
    /// This server cannot read it.
    Unreadable,
}

/// A run of a schedule.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Run {
    pub(crate) at: Time,
    pub(crate) chain: String,
    pub(crate) manual: bool,
    pub(crate) outcome: Outcome,
    pub(crate) closed_at: Option<Time>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Open,
    Completed,
    Failed,
    Cancelled,
    Deleted,
}

/// A schedule counts as overdue when it has been due for longer than workers normally take.
const OVERDUE_MS: u128 = 60_000;

impl Schedule {
    pub(crate) fn of(schedule: &schedule::Schedule, sight: Sight<'_>) -> Self {
        let details = schedule.details.as_ref().ok();
        let time = |at: Option<Timestamp>| at.map(Time::from);
        let input = details.and_then(|details| details.input.clone());
        let input = input.and_then(|input| Payload::json(input).ok()).map(|input| sight.content(&input));
        Self {
            name: schedule.name.to_string(),
            id: Some(schedule.id.to_string()),
            state: ScheduleState::of(schedule),
            when: details.map(|details| details.spec.describe()),
            job_type: details.map(|details| details.job_type.clone()),
            input,
            next: details
                .map(|details| details.next.iter().copied().map(Time::from).collect())
                .unwrap_or_default(),
            created_at: time(details.map(|details| details.created_at)),
            paused_at: time(details.and_then(|details| details.paused_at)),
            ended_at: time(details.and_then(|details| details.ended_at)),
            waiting: time(details.and_then(|details| details.waiting)),
            last_success: time(details.and_then(|details| details.last_success)),
            missed: details.map_or(0, |details| details.missed),
            overlapped: details.map_or(0, |details| details.overlapped),
            key_held: details.map_or(0, |details| details.key_held),
            dropped_in_pauses: details.map_or(0, |details| details.paused),
            program: details.and_then(|details| details.program.clone()),
            refused_program: details.and_then(|details| details.refused_program.clone()),
            runs: details.map(|details| details.runs.iter().map(Run::from).collect()).unwrap_or_default(),
            error: schedule.details.as_ref().err().cloned(),
        }
    }
}

impl Schedule {
    /// Returns a schedule that was stored and cannot be queried at the moment.
    pub(crate) fn stored(name: &ScheduleName, spec: &schedule::ScheduleSpec, job_type: &TypeName) -> Self {
        Self {
            name: name.to_string(),
            id: None,
            state: ScheduleState::Unreadable,
            when: Some(spec.describe()),
            job_type: Some(job_type.to_string()),
            input: None,
            next: Vec::new(),
            created_at: None,
            paused_at: None,
            ended_at: None,
            waiting: None,
            last_success: None,
            missed: 0,
            overlapped: 0,
            key_held: 0,
            dropped_in_pauses: 0,
            program: None,
            refused_program: None,
            runs: Vec::new(),
            error: Some("the schedule was stored, but the store does not answer: query it again".to_owned()),
        }
    }
}

impl ScheduleState {
    fn of(schedule: &schedule::Schedule) -> Self {
        let Ok(details) = &schedule.details else { return Self::Unreadable };
        if details.paused_at.is_some() {
            Self::Paused
        } else if details.ended_at.is_some() {
            Self::Ended
        } else if schedule.overdue_by().is_some_and(|late| late.as_millis() > OVERDUE_MS) {
            Self::Overdue
        } else if details.waiting.is_some() {
            Self::Waiting
        } else {
            Self::Active
        }
    }
}

impl From<&ScheduleRun> for Run {
    fn from(run: &ScheduleRun) -> Self {
        let outcome = match run.outcome {
            None => Outcome::Open,
            Some(RunOutcome::Completed) => Outcome::Completed,
            Some(RunOutcome::Failed) => Outcome::Failed,
            Some(RunOutcome::Cancelled) => Outcome::Cancelled,
            Some(_) => Outcome::Deleted,
        };
        Self {
            at: run.at.into(),
            chain: run.chain.to_string(),
            manual: run.is_manual,
            outcome,
            closed_at: run.closed_at.map(Time::from),
        }
    }
}
