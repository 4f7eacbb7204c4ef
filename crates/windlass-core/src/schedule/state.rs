//! The state of a schedule: what has happened so far.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::spec::Overlap;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, RequestId, WorkerId};
use crate::record::ClosedAs;
use crate::time::Timestamp;

/// How many runs a schedule remembers.
pub(crate) const RUNS_MAX: usize = 20;

/// How many open runs before these are watched for a success.
const OLDER_MAX: usize = 200;

/// How many of the open runs before these one check reads.
const OLDER_CHECKED: usize = 20;

/// How many of the latest runs are watched for a retry by an operator.
const RETRIED_MAX: usize = 3;

/// The state of a schedule, stored as JSON. Times are milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// When the schedule was created.
    pub(crate) created_at: i64,
    /// Occurrences up to this time are neither started nor missed: it is when the schedule was created, or its times
    /// changed.
    pub(crate) since: i64,
    /// When the schedule was paused.
    pub(crate) paused_at: Option<i64>,
    /// An occurrence that waits for the previous chain, or that was due before a pause or a change of the times.
    pub(crate) waiting: Option<i64>,
    /// The latest runs, oldest first.
    pub(crate) runs: VecDeque<StoredRun>,
    /// Earlier runs that are still open. The first ones are checked next. An id contains the occurrence.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) older: VecDeque<ChainId>,
    /// The latest occurrence whose chain completed.
    pub(crate) last_success: Option<i64>,
    /// Numbers of occurrences that were not started, by reason.
    pub(crate) missed: u64,
    pub(crate) overlapped: u64,
    pub(crate) key_held: u64,
    pub(crate) paused: u64,
    /// When to check the open runs next, and the delay from that check to the following one.
    pub(crate) check_at: Option<i64>,
    pub(crate) check_delay: u64,
    /// When the last occurrence was over.
    pub(crate) ended_at: Option<i64>,
    /// When a worker last noted that it declares the schedule, even if it was refused. A note is repeated when it is 10
    /// minutes old, or when its worker has died.
    pub(crate) declared_at: Option<i64>,
    /// The worker that wrote this note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) declared_by: Option<WorkerId>,
    /// When a worker of the same program noticed that no live worker declares the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undeclared_at: Option<i64>,
}

/// A run of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRun {
    pub(crate) at: i64,
    pub(crate) chain: ChainId,
    pub(crate) started_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<RunOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) closed_at: Option<i64>,
    /// The request that started a manual run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<RequestId>,
}

/// How a run of a schedule ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunOutcome {
    /// The chain completed.
    Completed,
    /// The chain failed.
    Failed,
    /// The chain was cancelled.
    Cancelled,
    /// The chain was deleted before its outcome was recorded.
    Deleted,
}

/// A run of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleRun {
    /// The planned time; or, for a manual run, the time of the request.
    pub at: Timestamp,
    /// Whether the run was started by hand.
    pub is_manual: bool,
    /// The chain.
    pub chain: ChainId,
    /// When the chain was created.
    pub started_at: Timestamp,
    /// How the chain ended. `None` while it is open.
    pub outcome: Option<RunOutcome>,
    /// When the chain closed.
    pub closed_at: Option<Timestamp>,
}

impl State {
    /// Creates the state of a new schedule.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { created_at: now.as_millis(), since: now.as_millis(), ..Self::default() }
    }

    /// Decodes a stored state.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if this program cannot read it.
    pub(crate) fn decode(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| {
            let text =
                format!("the state of the schedule cannot be read by this version of Windlass: {error}");
            Error::new(ErrorKind::Incompatible, text)
        })
    }

    pub(crate) fn encode(&self) -> String {
        // Serializing plain data into a string does not fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the chains whose outcome is not known yet.
    pub(crate) fn open_chains(&self) -> impl Iterator<Item = ChainId> {
        let open = self.runs.iter().filter(|run| run.outcome.is_none()).map(|run| run.chain);
        self.older.iter().copied().chain(open)
    }

    /// Returns the chains whose status a visit needs. When a check is due, these are the runs whose outcome may change: those
    /// that are open, and the latest ones that an operator may retry. Otherwise, a visit needs the latest run only, to
    /// prevent an overlap.
    pub(crate) fn watched_chains(&self, overlap: Overlap, now: Timestamp) -> Vec<ChainId> {
        let is_watched = |run: &StoredRun, age: usize| match run.outcome {
            None => true,
            Some(RunOutcome::Failed | RunOutcome::Cancelled) => age < RETRIED_MAX,
            Some(RunOutcome::Completed | RunOutcome::Deleted) => false,
        };
        let runs = self.runs.iter().rev().enumerate();
        let watched = runs.filter(|(age, run)| is_watched(run, *age)).map(|(age, run)| (age, run.chain));
        if self.check_at.is_some_and(|at| at <= now.as_millis()) {
            return self
                .older
                .iter()
                .take(OLDER_CHECKED)
                .copied()
                .chain(watched.map(|(_, chain)| chain))
                .collect();
        }
        watched.filter(|(age, _)| *age == 0 && overlap != Overlap::Allow).map(|(_, chain)| chain).collect()
    }

    /// Returns how many checks it takes to read all open runs.
    pub(crate) fn checks(&self) -> u64 {
        u64::try_from(self.older.len().div_ceil(OLDER_CHECKED)).unwrap_or(u64::MAX).max(1)
    }

    /// Returns the chain that was created last, if its outcome is not known yet.
    pub(crate) fn open_latest(&self) -> Option<ChainId> {
        self.runs.back().filter(|run| run.outcome.is_none()).map(|run| run.chain)
    }

    /// Adds a run.
    pub(crate) fn push_run(
        &mut self,
        at: Timestamp,
        chain: ChainId,
        now: Timestamp,
        request: Option<RequestId>,
    ) {
        if self.runs.len() >= RUNS_MAX {
            let open = self.runs.pop_front().filter(|run| run.outcome.is_none());
            self.older.extend(open.map(|run| run.chain));
            if self.older.len() > OLDER_MAX {
                // An id begins with the time of its occurrence.
                let oldest = self.older.iter().min().copied();
                self.older.retain(|chain| Some(*chain) != oldest);
            }
        }
        self.runs.push_back(StoredRun {
            at: at.as_millis(),
            chain,
            started_at: now.as_millis(),
            outcome: None,
            closed_at: None,
            request,
        });
    }

    pub(crate) fn shown_runs(&self) -> Vec<ScheduleRun> {
        let show = |run: &StoredRun| ScheduleRun {
            at: time(run.at),
            is_manual: run.chain.occurrence().is_some_and(|occurrence| occurrence.is_manual),
            chain: run.chain,
            started_at: time(run.started_at),
            outcome: run.outcome,
            closed_at: run.closed_at.map(time),
        };
        self.runs.iter().map(show).collect()
    }
}

impl From<ClosedAs> for RunOutcome {
    fn from(closed_as: ClosedAs) -> Self {
        match closed_as {
            ClosedAs::Completed => Self::Completed,
            ClosedAs::Failed => Self::Failed,
            ClosedAs::Cancelled => Self::Cancelled,
        }
    }
}

/// Converts stored milliseconds. They were written from a valid time.
pub(crate) fn time(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms).unwrap_or_default()
}
