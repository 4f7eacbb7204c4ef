//! What to do with a schedule at a point in time.
//!
//! A visit is a pure function of the stored row, the time in the store's reply, and the status of the chains that the
//! schedule has started. Its result is a change of the row, which the store applies only to the same revision. So it does
//! not matter which worker visits a schedule, how often, or whether it was suspended in between.

use super::definition::Definition;
use super::spec::{GRACE, MissedRuns, Overlap, ScheduleSpec};
use super::state::{RunOutcome, State, time};
use crate::command::{NewChain, PutSchedule, ScheduleRecord};
use crate::error::Result;
use crate::id::{ChainId, Occurrence, ScheduleId};
use crate::record::ClosedAs;
use crate::time::{Millis, Timestamp};

/// The delay before an open run is checked for the first time, in milliseconds. It doubles with each check.
const CHECK_FIRST_MS: u64 = 1_000;
/// The longest delay between two checks: half of the time that a closed chain is kept at least.
const CHECK_MAX_MS: u64 = crate::limit::REPEAT_WINDOW_MS / 2;
/// The longest delay between two checks while an occurrence waits.
const CHECK_WAITING_MAX_MS: u64 = 30_000;
/// How many dropped occurrences are counted one by one.
const COUNTED_MAX: u64 = 1_000;
/// How many occurrences one visit skips because the previous chain is open.
const SKIPPED_MAX: usize = 100;

/// Whether a chain that a schedule has started is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainStatus {
    Open,
    Closed(ClosedAs, Timestamp),
    Gone,
}

/// The result of a visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Nothing to change.
    Nothing,
    /// Write the row.
    Put(Box<Planned>),
    /// The schedule has ended, and its retention is over: delete it.
    Delete,
}

/// A row to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) put: PutSchedule,
    pub(crate) not_before: Option<Timestamp>,
    pub(crate) not_after: Option<Timestamp>,
    /// A chain to ask to stop, once the row is written.
    pub(crate) cancel: Option<ChainId>,
}

/// Decides what to do with a schedule at time `now`. `status` returns the status of the chains that were read: see
/// [`State::watched_chains`].
///
/// # Errors
///
/// If this program cannot compute the schedule's times. The row must be left unchanged.
pub(crate) fn visit(
    row: &ScheduleRecord,
    definition: &Definition,
    mut state: State,
    now: Timestamp,
    status: impl Fn(ChainId) -> Option<ChainStatus>,
) -> Result<Visit> {
    let before = state.clone();
    if state.ended_at.is_some_and(|ended| time(ended) + definition.spec.retention_ms() <= now) {
        return Ok(Visit::Delete);
    }
    resolve(&mut state, now, status);
    let jitter = definition.spec.jitter_of(row.id);
    let mut handled = row.handled;
    let decision = if state.paused_at.is_some() || state.ended_at.is_some() {
        Decision::default()
    } else {
        decide(row, definition, &mut state, &mut handled, now)?
    };
    let mut other = state.clone();
    let chain = match decision.fire {
        Some(at) => Some(fired(row, definition, &mut state, at, now)?),
        None => None,
    };
    other.key_held += u64::from(chain.is_some());
    let due_at = settle(row, definition, &mut state, handled, now)?;
    settle(row, definition, &mut other, handled, now)?;
    if state == before && due_at == row.due_at && handled == row.handled && chain.is_none() {
        // Ask again: the request may have been lost.
        return Ok(match decision.cancel {
            Some(_) => planned(jitter, (&state, &other), due_at, handled, None, &decision),
            None => Visit::Nothing,
        });
    }
    Ok(planned(jitter, (&state, &other), due_at, handled, chain, &decision))
}

#[derive(Clone, Copy, Debug, Default)]
struct Decision {
    /// The occurrence to start.
    fire: Option<Timestamp>,
    /// Until when the decision is right.
    not_after: Option<Timestamp>,
    cancel: Option<ChainId>,
}

