//! A sampler that decides about a chain before its span is built.

use std::cell::Cell;

use opentelemetry::trace::{Link, SpanBuilder, SpanId, SpanKind, TraceContextExt, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, SamplingResult, ShouldSample,
};

use crate::ids;

thread_local! {
    /// The decision about the span that this thread is about to build, if it is that of a chain.
    static DECIDED: Cell<Option<SamplingResult>> = const { Cell::new(None) };
}

/// A sampler for a tracer provider, which [`Telemetry`](crate::Telemetry) can ask without building a span.
///
/// Most chains are not sampled. With this sampler, such a chain costs a random number, and no span. Without it, the SDK
/// builds a span for each chain, asks its sampler, and drops the span. Pass the same sampler to the provider and to
/// [`Telemetry::sampler`](crate::Telemetry::sampler):
///
/// ```
/// use opentelemetry_sdk::trace::SdkTracerProvider;
/// use windlass::otel::{AttemptIds, ChainSampler, Telemetry};
///
/// let sampler = ChainSampler::ratio(0.01);
/// let traces = SdkTracerProvider::builder()
///     .with_sampler(sampler.clone())
///     .with_id_generator(AttemptIds::new())
///     .build();
/// let telemetry = Telemetry::new().traces(&traces).sampler(sampler);
/// # drop(telemetry);
/// ```
///
/// The provider also uses this sampler for the application's own spans. For these, it returns the decision of the sampler
/// that it wraps.
///
/// A chain that begins a trace gets a random trace id, before the provider builds a span. Only a provider with
/// [`AttemptIds`](crate::AttemptIds) uses that id for the span.
#[derive(Clone, Debug)]
pub struct ChainSampler {
    /// Decides about all other spans.
    inner: Box<dyn ShouldSample>,
    /// If only this share of traces is sampled: the numbers below this one, of 63 bits.
    below: Option<u64>,
}

/// What the sampler says about a new chain.
pub(crate) enum Decision {
    /// The chain is not sampled. Its trace, and its id in that trace.
    Unsampled(TraceId, SpanId),
    /// The chain is sampled or recorded, with this id if it begins a trace.
    Sampled(SamplingResult, Option<TraceId>),
    /// The provider must decide.
    Undecided,
}

impl ChainSampler {
    /// Samples this share of the traces that begin here, from 0 to 1. A span with a parent is sampled if its parent is.
    #[must_use]
    pub fn ratio(ratio: f64) -> Self {
        let inner = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as the SDK computes it")]
        let below = if ratio >= 1.0 { 1 << 63 } else { (ratio.max(0.0) * 2_f64.powi(63)) as u64 };
        Self { inner: Box::new(inner), below: Some(below) }
    }

    /// Decides like another sampler. It should follow the decision of the parent span: otherwise, traces are incomplete.
    #[must_use]
    pub fn around(inner: impl ShouldSample + 'static) -> Self {
        Self { inner: Box::new(inner), below: None }
    }

    /// Decides about a new chain. `builder` returns the builder of its span, which is needed only if the decision may
    /// depend on the attributes.
    pub(crate) fn decide(&self, builder: impl FnOnce() -> SpanBuilder) -> Decision {
        match self.below {
            Some(below) => decide_by_ratio(below),
            None => decide_by(&*self.inner, &builder()),
        }
    }
}

/// The current span, as far as a sampler by ratio needs it.
enum Parent {
    Suppressed,
    None,
    Sampled,
    Unsampled(TraceId),
}

fn decide_by_ratio(below: u64) -> Decision {
    let parent = Context::map_current(|current| {
        if current.is_telemetry_suppressed() {
            return Parent::Suppressed;
        }
        if !current.has_active_span() {
            return Parent::None;
        }
        match current.span().span_context() {
            parent if !parent.is_valid() => Parent::None,
            parent if parent.is_sampled() => Parent::Sampled,
            parent => Parent::Unsampled(parent.trace_id()),
        }
    });
    let ids = RandomIdGenerator::default();
    match parent {
        Parent::Unsampled(trace) => Decision::Unsampled(trace, ids.new_span_id()),
        // The provider follows it.
        Parent::Suppressed | Parent::Sampled => Decision::Undecided,
        Parent::None => {
            let trace = ids.new_trace_id();
            let number = u128::from_be_bytes(trace.to_bytes()) as u64 >> 1;
            if number < below {
                let (decision, trace_state) = (SamplingDecision::RecordAndSample, TraceState::NONE);
                let result = SamplingResult { decision, attributes: Vec::new(), trace_state };
                Decision::Sampled(result, Some(trace))
            } else {
                Decision::Unsampled(trace, ids.new_span_id())
            }
        }
    }
}

