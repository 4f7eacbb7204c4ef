use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use windlass_core::{About, ChainId, Error, ErrorKind, ErrorText, Event, Observer, TypeName};

/// Summary of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Number of attempts.
    pub attempts: u32,
    /// Number of jobs that completed, with an output or a continuation.
    pub completed: u32,
    /// Number of jobs that failed permanently.
    pub failed: u32,
    /// Number of failed attempts whose jobs will be retried.
    pub retried: u32,
    /// Number of attempts that rescheduled their job.
    pub rescheduled: u32,
    /// Errors of the failed attempts, in order: job type, attempt number and error text.
    pub errors: Vec<String>,
}

impl Drained {
    /// Asserts that no attempt failed.
    ///
    /// # Panics
    ///
    /// If an attempt failed. The message lists the failed attempts with their errors.
    #[track_caller]
    pub fn assert_no_errors(&self) {
        assert!(self.errors.is_empty(), "expected no attempt to fail, but\n  {}", self.errors.join("\n  "));
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempts, completed, failed, retried, rescheduled, .. } = self;
        write!(f, "{attempts} attempts: {completed} completed, {failed} failed, {retried} retried, ")?;
        write!(f, "{rescheduled} rescheduled")
    }
}

/// Counts the worker's events.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Mutex<Counts>,
    happened: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    drained: Drained,
    /// Number of attempts per type, and the chain of the latest one.
    types: BTreeMap<TypeName, (u32, Option<ChainId>)>,
}

impl Tally {
    pub(super) fn clear(&self) {
        *self.counts() = Counts::default();
    }

    /// Waits for the next event.
    pub(super) fn happened(&self) -> Notified<'_> {
        self.happened.notified()
    }

    pub(super) fn attempts(&self) -> u32 {
        self.counts().drained.attempts
    }

    pub(super) fn drained(&self) -> Drained {
        self.counts().drained.clone()
    }

    /// Returns the error for a drain that exceeds the attempt limit. It names the type with the most attempts.
    pub(super) fn endless(&self, attempts_max: u32) -> Error {
        let counts = self.counts();
        let most = counts.types.iter().max_by_key(|(_, (times, _))| *times);
        let most = most.map_or_else(String::new, |(name, (_, chain))| {
            let chain = chain.map(|chain| format!(", most recently in chain {chain}")).unwrap_or_default();
            format!("; the most frequent job is `{name}`{chain}")
        });
        let text = format!(
            "more than {attempts_max} attempts in one drain{most}: add a delay or a condition to end the loop, or increase \
             `attempts_max`"
        );
        Error::new(ErrorKind::Invalid, text)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn count(&mut self, event: &Event) {
        let drained = &mut self.drained;
        match event {
            Event::AttemptStarted(about) => {
                drained.attempts += 1;
                let (times, chain) = self.types.entry(about.job_type.clone()).or_default();
                *times += 1;
                *chain = Some(about.chain);
            }
            Event::JobCompleted(..) => drained.completed += 1,
            Event::AttemptRescheduled(..) => drained.rescheduled += 1,
            Event::AttemptFailed(about, error, _) => {
                drained.retried += 1;
                drained.errors.push(describe(about, error));
            }
            Event::JobFailed(about, error) => {
                drained.failed += 1;
                drained.errors.push(describe(about, error));
            }
            _ => {}
        }
    }
}

fn describe(about: &About, error: &ErrorText) -> String {
    format!("`{}`, attempt {}: {error}", about.job_type, about.attempt.unwrap_or_default())
}

/// Observer of the harness's client.
#[derive(Debug)]
pub(super) struct Counting(pub(super) Arc<Tally>);

impl Observer for Counting {
    fn observe(&self, event: &Event) {
        self.0.counts().count(event);
        self.0.happened.notify_one();
    }
}
