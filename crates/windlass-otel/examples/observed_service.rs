//! A service with metrics for Prometheus, traces over OTLP, and log lines of `tracing`.
//!
//! It starts a chain in a request's span, works on it, and prints its own metrics. To see its traces, start a collector
//! and set `OTEL_EXPORTER_OTLP_ENDPOINT`, for example to `http://127.0.0.1:4317`. Without it, nothing is exported.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use windlass::otel::{AttemptIds, ChainSampler, OutageLog, Prometheus, Telemetry};
use windlass::{BoxError, Client, Ctx, Job, MemoryStore, Next, Worker};

#[derive(Serialize, Deserialize, Job)]
#[job(entry, then(SendInvoice), output = String)]
struct TakeOrder {
    order: u32,
}

#[derive(Serialize, Deserialize, Job)]
#[job(output = String)]
struct SendInvoice {
    order: u32,
}

async fn take_order(job: Ctx<TakeOrder>) -> Result<Next<TakeOrder>, BoxError> {
    // A span of the handler: its parent is the attempt, whose parent is the job, and so on up to the request.
    tracing::info_span!("reserve stock").in_scope(|| tracing::info!("reserved"));
    Ok(Next::then(SendInvoice { order: job.input().order }))
}

async fn send_invoice(job: Ctx<SendInvoice>) -> Result<String, BoxError> {
    Ok(format!("invoice of order {}", job.input().order))
}

/// Exports spans if the environment names a collector.
fn tracer_provider(sampler: &ChainSampler) -> Result<SdkTracerProvider, BoxError> {
    let builder = SdkTracerProvider::builder()
        .with_resource(Resource::builder().with_service_name("shop").build())
        .with_sampler(sampler.clone());
    // So that a retry links to the attempt before it, even if another process ran that one.
    let builder = builder.with_id_generator(AttemptIds::new());
    if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_none() {
        return Ok(builder.build());
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().build()?;
    // One warning is logged for each outage of the collector.
    Ok(builder.with_batch_exporter(OutageLog::new(exporter)).build())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // A busy service samples fewer traces: with 0.01, one of a hundred.
    let sampler = ChainSampler::ratio(1.0);
    let traces = tracer_provider(&sampler)?;
    let layer = tracing_opentelemetry::layer().with_tracer(traces.tracer("shop"));
    tracing_subscriber::registry().with(layer).init();

    let prometheus = Prometheus::new()?;
    let telemetry = Telemetry::new().metrics(prometheus.meter_provider()).traces(&traces).sampler(sampler);
    let client = Client::builder(MemoryStore::new()).observer(telemetry.clone()).build();
    let gauges = telemetry.watch_state(&client);
    let address = prometheus.clone().listen("127.0.0.1:0".parse()?, std::future::pending()).await?;
    println!("http://{address}/metrics");

    let worker = Worker::new(&client).name("shop-1").handle(take_order).handle(send_invoice).start().await?;
    let request = tracing::info_span!("POST /orders");
    let handle = async {
        let chain = client.start(TakeOrder { order: 7 }).await?;
        client.wait(chain).await
    };
    let invoice = handle.instrument(request).await?;
    assert_eq!(invoice, "invoice of order 7");
    assert!(gauges.decided().await, "one process of all reports the state");
    worker.stop(Duration::from_secs(10)).await;

    let text = prometheus.text()?;
    let completed = text.lines().filter(|line| line.starts_with("windlass_job_completed_total"));
    completed.for_each(|line| println!("{line}"));
    assert_eq!(text.lines().filter(|line| line.starts_with("windlass_job_completed_total")).count(), 2);
    drop(gauges);
    client.close().await?;
    tokio::task::spawn_blocking(move || traces.shutdown()).await??;
    Ok(())
}
