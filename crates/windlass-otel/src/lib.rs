//! OpenTelemetry for Windlass: metrics and traces of background jobs.
//!
//! [`Telemetry`] is an observer. Add it to the client of every process that starts or works on jobs:
//!
//! ```
//! use opentelemetry_sdk::metrics::SdkMeterProvider;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use windlass::otel::Telemetry;
//! use windlass::{Client, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // Add the exporters of your choice, for example those of `opentelemetry-otlp`.
//! let metrics = SdkMeterProvider::builder().build();
//! let traces = SdkTracerProvider::builder().build();
//!
//! let telemetry = Telemetry::new().metrics(&metrics).traces(&traces);
//! let client = Client::builder(MemoryStore::new()).observer(telemetry.clone()).build();
//! let gauges = telemetry.watch_state(&client); // jobs by type and status; one process of all reports them
//! # drop(gauges);
//! # }
//! ```
//!
//! # Metrics
//!
//! [`catalogue`] lists every instrument. Instruments begin with `windlass.`, and those of the semantic conventions for
//! messaging with `messaging.`. The attribute `messaging.destination.name` is the job type.
//!
//! The number of time series is bounded. The first [`TYPES_MAX`] job types, chain types and pairs of both that a process
//! sees are named; all others share the value `_other`. Ids, keys and error texts are never attributes of metrics. To distinguish
//! processes, set `service.instance.id` in the resource of your meter provider.
//!
//! # Traces
//!
//! Starting a chain makes a producer span, a child of the caller's current OpenTelemetry context. Its context is stored
//! with the chain, so that every attempt, in any process, belongs to the same trace. An attempt is a consumer span, with
//! children for the transactions of its handler. While a handler runs, its span is the current OpenTelemetry context. So
//! spans that the handler creates are children of the attempt, including those of `tracing`, if the application uses
//! `tracing-opentelemetry`.
//!
//! The sampler decides once for each chain, when it starts. Every process follows that decision: what belongs to a chain
//! that is not sampled has no spans. A retry links to the attempt before it; see [`AttemptIds`].
//!
//! # Failures
//!
//! Windlass catches panics of observers. It calls them on the thread that does the work, so they must not block. With the
//! batch span processor and the periodic reader of the SDK they do not: these export on threads of their own, with bounded
//! queues. If a collector is down, slow or refuses data, spans and points are lost, but no job is delayed. A simple span
//! processor exports while the job waits: do not use it.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attributes;
pub mod catalogue;
mod context;
mod ids;
mod instruments;
mod metrics;
#[cfg(feature = "prometheus")]
mod prometheus;
mod recent;
mod spans;
mod state;
mod telemetry;
mod types;

pub use context::{current_traceparent, is_traceparent};
pub use ids::AttemptIds;
#[cfg(feature = "prometheus")]
pub use prometheus::Prometheus;
pub use state::StateGauges;
pub use telemetry::Telemetry;
pub use types::TYPES_MAX;
