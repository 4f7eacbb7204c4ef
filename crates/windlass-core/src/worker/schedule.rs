//! Schedules of a worker: its declarations, and the task that starts due occurrences.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::engine::Engine;
use super::task::catch_panic;
pub(super) use crate::client::Declaration;
use crate::client::{Client, DECLARED_EVERY, Declared, Declarer, is_noted, visit_due, visit_every};
use crate::clock::far;
use crate::command::{ScheduleRecord, check_text};
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::name::{ErrorText, ScheduleName};
use crate::observer::Event;
use crate::schedule::Definition;
use crate::store::{AnyStore, Capability, Store};

/// The longest time between two queries for due schedules. A hint or a due time ends it earlier.
const POLL: Duration = Duration::from_secs(5);
/// The same while hints do not arrive from every process.
const POLL_ALONE: Duration = Duration::from_millis(1_500);
/// The maximum random delay before the next query, if other workers have just started most of the due schedules.
const CONTENDED: Duration = Duration::from_millis(50);
/// The shortest time between two queries that find nothing to do although a schedule is due.
const FRUITLESS: Duration = Duration::from_millis(1);
/// The longest time between two queries while an open transaction has locked a due schedule.
const BUSY: Duration = Duration::from_millis(200);
/// The time after which a declaration is repeated that did not reach the store.
const DECLARE_AGAIN: Duration = Duration::from_secs(10);
/// How often a worker checks whether the workers that declare the schedules of its program are alive, unless all notes are
/// its own.
const WATCH: Duration = Duration::from_secs(15);
/// The time from the start of a worker, or from the end of another, to the search for undeclared schedules.
const SURVEY: Duration = Duration::from_secs(45);
/// How long the start of a worker waits until its schedules are declared.
const DECLARE_LIMIT: Duration = Duration::from_secs(5);

/// Declarations, or the first error in one of them.
pub(super) type Declarations = Result<Vec<Declaration>>;

/// The program and its declarations.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: String,
    pub(super) declarations: Vec<Declaration>,
}

/// Returns the default name of the program: that of its executable.
pub(super) fn program_name() -> String {
    let path = std::env::current_exe().ok();
    let name =
        path.as_ref().and_then(|path| path.file_stem()).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "program".to_owned())
}

/// The client of the worker, for an attempt of a chain that a schedule has started.
pub(super) struct ScheduledBy(pub(super) Client<AnyStore>);

/// Declares the program's schedules when a worker starts. If that does not succeed in time, [`run`] tries again: a worker
/// starts even if its store is unreachable.
pub(super) async fn declare_first<S: Store + ?Sized>(engine: &Engine<S>, program: &Program) -> Declaring {
    let mut declaring = Declaring::new();
    if engine.client.store().capabilities().has(Capability::Schedules) {
        let _ = timeout(DECLARE_LIMIT, declaring.turn(engine, program)).await;
    }
    declaring
}

/// Declares the program's schedules, and then starts due occurrences until the worker stops. Returns immediately if the
/// store has no schedules. A failure is retried.
pub(super) async fn run<S: Store + ?Sized>(
    engine: Arc<Engine<S>>,
    program: Program,
    mut declaring: Declaring,
) {
    if !engine.client.store().capabilities().has(Capability::Schedules) {
        return;
    }
    let stopping = engine.stopping.clone();
    let (mut is_checked, mut failures) = (false, 0);
    while !stopping.is_cancelled() {
        let turn = async {
            declaring.turn(&engine, &program).await;
            if !is_checked {
                let declared = program.names();
                let inspect = |rows: &[ScheduleRecord]| declaring.inspect(rows, &program, &declared);
                visit_every(engine.client.store(), engine.dispatcher(), inspect).await?;
                is_checked = true;
            }
            visit_due(engine.client.store(), engine.dispatcher()).await
        };
        let turn = catch_panic("schedules", turn).await;
        let turn = turn.unwrap_or_else(|panic| Err(Error::new(ErrorKind::Unavailable, panic.to_string())));
        let delay = match turn {
            Ok(pass) => {
                failures = 0;
                let poll = poll(&engine);
                let left = pass.next_due.map_or(poll, |due_at| due_at.since(pass.now).max(FRUITLESS));
                let contended =
                    if pass.is_contended { CONTENDED.mul_f64(fastrand::f64()) } else { Duration::ZERO };
                let poll = if pass.is_busy { poll.min(BUSY) } else { poll };
                left.min(poll).max(contended)
            }
            Err(error) => {
                failures += 1;
                let event = Event::StoreFailed("due_schedules", ErrorText::new(error.to_string()));
                engine.dispatcher().observe(&event);
                let delay = engine.recovery.delay(failures, fastrand::f64());
                let _ = timeout(delay, stopping.cancelled()).await;
                continue;
            }
        };
        tokio::select! {
            biased;
            () = stopping.cancelled() => {}
            () = sleep_until(far(delay)) => {}
            // The main loop receives the hints.
            () = engine.schedules_changed.notified() => {}
        }
    }
}

/// Returns the longest time until the next query.
fn poll<S: Store + ?Sized>(engine: &Engine<S>) -> Duration {
    let interval = engine.dispatcher().poll_interval(true);
    let longest = if interval >= POLL { POLL } else { POLL_ALONE };
    longest.mul_f64(1.0 - 0.1 * fastrand::f64())
}

