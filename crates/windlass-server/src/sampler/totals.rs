//! Totals of ended jobs that only grow.
//!
//! The counts of a store fall when chains are removed. A total adds each increase of a count, and ignores decreases: these
//! are removed chains. Jobs that end between the same two samples as chains of their type and outcome are removed are
//! missed, at most as many as were removed.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use windlass_core::TypeName;
use windlass_core::command::{CountReply, TypeCount};

/// The number of jobs that have ended, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Ended {
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
}

#[derive(Debug, Default)]
pub(super) struct Totals {
    /// The latest counts and the totals of each stored type. `None` before the first sample.
    types: Option<HashMap<TypeName, (Ended, Ended)>>,
    sums: Ended,
}

impl Totals {
    /// Adds the increase since the latest counts.
    pub(super) fn add(&mut self, counts: &CountReply) {
        let before = self.types.take();
        let is_first = before.is_none();
        let mut before = before.unwrap_or_default();
        let mut types = HashMap::with_capacity(counts.types.len());
        for count in &counts.types {
            let now = Ended::of(count);
            let (latest, total) = match before.remove(&count.job_type) {
                Some(known) => known,
                // What was stored before the first sample did not end since.
                None if is_first => (now, Ended::default()),
                None => Default::default(),
            };
            let increase = now.increase_since(latest);
            self.sums = self.sums.and(increase);
            types.insert(count.job_type.clone(), (now, total.and(increase)));
        }
        self.types = Some(types);
    }

    pub(super) fn of(&self, job_type: &TypeName) -> Ended {
        let known = self.types.as_ref().and_then(|types| types.get(job_type));
        known.map(|(_, total)| *total).unwrap_or_default()
    }

    pub(super) const fn sums(&self) -> Ended {
        self.sums
    }
}

impl Ended {
    const fn of(count: &TypeCount) -> Self {
        Self { completed: count.completed, failed: count.failed, cancelled: count.cancelled }
    }

    const fn increase_since(self, earlier: Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(earlier.completed),
            failed: self.failed.saturating_sub(earlier.failed),
            cancelled: self.cancelled.saturating_sub(earlier.cancelled),
        }
    }

    const fn and(self, other: Self) -> Self {
        Self {
            completed: self.completed + other.completed,
            failed: self.failed + other.failed,
            cancelled: self.cancelled + other.cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(completed: &[(&str, u64)]) -> CountReply {
        let count = |(name, completed): &(&str, u64)| TypeCount {
            job_type: TypeName::new(name).unwrap(),
            blocked: 0,
            pending: 0,
            running: 0,
            completed: *completed,
            failed: 0,
            cancelled: 0,
            oldest_ready: None,
            expired_leases: 0,
            paused: false,
        };
        CountReply { types: completed.iter().map(count).collect(), closed_estimated: false }
    }

    #[test]
    fn totals_never_fall() {
        let mut totals = Totals::default();
        let mut seen = Vec::new();
        for completed in [
            &[("a", 1_000)][..],
            &[("a", 1_010)],
            &[("a", 500), ("b", 7)], // chains have expired
            &[("a", 505), ("b", 9)],
            &[("b", 9)],
            &[("a", 2), ("b", 9)],
        ] {
            totals.add(&counts(completed));
            seen.push((totals.sums().completed, totals.of(&TypeName::new("b").unwrap()).completed));
        }
        assert_eq!(seen, [(0, 0), (10, 0), (17, 7), (24, 9), (24, 9), (26, 9)]);
    }
}
