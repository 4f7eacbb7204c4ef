//! Span ids of attempts that another process can compute.

use std::cell::Cell;

use opentelemetry::trace::{SpanContext, SpanId, TraceId, TraceState};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use windlass_core::JobId;

thread_local! {
    /// The id of the span that this thread is about to build, if it is the span of an attempt.
    static NEXT: Cell<Option<SpanId>> = const { Cell::new(None) };

    /// The trace that this thread is about to begin, if a sampler has decided about it.
    static NEXT_TRACE: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// Generates the ids of a tracer provider, so that a retry can link to the previous attempt even if another process ran it.
///
/// The span id of an attempt is derived from the stored trace context, the job's id, and the number of times that the job
/// was acquired. Every process can compute it, so it does not have to be stored. An inner generator creates all other ids,
/// except the trace ids of chains about which a [`ChainSampler`](crate::ChainSampler) has decided: these are random.
///
/// ```
/// use opentelemetry_sdk::trace::SdkTracerProvider;
/// use windlass::otel::AttemptIds;
///
/// let traces = SdkTracerProvider::builder().with_id_generator(AttemptIds::new()).build();
/// # drop(traces);
/// ```
///
/// Without this generator, a retry links to the previous attempt only if the same process ran both.
#[derive(Clone, Debug, Default)]
pub struct AttemptIds<G = RandomIdGenerator> {
    inner: G,
}

impl AttemptIds {
    /// Creates a generator whose other ids are random.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<G: IdGenerator> AttemptIds<G> {
    /// Creates a generator that gets all other ids from `inner`.
    pub const fn around(inner: G) -> Self {
        Self { inner }
    }
}

impl<G: IdGenerator> IdGenerator for AttemptIds<G> {
    fn new_trace_id(&self) -> TraceId {
        NEXT_TRACE.take().unwrap_or_else(|| self.inner.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        NEXT.take().unwrap_or_else(|| self.inner.new_span_id())
    }
}

/// Clears the ids, also if a processor of the application panics: the next span must not have them.
struct Clear;

impl Drop for Clear {
    fn drop(&mut self) {
        NEXT.set(None);
        NEXT_TRACE.set(None);
    }
}

/// Builds a span with this id, if its provider uses [`AttemptIds`].
pub(crate) fn build_with<T>(id: SpanId, build: impl FnOnce() -> T) -> T {
    NEXT.set(Some(id));
    let _clear = Clear;
    build()
}

/// Builds a span that begins this trace, if its provider uses [`AttemptIds`].
pub(crate) fn build_in<T>(trace: TraceId, build: impl FnOnce() -> T) -> T {
    NEXT_TRACE.set(Some(trace));
    let _clear = Clear;
    build()
}

/// Returns the context of the attempt that acquired a job for the `delivery`th time. `stored` is the context that is
/// stored with the job.
pub(crate) fn attempt(stored: &SpanContext, job: JobId, delivery: u64) -> SpanContext {
    let id = SpanId::from(span_id(stored.trace_id(), job, delivery));
    SpanContext::new(stored.trace_id(), id, stored.trace_flags(), true, TraceState::default())
}

/// Mixes the numbers with the finalizer of SplitMix64. All processes must agree on the result, so it must never change.
fn span_id(trace: TraceId, job: JobId, delivery: u64) -> u64 {
    let (trace, job) = (u128::from_be_bytes(trace.to_bytes()), job.as_uuid().as_u128());
    let halves = |number: u128| [(number >> 64) as u64, number as u64];
    let numbers = halves(trace).into_iter().chain(halves(job)).chain([delivery]);
    let mixed = numbers.fold(0, |mixed, number| mix(mixed ^ number));
    // An id of zero is invalid.
    if mixed == 0 { 1 } else { mixed }
}

const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn job(text: &str) -> JobId {
        text.parse().unwrap()
    }

    /// Processes of different versions must agree.
    #[test]
    fn the_ids_never_change() {
        let trace = TraceId::from_hex("4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
        let job = job("0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b");
        assert_eq!(
            [1, 2, 3].map(|delivery| format!("{:016x}", span_id(trace, job, delivery))),
            ["824204a05ab39a77", "867581e82fc0a0b5", "30b6adea210f14a8"]
        );
    }

    #[test]
    fn ids_of_attempts_differ() {
        let jobs = ["0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2c"].map(job);
        let traces = [TraceId::from(1), TraceId::from(2), TraceId::from(1 << 64)];
        let ids: HashSet<u64> = (1..1_000)
            .flat_map(|delivery| jobs.map(|job| traces.map(|trace| span_id(trace, job, delivery))))
            .flatten()
            .collect();
        assert_eq!(ids.len(), 999 * 6);
    }

    #[test]
    fn an_id_is_used_once() {
        let ids = AttemptIds::new();
        let id = SpanId::from(7);
        assert_eq!(
            build_with(id, || [ids.new_span_id(), ids.new_span_id()].map(|new| new == id)),
            [true, false]
        );
        build_with(id, || ());
        assert_ne!(ids.new_span_id(), id, "the provider did not ask for it");
    }
}
