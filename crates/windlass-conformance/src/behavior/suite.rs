use std::fmt;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use windlass_core::{Capability, Store, Transactional};

use super::fixture::BehaviorFixture;
use super::groups::{behaviors, rules, transactional_behaviors};
use super::{Behavior, Need, Scene};
use crate::runner::{Kept, Verdict, judge, trial_of};

/// Default number of cases that run concurrently. It is high, because cases spend most of their time waiting.
const THREADS: usize = 10;

/// The cases of several pairs, as the tests of one test binary with `harness = false`.
#[derive(Default)]
#[must_use = "call `run`"]
pub struct BehaviorSuite {
    trials: Vec<Trial>,
}

impl BehaviorSuite {
    /// Creates a suite without pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair whose store has no transactions. The cases about transactions are shown as ignored.
    pub fn pair<F: BehaviorFixture>(mut self, fixture: F) -> Self {
        let fixture = Arc::new(fixture);
        self.add(&fixture, behaviors(), Scene::erased);
        for rule in rules().into_iter().filter(|rule| rule.transactional) {
            let missing = Some(format!("lacks {:?}", Capability::Transactions));
            let id = id(&*fixture, rule.id);
            self.trials.push(trial_of(&id, rule.name, missing, async {
                (Verdict::Skipped("lacks transactions".to_owned()), Arc::new(()) as Kept)
            }));
        }
        self
    }

    /// Adds a pair whose store has transactions, with all cases.
    pub fn transactional_pair<F: BehaviorFixture<Store: Transactional>>(mut self, fixture: F) -> Self {
        let fixture = Arc::new(fixture);
        self.add(&fixture, behaviors(), Scene::erased);
        self.add(&fixture, transactional_behaviors(), |scene| scene);
        self
    }

    /// Adds a pair with only the cases that depend on the notifier. Use it if the suite, or another one, runs all cases
    /// on this store with another notifier.
    pub fn notifier_pair<F: BehaviorFixture>(mut self, fixture: F) -> Self {
        let cases = behaviors().into_iter().filter(Behavior::depends_on_notifier).collect();
        self.add(&Arc::new(fixture), cases, Scene::erased);
        self
    }

    /// Runs the cases with the arguments of Rust's own test harness, then exits the process.
    pub fn run(self) -> ! {
        let mut arguments = Arguments::from_args();
        arguments.test_threads = arguments.test_threads.or(Some(THREADS));
        libtest_mimic::run(&arguments, self.trials).exit()
    }

    /// Adds cases on stores of type `S`, to which `convert` converts the scenes of the fixture.
    fn add<F: BehaviorFixture, S: Store>(
        &mut self,
        fixture: &Arc<F>,
        cases: Vec<Behavior<S>>,
        convert: fn(Scene<F::Store>) -> Scene<S>,
    ) {
        self.trials.extend(cases.into_iter().map(|case| {
            let (id, name) = (id(&**fixture, case.id), case.name);
            let (missing, fixture) = (missing(&**fixture, case.needs), Arc::clone(fixture));
            trial_of(&id, name, missing, async move { verdict(convert(fixture.open().await), &case).await })
        }));
    }
}

impl fmt::Debug for BehaviorSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BehaviorSuite").field("cases", &self.trials.len()).finish()
    }
}

/// Runs the cases with these ids one after another and returns their verdicts.
///
/// # Panics
///
/// If there is no case with one of these ids.
pub async fn run_behaviors<F: BehaviorFixture<Store: Transactional>>(
    fixture: &F,
    ids: &[&str],
) -> Vec<(&'static str, Verdict)> {
    let known = rules();
    for id in ids {
        assert!(known.iter().any(|rule| rule.id == *id), "there is no case {id:?}");
    }
    let mut verdicts = run_these(fixture, behaviors(), ids, Scene::erased).await;
    verdicts.extend(run_these(fixture, transactional_behaviors(), ids, |scene| scene).await);
    verdicts
}

async fn run_these<F: BehaviorFixture, S: Store>(
    fixture: &F,
    cases: Vec<Behavior<S>>,
    ids: &[&str],
    convert: fn(Scene<F::Store>) -> Scene<S>,
) -> Vec<(&'static str, Verdict)> {
    let mut verdicts = Vec::new();
    for case in cases.iter().filter(|case| ids.contains(&case.id)) {
        let verdict = match missing(fixture, case.needs) {
            Some(missing) => Verdict::Skipped(missing),
            None => verdict(convert(fixture.open().await), case).await.0,
        };
        verdicts.push((case.id, verdict));
    }
    verdicts
}

async fn verdict<S: Store>(scene: Scene<S>, case: &Behavior<S>) -> (Verdict, Kept) {
    let kept = scene.kept();
    scene.connect().await;
    (judge(case.id, (case.run)(scene)).await, kept)
}

fn id(fixture: &impl BehaviorFixture, case: &str) -> String {
    format!("{}::{case}", fixture.name())
}

fn missing(fixture: &impl BehaviorFixture, needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|need| need.missing(fixture))
}
