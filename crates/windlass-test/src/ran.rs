use std::fmt;
use std::time::Duration;

use windlass_core::command::{JobFilter, ListAttempts};
use windlass_core::{
    AttemptEnd, ChainId, Client, Error, ErrorKind, Job, JobRecord, MemoryStore, Result, Store, Then,
    Timestamp, TypeName,
};

use crate::look::{describe, immediately, jobs, text};

/// What became of an attempt that [`run`](crate::run()) made.
///
/// Its methods say what a test expects; where something else happened they panic and say what.
pub struct Ran<J: Job> {
    client: Client<MemoryStore>,
    job: JobRecord,
    outcome: Outcome<J>,
}

/// How an attempt ended.
#[non_exhaustive]
pub enum Outcome<J: Job> {
    /// The chain is done, and this is what it gives.
    Completed(J::Output),
    /// The chain goes on with this job.
    Continued(Box<JobRecord>),
    /// The job failed for good: the handler said so, or it was the last attempt.
    Failed(String),
    /// The attempt failed with this error; the job is tried again after this long.
    Retried(String, Duration),
    /// The handler asked to be run again after this long, and said why.
    Rescheduled(Duration, Option<String>),
    /// The job was taken from the attempt in one of the other ways: cancelled or completed from outside, for
    /// example.
    Taken(AttemptEnd),
}

impl<J: Job> Ran<J> {
    pub(crate) fn read(client: Client<MemoryStore>, chain: ChainId, now: Timestamp) -> Result<Self> {
        let attempts = immediately(client.store().list_attempts(ListAttempts { job: chain.first_job() }))?;
        let (Some(attempt), Some(record)) = (attempts.attempts.last(), immediately(client.chain(chain))?)
        else {
            return Err(Error::new(ErrorKind::NotFound, "the job was deleted while its attempt ran"));
        };
        let job = record.first;
        let error = || attempt.error.as_ref().map(ToString::to_string);
        let outcome = match (attempt.end, &job.output) {
            (AttemptEnd::Completed, Some(output)) => Outcome::Completed(output.decode()?),
            (AttemptEnd::Continued, _) => Outcome::Continued(Box::new(record.latest)),
            (AttemptEnd::Failed | AttemptEnd::Exhausted, _) => Outcome::Failed(error().unwrap_or_default()),
            (AttemptEnd::Retried, _) => Outcome::Retried(error().unwrap_or_default(), job.due_at.since(now)),
            (AttemptEnd::Rescheduled, _) => Outcome::Rescheduled(job.due_at.since(now), error()),
            (end, _) => Outcome::Taken(end),
        };
        Ok(Self { client, job, outcome })
    }

    /// How the attempt ended.
    #[must_use]
    pub const fn outcome(&self) -> &Outcome<J> {
        &self.outcome
    }

    /// The job as it stands now.
    #[must_use]
    pub const fn job(&self) -> &JobRecord {
        &self.job
    }

    /// The client of the store in which it ran, to look further.
    #[must_use]
    pub const fn client(&self) -> &Client<MemoryStore> {
        &self.client
    }

    /// What the chain gives.
    ///
    /// # Panics
    ///
    /// If the job did not complete.
    #[track_caller]
    #[must_use]
    pub fn output(&self) -> &J::Output {
        match &self.outcome {
            Outcome::Completed(output) => output,
            _ => self.instead("complete"),
        }
    }

    /// The job that the chain goes on with.
    ///
    /// # Panics
    ///
    /// If the chain does not go on, or does so with another job type.
    #[track_caller]
    #[must_use]
    pub fn continued_with<N: Job>(&self) -> N
    where
        J: Then<N>,
    {
        match &self.outcome {
            Outcome::Continued(next) if next.job_type.as_str() == N::NAME => {
                next.input.decode().expect("it was encoded as this type")
            }
            _ => self.instead(&format!("continue with `{}`", N::NAME)),
        }
    }

    /// Why the job failed for good.
    ///
    /// # Panics
    ///
    /// If it did not.
    #[track_caller]
    #[must_use]
    pub fn failed_with(&self) -> &str {
        match &self.outcome {
            Outcome::Failed(error) => error,
            _ => self.instead("fail for good"),
        }
    }

    /// The error after which the job is tried again.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    #[must_use]
    pub fn retried_with(&self) -> &str {
        match &self.outcome {
            Outcome::Retried(error, _) => error,
            _ => self.instead("fail and be tried again"),
        }
    }

    /// How long after the attempt the handler wants to be run again.
    ///
    /// # Panics
    ///
    /// If it did not ask for that.
    #[track_caller]
    #[must_use]
    pub fn rescheduled_after(&self) -> Duration {
        match &self.outcome {
            Outcome::Rescheduled(after, _) => *after,
            _ => self.instead("be rescheduled"),
        }
    }

    /// The jobs of this type that the handler started as chains of their own, oldest first.
    ///
    /// # Panics
    ///
    /// If the name of the type is not one.
    #[track_caller]
    #[must_use]
    pub fn started<E: Job>(&self) -> Vec<E> {
        let types = vec![TypeName::new(E::NAME).expect("a job type has a valid name")];
        let started = jobs(self.client.store(), &JobFilter { types, ..JobFilter::default() });
        let given = |job: &&JobRecord| self.job.blockers.iter().any(|blocker| blocker.chain == job.chain);
        let others = started.iter().filter(|job| job.chain != self.job.chain && !given(job));
        others.map(|job| job.input.decode().expect("it was encoded as this type")).collect()
    }

    #[track_caller]
    fn instead(&self, expected: &str) -> ! {
        panic!("expected `{}` to {expected}, but {:?}", J::NAME, self.outcome)
    }
}

/// Completes the sentence "expected this, but …".
impl<J: Job> fmt::Debug for Outcome<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(output) => {
                let output = serde_json::to_string(output).unwrap_or_default();
                write!(f, "it completed with {output}")
            }
            Self::Continued(next) => write!(f, "it continued with {}", describe(next)),
            Self::Failed(error) => write!(f, "it failed for good: {error}"),
            Self::Retried(error, after) => write!(f, "it is tried again after {after:?}: {error}"),
            Self::Rescheduled(after, None) => write!(f, "it is rescheduled after {after:?}"),
            Self::Rescheduled(after, Some(reason)) => {
                write!(f, "it is rescheduled after {after:?}: {reason}")
            }
            Self::Taken(end) => write!(f, "the job was taken from it: {end:?}"),
        }
    }
}

impl<J: Job> fmt::Debug for Ran<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ran")
            .field("input", &text(&self.job.input))
            .field("attempt", &self.job.attempt)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
