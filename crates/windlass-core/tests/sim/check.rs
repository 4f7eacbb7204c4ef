//! Checks at the end of a simulation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use windlass_core::command::{ListAttempts, ListChains, ListJobs, Page};
use windlass_core::limit::PAGE_MAX;
use windlass_core::{
    AttemptEnd, AttemptRecord, ChainId, ChainRecord, ClosedAs, JobRecord, MemoryStore, OnBlockerFailure,
    Status, Store,
};

use super::caller::Promises;
use super::invariant::Invariant;
use super::jobs::{Mark, error_fence};
use super::journal::{Ended, Journal, RowKind};
use super::schedules::{self, Exact};
use super::world::{World, short};

/// Compares the store's final state with the journal and with what was promised to clients.
pub(crate) async fn everything(
    world: &Arc<World>,
    store: &MemoryStore,
    promises: &Mutex<Promises>,
    exact: &[Exact],
) {
    let page = Page { max: u32::try_from(PAGE_MAX).unwrap(), ..Page::default() };
    let chains = store.list_chains(ListChains { page: page.clone(), ..ListChains::default() }).await.unwrap();
    let jobs = store.list_jobs(ListJobs { page, ..ListJobs::default() }).await.unwrap();
    assert!(chains.next.is_none() && jobs.next.is_none(), "a world is small enough for one page");
    let mut attempts = BTreeMap::new();
    for job in &jobs.jobs {
        attempts.insert(job.id, store.list_attempts(ListAttempts { job: job.id }).await.unwrap().attempts);
    }
    let details = schedules::details(store, exact).await;
    let chains: BTreeMap<_, _> = chains.chains.into_iter().map(|chain| (chain.id, chain)).collect();
    let broken = {
        let state = world.state();
        let end = End { journal: &state.journal, chains: &chains };
        let mut broken = end.promises(&promises.lock().unwrap());
        for job in &jobs.jobs {
            broken.extend(end.job(job, &attempts[&job.id]));
        }
        let schedules = exact.iter().zip(&details);
        broken.extend(schedules.filter_map(|(exact, (_, of))| exact.check(end.journal, &chains, of)));
        broken.extend(chains.values().filter_map(schedules::check_time));
        broken
    };
    for chain in chains.values() {
        world.count(format!("chain {:?}", chain.status()));
    }
    for (invariant, what) in broken {
        world.violate(invariant, what);
    }
}

type Broken = Vec<(Invariant, String)>;

struct End<'a> {
    journal: &'a Journal,
    chains: &'a BTreeMap<ChainId, ChainRecord>,
}

