//! The notifier contract as cases.

mod cases;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use libtest_mimic::Arguments;
use windlass_core::{BoxFuture, Notifier};

use crate::runner::{Verdict, judge, trial_of};

/// Opens notifiers of one kind for the cases.
pub trait NotifierFixture: Send + Sync + 'static {
    /// The kind of notifier, for reports.
    fn name(&self) -> &str;

    /// Whether it counts how many workers to wake. One that does not wakes all, and the cases of the budget are skipped.
    fn has_wake_budget(&self) -> bool;

    /// Opens a fresh notifier that nobody else uses, through two independent handles.
    fn open(&self) -> BoxFuture<'_, NotifierSubject>;
}

/// A fresh notifier under test.
#[derive(Clone)]
pub struct NotifierSubject {
    /// The notifier.
    pub notifier: Arc<dyn Notifier>,
    /// The same hints through a second handle, opened on its own, as another process would have it.
    pub other: Arc<dyn Notifier>,
    /// Lives as long as the subject: a server, a connection.
    pub keep: Arc<dyn Any + Send + Sync>,
}

impl NotifierSubject {
    /// A subject with nothing to keep.
    #[must_use]
    pub fn new(notifier: Arc<dyn Notifier>, other: Arc<dyn Notifier>) -> Self {
        Self { notifier, other, keep: Arc::new(()) }
    }

    /// The same with something that lives as long as it.
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

/// One sentence of the notifier contract and the code that tries it.
#[derive(Clone, Copy, Debug)]
pub struct NotifierCase {
    /// A dotted name that stays the same.
    pub id: &'static str,
    /// The sentence of the contract.
    pub name: &'static str,
    /// Where it comes from.
    pub sources: &'static [&'static str],
    /// Whether it is about the wake budget.
    pub needs_wake_budget: bool,
    /// Tries it. It panics, and says what was expected, if the notifier does otherwise.
    pub run: fn(NotifierSubject) -> BoxFuture<'static, ()>,
}

/// All cases of the notifier contract.
#[must_use]
pub fn notifier_cases() -> Vec<NotifierCase> {
    cases::CASES.to_vec()
}

/// Runs all notifier cases as the tests of a test binary with `harness = false`, and ends the process.
pub fn notifier_main(fixture: impl NotifierFixture) -> ! {
    let arguments = Arguments::from_args();
    let fixture: Arc<dyn NotifierFixture> = Arc::new(fixture);
    let trial = |case: NotifierCase| {
        let (missing, fixture) = (missing(&*fixture, case), Arc::clone(&fixture));
        trial_of(case.id, case.name, missing, async move { verdict(&*fixture, case).await })
    };
    libtest_mimic::run(&arguments, notifier_cases().into_iter().map(trial).collect()).exit()
}

/// Runs all notifier cases, one after the other, and tells how each went.
pub async fn run_notifier(fixture: &dyn NotifierFixture) -> Vec<(NotifierCase, Verdict)> {
    let mut verdicts = Vec::new();
    for case in notifier_cases() {
        verdicts.push((case, verdict(fixture, case).await));
    }
    verdicts
}

async fn verdict(fixture: &dyn NotifierFixture, case: NotifierCase) -> Verdict {
    match missing(fixture, case) {
        Some(missing) => Verdict::Skipped(missing),
        None => judge(case.id, (case.run)(fixture.open().await)).await,
    }
}

fn missing(fixture: &dyn NotifierFixture, case: NotifierCase) -> Option<String> {
    (case.needs_wake_budget && !fixture.has_wake_budget()).then(|| "lacks a wake budget".to_owned())
}
