//! Collectors that are down, slow or refuse, and malformed trace contexts: work goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::net::TcpListener;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use windlass::name::TraceContext;
use windlass::{MemoryStore, plan};
use windlass_otel::{Prometheus, Telemetry};

use crate::jobs::{Label, Parcel, TIMEOUT, client, label, worker};
use crate::receiver::{EXPORT_TIMEOUT, Wire, providers};

/// The number of jobs that must complete.
const JOBS: usize = 200;

/// Runs jobs with exporters to this endpoint.
async fn check(wire: Wire, endpoint: &str) {
    let (traces, metrics) = providers(wire, endpoint, "test");
    let client = client(&Telemetry::new().traces(&traces).metrics(&metrics));
    let worker = worker(&client).await;
    let started_at = Instant::now();
    let chains = client.start_many((0..JOBS).map(|_| plan(Parcel { failures: 0 }))).await.unwrap();
    for chain in chains {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    // The jobs have five spans each. A job that waited for a collector that never answers would wait for this long.
    assert!(started_at.elapsed() < EXPORT_TIMEOUT, "work waited for the collector");
    // Dropping the providers would wait for the exporters, up to their timeout.
    std::mem::forget((traces, metrics));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_does_not_affect_jobs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    check(Wire::Grpc, &endpoint).await;
    check(Wire::Http, &endpoint).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_does_not_affect_jobs() {
    // Connections are accepted by the kernel, and nobody reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    check(Wire::Grpc, &endpoint).await;
    check(Wire::Http, &endpoint).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_does_not_affect_jobs() {
    let refuse = || async { (StatusCode::FORBIDDEN, "no") };
    let router = Router::new().route("/v1/traces", post(refuse)).route("/v1/metrics", post(refuse));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    check(Wire::Http, &endpoint).await;
}

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if *event.metadata().level() == tracing::Level::WARN && event.metadata().target() == "windlass" {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// On one thread, because the subscriber of `tracing` is set for the thread.
#[tokio::test]
async fn malformed_contexts_are_ignored_and_counted_with_one_warning() {
    let warnings = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::registry().with(Warnings(Arc::clone(&warnings)));
    let _subscribed = tracing::subscriber::set_default(subscriber);
    let prometheus = Prometheus::new().unwrap();
    let traces = SdkTracerProvider::builder().build();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider()).traces(&traces);
    let client = client(&telemetry);
    let longest = "x".repeat(512);
    for context in ["nonsense", "00-00000000000000000000000000000000-0000000000000000-01", &longest] {
        let mut new = plan(Label { number: 1 }).build().unwrap();
        new.trace = Some(TraceContext::new(context).unwrap());
        new.job.trace = Some(TraceContext::new(context).unwrap());
        client.create(vec![new]).await.unwrap();
    }
    let worker = windlass::Worker::<MemoryStore>::new(&client).concurrency(1).handle(label);
    let worker = worker.start().await.unwrap();
    let chain = client.start(Label { number: 2 }).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
    let text = prometheus.text().unwrap();
    assert!(text.contains("windlass_trace_context_invalid_total 3"), "{text}");
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
    assert!(
        text.lines()
            .any(|line| line.starts_with("windlass_attempt_completed_total{") && line.ends_with(" 4"))
    );
}
