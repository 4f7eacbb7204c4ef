//! The state of a schedule: what has happened so far.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, RequestId};
use crate::record::ClosedAs;
use crate::time::Timestamp;

/// How many runs a schedule remembers.
pub(crate) const RUNS_MAX: usize = 20;

/// How many open runs before these are watched for a success.
const OLDER_MAX: usize = 200;

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
    /// Earlier runs that are still open, oldest first. An id contains the occurrence.
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
    /// When a worker last declared the schedule, even if it was refused. Accurate to 20 minutes.
    pub(crate) declared_at: Option<i64>,
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

    /// Returns the chains whose outcome may change: those that are open, and the latest ones that an operator may retry.
    pub(crate) fn watched_chains(&self) -> impl Iterator<Item = ChainId> {
        let is_retriable =
            |run: &StoredRun| matches!(run.outcome, Some(RunOutcome::Failed | RunOutcome::Cancelled));
        let runs = self.runs.iter().rev().enumerate();
        let watched =
            runs.filter(move |(age, run)| run.outcome.is_none() || *age < RETRIED_MAX && is_retriable(run));
        self.older.iter().copied().chain(watched.map(|(_, run)| run.chain))
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
            let excess = self.older.len().saturating_sub(OLDER_MAX);
            self.older.drain(..excess);
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