fn planned(
    jitter: Millis,
    (state, other): (&State, &State),
    due_at: Option<Timestamp>,
    handled: Option<Timestamp>,
    chain: Option<NewChain>,
    decision: &Decision,
) -> Visit {
    // The clock of this process may be wrong, and the process may be suspended before it sends the change. The store
    // compares both times with its own.
    let not_before = decision.fire.map(|at| at + jitter);
    let put = PutSchedule {
        due_at,
        handled,
        definition: None,
        state: state.encode().into(),
        chain,
        state_if_not_created: other.encode().into(),
    };
    Visit::Put(Box::new(Planned { put, not_before, not_after: decision.not_after, cancel: decision.cancel }))
}

/// Records the outcomes of runs that have closed. A failed run that an operator has retried is open again.
fn resolve(state: &mut State, now: Timestamp, status: impl Fn(ChainId) -> Option<ChainStatus>) {
    for run in &mut state.runs {
        let (outcome, at) = match status(run.chain) {
            None => continue,
            Some(ChainStatus::Open) => {
                (run.outcome, run.closed_at) = (None, None);
                continue;
            }
            Some(ChainStatus::Gone) if run.outcome.is_some() => continue,
            Some(ChainStatus::Closed(closed_as, at)) => (RunOutcome::from(closed_as), at),
            Some(ChainStatus::Gone) => (RunOutcome::Deleted, now),
        };
        (run.outcome, run.closed_at) = (Some(outcome), Some(at.as_millis()));
        if outcome == RunOutcome::Completed {
            state.last_success = state.last_success.max(Some(run.at));
        }
    }
    let State { older, last_success, .. } = state;
    // The runs that were read move to the end: the next check reads others.
    let mut read = 0;
    older.retain(|chain| match status(*chain) {
        None => true,
        Some(ChainStatus::Open) => {
            read += 1;
            true
        }
        Some(ChainStatus::Closed(ClosedAs::Completed, _)) => {
            let at = chain.occurrence().map(|occurrence| occurrence.at.as_millis());
            *last_success = (*last_success).max(at);
            false
        }
        Some(ChainStatus::Closed(..) | ChainStatus::Gone) => false,
    });
    older.rotate_left(read);
}

/// Decides whether to start an occurrence. Drops those that were missed, and skips those that overlap.
fn decide(
    row: &ScheduleRecord,
    definition: &Definition,
    state: &mut State,
    handled: &mut Option<Timestamp>,
    now: Timestamp,
) -> Result<Decision> {
    let spec = &definition.spec;
    let open = state.open_latest();
    if let Some(waiting) = state.waiting
        && (open.is_none() || spec.overlap_policy() == Overlap::Allow)
    {
        state.waiting = None;
        return Ok(Decision { fire: Some(time(waiting)), ..Decision::default() });
    }
    let jitter = spec.jitter_of(row.id);
    drop_missed(definition, state, handled, now, jitter)?;
    let fire = |at: Timestamp| Decision {
        fire: Some(at),
        not_after: Some(latest_start(spec, at + jitter, now)),
        cancel: None,
    };
    let cancel =
        |state: &State| open.filter(|_| spec.overlap_policy() == Overlap::Cancel && state.waiting.is_some());
    for _ in 0..SKIPPED_MAX {
        let Some(next) = spec.next_after(base(definition, state, *handled))? else { break };
        if now < next + jitter {
            break;
        }
        *handled = Some(next);
        match spec.overlap_policy() {
            _ if open.is_none() => return Ok(fire(next)),
            Overlap::Allow => return Ok(fire(next)),
            Overlap::Wait | Overlap::Cancel if state.waiting.is_none() => {
                state.waiting = Some(next.as_millis())
            }
            _ => state.overlapped += 1,
        }
    }
    Ok(Decision { cancel: cancel(state), ..Decision::default() })
}

/// Returns the latest time at which an occurrence that is due at `due_at` may start. Later, it counts as missed. If it was
/// missed already, newer ones may be missed later, and would start in its place.
fn latest_start(spec: &ScheduleSpec, due_at: Timestamp, now: Timestamp) -> Timestamp {
    let in_time = due_at + spec.grace_ms();
    if now <= in_time { in_time } else { now + spec.grace_ms().max(GRACE) }
}

