//! Declarations of schedules by programs.
//!
//! A worker that declares a schedule writes its own id into the state of the schedule, as a note. While that worker is
//! alive, no other worker writes a note for 10 minutes. When its heartbeats have ended, another worker that declares the
//! schedule replaces the note. If no worker declares it, but a worker of the same program is alive, that worker marks the
//! schedule as removed from the code. So declarations cost nothing until a worker stops.

use std::collections::HashSet;
use std::time::Duration;

use super::edit::{Edit, change, redefined};
use super::{PAGE, Schedules, StoredSchedule};
use crate::client::firing::in_batches;
use crate::command::{
    ChangeSchedules, GetSchedules, ListSchedules, ScheduleChange, ScheduleChanged, ScheduleRecord,
    ScheduleTarget,
};
use crate::error::Result;
use crate::id::WorkerId;
use crate::limit::SCHEDULE_PAGE_MAX;
use crate::name::ScheduleName;
use crate::schedule::{Definition, EncodedChain, ScheduleSpec, State, time};
use crate::time::Timestamp;

/// How often a worker notes that it still declares a schedule.
pub(crate) const DECLARED_EVERY: Duration = Duration::from_secs(10 * 60);
/// How old a note must be before another worker replaces it because its worker is not listed. A worker may write its first
/// note before its first heartbeat.
const ORPHANED_AFTER: Duration = Duration::from_secs(30);

/// A worker that declares schedules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declarer<'a> {
    pub(crate) program: &'a str,
    pub(crate) worker: WorkerId,
    /// The live workers. `None` if the store does not list workers, or did not answer.
    pub(crate) live: Option<&'a HashSet<WorkerId>>,
}

impl Declarer<'_> {
    /// Whether the worker that noted the declaration is dead.
    fn is_orphan(&self, state: &State) -> bool {
        let is_live = |worker| worker == self.worker || self.live.is_none_or(|live| live.contains(&worker));
        !state.declared_by.is_some_and(is_live) && self.live.is_some()
    }

    /// Whether a note is older than this.
    fn is_older(state: &State, age: Duration, now: Timestamp) -> bool {
        state.declared_at.is_none_or(|at| time(at) + age <= now)
    }

    /// Returns the state with a new note, or `None` if the present one is good enough.
    fn note(&self, state: &State, now: Timestamp) -> Option<State> {
        let age = if self.is_orphan(state) { ORPHANED_AFTER } else { DECLARED_EVERY };
        let is_due = state.undeclared_at.is_some() || Self::is_older(state, age, now);
        is_due.then(|| self.noted(state.clone(), now))
    }

    fn noted(&self, state: State, now: Timestamp) -> State {
        let (declared_at, declared_by) = (Some(now.as_millis()), Some(self.worker));
        State { declared_at, declared_by, undeclared_at: None, ..state }
    }
}

/// The results of a program's declarations.
#[derive(Debug, Default)]
pub(crate) struct DeclaredAll {
    /// The result for each.
    pub(crate) results: Vec<Result<Declared>>,
    /// The other workers whose notes the schedules have.
    pub(crate) others: HashSet<WorkerId>,
}

/// The result of [`Schedules::mark_undeclared`].
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The other live workers whose notes the schedules of the program have.
    pub(crate) others: HashSet<WorkerId>,
    /// Whether a schedule may have to be marked later.
    pub(crate) is_unfinished: bool,
}

/// A schedule that a program declares.
#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub(crate) name: ScheduleName,
    pub(crate) spec: ScheduleSpec,
    pub(crate) job: EncodedChain,
}

/// The result of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    Unchanged,
    Applied,
    /// A single time in the past: the schedule was removed after it, or never stored.
    Over,
    /// Superseded content, or a lower version.
    Refused,
}

/// A declaration on its way to the store.
struct Pending {
    /// Its index in the page.
    index: usize,
    declared: Declared,
    /// Whether it changes nothing but the note.
    is_note: bool,
    change: ScheduleChange,
}

