//! Metrics and traces, as an OTLP receiver and a Prometheus endpoint see them.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod catalogue;
mod jobs;
mod metrics;
mod receiver;
mod rollbacks;
mod sampling;
mod scenario;
mod specs;
mod state;
mod story;
mod traces;
mod trouble;
