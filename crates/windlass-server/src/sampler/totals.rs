//! Totals of ended jobs that only grow.
//!
//! The store counts the jobs of each type that have ever ended. It omits types without stored jobs, so the sum of a
//! count can fall. The sums here add the increase of each type instead.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use windlass_core::TypeName;
use windlass_core::command::{CountReply, EndedJobs, TypeCount};

/// The number of jobs that have ended, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Ended {
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
}

#[derive(Debug, Default)]
pub(super) struct Totals {
    /// The latest totals of each type, also of types without stored jobs. `None` before the first sample.
    types: Option<HashMap<TypeName, EndedJobs>>,
    /// The jobs that ended since the first sample.
    sums: EndedJobs,
}

impl Totals {
    /// Adds the increase since the latest counts.
    pub(super) fn add(&mut self, counts: &CountReply) {
        let is_first = self.types.is_none();
        let types = self.types.get_or_insert_default();
        for count in &counts.types {
            let before = types.insert(count.job_type.clone(), count.ended);
            if !is_first {
                self.sums = self.sums.and(count.ended.since(before.unwrap_or_else(|| removed(count))));
            }
        }
    }

    pub(super) fn sums(&self) -> Ended {
        self.sums.into()
    }
}

/// Returns how many jobs of a new type had ended before the first sample that has it. The type had no stored jobs in the
/// sample before, so its stored jobs have ended since, and removed ones before: a job stays stored for ten minutes after
/// it ended.
const fn removed(count: &TypeCount) -> EndedJobs {
    let TypeCount { completed, failed, cancelled, .. } = *count;
    count.ended.since(EndedJobs { completed, failed, cancelled })
}

impl From<EndedJobs> for Ended {
    fn from(EndedJobs { completed, failed, cancelled }: EndedJobs) -> Self {
        Self { completed, failed, cancelled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the counts of types: their names, completed jobs that are stored, and jobs that ever completed.
    fn counts(types: &[(&str, u64, u64)]) -> CountReply {
        let count = |(name, completed, total): &(&str, u64, u64)| TypeCount {
            job_type: TypeName::new(name).unwrap(),
            blocked: 0,
            pending: 0,
            running: 0,
            completed: *completed,
            failed: 0,
            cancelled: 0,
            ended: EndedJobs { completed: *total, ..EndedJobs::default() },
            oldest_ready: None,
            expired_leases: 0,
            paused: false,
        };
        CountReply { types: types.iter().map(count).collect(), closed_estimated: false }
    }

    #[test]
    fn sums_contain_every_job_that_ended_since_the_first_sample() {
        let mut totals = Totals::default();
        let mut seen = Vec::new();
        for types in [
            &[("a", 1_000, 5_000)][..],
            &[("a", 1_010, 5_010)],
            &[("a", 500, 5_015), ("b", 7, 7)], // jobs have ended while others were removed
            &[("a", 505, 5_020), ("b", 9, 9)],
            &[("b", 9, 9)], // the type has no stored jobs
            &[("a", 2, 5_022), ("b", 9, 9)],
            &[("a", 2, 5_022), ("b", 9, 9), ("c", 3, 9_003)], // a type that had no stored jobs before the first sample
            &[("a", 1, 1)],                                   // the store was erased
        ] {
            totals.add(&counts(types));
            seen.push(totals.sums().completed);
        }
        assert_eq!(seen, [0, 10, 22, 29, 29, 31, 34, 34]);
    }
}
