//! Where acquires begin to look in the index of `ready` while its dead rows cannot be vacuumed.
//!
//! An open transaction, such as a backup, keeps all rows that died since it began. Acquires walk over their index entries,
//! which get more with each job. So from some number of dead rows on, the store remembers up to which due time it has taken
//! the jobs of each type and priority, and begins there. A job below that is found late: one that was started in a
//! transaction that stayed open for long, or that was released. Likewise a job with a priority that this process has not
//! seen. So it looks at everything from time to time, at most for a twentieth of the time.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_core::TypeName;
use windlass_core::command::{Acquire, AcquireReply, Types};

use crate::provider::Parameter;

/// The shortest interval between two acquires that look at everything.
const FULL_INTERVAL: Duration = Duration::from_secs(1);
/// The interval is at least so many times as long as such an acquire takes.
const FULL_RATIO: u32 = 20;

/// The due times from which jobs are taken, if dead rows have to be skipped.
#[derive(Debug, Default)]
pub(crate) struct Floors {
    is_needed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the next acquire looks at everything. `None` for now.
    next_full: Option<Instant>,
    /// The number of acquires that have looked at everything.
    full_looks: u64,
    /// Floors by type and priority.
    floors: HashMap<TypeName, BTreeMap<i64, i64>>,
}

/// How an acquire looks for jobs.
#[derive(Debug)]
pub(crate) struct Look {
    began: Instant,
    is_full: bool,
    /// The number of acquires before it that looked at everything.
    full_looks: u64,
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

    /// Returns the parameters of an acquire. They are null if it looks at everything.
    pub(crate) fn parameters(&self, request: &Acquire) -> ([Parameter; 3], Option<Look>) {
        if !self.is_needed.load(Ordering::Relaxed) {
            return (nothing(), None);
        }
        let (began, mut state) = (Instant::now(), self.lock());
        let is_full = state.is_full_look_due(began);
        let look = Look { began, is_full, full_looks: state.full_looks };
        if is_full {
            // Others need not look at everything meanwhile.
            state.next_full = Some(began + FULL_INTERVAL);
            return (nothing(), Some(look));
        }
        (state.parameters(request.types.iter().map(|quota| &quota.job_type)), Some(look))
    }

    /// Returns the parameters of a query for the next due time of these types. They are null if it looks at everything.
    pub(crate) fn known(&self, types: &Types) -> [Parameter; 3] {
        let Types::Only(types) = types else { return nothing() };
        if !self.is_needed.load(Ordering::Relaxed) {
            return nothing();
        }
        let state = self.lock();
        if state.is_full_look_due(Instant::now()) { nothing() } else { state.parameters(types.iter()) }
    }

    /// Learns from the reply to an acquire.
    pub(crate) fn learn(&self, look: &Look, request: &Acquire, reply: &AcquireReply) {
        let mut state = self.lock();
        if look.is_full {
            let now = Instant::now();
            state.next_full = Some(now + FULL_INTERVAL.max((now - look.began) * FULL_RATIO));
            state.full_looks += 1;
        } else if look.full_looks != state.full_looks {
            // An acquire that looked at everything meanwhile may have lowered a floor that this one would raise again.
            return;
        }
        let is_short = reply.jobs.len() < usize::try_from(request.max).unwrap_or(usize::MAX);
        for quota in &request.types {
            let of_type = || reply.jobs.iter().filter(|acquired| acquired.job.job_type == quota.job_type);
            let floors = state.floors.entry(quota.job_type.clone()).or_insert_with(usual);
            if look.is_full {
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

/// The floors of a type without known jobs: those with the usual priority are looked for in any case.
fn usual() -> BTreeMap<i64, i64> {
    BTreeMap::from([(0, 0)])
}

impl State {
    fn is_full_look_due(&self, now: Instant) -> bool {
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
