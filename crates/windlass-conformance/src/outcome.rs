//! Shorthands for values that cases use often.

use windlass_core::command::{DueTime, NewChain, NextJob, Outcome};
use windlass_core::{ErrorText, Key, Payload, TypeName};

use crate::subject::millis;

/// Builds a type name.
#[must_use]
pub fn type_name(name: &str) -> TypeName {
    TypeName::new(name).expect("the type name of a case is valid")
}

/// Builds a key.
#[must_use]
pub fn key(text: &str) -> Key {
    Key::new(text).expect("the key of a case is valid")
}

/// Builds a JSON payload.
#[must_use]
pub fn json(text: &str) -> Payload {
    Payload::json(text.to_owned()).expect("the payload of a case is within the limit")
}

/// Completes with this output.
#[must_use]
pub fn complete(output: &str) -> Outcome {
    complete_with_chains(output, Vec::new())
}

/// Completes with this output and starts chains.
#[must_use]
pub fn complete_with_chains(output: &str, create: Vec<NewChain>) -> Outcome {
    Outcome::Complete { output: json(output), retention: None, create }
}

/// Continues with another job.
#[must_use]
pub const fn continue_with(next: NextJob) -> Outcome {
    continue_with_chains(next, Vec::new())
}

/// Continues with another job and starts chains, which that job may wait for.
#[must_use]
pub const fn continue_with_chains(next: NextJob, create: Vec<NewChain>) -> Outcome {
    Outcome::Continue { next, create }
}

/// Fails the attempt; the job is due again immediately.
#[must_use]
pub fn retry(error: &str) -> Outcome {
    Outcome::Retry { schedule: DueTime::Now, error: ErrorText::new(error) }
}

/// Fails the attempt; the job is due again after this many milliseconds.
#[must_use]
pub fn retry_after(ms: u64, error: &str) -> Outcome {
    Outcome::Retry { schedule: DueTime::After(millis(ms)), error: ErrorText::new(error) }
}

/// Reschedules the job without counting the attempt, optionally with an error.
#[must_use]
pub fn reschedule(schedule: DueTime, error: Option<&str>) -> Outcome {
    Outcome::Reschedule { schedule, error: error.map(ErrorText::new) }
}

/// Reschedules the job by this many milliseconds, without counting the attempt and without an error.
#[must_use]
pub fn reschedule_after(ms: u64) -> Outcome {
    reschedule(DueTime::After(millis(ms)), None)
}

/// Fails the job permanently.
#[must_use]
pub fn fail(error: &str) -> Outcome {
    Outcome::Fail { error: ErrorText::new(error), retention: None }
}

/// Releases the job, without counting the attempt.
#[must_use]
pub const fn release() -> Outcome {
    Outcome::Release
}
