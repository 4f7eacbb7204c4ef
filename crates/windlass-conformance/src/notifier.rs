//! Test cases for the notifier contract.

mod cases;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use libtest_mimic::Arguments;
use windlass_core::{BoxFuture, Notifier};

use crate::runner::{Kept, Verdict, judge, trial_of};

/// Opens notifiers of one kind for the cases.
pub trait NotifierFixture: Send + Sync + 'static {
    /// Returns the kind of notifier, for reports.
    fn name(&self) -> &str;

    /// Whether the notifier limits how many workers a hint wakes. One without a wake budget wakes all workers, and the
    /// cases about the budget are skipped.
    fn has_wake_budget(&self) -> bool;

    /// Opens a fresh notifier that nothing else uses, through two independent handles.
    fn open(&self) -> BoxFuture<'_, NotifierSubject>;
}

/// A fresh notifier under test.
#[derive(Clone)]
pub struct NotifierSubject {
    /// The notifier.
    pub notifier: Arc<dyn Notifier>,
    /// A second handle to the same hints, opened independently, as in another process.
    pub other: Arc<dyn Notifier>,
    /// A resource that lives as long as the subject, such as a server or a connection.
    pub keep: Arc<dyn Any + Send + Sync>,
}

impl NotifierSubject {
    /// Creates a subject without a resource to keep.
    #[must_use]
    pub fn new(notifier: Arc<dyn Notifier>, other: Arc<dyn Notifier>) -> Self {
        Self { notifier, other, keep: Arc::new(()) }
    }

    /// Attaches a resource that lives as long as the subject.
    #[must_use]
    pub fn keeping(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Arc::new(keep);
        self
    }
}

impl fmt::Debug for NotifierSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotifierSubject").field("notifier", &self.notifier).finish_non_exhaustive()
    }
}

/// One rule of the notifier contract, with the code that checks it.
#[derive(Clone, Copy, Debug)]
pub struct NotifierCase {
    /// Stable dotted id.
    pub id: &'static str,
    /// The rule, as one sentence of the contract.
    pub name: &'static str,
    /// Origin of the rule.
    pub sources: &'static [&'static str],
    /// Whether the case is about the wake budget.
    pub needs_wake_budget: bool,
    /// Runs the check. Panics with the expectation if the notifier violates the rule.
    pub run: fn(NotifierSubject) -> BoxFuture<'static, ()>,
}

/// Returns all cases of the notifier contract.
#[must_use]
pub fn notifier_cases() -> Vec<NotifierCase> {
    cases::CASES.to_vec()
}

/// Runs all notifier cases as the tests of a test binary with `harness = false`, then exits the process.
pub fn notifier_main(fixture: impl NotifierFixture) -> ! {
    let arguments = Arguments::from_args();
    let fixture: Arc<dyn NotifierFixture> = Arc::new(fixture);
    let trial = |case: NotifierCase| {
        let (missing, fixture) = (missing(&*fixture, case), Arc::clone(&fixture));
        trial_of(case.id, case.name, missing, async move { verdict(&*fixture, case).await })
    };
    libtest_mimic::run(&arguments, notifier_cases().into_iter().map(trial).collect()).exit()
}

/// Runs all notifier cases one after another and returns their verdicts.
pub async fn run_notifier(fixture: &dyn NotifierFixture) -> Vec<(NotifierCase, Verdict)> {
    let mut verdicts = Vec::new();
    for case in notifier_cases() {
        let verdict = match missing(fixture, case) {
            Some(missing) => Verdict::Skipped(missing),
            None => verdict(fixture, case).await.0,
        };
        verdicts.push((case, verdict));
    }
    verdicts
}

async fn verdict(fixture: &dyn NotifierFixture, case: NotifierCase) -> (Verdict, Kept) {
    let subject = fixture.open().await;
    let kept = Arc::clone(&subject.keep);
    (judge(case.id, (case.run)(subject)).await, kept)
}

fn missing(fixture: &dyn NotifierFixture, case: NotifierCase) -> Option<String> {
    (case.needs_wake_budget && !fixture.has_wake_budget()).then(|| "lacks a wake budget".to_owned())
}
