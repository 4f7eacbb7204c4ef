//! The instruments that are bound to job types and chain types.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use foldhash::HashMap;
use opentelemetry::metrics::{BoundCounter, BoundHistogram, BoundUpDownCounter};
use opentelemetry::{KeyValue, Value};
use windlass_core::{About, TypeName};

use crate::attributes::{CHAIN_TYPE, DESTINATION, OPERATION, SYSTEM};
use crate::instruments::Instruments;
use crate::types::{OTHER, TYPES_MAX, Table, Types, value};

/// The number of series that a thread finds without a lock.
const RECENT_MAX: usize = 8;

thread_local! {
    /// The series that this thread used latest. A lookup in the table takes a lock and clones an `Arc`, several times per
    /// job, which other threads do too.
    static RECENT: Cell<Vec<Recent>> = const { Cell::new(Vec::new()) };
}

struct Recent {
    /// The table that the series belongs to.
    table: u64,
    job_type: TypeName,
    chain_type: TypeName,
    series: Arc<JobSeries>,
}

/// The series of each pair of job type and chain type, and of each chain type.
#[derive(Debug)]
pub(crate) struct Series {
    /// A number that no other table of this process has.
    id: u64,
    instruments: Arc<Instruments>,
    types: Arc<Types>,
    pairs: RwLock<Pairs>,
    other_pair: Arc<JobSeries>,
    chains: Table<ChainSeries>,
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

impl Series {
    pub(crate) fn new(instruments: Arc<Instruments>, types: Arc<Types>) -> Self {
        static TABLES: AtomicU64 = AtomicU64::new(0);
        let other = KeyValue::new(CHAIN_TYPE, OTHER);
        let other_chain = Arc::new(ChainSeries::new(other.clone()));
        Self {
            id: TABLES.fetch_add(1, Ordering::Relaxed),
            types,
            pairs: RwLock::default(),
            other_pair: Arc::new(JobSeries::new(&instruments, OTHER.into(), other, None)),
            chains: Table::new(other_chain),
            instruments,
        }
    }

    /// Calls `record` with the series of a job.
    pub(crate) fn with<T>(&self, about: &About, record: impl FnOnce(&Arc<JobSeries>) -> T) -> T {
        // Taken, not borrowed: a meter of the application may use another `Telemetry` while it records.
        let mut recent = RECENT.try_with(Cell::take).unwrap_or_default();
        let is_its = |recent: &Recent| {
            recent.table == self.id
                && is_same(&recent.job_type, &about.job_type)
                && is_same(&recent.chain_type, &about.chain_type)
        };
        let recorded = match recent.iter().find(|recent| is_its(recent)) {
            Some(recent) => record(&recent.series),
            None => {
                let series = self.of(about);
                let recorded = record(&series);
                if !Arc::ptr_eq(&series, &self.other_pair) {
                    recent.truncate(RECENT_MAX - 1);
                    let (job_type, chain_type) = (about.job_type.clone(), about.chain_type.clone());
                    recent.insert(0, Recent { table: self.id, job_type, chain_type, series });
                }
                recorded
            }
        };
        // Fails only while the thread ends.
        let _ = RECENT.try_with(|kept| kept.set(recent));
        recorded
    }

    /// Calls `record` with the series of a job's chain.
    pub(crate) fn with_chain<T>(&self, about: &About, record: impl FnOnce(&ChainSeries) -> T) -> T {
        self.with(about, |series| self.with_chain_of(series, about, record))
    }

    /// Calls `record` with the series of a job's chain. `series` is that of the job.
    pub(crate) fn with_chain_of<T>(
        &self,
        series: &JobSeries,
        about: &About,
        record: impl FnOnce(&ChainSeries) -> T,
    ) -> T {
        match &series.chain {
            Some(chain) => record(chain),
            None => record(&self.chain(&about.chain_type)),
        }
    }

    /// Returns the series of a job. Above [`TYPES_MAX`], all further types share one value.
    fn of(&self, about: &About) -> Arc<JobSeries> {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = pairs.get(about) {
            return Arc::clone(series);
        }
        let is_full = pairs.count >= TYPES_MAX;
        // A warning runs code of the application, which must not find a lock held.
        drop(pairs);
        if is_full {
            return self.types.or_other(&self.other_pair, None);
        }
        let chain = self.chain(&about.chain_type);
        let ([chain_type], job_type) = (chain.chain.clone(), value(self.types.name(&about.job_type)));
        let series = Arc::new(JobSeries::new(&self.instruments, job_type, chain_type, Some(chain)));
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have inserted this one or the last one since.
        if let Some(series) = pairs.get(about) {
            return Arc::clone(series);
        }
        if pairs.count >= TYPES_MAX {
            drop(pairs);
            return self.types.or_other(&self.other_pair, None);
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
        self.types.or_other(self.chains.other(), self.chains.get(chain_type, new))
    }
}

/// Whether these are the same name. Most names that are compared share their text.
fn is_same(one: &TypeName, other: &TypeName) -> bool {
    std::ptr::eq(one.as_str(), other.as_str()) || one == other
}

/// The attributes of a pair of job type and chain type, and the instruments that every job uses. A bound instrument does
/// not look its attributes up. It is bound when it is first used, so that no series exists before its first value.
#[derive(Debug)]
pub(crate) struct JobSeries {
    pub(crate) instruments: Arc<Instruments>,
    job_type: Value,
    /// The series of the chain type. `None` if all further types share this one.
    chain: Option<Arc<ChainSeries>>,
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
    fn new(
        instruments: &Arc<Instruments>,
        job_type: Value,
        chain_type: KeyValue,
        chain: Option<Arc<ChainSeries>>,
    ) -> Self {
        Self {
            instruments: Arc::clone(instruments),
            job: [KeyValue::new(DESTINATION, job_type.clone()), chain_type],
            job_type,
            chain,
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

    /// Whether all types above the limit share this series.
    pub(crate) const fn is_shared(&self) -> bool {
        self.chain.is_none()
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
