//! Rows that are neither jobs nor chains.

use std::sync::Arc;

use super::Tables;
use crate::command::{EndedJobs, WorkerInfo};
use crate::model::row::{Row, RowKey};
use crate::name::{ScheduleName, TypeName};

impl Tables {
    /// Returns all workers, leader locks, paused types, schedules and former outcomes.
    pub(in crate::model) fn registry(&self) -> Vec<(RowKey, Row)> {
        let workers =
            self.workers.iter().map(|(id, row)| (RowKey::Worker(*id), Row::Worker(Arc::clone(row))));
        let locks = self.locks.iter().map(|(name, row)| (RowKey::Lock(name.clone()), Row::Lock(*row)));
        let paused = self.paused.iter().map(|name| (RowKey::Paused(name.clone()), Row::Paused));
        let schedules = self.schedules.iter();
        let schedules =
            schedules.map(|(name, row)| (RowKey::Schedule(name.clone()), Row::Schedule(Arc::clone(row))));
        let former = self.former.iter().map(|(name, row)| (RowKey::Former(name.clone()), Row::Former(*row)));
        workers.chain(locks).chain(paused).chain(schedules).chain(former).collect()
    }

    pub(in crate::model) fn workers(&self) -> impl Iterator<Item = &Arc<WorkerInfo>> {
        self.workers.values()
    }

    pub(in crate::model) fn has_paused(&self, job_type: &TypeName) -> bool {
        self.paused.contains(job_type)
    }

    pub(in crate::model) fn paused(&self) -> impl Iterator<Item = &TypeName> {
        self.paused.iter()
    }

    /// Returns how many jobs of a type no longer have the outcome with which they ended.
    pub(in crate::model) fn former_of(&self, job_type: &TypeName) -> EndedJobs {
        self.former.get(job_type).copied().unwrap_or_default()
    }

    /// Sets or deletes a row that is neither a job nor a chain, and returns its previous value.
    pub(super) fn install_registered(&mut self, key: &RowKey, after: Option<Row>) -> Option<Row> {
        match (key, after) {
            (RowKey::Worker(id), after) => {
                let before = self.workers.remove(id);
                if let Some(row) = &before {
                    self.worker_ends.remove(&(row.expires_at, *id));
                }
                if let Some(Row::Worker(row)) = after {
                    self.worker_ends.insert((row.expires_at, *id));
                    self.workers.insert(*id, row);
                }
                before.map(Row::Worker)
            }
            (RowKey::Lock(name), after) => {
                let before = self.locks.remove(name);
                if let Some(row) = &before {
                    self.lock_ends.remove(&(row.until, name.clone()));
                }
                if let Some(Row::Lock(row)) = after {
                    self.lock_ends.insert((row.until, name.clone()));
                    self.locks.insert(name.clone(), row);
                }
                before.map(Row::Lock)
            }
            (RowKey::Paused(name), Some(_)) => (!self.paused.insert(name.clone())).then_some(Row::Paused),
            (RowKey::Paused(name), None) => self.paused.remove(name).then_some(Row::Paused),
            (RowKey::Schedule(name), after) => self.install_schedule(name, after),
            (RowKey::Former(name), Some(Row::Former(row))) => {
                self.former.insert(name.clone(), row).map(Row::Former)
            }
            (RowKey::Former(name), _) => self.former.remove(name).map(Row::Former),
            // Jobs and chains have more indexes: see `install`.
            (RowKey::Job(_) | RowKey::Chain(_), _) => None,
        }
    }

    fn install_schedule(&mut self, name: &ScheduleName, after: Option<Row>) -> Option<Row> {
        let before = self.schedules.remove(name);
        if let Some(row) = &before {
            self.schedules_by_id.remove(&row.id);
            if let Some(due_at) = row.due_at {
                self.schedules_by_due.remove(&(due_at, name.clone()));
            }
        }
        if let Some(Row::Schedule(row)) = after {
            self.schedules_by_id.insert(row.id, name.clone());
            if let Some(due_at) = row.due_at {
                self.schedules_by_due.insert((due_at, name.clone()));
            }
            self.schedules.insert(name.clone(), row);
        }
        before.map(Row::Schedule)
    }
}
