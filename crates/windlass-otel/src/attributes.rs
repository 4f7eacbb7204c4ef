//! Attributes of metrics and spans.

use std::sync::Arc;

use opentelemetry::{KeyValue, StringValue};
use windlass_core::About;

pub(crate) const SYSTEM: &str = "messaging.system";
pub(crate) const OPERATION: &str = "messaging.operation.name";
pub(crate) const OPERATION_TYPE: &str = "messaging.operation.type";
pub(crate) const DESTINATION: &str = "messaging.destination.name";
pub(crate) const BATCH_COUNT: &str = "messaging.batch.message_count";
pub(crate) const MESSAGE_ID: &str = "messaging.message.id";
pub(crate) const CONVERSATION_ID: &str = "messaging.message.conversation_id";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const CHAIN_TYPE: &str = "windlass.chain.type";
pub(crate) const CHAIN_EXISTED: &str = "windlass.chain.existed";
pub(crate) const BLOCKER: &str = "windlass.blocker.chain.id";
pub(crate) const BLOCKER_INDEX: &str = "windlass.blocker.index";
pub(crate) const BLOCKER_TYPE: &str = "windlass.blocker.chain.type";
pub(crate) const ATTEMPT: &str = "windlass.attempt";
pub(crate) const RESULT: &str = "windlass.result";
pub(crate) const DUE_AT: &str = "windlass.due_at";
pub(crate) const NEXT_JOB: &str = "windlass.next_job.id";
pub(crate) const WORKER_ID: &str = "windlass.worker.id";
pub(crate) const WORKER_NAME: &str = "windlass.worker.name";
pub(crate) const COMMAND: &str = "windlass.command";
pub(crate) const BATCH: &str = "windlass.batch";
pub(crate) const STATUS: &str = "windlass.status";

/// Returns the attributes that the conventions recommend to pass to a sampler. `kind` is the type of the operation, if the
/// conventions name one.
pub(crate) fn sampled(operation: &'static str, kind: Option<&'static str>, about: &About) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(12);
    attributes.push(KeyValue::new(SYSTEM, "windlass"));
    attributes.push(KeyValue::new(OPERATION, operation));
    attributes.extend(kind.map(|kind| KeyValue::new(OPERATION_TYPE, kind)));
    attributes.push(KeyValue::new(DESTINATION, shared(about.job_type.as_str())));
    attributes.push(KeyValue::new(CHAIN_TYPE, shared(about.chain_type.as_str())));
    attributes
}

/// Returns a value whose clones share its text.
fn shared(text: &str) -> StringValue {
    Arc::<str>::from(text).into()
}

/// Returns the attributes that name the job, the attempt and the worker.
pub(crate) fn identity(about: &About) -> impl Iterator<Item = KeyValue> {
    let ids = [
        KeyValue::new(MESSAGE_ID, about.job.to_string()),
        KeyValue::new(CONVERSATION_ID, about.chain.to_string()),
    ];
    let attempt = about.attempt.map(|attempt| KeyValue::new(ATTEMPT, i64::from(attempt)));
    let worker = about.worker.map(|worker| KeyValue::new(WORKER_ID, worker.to_string()));
    let name = about.worker_name.as_ref();
    let name = name.map(|name| KeyValue::new(WORKER_NAME, name.as_str().to_owned()));
    ids.into_iter().chain(attempt).chain(worker).chain(name)
}

/// Returns all attributes of a span about a job.
pub(crate) fn span(operation: &'static str, kind: Option<&'static str>, about: &About) -> Vec<KeyValue> {
    let mut attributes = sampled(operation, kind, about);
    attributes.extend(identity(about));
    attributes
}