impl Schedules<'_> {
    /// Applies the declarations of a program, many at a time.
    pub(crate) async fn declare(
        &mut self,
        declarer: Declarer<'_>,
        declarations: &[Declaration],
    ) -> DeclaredAll {
        let mut all =
            DeclaredAll { results: Vec::with_capacity(declarations.len()), ..DeclaredAll::default() };
        for page in declarations.chunks(SCHEDULE_PAGE_MAX) {
            match self.declare_page(declarer, page, &mut all.others).await {
                Ok(declared) => {
                    for (declaration, declared) in page.iter().zip(declared) {
                        all.results.push(match declared {
                            Some(declared) => declared,
                            None => self.declare_one(declarer, declaration).await,
                        });
                    }
                }
                Err(error) => all.results.extend(page.iter().map(|_| Err(error.clone()))),
            }
        }
        all
    }

    /// Applies declarations in a few commands. Returns `None` for those that another program changed at the same time.
    async fn declare_page(
        &mut self,
        declarer: Declarer<'_>,
        page: &[Declaration],
        others: &mut HashSet<WorkerId>,
    ) -> Result<Vec<Option<Result<Declared>>>> {
        let schedules = page.iter().map(|declaration| ScheduleTarget::Name(declaration.name.clone()));
        let reply = self.store.get(GetSchedules { schedules: schedules.collect() }).await?;
        let (mut results, mut pending) = (Vec::with_capacity(page.len()), Vec::new());
        for (declaration, row) in page.iter().zip(&reply.schedules) {
            let index = results.len();
            results.push(match plan(declarer, declaration, row.as_ref(), reply.now, others) {
                Ok((declared, None)) => Some(Ok(declared)),
                Ok((declared, Some((is_note, change)))) => {
                    pending.push(Pending { index, declared, is_note, change });
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        for batch in in_batches(pending, |pending| &pending.change) {
            let changes = batch.iter().map(|pending| pending.change.clone()).collect();
            let reply = self.store.change(ChangeSchedules { changes }).await?;
            for (pending, changed) in batch.iter().zip(reply.changes) {
                let is_applied =
                    matches!(changed, ScheduleChanged::Applied { .. } | ScheduleChanged::Repeated);
                // Another worker has written its note, or an occurrence was started. A later check writes a missing note.
                if let Some(result) = results.get_mut(pending.index).filter(|_| is_applied || pending.is_note)
                {
                    *result = Some(Ok(pending.declared));
                }
            }
        }
        Ok(results)
    }

    async fn declare_one(&mut self, declarer: Declarer<'_>, declaration: &Declaration) -> Result<Declared> {
        let mut declared = Declared::Unchanged;
        let edit = |known: Option<StoredSchedule<'_>>, now: Timestamp| {
            let (result, edit) = declare(declarer, declaration, known, now)?;
            declared = result;
            Ok(edit)
        };
        self.change(declaration.name.as_str(), edit).await?;
        Ok(declared)
    }

    /// Marks the schedules of a program that no live worker declares, except those that this worker declares.
    pub(crate) async fn mark_undeclared(
        &mut self,
        declarer: Declarer<'_>,
        declared: &HashSet<ScheduleName>,
    ) -> Result<Survey> {
        let (mut survey, mut after) = (Survey::default(), None);
        loop {
            let reply = self.store.list(ListSchedules { after, max: PAGE }).await?;
            let Some(last) = reply.schedules.last() else { return Ok(survey) };
            after = Some(last.name.clone());
            let mut changes = Vec::new();
            for row in reply.schedules.iter().filter(|row| !declared.contains(&row.name)) {
                changes.extend(mark(declarer, row, reply.now, &mut survey)?);
            }
            for changes in in_batches(changes, |change| change) {
                let reply = self.store.change(ChangeSchedules { changes }).await?;
                let is_applied =
                    |changed: &ScheduleChanged| matches!(changed, ScheduleChanged::Applied { .. });
                survey.is_unfinished |= !reply.changes.iter().all(is_applied);
            }
        }
    }
}

/// Whether another worker has noted that it declares this schedule of the program.
pub(crate) fn is_noted(row: &ScheduleRecord, program: &str) -> bool {
    // Nearly all schedules of other origin are not decoded.
    row.state.contains("\"declared_by\"")
        && StoredSchedule::decode(row).is_ok_and(|StoredSchedule { definition, state, .. }| {
            state.undeclared_at.is_none()
                && definition.declaration.is_some_and(|declaration| declaration.program == program)
        })
}

/// Returns the change that marks a schedule, if it is no longer declared.
fn mark(
    declarer: Declarer<'_>,
    row: &ScheduleRecord,
    now: Timestamp,
    survey: &mut Survey,
) -> Result<Option<ScheduleChange>> {
    // A worker of a newer version can read it.
    let Ok(StoredSchedule { definition, state, .. }) = StoredSchedule::decode(row) else { return Ok(None) };
    let is_own = definition.declaration.as_ref().is_some_and(|of| of.program == declarer.program);
    let (true, Some(worker), None) = (is_own, state.declared_by, state.undeclared_at) else {
        return Ok(None);
    };
    if !declarer.is_orphan(&state) {
        survey.others.extend(Some(worker).filter(|worker| *worker != declarer.worker));
        return Ok(None);
    }
    if !Declarer::is_older(&state, ORPHANED_AFTER, now) {
        survey.is_unfinished = true;
        return Ok(None);
    }
    let state = State { undeclared_at: Some(now.as_millis()), ..state };
    change(&row.name, Some(row), Edit::new(definition, state), now).map(Some)
}

/// Returns the change of a declaration, and whether it changes nothing but the note. Adds the worker whose note stays to
/// `others`.
fn plan(
    declarer: Declarer<'_>,
    declaration: &Declaration,
    row: Option<&ScheduleRecord>,
    now: Timestamp,
    others: &mut HashSet<WorkerId>,
) -> Result<(Declared, Option<(bool, ScheduleChange)>)> {
    let known = row.map(StoredSchedule::decode).transpose()?;
    let noted_by = known.as_ref().and_then(|known| known.state.declared_by);
    let (declared, edit) = declare(declarer, declaration, known, now)?;
    let is_note = edit.as_ref().is_none_or(|edit| !edit.is_redefined);
    // If the note is replaced, a conflict may keep it. Then the next check sees that its worker is dead.
    others.extend(noted_by.filter(|worker| is_note && *worker != declarer.worker));
    let Some(edit) = edit else { return Ok((declared, None)) };
    let change = change(&declaration.name, row, edit, now)?;
    // Alone, so that a declaration that breaks a limit does not affect the others.
    let request = ChangeSchedules { changes: vec![change] };
    request.check()?;
    Ok((declared, request.changes.into_iter().next().map(|change| (is_note, change))))
}

/// Decides what a declaration changes.
fn declare(
    declarer: Declarer<'_>,
    Declaration { spec, job, .. }: &Declaration,
    known: Option<StoredSchedule<'_>>,
    now: Timestamp,
) -> Result<(Declared, Option<Edit>)> {
    let program = declarer.program;
    let Some(StoredSchedule { row, definition: known, state }) = known else {
        if is_over(spec, now)? {
            return Ok((Declared::Over, None));
        }
        let mut definition = Definition::declared(program, spec, job);
        definition.spec = definition.spec.anchored(now);
        let state = declarer.noted(State::new(now), now);
        return Ok((Declared::Applied, Some(Edit::redefined(definition, state))));
    };
    let note = declarer.note(&state, now);
    let Some(mut new) = known.declare(program, spec, job, now) else {
        let is_current = known.has_content(spec, job);
        let declared = if is_current { Declared::Unchanged } else { Declared::Refused };
        return Ok((declared, note.map(|state| Edit::new(known, state))));
    };
    if new.has_content(spec, job) {
        new.spec = new.spec.anchored_like(&known.spec).anchored(now);
        let edit = redefined(row, &known, new, declarer.noted(state, now), now);
        return Ok((Declared::Applied, Some(edit)));
    }
    Ok((Declared::Refused, Some(Edit::redefined(new, note.unwrap_or(state)))))
}

/// Whether a declaration has a single time, which has passed. If its schedule is not stored, it was started and removed
/// by its retention, or an operator deleted it: it must not start again.
fn is_over(spec: &ScheduleSpec, now: Timestamp) -> Result<bool> {
    Ok(spec.is_once() && spec.next_after(None)?.is_some_and(|at| at + spec.grace_ms() < now))
}
