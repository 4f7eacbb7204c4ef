//! The attributes of job types and chain types, and the instruments that are bound to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use foldhash::HashMap;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, BoundUpDownCounter};
use opentelemetry::{KeyValue, Value};
use windlass_core::{About, TypeName};

use crate::attributes::{CHAIN_TYPE, DESTINATION, OPERATION, SYSTEM};

/// The maximum number of job types that the metrics of a process distinguish. Chain types, and pairs of both, have the
/// same limit.
pub const TYPES_MAX: usize = 200;

/// The value that stands for all types above the maximum.
const OTHER: &str = "_other";

/// The names of types, and the series of each pair of job type and chain type.
#[derive(Debug)]
pub(crate) struct Types {
    pairs: RwLock<Pairs>,
    other_pair: Arc<JobSeries>,
    jobs: Table<str>,
    chains: Table<ChainSeries>,
    has_warned: AtomicBool,
}

/// The series of job types, by chain type. A chain has few types of jobs, so that a search is faster than a second hash.
#[derive(Debug, Default)]
struct Pairs {
    by_chain: HashMap<TypeName, Vec<(TypeName, Arc<JobSeries>)>>,
    count: usize,
}

impl Pairs {
    fn get(&self, about: &About) -> Option<&Arc<JobSeries>> {
        let mut jobs = self.by_chain.get(&about.chain_type)?.iter();
        jobs.find(|(job_type, _)| *job_type == about.job_type).map(|(_, series)| series)
    }
}

/// Values of the first [`TYPES_MAX`] types, and one for all others.
#[derive(Debug)]
struct Table<V: ?Sized> {
    known: RwLock<HashMap<TypeName, Arc<V>>>,
    other: Arc<V>,
}

impl<V: ?Sized> Table<V> {
    fn new(other: Arc<V>) -> Self {
        Self { known: RwLock::default(), other }
    }

    /// Returns the value of a type. If it is unknown, creates it, or returns `None` if there are too many.
    fn get(&self, key: &TypeName, new: impl FnOnce() -> Arc<V>) -> Option<Arc<V>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(key) {
            return Some(Arc::clone(value));
        }
        if known.len() >= TYPES_MAX {
            return None;
        }
        drop(known);
        let value = new();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have inserted the last one since.
        let has_room = known.len() < TYPES_MAX || known.contains_key(key);
        has_room.then(|| Arc::clone(known.entry(key.clone()).or_insert(value)))
    }
}

/// The attributes of a pair of job type and chain type, and the instruments that every job uses. A bound instrument does
/// not look its attributes up. It is bound when it is first used, so that no series exists before its first value.
#[derive(Debug)]
pub(crate) struct JobSeries {
    job_type: Value,
    /// The job type and the chain type.
    pub(crate) job: [KeyValue; 2],
    pub(crate) created: OnceLock<BoundCounter<u64>>,
    pub(crate) sent: OnceLock<BoundCounter<u64>>,
    pub(crate) started: OnceLock<BoundCounter<u64>>,
    pub(crate) consumed: OnceLock<BoundCounter<u64>>,
    pub(crate) waited: OnceLock<BoundHistogram<f64>>,
    pub(crate) attempt_completed: OnceLock<BoundCounter<u64>>,
    /// For attempts that completed their job, and that continued its chain.
    pub(crate) attempt_duration: [OnceLock<BoundHistogram<f64>>; 2],
    /// For attempts that did not fail.
    pub(crate) processed: OnceLock<BoundHistogram<f64>>,
    /// For jobs that completed their chain, and that continued it.
    pub(crate) completed: [OnceLock<BoundCounter<u64>>; 2],
    pub(crate) job_duration: OnceLock<BoundHistogram<f64>>,
    pub(crate) busy: OnceLock<BoundUpDownCounter<i64>>,
    pub(crate) idle: OnceLock<BoundUpDownCounter<i64>>,
}

impl JobSeries {
    fn new(job_type: Value, chain_type: KeyValue) -> Self {
        Self {
            job: [KeyValue::new(DESTINATION, job_type.clone()), chain_type],
            job_type,
            created: OnceLock::new(),
            sent: OnceLock::new(),
            started: OnceLock::new(),
            consumed: OnceLock::new(),
            waited: OnceLock::new(),
            attempt_completed: OnceLock::new(),
            attempt_duration: Default::default(),
            processed: OnceLock::new(),
            completed: Default::default(),
            job_duration: OnceLock::new(),
            busy: OnceLock::new(),
            idle: OnceLock::new(),
        }
    }

    /// Returns the attribute of the job type.
    pub(crate) const fn destination(&self) -> &[KeyValue] {
        self.job.split_at(1).0
    }

    /// Returns the attributes of the job, and one more.
    pub(crate) fn job_and(&self, key: &'static str, value: impl Into<Value>) -> [KeyValue; 3] {
        let [job_type, chain_type] = self.job.clone();
        [job_type, chain_type, KeyValue::new(key, value)]
    }

