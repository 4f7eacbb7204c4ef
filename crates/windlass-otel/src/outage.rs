//! Warnings about exports that fail.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// Wraps an exporter of spans or metrics, and logs when its collector cannot be reached or refuses the data.
///
/// The first export that fails logs a warning with the error. Further failures are not logged. The next export that
/// succeeds logs that the outage is over. Without this wrapper, the SDK drops what it cannot send, and reports it only in
/// its own log lines, one for each failed export.
///
/// ```no_run
/// use opentelemetry_otlp::SpanExporter;
/// use opentelemetry_sdk::trace::SdkTracerProvider;
/// use windlass::otel::OutageLog;
///
/// # fn main() -> Result<(), windlass::BoxError> {
/// let exporter = SpanExporter::builder().with_http().build()?;
/// let traces = SdkTracerProvider::builder().with_batch_exporter(OutageLog::new(exporter)).build();
/// # Ok(()) }
/// ```
pub struct OutageLog<E> {
    exporter: E,
    is_failing: AtomicBool,
}

impl<E> OutageLog<E> {
    /// Wraps this exporter.
    pub const fn new(exporter: E) -> Self {
        Self { exporter, is_failing: AtomicBool::new(false) }
    }

    /// Logs the first failure of an outage, and its end.
    fn note(&self, signal: &'static str, exported: &OTelSdkResult) {
        let was_failing = self.is_failing.swap(exported.is_err(), Ordering::Relaxed);
        match exported {
            Err(error) if !was_failing => {
                tracing::warn!(target: "windlass", signal, %error, "telemetry cannot be exported and is dropped: check that the collector is reachable; further failures are not logged");
            }
            Ok(()) if was_failing => {
                tracing::info!(target: "windlass", signal, "telemetry is exported again");
            }
            _ => {}
        }
    }
}

impl<E: SpanExporter> SpanExporter for OutageLog<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        self.note("traces", &exported);
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for OutageLog<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let exported = self.exporter.export(metrics).await;
        self.note("metrics", &exported);
        exported
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

impl<E> fmt::Debug for OutageLog<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_failing = self.is_failing.load(Ordering::Relaxed);
        f.debug_struct("OutageLog").field("is_failing", &is_failing).finish_non_exhaustive()
    }
}
