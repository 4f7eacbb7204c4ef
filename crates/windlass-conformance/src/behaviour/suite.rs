use std::fmt;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use windlass_core::Transactional;

use super::fixture::BehaviourFixture;
use super::groups::{behaviours, transactional_behaviours};
use super::{Behaviour, Need};
use crate::runner::{Verdict, judge, trial_of};

/// Default number of cases that run concurrently. It is high, because cases spend most of their time waiting.
const THREADS: usize = 10;

/// The cases of several pairs, as the tests of one test binary with `harness = false`.
#[derive(Default)]
#[must_use = "call `run`"]
pub struct BehaviourSuite {
    trials: Vec<Trial>,
}

impl BehaviourSuite {
    /// Creates a suite without pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair whose store has no transactions.
    pub fn pair<F: BehaviourFixture>(self, fixture: F) -> Self {
        self.add(fixture, behaviours())
    }

    /// Adds a pair whose store has transactions, with all cases.
    pub fn transactional_pair<F: BehaviourFixture<Store: Transactional>>(self, fixture: F) -> Self {
        self.add(fixture, all())
    }

    /// Adds a pair whose store has transactions, with only the cases of these groups (the first part of their ids). Use
    /// it for a pair whose store and notifier are each tested in full in other pairs.
    pub fn transactional_groups<F: BehaviourFixture<Store: Transactional>>(
        self,
        fixture: F,
        groups: &[&str],
    ) -> Self {
        let group = |case: &Behaviour<F::Store>| case.id.split('.').next().unwrap_or_default();
        self.add(fixture, all().into_iter().filter(|case| groups.contains(&group(case))).collect())
    }

    /// Runs the cases with the arguments of Rust's own test harness, then exits the process.
    pub fn run(self) -> ! {
        let mut arguments = Arguments::from_args();
        arguments.test_threads = arguments.test_threads.or(Some(THREADS));
        libtest_mimic::run(&arguments, self.trials).exit()
    }

    fn add<F: BehaviourFixture>(mut self, fixture: F, cases: Vec<Behaviour<F::Store>>) -> Self {
        let fixture = Arc::new(fixture);
        self.trials.extend(cases.into_iter().map(|case| {
            let (id, name) = (format!("{}::{}", fixture.name(), case.id), case.name);
            let (missing, fixture) = (missing(&*fixture, case.needs), Arc::clone(&fixture));
            trial_of(&id, name, missing, async move { verdict(&*fixture, &case).await })
        }));
        self
    }
}

impl fmt::Debug for BehaviourSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BehaviourSuite").field("cases", &self.trials.len()).finish()
    }
}

/// Runs the cases with these ids one after another and returns their verdicts.
///
/// # Panics
///
/// If there is no case with one of these ids.
pub async fn run_behaviours<F: BehaviourFixture<Store: Transactional>>(
    fixture: &F,
    ids: &[&str],
) -> Vec<(&'static str, Verdict)> {
    let known = all();
    for id in ids {
        assert!(known.iter().any(|case| case.id == *id), "there is no case {id:?}");
    }
    let mut verdicts = Vec::new();
    for case in known.iter().filter(|case| ids.contains(&case.id)) {
        verdicts.push((case.id, verdict(fixture, case).await));
    }
    verdicts
}

fn all<S: Transactional>() -> Vec<Behaviour<S>> {
    behaviours().into_iter().chain(transactional_behaviours()).collect()
}

async fn verdict<F: BehaviourFixture>(fixture: &F, case: &Behaviour<F::Store>) -> Verdict {
    if let Some(missing) = missing(fixture, case.needs) {
        return Verdict::Skipped(missing);
    }
    let scene = fixture.open().await;
    scene.connect().await;
    judge(case.id, (case.run)(scene)).await
}

fn missing(fixture: &impl BehaviourFixture, needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|need| need.missing(fixture))
}
