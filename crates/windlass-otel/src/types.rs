//! The names of job types and chain types, up to a limit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use foldhash::HashMap;
use opentelemetry::Value;
use windlass_core::TypeName;

/// The maximum number of job types that the metrics of a process distinguish. Chain types, and pairs of both, have the
/// same limit.
pub const TYPES_MAX: usize = 200;

/// The value that stands for all types above the maximum.
pub(crate) const OTHER: &str = "_other";

/// The names of job types.
#[derive(Debug)]
pub(crate) struct Types {
    jobs: Table<str>,
    has_warned: AtomicBool,
}

/// Values of the first [`TYPES_MAX`] types, and one for all others.
#[derive(Debug)]
pub(crate) struct Table<V: ?Sized> {
    known: RwLock<HashMap<TypeName, Arc<V>>>,
    other: Arc<V>,
}

impl<V: ?Sized> Table<V> {
    pub(crate) fn new(other: Arc<V>) -> Self {
        Self { known: RwLock::default(), other }
    }

    /// Returns the value of all types above the maximum.
    pub(crate) const fn other(&self) -> &Arc<V> {
        &self.other
    }

    /// Returns the value of a type. If it is unknown, creates it, or returns `None` if there are too many.
    pub(crate) fn get(&self, key: &TypeName, new: impl FnOnce() -> Arc<V>) -> Option<Arc<V>> {
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

impl Types {
    /// Returns the name of a job type, if it can be distinguished from others.
    pub(crate) fn name(&self, job_type: &TypeName) -> Arc<str> {
        self.or_other(&self.jobs.other, self.jobs.get(job_type, || job_type.as_str().into()))
    }

    /// Returns the value, or the one that all others share. Warns the first time.
    pub(crate) fn or_other<V: ?Sized>(&self, other: &Arc<V>, value: Option<Arc<V>>) -> Arc<V> {
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
        Self { jobs: Table::new(OTHER.into()), has_warned: AtomicBool::new(false) }
    }
}

/// Returns a name as the value of an attribute.
pub(crate) fn value(name: Arc<str>) -> Value {
    opentelemetry::StringValue::from(name).into()
}

#[cfg(test)]
mod tests {
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::SdkMeterProvider;

    use super::*;
    use crate::instruments::Instruments;
    use crate::series::Series;

    #[test]
    fn ten_thousand_types_share_one_value() {
        let types = Arc::new(Types::default());
        let name = |number: usize| TypeName::new(format!("type-{number}")).unwrap();
        for number in 0..10_000 {
            types.name(&name(number));
        }
        assert_eq!(types.jobs.known.read().unwrap().len(), TYPES_MAX);
        assert_eq!(&*types.name(&name(0)), "type-0");
        assert_eq!(*types.name(&name(TYPES_MAX - 1)), format!("type-{}", TYPES_MAX - 1));
        assert_eq!(&*types.name(&name(TYPES_MAX)), OTHER);
        let meter = SdkMeterProvider::default().meter("test");
        let series = Series::new(Arc::new(Instruments::new(&meter)), types);
        let [chain] = &series.chain(&name(TYPES_MAX)).chain;
        assert_eq!(chain.value, Value::from(format!("type-{TYPES_MAX}")), "chain types have their own limit");
    }
}
