use std::fmt;
use std::time::Duration;

use windlass_core::command::{JobFilter, ListAttempts};
use windlass_core::{
    AttemptEnd, ChainId, Client, Error, ErrorKind, Job, JobRecord, MemoryStore, Result, Store, Then,
};

use crate::query::{describe, list_jobs, text};

/// The result of an attempt that [`run`](crate::run()) or [`run_on`](crate::run_on) made.
///
/// Methods for one outcome, such as [`output`](Self::output), panic if the attempt ended in another way. The message
/// names the actual outcome.
pub struct Ran<J: Job, S = MemoryStore> {
    client: Client<S>,
    job: JobRecord,
    /// All jobs that were stored when the attempt had ended.
    jobs: Vec<JobRecord>,
    outcome: Outcome<J>,
}

/// How an attempt ended.
#[non_exhaustive]
pub enum Outcome<J: Job> {
    /// The chain completed with this output.
    Completed(J::Output),
    /// The chain continues with this job.
    Continued(Box<JobRecord>),
    /// The job failed permanently: the handler returned a permanent failure, or this was the last attempt.
    Failed(String),
    /// The attempt failed with this error. The job is retried after this delay.
    Retried(String, Duration),
    /// The handler rescheduled the job by this delay, optionally with a reason.
    Rescheduled(Duration, Option<String>),
    /// The attempt lost its job in another way: for example, the job was cancelled or completed from outside.
    Taken(AttemptEnd),
}

impl<J: Job, S: Store> Ran<J, S> {
    pub(crate) async fn read(client: Client<S>, chain: ChainId) -> Result<Self> {
        let attempts = client.store().list_attempts(ListAttempts { job: chain.first_job() }).await?;
        let (Some(attempt), Some(record)) = (attempts.attempts.last(), client.chain(chain).await?) else {
            return Err(Error::new(ErrorKind::NotFound, "the job was deleted while its attempt ran"));
        };
        let job = record.first;
        let delay = || job.due_at.since(attempt.ended_at.unwrap_or(attempt.started_at));
        let error = || attempt.error.as_ref().map(ToString::to_string);
        let outcome = match (attempt.end, &job.output) {
            (AttemptEnd::Completed, Some(output)) => Outcome::Completed(output.decode()?),
            (AttemptEnd::Continued, _) => Outcome::Continued(Box::new(record.latest)),
            (AttemptEnd::Failed | AttemptEnd::Exhausted, _) => Outcome::Failed(error().unwrap_or_default()),
            (AttemptEnd::Retried, _) => Outcome::Retried(error().unwrap_or_default(), delay()),
            (AttemptEnd::Rescheduled, _) => Outcome::Rescheduled(delay(), error()),
            (end, _) => Outcome::Taken(end),
        };
        let jobs = list_jobs(client.store(), &JobFilter::default()).await?;
        Ok(Self { client, job, jobs, outcome })
    }

    /// Returns how the attempt ended.
    #[must_use]
    pub const fn outcome(&self) -> &Outcome<J> {
        &self.outcome
    }

    /// Returns the job as stored after the attempt.
    #[must_use]
    pub const fn job(&self) -> &JobRecord {
        &self.job
    }

    /// Returns the client of the store that the job ran in, for further queries.
    #[must_use]
    pub const fn client(&self) -> &Client<S> {
        &self.client
    }

    /// Returns the chain's output.
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

    /// Returns the input of the job that the chain continues with.
    ///
    /// # Panics
    ///
    /// If the chain does not continue, or continues with another job type.
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

    /// Returns the error of a job that failed permanently.
    ///
    /// # Panics
    ///
    /// If the job did not fail permanently.
    #[track_caller]
    #[must_use]
    pub fn failed_with(&self) -> &str {
        match &self.outcome {
            Outcome::Failed(error) => error,
            _ => self.instead("fail permanently"),
        }
    }

    /// Returns the error of an attempt that will be retried.
    ///
    /// # Panics
    ///
    /// If the job will not be retried.
    #[track_caller]
    #[must_use]
    pub fn retried_with(&self) -> &str {
        match &self.outcome {
            Outcome::Retried(error, _) => error,
            _ => self.instead("be retried"),
        }
    }

    /// Returns the delay by which the handler rescheduled the job.
    ///
    /// # Panics
    ///
    /// If the handler did not reschedule the job.
    #[track_caller]
    #[must_use]
    pub fn rescheduled_after(&self) -> Duration {
        match &self.outcome {
            Outcome::Rescheduled(after, _) => *after,
            _ => self.instead("be rescheduled"),
        }
    }

    /// Returns the jobs of this type that the handler started as separate chains, oldest first.
    ///
    /// # Panics
    ///
    /// If a stored input cannot be decoded as `E`.
    #[track_caller]
    #[must_use]
    pub fn started<E: Job>(&self) -> Vec<E> {
        let started = self.jobs.iter().filter(|job| job.job_type.as_str() == E::NAME);
        let given = |job: &&JobRecord| self.job.blockers.iter().any(|blocker| blocker.chain == job.chain);
        let others = started.filter(|job| job.chain != self.job.chain && !given(job));
        others.map(|job| job.input.decode().expect("it was encoded as this type")).collect()
    }

    #[track_caller]
    fn instead(&self, expected: &str) -> ! {
        panic!("expected `{}` to {expected}, but {:?}", J::NAME, self.outcome)
    }
}

/// Formats the outcome as the second half of the sentence "expected this, but …".
impl<J: Job> fmt::Debug for Outcome<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completed(output) => {
                let output = serde_json::to_string(output).unwrap_or_default();
                write!(f, "it completed with {output}")
            }
            Self::Continued(next) => write!(f, "it continued with {}", describe(next)),
            Self::Failed(error) => write!(f, "it failed permanently: {error}"),
            Self::Retried(error, after) => write!(f, "it is retried after {after:?}: {error}"),
            Self::Rescheduled(after, None) => write!(f, "it is rescheduled after {after:?}"),
            Self::Rescheduled(after, Some(reason)) => {
                write!(f, "it is rescheduled after {after:?}: {reason}")
            }
            Self::Taken(end) => write!(f, "the job was taken from it: {end:?}"),
        }
    }
}

impl<J: Job, S> fmt::Debug for Ran<J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ran")
            .field("input", &text(&self.job.input))
            .field("attempt", &self.job.attempt)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}
