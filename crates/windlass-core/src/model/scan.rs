//! Access to single rows and to all rows, for stores that keep the model's rows in files.

use std::sync::Arc;

use uuid::Uuid;

use super::Model;
use super::row::{ChainRow, JobRow, Row, RowKey};
use crate::id::{ChainId, JobId};

impl Model {
    /// Sets or deletes one row like a replayed effect, and returns its previous value.
    pub fn install(&mut self, key: &RowKey, after: Option<Row>) -> Option<Row> {
        self.tables.apply_effect(key, after)
    }

    /// Returns a job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Arc<JobRow>> {
        self.tables.get_job(id)
    }

    /// Returns the first jobs after a creation number, up to `max`.
    #[must_use]
    pub fn jobs_after(&self, seq: u64, max: usize) -> Vec<Arc<JobRow>> {
        let (first, last) = (JobId::from_uuid(Uuid::nil()), JobId::from_uuid(Uuid::max()));
        let jobs = self.tables.jobs_by_seq.range((seq.saturating_add(1), first)..=(u64::MAX, last));
        jobs.take(max).filter_map(|(_, id)| self.tables.get_job(*id).cloned()).collect()
    }

    /// Returns the first chains after a creation number, up to `max`.
    #[must_use]
    pub fn chains_after(&self, seq: u64, max: usize) -> Vec<Arc<ChainRow>> {
        let (first, last) = (ChainId::from_uuid(Uuid::nil()), ChainId::from_uuid(Uuid::max()));
        let chains = self.tables.chains_by_seq.range((seq.saturating_add(1), first)..=(u64::MAX, last));
        chains.take(max).filter_map(|(_, id)| self.tables.get_chain(*id).cloned()).collect()
    }

    /// Returns all rows that are neither jobs nor chains: workers, leader locks, paused types,
    /// schedules and former outcomes.
    #[must_use]
    pub fn registry(&self) -> Vec<(RowKey, Row)> {
        self.tables.registry()
    }

    /// Returns the last creation number that was used.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.tables.last_seq()
    }

    /// Marks all creation numbers up to `seq` as used.
    pub fn skip_seq(&mut self, seq: u64) {
        self.tables.skip_seq(seq);
    }
}