fn decide_by(sampler: &dyn ShouldSample, builder: &SpanBuilder) -> Decision {
    let current = Context::current();
    if current.is_telemetry_suppressed() {
        return Decision::Undecided;
    }
    let ids = RandomIdGenerator::default();
    let parent = current.span().span_context().trace_id();
    let begun = (!current.span().span_context().is_valid()).then(|| ids.new_trace_id());
    let trace = begun.unwrap_or(parent);
    let attributes = builder.attributes.as_deref().unwrap_or_default();
    let kind = builder.span_kind.as_ref().unwrap_or(&SpanKind::Internal);
    let result = sampler.should_sample(Some(&current), trace, &builder.name, kind, attributes, &[]);
    match result.decision {
        SamplingDecision::Drop => Decision::Unsampled(trace, ids.new_span_id()),
        SamplingDecision::RecordOnly | SamplingDecision::RecordAndSample => Decision::Sampled(result, begun),
    }
}

/// Builds the span of a chain that was decided about. Returns it, and whether the provider has asked a [`ChainSampler`].
pub(crate) fn build_with<T>(
    result: SamplingResult,
    trace: Option<TraceId>,
    build: impl FnOnce() -> T,
) -> (T, bool) {
    /// Clears the decision, also if a processor of the application panics: the next span must not have it.
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            DECIDED.set(None);
        }
    }
    DECIDED.set(Some(result));
    let _clear = Clear;
    let built = match trace {
        Some(trace) => ids::build_in(trace, build),
        None => build(),
    };
    (built, DECIDED.take().is_none())
}

impl ShouldSample for ChainSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let ask = || self.inner.should_sample(parent, trace, name, kind, attributes, links);
        DECIDED.take().unwrap_or_else(ask)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, TraceFlags};

    use super::*;

    fn in_span<T>(flags: TraceFlags, run: impl FnOnce() -> T) -> T {
        let parent = SpanContext::new(TraceId::from(7), SpanId::from(7), flags, true, TraceState::default());
        let _attached = Context::new().with_remote_span_context(parent).attach();
        run()
    }

    fn builder() -> SpanBuilder {
        SpanBuilder::from_name("create chain test")
    }

    /// Both kinds of sampler decide like the provider would.
    #[test]
    fn a_chain_follows_its_parent_or_the_ratio() {
        let ratio = |ratio| Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)));
        for share in [0.0, 0.3, 1.0] {
            for sampler in [ChainSampler::ratio(share), ChainSampler::around(ratio(share))] {
                let mut sampled = 0;
                for _ in 0..1_000 {
                    match sampler.decide(builder) {
                        Decision::Sampled(_, trace) => {
                            let result = ratio(share).should_sample(
                                None,
                                trace.unwrap(),
                                "",
                                &SpanKind::Producer,
                                &[],
                                &[],
                            );
                            assert_eq!(result.decision, SamplingDecision::RecordAndSample);
                            sampled += 1;
                        }
                        Decision::Unsampled(trace, span) => {
                            let result =
                                ratio(share).should_sample(None, trace, "", &SpanKind::Producer, &[], &[]);
                            assert_eq!(result.decision, SamplingDecision::Drop);
                            assert_ne!(span, SpanId::INVALID);
                        }
                        Decision::Undecided => panic!("there is no parent"),
                    }
                }
                let expected = 1_000.0 * share;
                assert!((f64::from(sampled) - expected).abs() <= 100.0, "{sampled} of 1,000 with {share}");
                assert_eq!(sampled > 0, share > 0.0);
                in_span(TraceFlags::default(), || {
                    let Decision::Unsampled(trace, span) = sampler.decide(builder) else {
                        panic!("its parent is not")
                    };
                    assert_eq!(trace, TraceId::from(7));
                    assert_ne!(span, SpanId::from(7));
                });
                in_span(TraceFlags::SAMPLED, || {
                    let decision = sampler.decide(builder);
                    assert!(matches!(decision, Decision::Undecided | Decision::Sampled(_, None)));
                });
            }
        }
    }

    #[test]
    fn a_decision_is_used_once() {
        let sampler = ChainSampler::ratio(0.0);
        let ask = || {
            sampler.should_sample(None, TraceId::from(u128::MAX), "", &SpanKind::Producer, &[], &[]).decision
        };
        let sampled = || SamplingResult {
            decision: SamplingDecision::RecordAndSample,
            attributes: Vec::new(),
            trace_state: TraceState::default(),
        };
        let (asked, is_used) = build_with(sampled(), None, || [ask(), ask()]);
        assert_eq!((asked, is_used), ([SamplingDecision::RecordAndSample, SamplingDecision::Drop], true));
        assert!(!build_with(sampled(), None, || ()).1, "the provider has another sampler");
        assert_eq!(ask(), SamplingDecision::Drop);
    }
}
