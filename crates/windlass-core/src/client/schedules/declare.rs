//! Declarations of schedules by programs.

use std::time::Duration;

use super::edit::{Edit, change, redefined};
use super::{Known, Schedules};
use crate::client::firing::in_batches;
use crate::command::{ChangeSchedules, GetSchedules, ScheduleChanged, ScheduleRecord, ScheduleTarget};
use crate::error::{ErrorKind, Result};
use crate::limit::SCHEDULE_PAGE_MAX;
use crate::name::ScheduleName;
use crate::schedule::{Definition, EncodedChain, ScheduleSpec, State, time};
use crate::time::Timestamp;

/// How often a worker notes that it still declares a schedule.
pub(crate) const DECLARED_EVERY: Duration = Duration::from_secs(10 * 60);

/// A schedule that a program declares.
#[derive(Clone, Debug)]
pub(crate) struct Declaration {
    pub(crate) name: ScheduleName,
    pub(crate) spec: ScheduleSpec,
    pub(crate) job: EncodedChain,
}

/// What became of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    Unchanged,
    Applied,
    /// A single time in the past: the schedule was removed after it, or never stored.
    Over,
    /// Superseded content, or a lower version.
    Refused,
}

impl Schedules<'_> {
    /// Applies the declarations of a program, many at a time. Returns what became of each.
    pub(crate) async fn declare(
        &mut self,
        program: &str,
        declarations: &[Declaration],
    ) -> Vec<Result<Declared>> {
        let mut results = Vec::with_capacity(declarations.len());
        for page in declarations.chunks(SCHEDULE_PAGE_MAX) {
            match self.declare_page(program, page).await {
                Ok(declared) => {
                    for (declaration, declared) in page.iter().zip(declared) {
                        results.push(match declared {
                            Some(declared) => declared,
                            None => self.declare_one(program, declaration).await,
                        });
                    }
                }
                // One of them breaks a limit.
                Err(error) if error.kind() == ErrorKind::Invalid => {
                    for declaration in page {
                        results.push(self.declare_one(program, declaration).await);
                    }
                }
                Err(error) => results.extend(page.iter().map(|_| Err(error.clone()))),
            }
        }
        results
    }

    /// Applies declarations in a few commands. Returns `None` for those that others changed at the same time.
    async fn declare_page(
        &mut self,
        program: &str,
        page: &[Declaration],
    ) -> Result<Vec<Option<Result<Declared>>>> {
        let schedules = page.iter().map(|declaration| ScheduleTarget::Name(declaration.name.clone()));
        let reply = self.store.get(GetSchedules { schedules: schedules.collect() }).await?;
        let (mut results, mut changes) = (Vec::with_capacity(page.len()), Vec::new());
        for (declaration, row) in page.iter().zip(&reply.schedules) {
            let edit = edit(program, declaration, row.as_ref(), reply.now);
            results.push(match edit {
                Ok((declared, None)) => Some(Ok(declared)),
                Ok((declared, Some(edit))) => {
                    let change = change(&declaration.name, row.as_ref(), edit, reply.now)?;
                    changes.push((results.len(), declared, change));
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        for batch in in_batches(changes, |(.., change)| change) {
            let request =
                ChangeSchedules { changes: batch.iter().map(|(.., change)| change.clone()).collect() };
            let reply = self.store.change(request).await?;
            for ((place, declared, _), changed) in batch.iter().zip(reply.changes) {
                let is_applied =
                    matches!(changed, ScheduleChanged::Applied { .. } | ScheduleChanged::Repeated);
                if let Some(result) = results.get_mut(*place).filter(|_| is_applied) {
                    *result = Some(Ok(*declared));
                }
            }
        }
        Ok(results)
    }

    async fn declare_one(&mut self, program: &str, declaration: &Declaration) -> Result<Declared> {
        let mut declared = Declared::Unchanged;
        let edit = |known: Option<Known<'_>>, now: Timestamp| {
            let (result, edit) = declare(program, declaration, known, now)?;
            declared = result;
            Ok(edit)
        };
        self.change(declaration.name.as_str(), edit).await?;
        Ok(declared)
    }
}

fn edit(
    program: &str,
    declaration: &Declaration,
    row: Option<&ScheduleRecord>,
    now: Timestamp,
) -> Result<(Declared, Option<Edit>)> {
    let known = row.map(Known::decode).transpose()?;
    declare(program, declaration, known, now)
}

/// Decides what a declaration changes.
fn declare(
    program: &str,
    Declaration { spec, job, .. }: &Declaration,
    known: Option<Known<'_>>,
    now: Timestamp,
) -> Result<(Declared, Option<Edit>)> {
    let declared_at = Some(now.as_millis());
    let Some(Known { row, definition: known, state }) = known else {
        if is_over(spec, now)? {
            return Ok((Declared::Over, None));
        }
        let mut definition = Definition::declared(program, spec, job);
        definition.spec = definition.spec.anchored(now);
        let state = State { declared_at, ..State::new(now) };
        return Ok((Declared::Applied, Some(Edit::redefined(definition, state))));
    };
    let is_stale = state.declared_at.is_none_or(|at| time(at) + DECLARED_EVERY <= now);
    let state = State { declared_at: if is_stale { declared_at } else { state.declared_at }, ..state };
    let Some(mut new) = known.declare(program, spec, job, now) else {
        let is_current = known.has_content(spec, job);
        let declared = if is_current { Declared::Unchanged } else { Declared::Refused };
        return Ok((declared, Some(Edit::new(known, state)).filter(|_| is_stale)));
    };
    if new.has_content(spec, job) {
        new.spec = new.spec.anchored_like(&known.spec).anchored(now);
        let edit = redefined(row, &known, new, State { declared_at, ..state }, now);
        return Ok((Declared::Applied, Some(edit)));
    }
    Ok((Declared::Refused, Some(Edit::redefined(new, state))))
}

/// Whether a declaration has a single time, which has passed. If its schedule is not stored, it was started and removed
/// by its retention, or an operator deleted it: it must not start again.
fn is_over(spec: &ScheduleSpec, now: Timestamp) -> Result<bool> {
    Ok(spec.is_once() && spec.next_after(None)?.is_some_and(|at| at + spec.grace_ms() < now))
}
