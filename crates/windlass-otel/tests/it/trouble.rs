//! Collectors that are down, slow or refuse, and malformed trace contexts: work goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{SdkMeterProvider, Temporality};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tracing::instrument::WithSubscriber;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use windlass::name::TraceContext;
use windlass::observer::{
    About, Activity, AttemptScope, BatchEnd, BatchStart, Buffered, Event, NotWritten, Observer, Traced,
};
use windlass::worker::{Ended, Stage};
use windlass::{Client, MemoryStore, next, plan};
use windlass_otel::{OutageLog, Prometheus, Telemetry};
use windlass_testkit::logs::subscribe;

use crate::jobs::{Label, Order, Pack, Parcel, TIMEOUT, client, label, worker};
use crate::receiver::{Wire, exporters, providers_within};

/// The number of jobs that must complete. They have more spans than the queue of the batch processor holds.
const JOBS: usize = 1_000;

/// The timeout of an export. Much longer than jobs may take: a job that waited for an export would not complete.
const LONG: Duration = Duration::from_secs(3_600);

/// Runs jobs with exporters to this endpoint.
async fn check(wire: Wire, endpoint: &str) {
    let (traces, metrics) = providers_within(LONG, wire, endpoint, "test");
    let client = client(&Telemetry::new().traces(&traces).metrics(&metrics));
    run(&client).await;
    // Dropping the providers would wait for the exporters, up to their timeout.
    std::mem::forget((traces, metrics));
}

