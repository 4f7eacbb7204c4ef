//! Where acquires begin to scan the index of `ready` while its dead rows cannot be vacuumed.
//!
//! An open transaction, such as a backup, keeps all rows that died since it began. Acquires scan their index entries, and
//! each job adds one. So once there are too many dead rows, the store remembers a floor for each type and priority: the due
//! time up to which it has acquired the jobs. The next acquire begins there.
//!
//! Some jobs are below the floor: those started in a transaction that stayed open for long, and those that were released.
//! Jobs of a priority that this process has not seen yet have no floor. To find them, the store runs a full scan from time
//! to time, for at most a twentieth of the time.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_core::TypeName;
use windlass_core::command::{Acquire, AcquireReply, Types};

use crate::provider::Parameter;

/// The shortest interval between two full scans.
const FULL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval is at least this many times the duration of a full scan.
const FULL_RATIO: u32 = 20;

/// The due times at which scans begin, if dead rows have to be skipped.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    is_needed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next full scan is due. `None` for now.
    next_full: Option<Instant>,
    /// The number of full scans so far.
    full_scans: u64,
    /// Floors by type and priority.
    floors: HashMap<TypeName, BTreeMap<i64, i64>>,
}

/// The kind of an acquire's scan, and when it began.
#[derive(Debug)]
pub(crate) struct Scan {
    began: Instant,
    is_full: bool,
    /// The number of full scans before it.
    full_scans: u64,
}

impl Floors {
    /// Sets whether dead rows have to be skipped.
    pub(crate) fn set_needed(&self, is_needed: bool) {
        if self.is_needed.swap(is_needed, Ordering::Relaxed) != is_needed {
            *self.lock() = State::default();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the parameters of an acquire. They are null for a full scan.
    pub(crate) fn parameters(&self, request: &Acquire) -> ([Parameter; 3], Option<Scan>) {
        if !self.is_needed.load(Ordering::Relaxed) {
            return (nothing(), None);
        }
        let (began, mut state) = (Instant::now(), self.lock());
        let is_full = state.is_full_scan_due(began);
        let scan = Scan { began, is_full, full_scans: state.full_scans };
        if is_full {
            // No second full scan is needed while this one runs.
            state.next_full = Some(began + FULL_INTERVAL);
            return (nothing(), Some(scan));
        }
        (state.parameters(request.types.iter().map(|quota| &quota.job_type)), Some(scan))
    }

    /// Returns the parameters of a query for the next due time of these types. They are null for a full scan.
    pub(crate) fn known(&self, types: &Types) -> [Parameter; 3] {
        let Types::Only(types) = types else { return nothing() };
        if !self.is_needed.load(Ordering::Relaxed) {
            return nothing();
        }
        let state = self.lock();
        if state.is_full_scan_due(Instant::now()) { nothing() } else { state.parameters(types.iter()) }
    }

    /// Learns from the reply to an acquire. With `may_have_more`, other jobs may be due although it has fewer than requested.
    pub(crate) fn learn(&self, scan: &Scan, request: &Acquire, reply: &AcquireReply, may_have_more: bool) {
        let mut state = self.lock();
        if scan.is_full {
            let now = Instant::now();
            state.next_full = Some(now + FULL_INTERVAL.max((now - scan.began) * FULL_RATIO));
            state.full_scans += 1;
        } else if scan.full_scans != state.full_scans {
            // A full scan since then may have lowered a floor, which this reply would raise again.
            return;
        }
        let is_short =
            !may_have_more && reply.jobs.len() < usize::try_from(request.max).unwrap_or(usize::MAX);
        for quota in &request.types {
            let of_type = || reply.jobs.iter().filter(|acquired| acquired.job.job_type == quota.job_type);
            let floors = state.floors.entry(quota.job_type.clone()).or_insert_with(usual);
            if scan.is_full {
                // It took the jobs that were due first, maybe some below the floor, and there may be more of them.
                for acquired in of_type() {
                    floors.insert(acquired.job.priority.into(), 0);
                }
                // If it did not find as many as it wanted, no other job was due.
                if is_short && of_type().count() < usize::try_from(quota.max).unwrap_or(usize::MAX) {
                    floors.values_mut().for_each(|floor| *floor = reply.now.as_millis());
                }
            }
            for acquired in of_type() {
                let floor = floors.entry(acquired.job.priority.into()).or_insert(0);
                *floor = acquired.job.due_at.as_millis().max(*floor);
            }
        }
    }
}

/// The floors of a type without known jobs. Scans always include the default priority.
fn usual() -> BTreeMap<i64, i64> {
    BTreeMap::from([(0, 0)])
}

impl State {
    fn is_full_scan_due(&self, now: Instant) -> bool {
        self.next_full.is_none_or(|next| now >= next)
    }

    fn parameters<'a>(&self, types: impl Iterator<Item = &'a TypeName>) -> [Parameter; 3] {
        let (mut names, mut priorities, mut floors) = (Vec::new(), Vec::new(), Vec::new());
        for job_type in types {
            for (priority, floor) in self.floors.get(job_type).unwrap_or(&usual()) {
                names.push(Some(job_type.to_string()));
                priorities.push(Some(*priority));
                floors.push(Some(*floor));
            }
        }
        [Parameter::Texts(Some(names)), Parameter::Numbers(priorities), Parameter::Numbers(floors)]
    }
}

fn nothing() -> [Parameter; 3] {
    [Parameter::Texts(None), Parameter::Numbers(Vec::new()), Parameter::Numbers(Vec::new())]
}
