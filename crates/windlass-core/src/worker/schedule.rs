//! Schedules of a worker: its declarations, and the task that starts due occurrences.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::engine::Engine;
use super::task::catch_panic;
pub(super) use crate::client::Declaration;
use crate::client::{DECLARED_EVERY, Declared, visit_due, visit_every};
use crate::clock::far;
use crate::command::check_text;
use crate::error::{Error, ErrorKind, Result};
use crate::name::ErrorText;
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

/// The store of an attempt that a schedule has started.
pub(super) struct ScheduledBy(pub(super) AnyStore);

/// Declares the program's schedules when a worker starts. Returns whether that succeeded in time. If not, [`run`] tries
/// again: a worker starts even if its store is unreachable.
pub(super) async fn declare_first<S: Store + ?Sized>(engine: &Engine<S>, program: &Program) -> bool {
    let is_supported = engine.client.store().capabilities().has(Capability::Schedules);
    if program.declarations.is_empty() || !is_supported {
        return true;
    }
    matches!(timeout(DECLARE_LIMIT, declare(engine, program)).await, Ok(true))
}

/// Declares the program's schedules, and then starts due occurrences until the worker stops. Returns immediately if the
/// store has no schedules. A failure is retried.
pub(super) async fn run<S: Store + ?Sized>(engine: Arc<Engine<S>>, program: Program, is_declared: bool) {
    if !engine.client.store().capabilities().has(Capability::Schedules) {
        return;
    }
    let stopping = engine.stopping.clone();
    let (mut is_checked, mut failures) = (false, 0);
    let mut declare_at = Instant::now() + if is_declared { DECLARED_EVERY } else { Duration::ZERO };
    while !stopping.is_cancelled() {
        let turn = async {
            if Instant::now() >= declare_at {
                let is_declared = declare(&engine, &program).await;
                declare_at = Instant::now() + if is_declared { DECLARED_EVERY } else { DECLARE_AGAIN };
            }
            if !is_checked {
                visit_every(engine.client.store(), engine.dispatcher()).await?;
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

/// Declares the program's schedules. A declaration that fails does not stop the others. Returns whether all of them reached
/// the store.
async fn declare<S: Store + ?Sized>(engine: &Engine<S>, program: &Program) -> bool {
    let mut is_declared = true;
    let declared = engine.client.schedules().declare(&program.name, &program.declarations).await;
    for (Declaration { name, .. }, declared) in program.declarations.iter().zip(declared) {
        match declared {
            Ok(Declared::Refused) => tracing::warn!(
                target: "windlass",
                schedule = %name,
                program = program.name,
                "the declaration of the schedule was superseded and is not applied: deploy the newer program, or accept \
                 the rollback with `windlass schedules accept {name}`"
            ),
            Ok(_) => {}
            Err(error) => {
                is_declared &= !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy);
                tracing::warn!(
                    target: "windlass",
                    schedule = %name,
                    program = program.name,
                    %error,
                    "the schedule could not be declared: its stored definition, if any, stays in use"
                );
                let event = Event::StoreFailed("change_schedules", ErrorText::new(error.to_string()));
                engine.dispatcher().observe(&event);
            }
        }
    }
    is_declared
}

impl Program {
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