/// Runs jobs to their end.
async fn run(client: &Client<MemoryStore>) {
    let worker = worker(client).await;
    let chains = client.start_many((0..JOBS).map(|_| plan(Parcel { failures: 0 }))).await.unwrap();
    for chain in chains {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
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

/// A service that refuses every export.
#[derive(Clone, Debug)]
struct Refuses;

#[tonic::async_trait]
impl TraceService for Refuses {
    async fn export(
        &self,
        _: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        Err(Status::permission_denied("no"))
    }
}

#[tonic::async_trait]
impl MetricsService for Refuses {
    async fn export(
        &self,
        _: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        Err(Status::permission_denied("no"))
    }
}

/// Starts a collector that refuses everything over gRPC. Returns its endpoint.
async fn refuse_grpc() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(Refuses))
        .add_service(MetricsServiceServer::new(Refuses));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    endpoint
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_over_grpc_does_not_affect_jobs() {
    check(Wire::Grpc, &refuse_grpc().await).await;
}

/// Runs an exporter with a subscriber of `tracing`: exports run on threads of the SDK.
#[derive(Debug)]
struct Logged<E>(E, tracing::Dispatch);

impl<E: SpanExporter> SpanExporter for Logged<E> {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        self.0.export(batch).with_subscriber(self.1.clone())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Logged<E> {
    fn export(&self, metrics: &ResourceMetrics) -> impl Future<Output = OTelSdkResult> + Send {
        self.0.export(metrics).with_subscriber(self.1.clone())
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.0.temporality()
    }
}

/// Providers whose exporters report outages.
struct Reporting {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
    warnings: Arc<AtomicUsize>,
}

impl Reporting {
    /// Exports to this endpoint. Gives up soon, so that an export to a collector that never answers fails.
    fn to(wire: Wire, endpoint: &str) -> Self {
        // Installs the global subscriber without which lines may be lost.
        drop(count_warnings());
        let warnings = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry().with(Warnings(Arc::clone(&warnings)));
        let logged = tracing::Dispatch::new(subscriber);
        let (spans, metrics) = exporters(Duration::from_millis(500), wire, endpoint);
        let spans = Logged(OutageLog::new(spans), logged.clone());
        let metrics = Logged(OutageLog::new(metrics), logged);
        Self {
            traces: SdkTracerProvider::builder().with_batch_exporter(spans).build(),
            metrics: SdkMeterProvider::builder().with_periodic_exporter(metrics).build(),
            warnings,
        }
    }

    /// Runs a job, and exports its spans and metrics. Returns whether both exports succeeded, and the number of warnings.
    async fn export(&self) -> (bool, usize) {
        let client = client(&Telemetry::new().traces(&self.traces).metrics(&self.metrics));
        client.start(Label { number: 1 }).await.unwrap();
        let (traces, metrics) = (self.traces.clone(), self.metrics.clone());
        let flush = move || (traces.force_flush(), metrics.force_flush());
        let (spans, metrics) = tokio::task::spawn_blocking(flush).await.unwrap();
        assert_eq!(spans.is_ok(), metrics.is_ok(), "{spans:?} {metrics:?}");
        (spans.is_ok(), self.warnings.load(Ordering::SeqCst))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_a_collector_is_one_warning_per_signal() {
    let down = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down_at = format!("http://{}", down.local_addr().unwrap());
    drop(down);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = format!("http://{}", silent.local_addr().unwrap());
    let refused_at = refuse_grpc().await;
    let collectors = [
        (Wire::Grpc, &down_at),
        (Wire::Http, &down_at),
        (Wire::Grpc, &silent_at),
        (Wire::Http, &silent_at),
        (Wire::Grpc, &refused_at),
    ];
    for (wire, endpoint) in collectors {
        let reporting = Reporting::to(wire, endpoint);
        for _ in 0..3 {
            assert_eq!(reporting.export().await, (false, 2), "{wire:?} {endpoint}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_outage_is_another_warning() {
    let refuses = Arc::new(AtomicBool::new(true));
    let is_refusing = Arc::clone(&refuses);
    let answer = move || {
        let code = if is_refusing.load(Ordering::SeqCst) { StatusCode::FORBIDDEN } else { StatusCode::OK };
        async move { code }
    };
    let router = Router::new().route("/v1/traces", post(answer.clone())).route("/v1/metrics", post(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let reporting = Reporting::to(Wire::Http, &endpoint);
    for (refuses_now, expected) in [(true, 2), (true, 2), (false, 2), (false, 2), (true, 4), (true, 4)] {
        refuses.store(refuses_now, Ordering::SeqCst);
        assert_eq!(reporting.export().await, (!refuses_now, expected));
    }
}

/// Hangs until the test lets it go, and counts the spans that it receives.
#[derive(Debug)]
struct Hangs {
    gate: std::sync::Mutex<mpsc::Receiver<()>>,
    spans: Arc<AtomicUsize>,
}

impl SpanExporter for Hangs {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.spans.fetch_add(batch.len(), Ordering::SeqCst);
        // Fails at once when the sender is dropped.
        let _ = self.gate.lock().unwrap().recv();
        Ok(())
    }
}

/// What the exporter cannot send is dropped, and does not wait in memory.
#[tokio::test(flavor = "multi_thread")]
async fn spans_that_cannot_be_exported_are_dropped() {
    const QUEUE: usize = 100;
    const BATCH: usize = 10;
    let (open, gate) = mpsc::channel();
    let exported = Arc::new(AtomicUsize::new(0));
    let hangs = Hangs { gate: gate.into(), spans: Arc::clone(&exported) };
    let config = BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_max_export_batch_size(BATCH);
    let processor = BatchSpanProcessor::builder(OutageLog::new(hangs)).with_batch_config(config.build());
    let traces = SdkTracerProvider::builder().with_span_processor(processor.build()).build();
    run(&client(&Telemetry::new().traces(&traces))).await;
    drop(open);
    tokio::task::spawn_blocking(move || traces.shutdown()).await.unwrap().unwrap();
    // The batch that hung, one that was being collected, and the queue.
    let exported = exported.load(Ordering::SeqCst);
    assert!(
        (QUEUE..=QUEUE + 2 * BATCH).contains(&exported),
        "{exported} of {JOBS} jobs with several spans each"
    );
}

/// Counts warnings of Windlass on this thread until the guard is dropped.
pub(crate) fn count_warnings() -> (Arc<AtomicUsize>, tracing::subscriber::DefaultGuard) {
    let warnings = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::registry().with(Warnings(Arc::clone(&warnings)));
    (warnings, subscribe(subscriber))
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
    let (warnings, _subscribed) = count_warnings();
    let prometheus = Prometheus::new().unwrap();
    let traces = SdkTracerProvider::builder().build();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider()).traces(&traces);
    let client = client(&telemetry);
    let longest = "x".repeat(512);
    assert!(TraceContext::new("x".repeat(513)).is_err(), "a longer one cannot be stored");
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
    // The contexts of three jobs and of their chains.
    assert!(text.contains("windlass_trace_context_invalid_total 6"), "{text}");
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
    assert!(
        text.lines()
            .any(|line| line.starts_with("windlass_attempt_completed_total{") && line.ends_with(" 4"))
    );
}

/// Panics whenever it is called.
#[derive(Debug)]
struct Panics;

impl Observer for Panics {
    fn observe(&self, _: &Event) {
        panic!("observe")
    }

    fn trace_context(&self, _: Traced, _: &About) -> Option<TraceContext> {
        panic!("trace_context")
    }

    fn rolled_back(&self, _: Traced, _: &About, _: NotWritten) {
        panic!("rolled_back")
    }

    fn unreported(&self, _: Traced, _: &About) {
        panic!("unreported")
    }

    fn batch(&self, _: &BatchStart<'_>) -> Option<BatchEnd> {
        Some(Box::new(|_| panic!("the end of a batch")))
    }

    fn measure(&self, _: &Activity) {
        panic!("measure")
    }

    fn attempt(&self, _: &About) -> Option<Box<dyn AttemptScope>> {
        Some(Box::new(Self))
    }
}

impl AttemptScope for Panics {
    fn within(&self, _: &mut dyn FnMut()) {
        panic!("within")
    }

    fn began(&self, _: Stage) {
        panic!("began")
    }

    fn closed(&self, _: Stage, _: Option<&str>) {
        panic!("closed")
    }

    fn ended(&self, _: &About, _: &Ended) {
        panic!("ended")
    }
}

/// A span processor of the application that panics.
impl SpanProcessor for Panics {
    fn on_start(&self, _: &mut Span, _: &opentelemetry::Context) {}

    fn on_end(&self, _: SpanData) {
        panic!("on_end")
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_that_panic_do_not_affect_jobs() {
    let prometheus = Prometheus::new().unwrap();
    let traces = SdkTracerProvider::builder().with_span_processor(Panics).build();
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider()).traces(&traces);
    let client = Client::builder(MemoryStore::new()).observer(Panics).observer(telemetry).build();
    run(&client).await;
    // A job with a wait has several open spans. A second panic during the first one would abort the process.
    let blocker = client.start(Label { number: 1 }).await.unwrap();
    let order = client.start(Order { number: 1 }).await.unwrap();
    for commits in [false, true] {
        let mut tx = client.begin().await.unwrap();
        let step = tx.step(order).await.unwrap().of::<Order>().unwrap();
        step.then(next(Pack { number: 1 }).blocked_by((blocker,))).await.unwrap();
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    let text = prometheus.text().unwrap();
    let is_complete =
        |line: &str| line.starts_with("windlass_job_completed_total{") && line.ends_with(&format!(" {JOBS}"));
    assert!(text.lines().any(is_complete), "the metrics are not affected either\n{text}");
}

/// Blocks until the test lets it go.
#[derive(Debug)]
struct Blocks {
    gate: std::sync::Mutex<mpsc::Receiver<()>>,
    seen: Arc<AtomicUsize>,
    /// Dropped with the observer, when its thread ends.
    _running: oneshot::Sender<()>,
}

impl Observer for Blocks {
    fn observe(&self, _: &Event) {
        // Fails at once when the sender is dropped.
        let _ = self.gate.lock().unwrap().recv();
        self.seen.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffered_observer_that_blocks_does_not_delay_jobs() {
    const MAX: usize = 100;
    let (open, gate) = mpsc::channel();
    let seen = Arc::new(AtomicUsize::new(0));
    let (running, ended) = oneshot::channel();
    let blocks = Blocks { gate: gate.into(), seen: Arc::clone(&seen), _running: running };
    let buffered = Buffered::new(blocks, MAX).unwrap();
    let client = Client::builder(MemoryStore::new()).observer(buffered.clone()).build();
    run(&client).await;
    assert!(buffered.dropped() > 0 && seen.load(Ordering::SeqCst) == 0);
    drop((open, buffered));
    client.close().await.unwrap();
    drop(client);
    ended.await.unwrap_err();
    // Those in the buffer, and the one that blocked.
    assert!((1..=MAX + 1).contains(&seen.load(Ordering::SeqCst)));
}