    /// Returns the attributes of an operation on jobs of this type, as the semantic conventions for messaging name them.
    pub(crate) fn messaging(&self, operation: &'static str) -> [KeyValue; 3] {
        [
            KeyValue::new(SYSTEM, "windlass"),
            KeyValue::new(OPERATION, operation),
            KeyValue::new(DESTINATION, self.job_type.clone()),
        ]
    }
}

/// The attributes of a chain type, and the instruments that every chain uses.
#[derive(Debug)]
pub(crate) struct ChainSeries {
    /// The chain type.
    pub(crate) chain: [KeyValue; 1],
    pub(crate) created: OnceLock<BoundCounter<u64>>,
    /// For chains that completed.
    pub(crate) completed: OnceLock<BoundCounter<u64>>,
    /// For chains that completed.
    pub(crate) duration: OnceLock<BoundHistogram<f64>>,
}

impl ChainSeries {
    fn new(chain_type: KeyValue) -> Self {
        Self {
            chain: [chain_type],
            created: OnceLock::new(),
            completed: OnceLock::new(),
            duration: OnceLock::new(),
        }
    }

    /// Returns the attribute of the chain, and one more.
    pub(crate) fn chain_and(&self, key: &'static str, value: &'static str) -> [KeyValue; 2] {
        let [chain_type] = self.chain.clone();
        [chain_type, KeyValue::new(key, value)]
    }
}

impl Types {
    /// Returns the series of a job. Above [`TYPES_MAX`], all further types share one value.
    pub(crate) fn of(&self, about: &About) -> Arc<JobSeries> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = pairs.get(about) {
            return Arc::clone(series);
        }
        let is_full = pairs.count >= TYPES_MAX;
        // A warning runs code of the application, which must not find a lock held.
        drop(pairs);
        if is_full {
            return self.or_other(&self.other_pair, None);
        }
        let [chain_type] = self.chain(&about.chain_type).chain.clone();
        let series = Arc::new(JobSeries::new(value(self.name(&about.job_type)), chain_type));
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have inserted this one or the last one since.
        if let Some(series) = pairs.get(about) {
            return Arc::clone(series);
        }
        if pairs.count >= TYPES_MAX {
            drop(pairs);
            return self.or_other(&self.other_pair, None);
        }
        pairs.count += 1;
        let jobs = pairs.by_chain.entry(about.chain_type.clone()).or_default();
        jobs.push((about.job_type.clone(), Arc::clone(&series)));
        series
    }

    /// Returns the series of a chain's type.
    pub(crate) fn chain(&self, chain_type: &TypeName) -> Arc<ChainSeries> {
        let new = || {
            let chain_type = KeyValue::new(CHAIN_TYPE, chain_type.as_str().to_owned());
            Arc::new(ChainSeries::new(chain_type))
        };
        self.or_other(&self.chains.other, self.chains.get(chain_type, new))
    }

    /// Returns the name of a job type, if it can be distinguished from others.
    pub(crate) fn name(&self, job_type: &TypeName) -> Arc<str> {
        self.or_other(&self.jobs.other, self.jobs.get(job_type, || job_type.as_str().into()))
    }

    /// Returns the value, or the one that all others share. Warns the first time.
    fn or_other<V: ?Sized>(&self, other: &Arc<V>, value: Option<Arc<V>>) -> Arc<V> {
        value.unwrap_or_else(|| {
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(target: "windlass", max = TYPES_MAX, "too many types for metrics: further ones are reported as `{OTHER}`");
            }
            Arc::clone(other)
        })
    }
}

impl Default for Types {
    fn default() -> Self {
        let chain_type = KeyValue::new(CHAIN_TYPE, OTHER);
        Self {
            pairs: RwLock::default(),
            other_pair: Arc::new(JobSeries::new(OTHER.into(), chain_type.clone())),
            jobs: Table::new(OTHER.into()),
            chains: Table::new(Arc::new(ChainSeries::new(chain_type))),
            has_warned: AtomicBool::new(false),
        }
    }
}

/// Returns a name as the value of an attribute.
pub(crate) fn value(name: Arc<str>) -> Value {
    opentelemetry::StringValue::from(name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_types_share_one_value() {
        let types = Types::default();
        let name = |number: usize| TypeName::new(format!("type-{number}")).unwrap();
        for number in 0..10_000 {
            types.name(&name(number));
        }
        assert_eq!(types.jobs.known.read().unwrap().len(), TYPES_MAX);
        assert_eq!(&*types.name(&name(0)), "type-0");
        assert_eq!(*types.name(&name(TYPES_MAX - 1)), format!("type-{}", TYPES_MAX - 1));
        assert_eq!(&*types.name(&name(TYPES_MAX)), OTHER);
        let [chain] = &types.chain(&name(TYPES_MAX)).chain;
        assert_eq!(chain.value, Value::from(format!("type-{TYPES_MAX}")), "chain types have their own limit");
    }
}