/// Returns the time after which the next occurrence is searched.
fn base(definition: &Definition, state: &State, handled: Option<Timestamp>) -> Option<Timestamp> {
    // A single time in the past still counts.
    let since = (!definition.spec.is_once()).then(|| time(state.since));
    handled.max(since)
}

/// Drops missed occurrences, except the newest ones that the policy keeps. The cost depends on the policy, not on the
/// length of the outage.
fn drop_missed(
    definition: &Definition,
    state: &mut State,
    handled: &mut Option<Timestamp>,
    now: Timestamp,
    jitter: Millis,
) -> Result<()> {
    let spec = &definition.spec;
    let grace = spec.grace_ms().get().saturating_add(jitter.get()).saturating_add(1);
    let Some(limit) = now.as_millis().checked_sub_unsigned(grace).filter(|limit| *limit >= 0) else {
        return Ok(());
    };
    let base = base(definition, state, *handled);
    let is_new = |at: &Timestamp| base.is_none_or(|base| *at > base);
    let Some(newest) = spec.last_until(time(limit))?.filter(is_new) else { return Ok(()) };
    let kept = match spec.missed_policy() {
        MissedRuns::Skip => 0,
        MissedRuns::RunOnce => 1,
        MissedRuns::RunLatest(count) => count,
    };
    // Occurrences start from the oldest to the newest. Keep only those that do not overlap, so that the newest starts: it
    // may be one that is due and was not missed.
    let is_due =
        spec.last_until(time(limit.saturating_add_unsigned(spec.grace_ms().get() + 1)))? > Some(newest);
    let kept = kept.min(match spec.overlap_policy() {
        Overlap::Allow => u32::MAX,
        Overlap::Wait if state.open_latest().is_none() => 2 - u32::from(is_due),
        Overlap::Wait | Overlap::Skip | Overlap::Cancel => 1 - u32::from(is_due),
    });
    // The newest occurrence that is dropped.
    let mut dropped = Some(newest);
    for _ in 0..kept {
        let Some(at) = dropped else { break };
        let before = at.as_millis().checked_sub(1).filter(|before| *before >= 0);
        dropped = match before {
            Some(before) => spec.last_until(time(before))?.filter(is_new),
            None => None,
        };
    }
    let Some(dropped) = dropped else { return Ok(()) };
    state.missed += count_until(definition, base, dropped)?;
    *handled = Some(dropped);
    Ok(())
}

/// Handles the occurrences that were due at `until` and that no worker has started, before a pause or a change of the times
/// hides them. The newest one is kept as a waiting occurrence, if the policies allow it. The others were missed. Returns the
/// last occurrence handled.
pub(crate) fn set_aside(
    schedule: ScheduleId,
    definition: &Definition,
    state: &mut State,
    handled: Option<Timestamp>,
    (until, now): (Timestamp, Timestamp),
) -> Result<Option<Timestamp>> {
    let spec = &definition.spec;
    let jitter = spec.jitter_of(schedule);
    let Some((newest, count)) = due_until(definition, state, handled, until, jitter)? else {
        return Ok(handled);
    };
    let is_missed = newest + jitter + spec.grace_ms() < now && spec.missed_policy() == MissedRuns::Skip;
    let is_overlapping =
        state.waiting.is_some() || spec.overlap_policy() == Overlap::Skip && state.open_latest().is_some();
    if is_missed {
        state.missed += 1;
    } else if is_overlapping {
        state.overlapped += 1;
    } else {
        state.waiting = Some(newest.as_millis());
        (state.check_at, state.check_delay) = (Some(now.as_millis()), 0);
    }
    state.missed += count.saturating_sub(1);
    Ok(Some(newest))
}

