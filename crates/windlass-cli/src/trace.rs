//! Passes trace contexts on: from the environment to the jobs that a command starts, and from a chain to its next jobs.

use std::env;
use std::sync::{Mutex, PoisonError};

use windlass::name::TraceContext;
use windlass::observer::{About, Activity, AttemptScope, Event, Traced};
use windlass::otel::{Telemetry, is_traceparent};
use windlass::{ChainId, Observer};

use crate::output::{note, truncated};

/// The variable that holds a context, as in other programs that support W3C Trace Context.
pub(crate) const TRACEPARENT: &str = "TRACEPARENT";

/// The number of characters of a malformed value that are printed.
const VALUE_WIDTH: usize = 100;

/// Stores the context of the environment with new chains, and that of a chain with its next jobs. Also reports metrics,
/// if the telemetry is on.
#[derive(Debug)]
pub(crate) struct Propagation {
    surrounding: Option<TraceContext>,
    /// A value of the environment that is not a trace context, until the user has been notified of it.
    malformed: Mutex<Option<String>>,
    telemetry: Telemetry,
}

impl Propagation {
    /// For a command that starts jobs on behalf of its caller. A context that is malformed is not stored. A command that
    /// would store it prints a note.
    pub(crate) fn of_caller() -> Self {
        let variable = env::var_os(TRACEPARENT).filter(|value| !value.is_empty());
        let value = variable.map(|value| value.to_string_lossy().into_owned());
        let context = value.as_ref().filter(|value| is_traceparent(value));
        let surrounding = context.and_then(|context| TraceContext::new(context.as_str()).ok());
        let malformed = value.filter(|_| surrounding.is_none());
        Self { surrounding, malformed: Mutex::new(malformed), telemetry: Telemetry::new() }
    }

    /// For a worker, whose surroundings do not concern its jobs.
    pub(crate) const fn of_worker(telemetry: Telemetry) -> Self {
        Self { surrounding: None, malformed: Mutex::new(None), telemetry }
    }

    /// Returns the context of the environment. Prints a note the first time if it is malformed.
    fn surrounding(&self) -> Option<TraceContext> {
        let malformed = self.malformed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(value) = malformed {
            let shown = truncated(&value, VALUE_WIDTH);
            note(&format!(
                "{TRACEPARENT} is ignored: {shown:?} is not a trace context in the form of W3C Trace Context"
            ));
        }
        self.surrounding.clone()
    }
}

impl Observer for Propagation {
    fn observe(&self, event: &Event) {
        self.telemetry.observe(event);
    }

    fn trace_context(&self, _: Traced, about: &About) -> Option<TraceContext> {
        about.chain_trace.clone().or_else(|| self.surrounding())
    }

    fn existed(&self, traced: Traced, about: &About, existing: ChainId, trace: Option<&TraceContext>) {
        self.telemetry.existed(traced, about, existing, trace);
    }

    fn measure(&self, activity: &Activity) {
        self.telemetry.measure(activity);
    }

    fn attempt(&self, about: &About) -> Option<Box<dyn AttemptScope>> {
        if self.telemetry.is_on() { self.telemetry.attempt(about) } else { None }
    }
}
