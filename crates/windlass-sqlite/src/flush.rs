//! Writes changed rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rusqlite::params;
use rusqlite::types::ValueRef;
use windlass_core::limit::TIMESTAMP_MAX_MS;
use windlass_core::model::{ChainRow, JobRow, repeat_window};
use windlass_core::{Blocker, ChainId, OnBlockerFailure, Result, Status, TypeName};

use crate::error::from_sqlite;
use crate::rows::{Bind, SqliteRows, first};
use crate::statement::{Sql, Write};
use crate::table::{COLUMNS, Columns, EnumText, corrupt, id, values};

/// A job and its chain, as one row.
type Pair = (Arc<JobRow>, Option<Arc<ChainRow>>);

/// Derived data of changed rows, which is written after them.
#[derive(Default)]
struct Derived {
    /// The change in the number of jobs that need each chain.
    needed: BTreeMap<ChainId, i64>,
    /// The change in the number of jobs of each type and status.
    tally: BTreeMap<(TypeName, &'static str), i64>,
    /// Chains whose oldest inner job may have changed.
    trimmed: BTreeSet<ChainId>,
}

impl SqliteRows<'_> {
    /// Writes all changes since the last flush.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.changed.is_empty() {
            return Ok(());
        }
        (self.changed_edges, self.changed_keys) = (false, false);
        let mut pairs = Vec::with_capacity(self.changed.len());
        for job in std::mem::take(&mut self.changed) {
            let Some(slot) = self.slots.get_mut(&job) else { continue };
            slot.is_changed = false;
            let after = slot.job.clone().map(|job| (job, slot.chain.clone()));
            pairs.push((std::mem::replace(&mut slot.stored, after.clone()), after));
        }
        let mut derived = Derived::default();
        // A deleted chain may be created again while failed jobs still need it. Count them before any of them changes.
        for (before, after) in &pairs {
            if let Some((job, Some(_))) = after
                && before.as_ref().is_none_or(|before| is_other(before, job))
            {
                let needed_by = self.count_needing(job.job.chain)?;
                *derived.needed.entry(job.job.chain).or_default() += needed_by;
                if let Some(slot) = self.slots.get_mut(&job.job.id) {
                    slot.needed_by = 0;
                }
            }
        }
        // A key can move from one chain to another, and the index allows one holder at a time, so free all keys first.
        for (before, after) in &pairs {
            match (before, after) {
                (Some(before), None) => self.delete(before, &mut derived)?,
                (Some(before), Some((job, _))) if is_other(before, job) => {
                    self.delete(before, &mut derived)?
                }
                (Some(before), Some(after)) if holds_key(before) && !holds_key(after) => {
                    self.run(Sql::FreeKey, [before.0.seq])?;
                }
                _ => {}
            }
        }
        for (before, after) in &pairs {
            match (before, after) {
                (None, Some(after)) => self.insert(after, &mut derived)?,
                (Some(before), Some(after)) if is_other(before, &after.0) => {
                    self.insert(after, &mut derived)?
                }
                (Some(before), Some(after)) => self.update(before, after, &mut derived)?,
                _ => {}
            }
        }
        self.write_derived(derived)
    }

    fn insert(&mut self, (job, chain): &Pair, derived: &mut Derived) -> Result<()> {
        if job.job.index == 0 && chain.is_none() {
            return Err(corrupt(format_args!("the first job of the chain {} has no chain", job.job.chain)));
        }
        let values = values(job, chain.as_deref());
        // Most columns of a new job are null. Binding them would take longer than inserting the row.
        let statement =
            self.prepared.write(Write::Insert(columns(|bit| values.get(bit) != Some(&ValueRef::Null))))?;
        for (index, value) in values.into_iter().filter(|value| *value != ValueRef::Null).enumerate() {
            statement.raw_bind_parameter(index + 1, Bind(value)).map_err(|error| from_sqlite(&error))?;
        }
        statement.raw_execute().map_err(|error| from_sqlite(&error))?;
        for (position, blocker) in job.job.blockers.iter().enumerate() {
            let waiting = is_waiting(job, blocker);
            let eager = job.job.on_blocker_failure != OnBlockerFailure::Wait;
            let chain = Bind(id(blocker.chain.as_uuid()));
            let trace = blocker.trace.as_ref().map(|trace| trace.as_str());
            let values = params![job.seq, position, chain, blocker.resolved, waiting, eager, trace];
            self.run(Sql::InsertBlocker, values)?;
            self.largest_blocker = self.largest_blocker.map(|largest| largest.max(blocker.chain));
        }
        self.insert_attempts(job, &[])?;
        derived.count(job, 1);
        derived.need(job, 1);
        derived.trim(job, chain.as_deref());
        Ok(())
    }

    fn update(&mut self, before: &Pair, after: &Pair, derived: &mut Derived) -> Result<()> {
        let (old, new) = (&before.0, &after.0);
        let (old_values, new_values) = (values(old, before.1.as_deref()), values(new, after.1.as_deref()));
        let changed = columns(|bit| old_values.get(bit) != new_values.get(bit));
        if changed != 0 {
            let statement = self.prepared.write(Write::Update(changed))?;
            let mut parameter = 1;
            for (bit, value) in new_values.into_iter().enumerate() {
                if changed >> bit & 1 == 1 {
                    statement
                        .raw_bind_parameter(parameter, Bind(value))
                        .map_err(|error| from_sqlite(&error))?;
                    parameter += 1;
                }
            }
            statement.raw_bind_parameter(parameter, new.seq).map_err(|error| from_sqlite(&error))?;
            check_one(statement.raw_execute().map_err(|error| from_sqlite(&error))?, new)?;
        }
        for (position, (was, is)) in old.job.blockers.iter().zip(new.job.blockers.iter()).enumerate() {
            let waiting = is_waiting(new, is);
            if was.resolved != is.resolved || is_waiting(old, was) != waiting {
                self.run(Sql::UpdateBlocker, params![new.seq, position, is.resolved, waiting])?;
            }
        }
        if !Arc::ptr_eq(&old.history, &new.history) {
            for record in old.history.iter().filter(|record| !new.history.contains(record)) {
                self.run(Sql::DeleteAttempt, params![new.seq, record.fence.0.cast_signed()])?;
            }
            self.insert_attempts(new, &old.history)?;
        }
        if old.job.status != new.job.status {
            derived.count(old, -1);
            derived.count(new, 1);
        }
        if old.needs_blockers() != new.needs_blockers() {
            derived.need(old, -1);
            derived.need(new, 1);
        }
        derived.trim(new, after.1.as_deref());
        Ok(())
    }

    /// Deletes a row with its blockers and attempts.
    fn delete(&mut self, (job, chain): &Pair, derived: &mut Derived) -> Result<()> {
        let deleted = self.prepared.get(Sql::DeleteJob)?.execute([job.seq]);
        check_one(deleted.map_err(|error| from_sqlite(&error))?, job)?;
        if !job.job.blockers.is_empty() {
            self.run(Sql::DeleteBlockers, [job.seq])?;
        }
        if !job.history.is_empty() {
            self.run(Sql::DeleteAttempts, [job.seq])?;
        }
        derived.count(job, -1);
        derived.need(job, -1);
        derived.trim(job, chain.as_deref());
        Ok(())
    }

    /// Returns how many jobs need a chain that is not stored.
    fn count_needing(&mut self, chain: ChainId) -> Result<i64> {
        if self.largest_blocker.is_some_and(|largest| chain > largest) {
            return Ok(0);
        }
        let read = |row: &rusqlite::Row<'_>| Columns { row, next: 0 }.number();
        let statement = self.prepared.get(Sql::CountNeeding)?;
        Ok(first(statement, [Bind(id(chain.as_uuid()))], read)?.unwrap_or_default())
    }

    /// Inserts the attempts of a job that are not stored yet.
    fn insert_attempts(&mut self, job: &JobRow, stored: &[windlass_core::AttemptRecord]) -> Result<()> {
        for record in job.history.iter().filter(|record| !stored.contains(record)) {
            let values = params![
                job.seq,
                record.fence.0.cast_signed(),
                record.attempt,
                Bind(id(record.worker.as_uuid())),
                record.worker_name.as_ref().map(|name| name.as_str()),
                record.started_at.as_millis(),
                record.ended_at.map(|at| at.as_millis()),
                record.end.enum_text(),
                record.error.as_ref().map(|error| error.as_str()),
            ];
            self.run(Sql::InsertAttempt, values)?;
        }
        Ok(())
    }

    fn write_derived(&mut self, derived: Derived) -> Result<()> {
        for (chain, change) in derived.needed.into_iter().filter(|(_, change)| *change != 0) {
            self.run(Sql::ChangeNeeded, params![Bind(id(chain.as_uuid())), change])?;
            if let Some(slot) = self.slots.get_mut(&chain.first_job()) {
                slot.needed_by += change;
            }
        }
        for chain in derived.trimmed {
            let window = repeat_window().get().cast_signed();
            self.run(Sql::UpdateTrim, params![Bind(id(chain.as_uuid())), window, TIMESTAMP_MAX_MS])?;
        }
        for ((job_type, status), change) in derived.tally.into_iter().filter(|(_, change)| *change != 0) {
            self.run(Sql::UpdateTally, params![job_type.as_str(), status, change])?;
            if change < 0 {
                self.run(Sql::ClearTally, params![job_type.as_str(), status])?;
            }
        }
        if let Some(sequence) = self.sequence.filter(|_| self.sequence != self.stored_sequence) {
            self.run(
                Sql::UpdateSequence,
                params![sequence.last.cast_signed(), sequence.deleted_fence.0.cast_signed()],
            )?;
            self.stored_sequence = self.sequence;
        }
        Ok(())
    }
}

