//! Chains whose sampler is asked before their spans are built.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use opentelemetry::Context;
use opentelemetry::trace::{
    FutureExt, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use windlass::{BoxError, Client, Ctx, Job, MemoryStore, Next, Worker};
use windlass_otel::{AttemptIds, ChainSampler, Telemetry, current_traceparent};

use crate::jobs::TIMEOUT;
use crate::trouble::count_warnings;

/// Returns the contexts in which its handlers run.
#[derive(Clone, serde::Serialize, serde::Deserialize, Job)]
#[job(name = "spy", entry, then(Spy), output = Vec<String>)]
struct Spy {
    steps: usize,
    seen: Vec<String>,
}

impl Spy {
    fn new(steps: usize) -> Self {
        Self { steps, seen: Vec::new() }
    }
}

async fn spy(job: Ctx<Spy>) -> Result<Next<Spy>, BoxError> {
    let Spy { steps, mut seen } = job.input().clone();
    seen.extend(current_traceparent());
    Ok(if seen.len() < steps { Next::then(Spy { steps, seen }) } else { Next::done(seen) })
}

/// Keeps the spans.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(spans);
        Ok(())
    }
}

fn provider(sampler: ChainSampler) -> (SdkTracerProvider, Kept) {
    let exporter = Kept::default();
    let provider = SdkTracerProvider::builder()
        .with_sampler(sampler)
        .with_id_generator(AttemptIds::new())
        .with_simple_exporter(exporter.clone())
        .build();
    (provider, exporter)
}

/// Runs a chain. Returns its stored context, the contexts of its handlers, and its spans.
async fn run(sampler: ChainSampler, parent: Option<SpanContext>) -> (String, Vec<String>, Vec<SpanData>) {
    let (traces, exporter) = provider(sampler.clone());
    let telemetry = Telemetry::new().sampler(sampler).traces(&traces);
    let client = Client::builder(MemoryStore::new()).observer(telemetry).build();
    let caller = parent.map(|parent| Context::new().with_remote_span_context(parent));
    let start = client.start(Spy::new(2)).into_future();
    let chain = start.with_context(caller.unwrap_or_default()).await.unwrap();
    let worker = Worker::new(&client).concurrency(1).handle(spy).start().await.unwrap();
    let seen = client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let stored = client.chain(chain).await.unwrap().unwrap();
    let is_sampled = stored.trace.as_ref().unwrap().as_str().ends_with("-01");
    assert_eq!(stored.first.trace.is_some(), is_sampled, "only sampled jobs have a context of their own");
    assert_eq!(stored.latest.trace.is_some(), is_sampled);
    let trace = stored.trace.unwrap().to_string();
    client.close().await.unwrap();
    let spans = exporter.0.lock().unwrap().clone();
    (trace, seen, spans)
}

fn parent(flags: TraceFlags) -> SpanContext {
    SpanContext::new(TraceId::from(7), SpanId::from(7), flags, true, TraceState::default())
}

fn samplers(ratio: f64) -> [ChainSampler; 2] {
    let other = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)));
    [ChainSampler::ratio(ratio), ChainSampler::around(other)]
}

#[tokio::test]
async fn a_chain_that_is_not_sampled_has_no_spans_and_propagates_that() {
    for sampler in samplers(0.0) {
        let (stored, seen, spans) = run(sampler, None).await;
        assert!(stored.starts_with("00-") && stored.ends_with("-00"), "{stored}");
        assert_eq!(seen, [stored.clone(), stored], "handlers run in the context of the chain");
        assert!(spans.is_empty(), "{spans:?}");
    }
}

#[tokio::test]
async fn a_chain_that_is_sampled_has_all_its_spans_in_one_trace() {
    for sampler in samplers(1.0) {
        let (stored, seen, spans) = run(sampler, None).await;
        assert!(stored.ends_with("-01"), "{stored}");
        let trace = &stored[..36];
        assert!(seen.iter().all(|seen| seen.starts_with(trace) && seen.ends_with("-01")), "{seen:?}");
        assert_eq!(spans.len(), 6, "{spans:?}");
        let [first, ..] = &spans[..] else { panic!("spans") };
        assert!(spans.iter().all(|span| span.span_context.trace_id() == first.span_context.trace_id()));
    }
}

#[tokio::test]
async fn a_chain_follows_the_span_of_its_caller() {
    for (ratio, flags) in [(0.0, TraceFlags::SAMPLED), (1.0, TraceFlags::default())] {
        for sampler in samplers(ratio) {
            let (stored, _, spans) = run(sampler, Some(parent(flags))).await;
            let is_sampled = flags == TraceFlags::SAMPLED;
            assert!(stored.starts_with(&format!("00-{:032x}-", 7)), "{stored}");
            assert_eq!(stored.ends_with("-01"), is_sampled, "{stored}");
            assert_eq!(spans.is_empty(), !is_sampled);
        }
    }
}

/// The chain has no context. Its second job decides for all later ones.
#[tokio::test]
async fn a_chain_that_was_started_without_telemetry_is_sampled_as_a_whole() {
    let mut sampled = 0;
    for _ in 0..20 {
        let store = Arc::new(MemoryStore::new());
        let plain: Client<MemoryStore> = Client::new(Arc::clone(&store));
        let chain = plain.start(Spy::new(6)).await.unwrap();
        let (traces, _) = provider(ChainSampler::ratio(0.5));
        let telemetry = Telemetry::new().sampler(ChainSampler::ratio(0.5)).traces(&traces);
        let client: Client<MemoryStore> = Client::builder(store).observer(telemetry).build();
        let worker = Worker::new(&client).concurrency(1).handle(spy).start().await.unwrap();
        let seen = client.wait(chain).timeout(TIMEOUT).await.unwrap();
        worker.stop(TIMEOUT).await;
        let [_, second, later @ ..] = &seen[..] else { panic!("{seen:?}") };
        let decision = |context: &String| (context[..35].to_owned(), context.ends_with("-01"));
        assert!(later.iter().all(|context| decision(context) == decision(second)), "{seen:?}");
        sampled += usize::from(second.ends_with("-01"));
    }
    assert!((1..20).contains(&sampled), "{sampled} of 20");
}

/// On one thread, because the subscriber of `tracing` is set for the thread.
#[tokio::test]
async fn a_provider_with_another_sampler_decides_with_one_warning() {
    let (warnings, _subscribed) = count_warnings();
    let traces = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff).build();
    let telemetry = Telemetry::new().traces(&traces).sampler(ChainSampler::ratio(1.0));
    let client = Client::builder(MemoryStore::new()).observer(telemetry).build();
    for _ in 0..3 {
        let chain = client.start(Spy::new(2)).await.unwrap();
        let stored = client.chain(chain).await.unwrap().unwrap().trace.unwrap();
        assert!(stored.as_str().ends_with("-00"), "{stored}");
    }
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
}
