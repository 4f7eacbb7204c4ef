use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};
use windlass_core::Capability;

use crate::case::{Case, cases};
use crate::fixture::Fixture;
use crate::subject::Subject;

/// Time limit of a case.
pub const CASE_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for the tasks that a case leaves behind.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// The resource of a subject.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// Runs all cases as the tests of a test binary with `harness = false`, then exits the process.
///
/// Accepts the arguments of Rust's own test harness. A case that needs a capability that the store lacks is shown as
/// ignored, with the missing capability.
pub fn main(fixture: impl Fixture) -> ! {
    let arguments = Arguments::from_args();
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
    let trials = cases().into_iter().map(|case| trial(&fixture, case)).collect();
    libtest_mimic::run(&arguments, trials).exit()
}

/// Runs all cases one after another and returns a report.
///
/// Use a multi-threaded runtime: on a single thread the concurrency cases check little.
pub async fn run(fixture: &dyn Fixture) -> Report {
    run_these(fixture, cases()).await
}

/// Runs the cases with these ids.
///
/// # Panics
///
/// If there is no case with one of these ids.
pub async fn run_cases(fixture: &dyn Fixture, ids: &[&str]) -> Report {
    let known = cases();
    for id in ids {
        assert!(known.iter().any(|case| case.id == *id), "there is no case {id:?}: see `cases()`");
    }
    run_these(fixture, known.into_iter().filter(|case| ids.contains(&case.id)).collect()).await
}

/// Results of the cases on one store.
#[derive(Clone, Debug)]
pub struct Report {
    /// The kind of store.
    pub fixture: String,
    /// The cases with their results.
    pub verdicts: Vec<(Case, Verdict)>,
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The store follows the contract.
    Passed,
    /// The case panicked with this message.
    Failed(String),
    /// The case was not run, because the store or notifier lacks this.
    Skipped(String),
}

impl Report {
    /// Returns the failed cases with their messages.
    pub fn failed(&self) -> impl Iterator<Item = (&Case, &str)> {
        self.verdicts.iter().filter_map(|(case, verdict)| match verdict {
            Verdict::Failed(message) => Some((case, message.as_str())),
            Verdict::Passed | Verdict::Skipped(_) => None,
        })
    }

    /// Whether no case failed.
    #[must_use]
    pub fn is_conformant(&self) -> bool {
        self.failed().next().is_none()
    }

    fn count(&self, wanted: fn(&Verdict) -> bool) -> usize {
        self.verdicts.iter().filter(|(_, verdict)| wanted(verdict)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let passed = self.count(|verdict| *verdict == Verdict::Passed);
        let skipped = self.count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        writeln!(
            f,
            "{}: {passed} passed, {} failed, {skipped} skipped",
            self.fixture,
            self.failed().count()
        )?;
        self.failed().try_for_each(|(case, message)| writeln!(f, "{}: {}\n    {message}", case.id, case.name))
    }
}

fn trial(fixture: &Arc<dyn Fixture>, case: Case) -> Trial {
    let (missing, fixture) = (missing(&**fixture, case), Arc::clone(fixture));
    trial_of(case.id, case.name, missing, async move { verdict(&*fixture, case).await })
}

/// Builds a trial that runs on its own runtime, so that no task outlives it. The subject's resource is dropped after the
/// runtime. The trial is ignored if something is missing.
pub(crate) fn trial_of(
    id: &str,
    name: &'static str,
    missing: Option<String>,
    case: impl Future<Output = (Verdict, Kept)> + Send + 'static,
) -> Trial {
    let trial = Trial::test(id, move || {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (verdict, kept) = runtime.block_on(case);
        shut_down(runtime, kept);
        match verdict {
            Verdict::Passed => Ok(()),
            Verdict::Failed(message) | Verdict::Skipped(message) => {
                Err(Failed::from(format!("{name}\n{message}")))
            }
        }
    });
    match missing {
        Some(missing) => trial.with_kind(missing).with_ignored_flag(true),
        None => trial,
    }
}

/// Ends all tasks of a case, then drops its resource. A fixture may reuse a resource that is dropped outside a runtime,
/// such as a database schema, because no task of the case is left that could write to it. If a task does not end in
/// time, the resource is leaked.
fn shut_down(runtime: Runtime, kept: Kept) {
    let started = Instant::now();
    runtime.shutdown_timeout(SHUTDOWN_LIMIT);
    if started.elapsed() >= SHUTDOWN_LIMIT {
        mem::forget(kept);
    }
}

async fn run_these(fixture: &dyn Fixture, cases: Vec<Case>) -> Report {
    let mut verdicts = Vec::with_capacity(cases.len());
    for case in cases {
        let verdict = match missing(fixture, case) {
            Some(missing) => Verdict::Skipped(missing),
            None => verdict(fixture, case).await.0,
        };
        verdicts.push((case, verdict));
    }
    Report { fixture: fixture.name().to_owned(), verdicts }
}

async fn verdict(fixture: &dyn Fixture, case: Case) -> (Verdict, Kept) {
    let subject = fixture.open().await;
    let kept = Arc::clone(&subject.keep);
    let verdict = match mistake(fixture, &subject) {
        Some(mistake) => Verdict::Failed(mistake),
        None => judge(case.id, (case.run)(subject)).await,
    };
    (verdict, kept)
}

/// Runs a case with a time limit, on its own task so that a panic is caught.
pub(crate) async fn judge(id: &str, case: impl Future<Output = ()> + Send + 'static) -> Verdict {
    let mut task = tokio::spawn(case);
    match tokio::time::timeout(CASE_LIMIT, &mut task).await {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(failure)) => Verdict::Failed(match failure.try_into_panic() {
            Ok(panic) => message(&*panic),
            Err(failure) => failure.to_string(),
        }),
        Err(_) => {
            task.abort();
            Verdict::Failed(format!("{id} did not end within {CASE_LIMIT:?}"))
        }
    }
}

/// Returns what is wrong with the fixture. A fixture that claims fewer capabilities than the store has would silently
/// skip cases.
fn mistake(fixture: &dyn Fixture, subject: &Subject) -> Option<String> {
    let (claimed, says) = (fixture.capabilities(), subject.store.capabilities());
    if claimed != says {
        return Some(format!(
            "the fixture claims {claimed:?}, but the store reports {says:?}: make them equal"
        ));
    }
    let wired = subject.transactions.is_some();
    (says.has(Capability::Transactions) && !wired).then(|| {
        "the store has transactions and the subject has none: add them by `Subject::with_transactions`"
            .to_owned()
    })
}

fn missing(fixture: &dyn Fixture, case: Case) -> Option<String> {
    let capabilities = fixture.capabilities();
    let missing = case.needs.iter().find(|need| !capabilities.has(**need));
    missing.map(|capability| format!("lacks {capability:?}"))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked without a message").to_owned()
}