impl Derived {
    fn count(&mut self, job: &JobRow, change: i64) {
        *self.tally.entry((job.job.job_type.clone(), job.job.status.enum_text())).or_default() += change;
    }

    fn need(&mut self, job: &JobRow, change: i64) {
        if job.needs_blockers() {
            for blocker in job.job.blockers.iter() {
                *self.needed.entry(blocker.chain).or_default() += change;
            }
        }
    }

    fn trim(&mut self, job: &JobRow, chain: Option<&ChainRow>) {
        if job.job.index > 0 || chain.is_some_and(|chain| chain.latest_index > 1) {
            self.trimmed.insert(job.job.chain);
        }
    }
}

/// Whether a job was deleted and created again with the same id.
fn is_other(before: &Pair, after: &JobRow) -> bool {
    before.0.seq != after.seq
}

/// Fails unless a statement changed one row.
fn check_one(changed: usize, job: &JobRow) -> Result<()> {
    match changed {
        1 => Ok(()),
        _ => Err(corrupt(format_args!("the row of the job {} is missing", job.job.id))),
    }
}

fn holds_key((_, chain): &Pair) -> bool {
    chain.as_ref().and_then(|chain| chain.key.as_ref()).is_some_and(|key| key.held)
}

/// Whether a job is blocked and this chain is one of its unresolved blockers.
fn is_waiting(job: &JobRow, blocker: &Blocker) -> bool {
    job.job.status == Status::Blocked && !blocker.resolved
}

/// Returns the set of columns for which `is_in` holds, by their indexes in [`COLUMNS`].
fn columns(is_in: impl Fn(usize) -> bool) -> u64 {
    (0..COLUMNS.len()).filter(|bit| is_in(*bit)).fold(0, |columns, bit| columns | 1_u64 << bit)
}
