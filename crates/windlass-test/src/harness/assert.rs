//! Assertions about the chains and jobs of a harness.

use windlass_core::command::JobFilter;
use windlass_core::{Chain, ChainRecord, Entry, ErrorKind, Job, JobRecord, TypeName};

use super::TestHarness;
use crate::query::{describe, immediately, jobs, text};

impl TestHarness {
    /// Returns the jobs of this type that were started so far, as chains or as continuations, oldest first. Includes
    /// jobs that have ended.
    ///
    /// # Panics
    ///
    /// If a stored input cannot be decoded as this type.
    #[track_caller]
    #[must_use]
    pub fn started<J: Job>(&self) -> Vec<J> {
        let decode = |job: &JobRecord| match job.input.decode() {
            Ok(input) => input,
            Err(error) => panic!("{} is not a `{}`: {error}", describe(job), J::NAME),
        };
        self.records::<J>().iter().map(decode).collect()
    }

    /// Asserts that a job of this type was started for which `expected` returns true.
    ///
    /// # Panics
    ///
    /// If there is none. The message lists the jobs that were started instead.
    #[track_caller]
    pub fn assert_started<J: Job>(&self, expected: impl FnMut(&J) -> bool) {
        if !self.started::<J>().iter().any(expected) {
            panic!("expected a matching `{}` to be started, but {}", J::NAME, self.instead::<J>());
        }
    }

    /// Asserts that no job of this type was started for which `unexpected` returns true.
    ///
    /// # Panics
    ///
    /// If there is one. The message lists the jobs of this type.
    #[track_caller]
    pub fn assert_not_started<J: Job>(&self, unexpected: impl FnMut(&J) -> bool) {
        if self.started::<J>().iter().any(unexpected) {
            panic!("expected no matching `{}` to be started, but {}", J::NAME, self.instead::<J>());
        }
    }

    /// Asserts that no job was started at all.
    ///
    /// # Panics
    ///
    /// If a job was started. The message lists all jobs.
    #[track_caller]
    pub fn assert_nothing_started(&self) {
        let all = jobs(self.client().store(), &JobFilter::default());
        assert!(all.is_empty(), "expected no job to be started, but {}", listed(&all));
    }

    /// Returns the output of a completed chain.
    ///
    /// # Panics
    ///
    /// If the chain has not completed. The message describes its current state.
    #[track_caller]
    #[must_use]
    pub fn output<J: Entry>(&self, chain: Chain<J>) -> J::Output {
        match immediately(self.client().output(chain)) {
            Ok(Some(output)) => output,
            Ok(None) => panic!("expected {chain:?} to complete, but {}", self.describe_state(chain)),
            Err(error) => panic!("expected {chain:?} to complete, but {error}"),
        }
    }

    /// Returns the error of a failed chain.
    ///
    /// # Panics
    ///
    /// If the chain has not failed. The message describes its current state.
    #[track_caller]
    #[must_use]
    pub fn failure<J: Entry>(&self, chain: Chain<J>) -> String {
        match immediately(self.client().output(chain)) {
            Err(error) if error.kind() == ErrorKind::ChainFailed => {
                error.job_error().map(ToString::to_string).unwrap_or_default()
            }
            Err(error) => panic!("expected {chain:?} to fail, but {error}"),
            Ok(_) => panic!("expected {chain:?} to fail, but {}", self.describe_state(chain)),
        }
    }

    fn records<J: Job>(&self) -> Vec<JobRecord> {
        let names = J::ALIASES.iter().chain([&J::NAME]);
        let types = names.map(|name| TypeName::new(name).expect("a job type has a valid name")).collect();
        jobs(self.client().store(), &JobFilter { types, ..JobFilter::default() })
    }

    /// Lists the started jobs of this type, or all started jobs if there are none of this type.
    fn instead<J: Job>(&self) -> String {
        let same = self.records::<J>();
        let all = if same.is_empty() { jobs(self.client().store(), &JobFilter::default()) } else { same };
        listed(&all)
    }

    /// Describes the state of a chain that has not ended as expected.
    fn describe_state<J: Entry>(&self, chain: Chain<J>) -> String {
        let Ok(Some(ChainRecord { latest, .. })) = immediately(self.client().chain(chain)) else {
            return "it is not stored".to_owned();
        };
        let mut state = format!("its latest job {} is {:?}", describe(&latest), latest.status);
        if let Some(output) = &latest.output {
            state.push_str(&format!(" with {}", text(output)));
        }
        if latest.status.is_open() && latest.due_at > self.now() {
            state.push_str(&format!(", due in {:?}", latest.due_at.since(self.now())));
        }
        if let Some(error) = &latest.error {
            state.push_str(&format!(", after: {error}"));
        }
        state
    }
}

fn listed(jobs: &[JobRecord]) -> String {
    if jobs.is_empty() {
        return "no job was".to_owned();
    }
    let lines: Vec<_> = jobs.iter().map(describe).collect();
    format!("these jobs were:\n  {}", lines.join("\n  "))
}