impl End<'_> {
    /// Checks that everything promised to clients holds.
    fn promises(&self, promises: &Promises) -> Broken {
        let mut broken = Broken::new();
        for chain in &promises.started {
            let deleted = self.journal.chains.get(chain).is_some_and(|life| life.deleted);
            if !deleted && !self.chains.contains_key(chain) {
                let what = format!("chain {} was started but is not stored", short(chain.as_uuid()));
                broken.push((Invariant::StartsAreKept, what));
            }
        }
        for chain in promises.rolled_back.iter().filter(|chain| self.journal.chains.contains_key(chain)) {
            let what = format!("chain {} was rolled back but is stored", short(chain.as_uuid()));
            broken.push((Invariant::RollbacksLeaveNothing, what));
        }
        broken.extend(self.keys(&promises.keyed));
        for (chain, _) in promises.waits.iter().filter(|(_, waiting)| !waiting.is_finished()) {
            if self.chains.get(chain).is_none_or(|chain| chain.closed.is_some()) {
                let what = format!("a wait for chain {} continues after its end", short(chain.as_uuid()));
                broken.push((Invariant::WaitsAreAnswered, what));
            }
        }
        broken
    }

    /// Checks that no two chains were open under the same key at the same time.
    fn keys(&self, keyed: &[(&str, u64, ChainId)]) -> Broken {
        let mut broken = Broken::new();
        for (index, (kind, key, chain)) in keyed.iter().enumerate() {
            for (.., other) in keyed[..index].iter().filter(|(k, other_key, _)| (k, other_key) == (kind, key))
            {
                let spans = |chain| self.journal.chains.get(chain).map_or(&[][..], |life| &life.open);
                let overlap = spans(chain).iter().any(|a| spans(other).iter().any(|b| overlaps(*a, *b)));
                if chain != other && overlap {
                    let (chain, other) = (short(chain.as_uuid()), short(other.as_uuid()));
                    let what = format!("chains {other} and {chain} were open under the key {key} of {kind}");
                    broken.push((Invariant::KeysPointAtOneChain, what));
                }
            }
        }
        broken
    }

    fn job(&self, job: &JobRecord, attempts: &[AttemptRecord]) -> Broken {
        let mut broken = self.stuck(job);
        broken.extend(attempts.iter().filter_map(|attempt| self.attempt(job, attempt)));
        broken.extend(self.effects(job));
        broken
    }

    /// Checks that no job is left that could still make progress. A blocked job may remain if it waits for a
    /// chain that is itself blocked, or that failed while the job's policy is to wait.
    fn stuck(&self, job: &JobRecord) -> Broken {
        let name = short(job.id.as_uuid());
        let is_stuck = match job.status {
            Status::Pending | Status::Running => true,
            Status::Blocked => {
                let waits = job.blockers.iter().filter(|blocker| !blocker.resolved);
                let fruitless = |chain: &ChainId| match self.chains.get(chain).map(ChainRecord::status) {
                    Some(Status::Blocked) => true,
                    Some(Status::Failed | Status::Cancelled) => {
                        job.on_blocker_failure == OnBlockerFailure::Wait
                    }
                    _ => false,
                };
                !waits.clone().any(|blocker| fruitless(&blocker.chain))
            }
            _ => false,
        };
        let what = || format!("job {name} of type {} stays {:?}", job.job_type, job.status);
        is_stuck.then(|| (Invariant::NothingIsStuck, what())).into_iter().collect()
    }

    /// Checks that an attempt in the store's history ended as the journal says.
    fn attempt(&self, job: &JobRecord, attempt: &AttemptRecord) -> Option<(Invariant, String)> {
        let name = short(job.id.as_uuid());
        let expected = match self.journal.ended.get(&(job.id, attempt.fence))? {
            Ended::Completed => attempt.end == AttemptEnd::Completed,
            Ended::Continued => attempt.end == AttemptEnd::Continued,
            Ended::Retried => attempt.end == AttemptEnd::Retried,
            Ended::Rescheduled => attempt.end == AttemptEnd::Rescheduled,
            Ended::Released => attempt.end == AttemptEnd::Released,
            Ended::Failed => matches!(attempt.end, AttemptEnd::Failed | AttemptEnd::Exhausted),
            Ended::Cancelled => attempt.end == AttemptEnd::Cancelled,
            Ended::Reaped => attempt.end == AttemptEnd::Reaped,
            Ended::Displaced => attempt.end == AttemptEnd::Displaced,
        };
        // A cancelled attempt keeps the job's earlier error, which names another attempt.
        let failed = matches!(attempt.end, AttemptEnd::Retried | AttemptEnd::Failed | AttemptEnd::Exhausted);
        let by = attempt.error.as_ref().and_then(|error| error_fence(&error.to_string()));
        let stale = failed && by.is_some_and(|by| by != attempt.fence);
        let what = format!("attempt {} of job {name} is stored as {:?}", attempt.attempt, attempt.end);
        (!expected || stale).then_some((Invariant::StaleAttemptsWriteNothing, what))
    }

    /// Checks that a job completed by an attempt has the output of that attempt and, if its type writes rows,
    /// exactly one final row of that attempt.
    fn effects(&self, job: &JobRecord) -> Broken {
        let mut broken = Broken::new();
        let name = short(job.id.as_uuid());
        let closed = job.status.closed_as() == Some(ClosedAs::Completed) && job.closed_by.is_some();
        let output = job.output.as_ref().and_then(|output| output.decode::<Mark>().ok());
        if closed && output.is_some_and(|mark| mark.fence != job.fence.0) {
            let what = format!("job {name} has the output of another attempt");
            broken.push((Invariant::StaleAttemptsWriteNothing, what));
        }
        let rows = self.journal.rows.iter().filter(|row| row.job == job.id && row.kind == RowKind::Finished);
        let ends = |fence| self.journal.ended.get(&(job.id, fence));
        let counted = rows.filter(|row| matches!(ends(row.fence), Some(Ended::Completed | Ended::Continued)));
        let fences: Vec<_> = counted.map(|row| row.fence).collect();
        let expected = if closed && job.job_type.as_str() == "pay" { vec![job.fence] } else { Vec::new() };
        if fences != expected {
            let what =
                format!("job {name} has rows of {} attempts, expected {}", fences.len(), expected.len());
            broken.push((Invariant::EffectsCommitWithTheEnd, what));
        }
        broken
    }
}

fn overlaps(a: (u64, Option<u64>), b: (u64, Option<u64>)) -> bool {
    let until = |end: Option<u64>| end.unwrap_or(u64::MAX);
    a.0 < until(b.1) && b.0 < until(a.1)
}