/// When a worker declares its schedules again, and which other workers it watches.
#[derive(Debug)]
pub(super) struct Declaring {
    declare_at: Instant,
    watch_at: Instant,
    /// When to search for undeclared schedules of the program.
    survey_at: Option<Instant>,
    /// Workers whose notes the declared schedules have, and those that the survey found.
    others: [HashSet<WorkerId>; 2],
}

impl Declaring {
    fn new() -> Self {
        let now = Instant::now();
        Self { declare_at: now, watch_at: now + WATCH, survey_at: None, others: Default::default() }
    }

    /// Plans a survey if the program has schedules that this worker does not declare.
    fn inspect(&mut self, rows: &[ScheduleRecord], program: &Program, declared: &HashSet<ScheduleName>) {
        let is_foreign = |row: &ScheduleRecord| !declared.contains(&row.name) && is_noted(row, &program.name);
        if self.survey_at.is_none() && rows.iter().any(is_foreign) {
            self.survey_at = Some(Instant::now() + SURVEY.mul_f64(1.0 + 0.2 * fastrand::f64()));
        }
    }

    /// Does what is due.
    async fn turn<S: Store + ?Sized>(&mut self, engine: &Engine<S>, program: &Program) {
        let now = Instant::now();
        if now >= self.declare_at {
            self.declare(engine, program).await;
        } else if now >= self.watch_at && !self.others.iter().all(HashSet::is_empty) {
            self.watch_at = now + WATCH;
            let live = live_workers(engine).await;
            if live.is_some_and(|live| !self.others.iter().all(|others| others.is_subset(&live))) {
                self.declare(engine, program).await;
                // By then, all workers have noticed.
                self.survey_at.get_or_insert(now + SURVEY);
            }
        }
        if self.survey_at.is_some_and(|at| Instant::now() >= at) {
            self.survey(engine, program).await;
        }
    }

    /// Declares the program's schedules. A declaration that fails does not stop the others.
    async fn declare<S: Store + ?Sized>(&mut self, engine: &Engine<S>, program: &Program) {
        if program.declarations.is_empty() {
            self.declare_at = far(DECLARED_EVERY);
            return;
        }
        let live = live_workers(engine).await;
        let declarer = Declarer { program: &program.name, worker: engine.id, live: live.as_ref() };
        let declared = engine.client.schedules().declare(declarer, &program.declarations).await;
        let mut is_declared = true;
        for (Declaration { name, .. }, declared) in program.declarations.iter().zip(declared.results) {
            is_declared &= report(engine, &program.name, name, declared);
        }
        self.declare_at = Instant::now() + if is_declared { DECLARED_EVERY } else { DECLARE_AGAIN };
        let [of_declared, of_others] = &mut self.others;
        *of_declared = declared.others;
        // The survey that follows their death finds what they declared.
        of_others.retain(|worker| live.as_ref().is_none_or(|live| live.contains(worker)));
    }

    /// Marks the schedules of the program that no live worker declares.
    async fn survey<S: Store + ?Sized>(&mut self, engine: &Engine<S>, program: &Program) {
        let can_list = engine.client.store().capabilities().has(Capability::Workers);
        self.survey_at = can_list.then(|| Instant::now() + SURVEY);
        let Some(live) = live_workers(engine).await else { return };
        let declarer = Declarer { program: &program.name, worker: engine.id, live: Some(&live) };
        match engine.client.schedules().mark_undeclared(declarer, &program.names()).await {
            Ok(survey) => {
                self.survey_at = self.survey_at.filter(|_| survey.is_unfinished);
                let [_, of_others] = &mut self.others;
                *of_others = survey.others;
            }
            Err(error) => {
                let event = Event::StoreFailed("list_schedules", ErrorText::new(error.to_string()));
                engine.dispatcher().observe(&event);
            }
        }
    }
}

/// Returns the live workers, or `None` if the store does not list them.
async fn live_workers<S: Store + ?Sized>(engine: &Engine<S>) -> Option<HashSet<WorkerId>> {
    if !engine.client.store().capabilities().has(Capability::Workers) {
        return None;
    }
    let workers = engine.client.workers().await.ok()?;
    Some(workers.into_iter().map(|worker| worker.worker).collect())
}

/// Reports what became of a declaration. Returns whether it reached the store.
fn report<S: Store + ?Sized>(
    engine: &Engine<S>,
    program: &str,
    name: &ScheduleName,
    declared: Result<Declared>,
) -> bool {
    match declared {
        Ok(Declared::Refused) => tracing::warn!(
            target: "windlass",
            schedule = %name,
            program,
            "the declaration of the schedule was superseded and is not applied: deploy the newer program, or accept \
             the rollback with `windlass schedules accept {name}`"
        ),
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(
                target: "windlass",
                schedule = %name,
                program,
                %error,
                "the schedule could not be declared: its stored definition, if any, stays in use"
            );
            let event = Event::StoreFailed("change_schedules", ErrorText::new(error.to_string()));
            engine.dispatcher().observe(&event);
            return !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy);
        }
    }
    true
}

impl Program {
    /// Returns the names of the declared schedules.
    fn names(&self) -> HashSet<ScheduleName> {
        self.declarations.iter().map(|declaration| declaration.name.clone()).collect()
    }

    /// Checks that a store accepts the declarations.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if one is too large or contains NUL, or if two have the same name.
    pub(super) fn check(&self) -> Result<()> {
        let mut names = HashSet::new();
        self.declarations.iter().try_for_each(|Declaration { name, spec, job }| {
            if !names.insert(name) {
                let text = format!("the schedule `{name}` is declared twice: keep one");
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            check_text(name, &Definition::declared(&self.name, spec, job).encode())
        })
    }
}
