use std::fmt;
use std::sync::Arc;

use opentelemetry::InstrumentationScope;
use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::{Span, Tracer, TracerProvider};
use windlass_core::{
    About, Activity, AttemptScope, BatchEnd, BatchStart, BlockersFound, ChainId, Client, Ended, Event,
    Frequent, NotWritten, Observer, Stage, Store, TraceContext, Traced,
};

use crate::invalid::InvalidContexts;
use crate::metrics::{BusySlot, Metrics};
use crate::sampler::ChainSampler;
use crate::spans::{AttemptSpan, Spans};
use crate::state::StateGauges;
use crate::types::Types;

/// The schema of the semantic conventions that the names of attributes and instruments follow.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

/// Returns the name, version and schema of the meter and the tracer.
fn scope() -> InstrumentationScope {
    let scope = InstrumentationScope::builder("windlass");
    scope.with_version(env!("CARGO_PKG_VERSION")).with_schema_url(SCHEMA_URL).build()
}

/// An observer that reports metrics and traces of a client's jobs. Cloning is cheap; clones share their state.
///
/// Add it to a client with [`ClientBuilder::observer`](windlass_core::ClientBuilder::observer). The time series do not name
/// the store, so a program that uses several stores or namespaces needs a `Telemetry` for each, with providers that have
/// different resources. Otherwise, their series are added up, and their state gauges overwrite each other.
#[derive(Clone, Default)]
pub struct Telemetry {
    metrics: Option<Arc<Metrics>>,
    spans: Option<Arc<Spans>>,
    sampler: Option<ChainSampler>,
    meter: Option<Meter>,
    types: Arc<Types>,
    invalid: InvalidContexts,
}

impl Telemetry {
    /// Creates an observer that reports nothing. Call [`metrics`](Self::metrics), [`traces`](Self::traces) or both.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records metrics with the meters of this provider.
    #[must_use]
    pub fn metrics(mut self, provider: &impl MeterProvider) -> Self {
        let meter = provider.meter_with_scope(scope());
        // Instruments are bound to types, and belong to one meter.
        self.types = Arc::default();
        let metrics = Metrics::new(&meter, Arc::clone(&self.types));
        self.invalid.count_with(metrics.contexts_invalid());
        self.metrics = Some(Arc::new(metrics));
        self.meter = Some(meter);
        self
    }

    /// Records spans with the tracers of this provider. The provider's sampler decides which chains are sampled. Use a
    /// sampler that follows the decision of the parent span, like the default one. Otherwise, traces are incomplete. If only
    /// a part of the traces is sampled, use a [`ChainSampler`].
    #[must_use]
    pub fn traces<P>(mut self, provider: &P) -> Self
    where
        P: TracerProvider<Tracer: Tracer<Span: Span + Send + Sync + 'static> + Send + Sync + 'static>,
    {
        let tracer = BoxedTracer::new(Box::new(provider.tracer_with_scope(scope())));
        self.spans = Some(Arc::new(Spans::new(tracer, self.sampler.clone(), self.invalid.clone())));
        self
    }

    /// Asks this sampler about each new chain, without building its span. The provider passed to [`traces`](Self::traces)
    /// must use a clone of this sampler. If it uses another kind of sampler, a warning is logged when it builds the first
    /// sampled span, and from then on the provider decides. A `ChainSampler` with another ratio is not noticed: the one
    /// passed here decides about chains. Call this before the observer is cloned.
    #[must_use]
    pub fn sampler(mut self, sampler: ChainSampler) -> Self {
        if let Some(spans) = self.spans.as_mut().and_then(Arc::get_mut) {
            spans.sampler = Some(sampler.clone());
        }
        self.sampler = Some(sampler);
        self
    }

    /// Reports the jobs in the store, by type and status, until the returned guard is dropped. Must be called inside a
    /// tokio runtime. Does nothing without [`metrics`](Self::metrics).
    ///
    /// Call this in every process that exports metrics. The processes elect a leader with a lock in the store. Only the
    /// leader queries the store and reports. If it stops, another process takes over within about 15 s. If it crashes, its
    /// lock expires first, and the takeover takes up to about 45 s.
    #[must_use = "the gauges are no longer reported when this is dropped"]
    pub fn watch_state<S: Store + ?Sized>(&self, client: &Client<S>) -> StateGauges {
        StateGauges::start(self.meter.as_ref(), &self.types, client.clone())
    }
}

impl Observer for Telemetry {
    fn observe(&self, event: &Event) {
        if let Some(metrics) = &self.metrics {
            metrics.observe(event);
        }
        if let Some(spans) = &self.spans {
            spans.observe(event);
        }
    }

    fn is_on(&self) -> bool {
        self.metrics.is_some() || self.spans.is_some()
    }

    fn trace_context(&self, traced: Traced, about: &About) -> Option<TraceContext> {
        self.spans.as_ref()?.begin(traced, about)
    }

    fn rolled_back(&self, traced: Traced, about: &About, why: NotWritten) {
        if let Some(spans) = &self.spans {
            spans.rolled_back(traced, about, why);
        }
    }

    fn existed(&self, traced: Traced, about: &About, existing: ChainId, trace: Option<&TraceContext>) {
        if let Some(spans) = &self.spans {
            spans.existed(traced, about, existing, trace);
        }
        if let (Some(metrics), Traced::Chain) = (&self.metrics, traced) {
            metrics.existed(about);
        }
    }

    fn unreported(&self, traced: Traced, about: &About) {
        if let Some(spans) = &self.spans {
            spans.unreported(traced, about);
        }
    }

    fn batch(&self, batch: &BatchStart<'_>) -> Option<BatchEnd> {
        self.spans.as_ref()?.batch(batch)
    }

    fn find_blockers(&self, about: &About) -> Option<BlockersFound> {
        Spans::find_blockers(self.spans.as_ref()?, about)
    }

    fn wants(&self, _: Frequent) -> bool {
        false
    }

    fn measure(&self, activity: &Activity) {
        if let Some(metrics) = &self.metrics {
            metrics.measure(activity);
        }
    }

    fn attempt(&self, about: &About) -> Option<Box<dyn AttemptScope>> {
        let span = self.spans.as_ref().and_then(|spans| Spans::attempt(spans, about));
        let slot = self.metrics.as_ref().map(|metrics| metrics.attempt(about));
        Some(Box::new(Scope { slot, span }))
    }
}

/// An attempt of this process.
#[derive(Debug)]
struct Scope {
    slot: Option<BusySlot>,
    span: Option<AttemptSpan>,
}

impl AttemptScope for Scope {
    fn within(&self, poll: &mut dyn FnMut()) {
        let _attached = self.span.as_ref().map(AttemptSpan::attach);
        poll();
    }

    fn began(&self, stage: Stage) {
        if let Some(span) = &self.span {
            span.began(stage);
        }
    }

    fn closed(&self, stage: Stage, error: Option<&str>) {
        if let Some(span) = &self.span {
            span.closed(stage, error);
        }
    }

    fn ended(&self, about: &About, ended: &Ended) {
        if let Some(slot) = &self.slot {
            slot.end(about, ended);
        }
        if let Some(span) = &self.span {
            span.ended(about, ended);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (metrics, traces) = (self.metrics.is_some(), self.spans.is_some());
        f.debug_struct("Telemetry").field("metrics", &metrics).field("traces", &traces).finish()
    }
}
