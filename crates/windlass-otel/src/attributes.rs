//! Attributes of metrics and spans.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use opentelemetry::{KeyValue, StringValue, Value};
use windlass_core::{About, TypeName};

pub(crate) const SYSTEM: &str = "messaging.system";
pub(crate) const OPERATION: &str = "messaging.operation.name";
pub(crate) const OPERATION_TYPE: &str = "messaging.operation.type";
pub(crate) const DESTINATION: &str = "messaging.destination.name";
pub(crate) const MESSAGE_ID: &str = "messaging.message.id";
pub(crate) const CONVERSATION_ID: &str = "messaging.message.conversation_id";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const CHAIN_TYPE: &str = "windlass.chain.type";
pub(crate) const CHAIN_EXISTED: &str = "windlass.chain.existed";
pub(crate) const BLOCKER: &str = "windlass.blocker.chain.id";
pub(crate) const ATTEMPT: &str = "windlass.attempt";
pub(crate) const RESULT: &str = "windlass.result";
pub(crate) const DUE_AT: &str = "windlass.due_at";
pub(crate) const NEXT_JOB: &str = "windlass.next_job.id";
pub(crate) const WORKER_ID: &str = "windlass.worker.id";
pub(crate) const WORKER_NAME: &str = "windlass.worker.name";
pub(crate) const COMMAND: &str = "windlass.command";
pub(crate) const BATCH: &str = "windlass.batch";
pub(crate) const STATUS: &str = "windlass.status";

/// The maximum number of job types that the metrics of a process distinguish. Chain types, and pairs of both, have the
/// same limit.
pub const TYPES_MAX: usize = 200;

/// The value that stands for all types above the maximum.
const OTHER: &str = "_other";

/// The names of types, and the attributes of each pair of job type and chain type, made once.
#[derive(Debug)]
pub(crate) struct Types {
    pairs: Table<(TypeName, TypeName), TypeAttributes>,
    jobs: Table<TypeName, str>,
    chains: Table<TypeName, [KeyValue; 1]>,
    has_warned: AtomicBool,
}

/// Values of the first [`TYPES_MAX`] keys, and one for all others.
#[derive(Debug)]
struct Table<K, V: ?Sized> {
    known: RwLock<HashMap<K, Arc<V>>>,
    other: Arc<V>,
}

impl<K: Eq + Hash, V: ?Sized> Table<K, V> {
    fn new(other: Arc<V>) -> Self {
        Self { known: RwLock::default(), other }
    }

    /// Returns the value of a key. If it is unknown, creates it, or returns `None` if there are too many.
    fn get(&self, key: K, new: impl FnOnce(&K) -> Arc<V>) -> Option<Arc<V>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(&key) {
            return Some(Arc::clone(value));
        }
        if known.len() >= TYPES_MAX {
            return None;
        }
        drop(known);
        let value = new(&key);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have inserted the last one since.
        let has_room = known.len() < TYPES_MAX || known.contains_key(&key);
        has_room.then(|| Arc::clone(known.entry(key).or_insert(value)))
    }
}

/// The attributes of a pair of job type and chain type.
#[derive(Debug)]
pub(crate) struct TypeAttributes {
    job_type: Value,
    /// The job type and the chain type.
    pub(crate) job: [KeyValue; 2],
}

impl TypeAttributes {
    fn new(job_type: Value, chain_type: KeyValue) -> Self {
        Self { job: [KeyValue::new(DESTINATION, job_type.clone()), chain_type], job_type }
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

impl Types {
    /// Returns the attributes of a job's types. Above [`TYPES_MAX`], all further types share one value.
    pub(crate) fn of(&self, about: &About) -> Arc<TypeAttributes> {
        let pair = (about.job_type.clone(), about.chain_type.clone());
        let new = |(job_type, chain_type): &(TypeName, TypeName)| {
            let [chain_type] = &*self.chain(chain_type);
            Arc::new(TypeAttributes::new(value(self.name(job_type)), chain_type.clone()))
        };
        self.or_other(&self.pairs, self.pairs.get(pair, new))
    }

    /// Returns the attributes of a chain's type.
    pub(crate) fn chain(&self, chain_type: &TypeName) -> Arc<[KeyValue; 1]> {
        let new = |name: &TypeName| Arc::new([KeyValue::new(CHAIN_TYPE, name.as_str().to_owned())]);
        self.or_other(&self.chains, self.chains.get(chain_type.clone(), new))
    }

    /// Returns the attributes of a chain's type, and one more.
    pub(crate) fn chain_and(
        &self,
        chain_type: &TypeName,
        key: &'static str,
        value: &'static str,
    ) -> [KeyValue; 2] {
        let [chain_type] = &*self.chain(chain_type);
        [chain_type.clone(), KeyValue::new(key, value)]
    }

    /// Returns the name of a job type, if it can be distinguished from others.
    pub(crate) fn name(&self, job_type: &TypeName) -> Arc<str> {
        self.or_other(&self.jobs, self.jobs.get(job_type.clone(), |name| name.as_str().into()))
    }

    /// Returns the value, or the one that all others share. Warns the first time.
    fn or_other<K, V: ?Sized>(&self, table: &Table<K, V>, value: Option<Arc<V>>) -> Arc<V> {
        value.unwrap_or_else(|| {
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(target: "windlass", max = TYPES_MAX, "too many types for metrics: further ones are reported as `{OTHER}`");
            }
            Arc::clone(&table.other)
        })
    }
}

impl Default for Types {
    fn default() -> Self {
        let chain_type = KeyValue::new(CHAIN_TYPE, OTHER);
        Self {
            pairs: Table::new(Arc::new(TypeAttributes::new(OTHER.into(), chain_type.clone()))),
            jobs: Table::new(OTHER.into()),
            chains: Table::new(Arc::new([chain_type])),
            has_warned: AtomicBool::new(false),
        }
    }
}

/// Returns a name as the value of an attribute.
pub(crate) fn value(name: Arc<str>) -> Value {
    StringValue::from(name).into()
}

/// Returns the attributes of a span about a job.
pub(crate) fn span(operation: &'static str, kind: &'static str, about: &About) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new(SYSTEM, "windlass"),
        KeyValue::new(OPERATION, operation),
        KeyValue::new(OPERATION_TYPE, kind),
        KeyValue::new(DESTINATION, about.job_type.as_str().to_owned()),
        KeyValue::new(MESSAGE_ID, about.job.to_string()),
        KeyValue::new(CONVERSATION_ID, about.chain.to_string()),
        KeyValue::new(CHAIN_TYPE, about.chain_type.as_str().to_owned()),
    ];
    attributes.extend(about.attempt.map(|attempt| KeyValue::new(ATTEMPT, i64::from(attempt))));
    attributes.extend(about.worker.map(|worker| KeyValue::new(WORKER_ID, worker.to_string())));
    attributes
        .extend(about.worker_name.as_ref().map(|name| KeyValue::new(WORKER_NAME, name.as_str().to_owned())));
    attributes
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
        let [chain] = &*types.chain(&name(TYPES_MAX));
        assert_eq!(chain.value, Value::from(format!("type-{TYPES_MAX}")), "chain types have their own limit");
    }
}