/// Drops the occurrences that were due during a pause, which ends now. Returns the last occurrence handled.
pub(crate) fn drop_paused(
    schedule: ScheduleId,
    definition: &Definition,
    state: &mut State,
    handled: Option<Timestamp>,
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let jitter = definition.spec.jitter_of(schedule);
    let dropped = due_until(definition, state, handled, now, jitter)?;
    state.paused += dropped.map_or(0, |(_, count)| count);
    Ok(dropped.map(|(newest, _)| newest).or(handled))
}

/// Returns the newest occurrence that was due at a time and is not handled, and the number of all such occurrences.
fn due_until(
    definition: &Definition,
    state: &State,
    handled: Option<Timestamp>,
    until: Timestamp,
    jitter: Millis,
) -> Result<Option<(Timestamp, u64)>> {
    let base = base(definition, state, handled);
    let limit = until.as_millis().checked_sub_unsigned(jitter.get()).filter(|limit| *limit >= 0);
    let Some(limit) = limit else { return Ok(None) };
    let newest = definition.spec.last_until(time(limit))?;
    let Some(newest) = newest.filter(|at| base.is_none_or(|base| *at > base)) else { return Ok(None) };
    Ok(Some((newest, count_until(definition, base, newest)?)))
}

/// Counts occurrences after `base` up to `last`, at most [`COUNTED_MAX`].
fn count_until(definition: &Definition, mut base: Option<Timestamp>, last: Timestamp) -> Result<u64> {
    let mut count = 0;
    while count < COUNTED_MAX
        && let Some(next) = definition.spec.next_after(base)?.filter(|next| *next <= last)
    {
        count += 1;
        base = Some(next);
    }
    Ok(count)
}

/// Returns the chain of an occurrence, and adds it to the runs.
fn fired(
    row: &ScheduleRecord,
    definition: &Definition,
    state: &mut State,
    at: Timestamp,
    now: Timestamp,
) -> Result<NewChain> {
    let chain = Occurrence { schedule: row.id, at, is_manual: false }.chain();
    state.push_run(at, chain, now, None);
    // Soon. An earlier check stays: otherwise a schedule that starts runs all the time would never check them.
    let soon = (now + Millis::new(CHECK_FIRST_MS).unwrap_or_default()).as_millis();
    state.check_at = state.check_at.filter(|at| now.as_millis() < *at && *at < soon);
    state.check_delay = 0;
    definition.job.decode(chain)
}

/// Completes a state after a visit: plans the next check, and notes the end. Returns when the row is due next.
fn settle(
    row: &ScheduleRecord,
    definition: &Definition,
    state: &mut State,
    handled: Option<Timestamp>,
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    if state.open_chains().next().is_none() && state.waiting.is_none() {
        (state.check_at, state.check_delay) = (None, 0);
    } else if state.check_at.is_none_or(|at| at <= now.as_millis()) {
        let most = if state.waiting.is_some() { CHECK_WAITING_MAX_MS } else { CHECK_MAX_MS / state.checks() };
        state.check_delay = (state.check_delay * 2).clamp(CHECK_FIRST_MS, most);
        state.check_at = Some((now + Millis::new(state.check_delay).unwrap_or_default()).as_millis());
    }
    due_at(row.id, definition, state, handled, now)
}

/// Returns when a schedule is due next: at its next occurrence, its next check, or when it is to be removed.
pub(crate) fn due_at(
    schedule: ScheduleId,
    definition: &Definition,
    state: &mut State,
    handled: Option<Timestamp>,
    now: Timestamp,
) -> Result<Option<Timestamp>> {
    let spec = &definition.spec;
    let check = state.check_at.map(time);
    if state.paused_at.is_some() {
        return Ok(check);
    }
    let next = spec.next_after(base(definition, state, handled))?.map(|next| next + spec.jitter_of(schedule));
    let is_over = next.is_none() && check.is_none() && state.waiting.is_none();
    if !is_over {
        state.ended_at = None;
        return Ok(next.into_iter().chain(check).min());
    }
    let ended = *state.ended_at.get_or_insert(now.as_millis());
    Ok(Some(time(ended) + spec.retention_ms()))
}
