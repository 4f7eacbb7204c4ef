//! Passes trace contexts on: from the environment to the jobs that a command starts, and from a chain to its next jobs.

use std::env;

use windlass::name::TraceContext;
use windlass::observer::{About, Activity, AttemptScope, Event, Traced};
use windlass::otel::{Telemetry, is_traceparent};
use windlass::{ChainId, Observer};

/// The variable that holds a context, as in other programs that support W3C Trace Context.
pub(crate) const TRACEPARENT: &str = "TRACEPARENT";

/// Stores the context of the environment with new chains, and that of a chain with its next jobs. Also reports metrics,
/// if the telemetry is on.
#[derive(Debug)]
pub(crate) struct Propagation {
    surrounding: Option<TraceContext>,
    telemetry: Telemetry,
}

impl Propagation {
    /// For a command that starts jobs on behalf of its caller. Ignores a context that is malformed.
    pub(crate) fn of_caller() -> Self {
        let context = env::var(TRACEPARENT).ok().filter(|context| is_traceparent(context));
        let surrounding = context.and_then(|context| TraceContext::new(context).ok());
        Self { surrounding, telemetry: Telemetry::new() }
    }

    /// For a worker, whose surroundings do not concern its jobs.
    pub(crate) const fn of_worker(telemetry: Telemetry) -> Self {
        Self { surrounding: None, telemetry }
    }
}

impl Observer for Propagation {
    fn observe(&self, event: &Event) {
        self.telemetry.observe(event);
    }

    fn trace_context(&self, _: Traced, about: &About) -> Option<TraceContext> {
        about.chain_trace.clone().or_else(|| self.surrounding.clone())
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
