//! OpenTelemetry for Windlass: metrics and traces of background jobs.
//!
//! [`Telemetry`] is an observer. Add it to the client of every process that starts or works on jobs:
//!
//! ```
//! use opentelemetry_sdk::metrics::SdkMeterProvider;
//! use opentelemetry_sdk::trace::SdkTracerProvider;
//! use windlass::otel::{AttemptIds, ChainSampler, Telemetry};
//! use windlass::{Client, MemoryStore};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! // Add the exporters of your choice, for example those of `opentelemetry-otlp`.
//! let metrics = SdkMeterProvider::builder().build();
//! let sampler = ChainSampler::ratio(0.01); // of the traces that begin here
//! let traces = SdkTracerProvider::builder()
//!     .with_sampler(sampler.clone())
//!     .with_id_generator(AttemptIds::new())
//!     .build();
//!
//! let telemetry = Telemetry::new().metrics(&metrics).traces(&traces).sampler(sampler);
//! let client = Client::builder(MemoryStore::new()).observer(telemetry.clone()).build();
//! let gauges = telemetry.watch_state(&client); // jobs by type and status; only one process reports them
//! # drop(gauges);
//! # }
//! ```
//!
//! # Metrics
//!
//! [`catalogue`] lists every instrument. Instruments begin with `windlass.`, and those of the semantic conventions for
//! messaging with `messaging.`. The attribute `messaging.destination.name` is the job type.
//!
//! The number of time series is bounded. Each process reports the first [`TYPES_MAX`] job types by name, and as many chain
//! types and pairs of both. All others share the value `_other`. Ids, keys and error texts are never attributes of metrics.
//! To distinguish processes, set `service.instance.id` in the resource of your meter provider.
//!
//! # Traces
//!
//! Starting a chain creates a producer span, as a child of the caller's current OpenTelemetry context. The context of this
//! span is stored with the chain, so that attempts in all processes belong to the same trace.
//!
//! An attempt is a consumer span, with children for the transactions of its handler. While the handler runs, the span of
//! the attempt is the current OpenTelemetry context. Spans that the handler creates are therefore children of the attempt.
//! This includes spans of `tracing`, if the application uses `tracing-opentelemetry`.
//!
//! The sampler decides once per chain, when the chain starts. Every process follows that decision: if a chain is not
//! sampled, its jobs and attempts have no spans. [`ChainSampler`] makes such chains cheap. A retry links to the previous
//! attempt; see [`AttemptIds`].
//!
//! # Failures
//!
//! Windlass catches panics of observers. It calls observers on the thread that does the work, so they must not block.
//! [`Telemetry`] does not block if you use the batch span processor and the periodic reader of the SDK: both export on their
//! own threads, with bounded queues. If a collector is down, slow or refuses data, spans and data points are lost, but no
//! job is delayed. Wrap the exporters in [`OutageLog`], so that one warning is logged for each outage. Do not use a simple
//! span processor: it exports while the job waits.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attributes;
mod blocked;
pub mod catalogue;
mod context;
mod ids;
mod instruments;
mod invalid;
mod metrics;
mod outage;
#[cfg(feature = "prometheus")]
mod prometheus;
mod recent;
mod sampler;
mod series;
mod spans;
mod state;
mod telemetry;
mod types;
mod waits;

pub use context::{current_traceparent, is_traceparent};
pub use ids::AttemptIds;
pub use outage::OutageLog;
#[cfg(feature = "prometheus")]
pub use prometheus::Prometheus;
pub use sampler::ChainSampler;
pub use state::StateGauges;
pub use telemetry::Telemetry;
pub use types::TYPES_MAX;
