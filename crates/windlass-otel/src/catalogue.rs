//! Lists all instruments and spans. The page [Metrics and traces] has them as tables, with alerts.
//!
//! [Metrics and traces]: https://docs.rs/windlass/latest/windlass/guide/metrics/

pub use crate::instruments::INSTRUMENTS;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instrument {
    /// The name in OpenTelemetry.
    pub name: &'static str,
    /// The kind of instrument.
    pub kind: Kind,
    /// The unit: a name in braces, or `s` for seconds.
    pub unit: &'static str,
    /// What it measures.
    pub description: &'static str,
    /// The names of its attributes.
    pub attributes: &'static [&'static str],
}

/// The kind of an instrument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only increases.
    Counter,
    /// A number that increases and decreases.
    UpDownCounter,
    /// A distribution.
    Histogram,
    /// A value read from the store. Only one process reports it.
    StateGauge,
}

impl Instrument {
    /// Returns the name of the time series at the Prometheus endpoint. A histogram has several, with this prefix.
    #[must_use]
    pub fn prometheus_name(&self) -> String {
        let name = self.name.replace('.', "_");
        let name = if self.unit == "s" { format!("{name}_seconds") } else { name };
        if self.kind == Kind::Counter { format!("{name}_total") } else { name }
    }
}

/// A span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The name. `{type}` stands for the job type or chain type.
    pub name: &'static str,
    /// The kind: producer, consumer, client or internal.
    pub kind: &'static str,
    /// The parent.
    pub parent: &'static str,
    /// The links.
    pub links: &'static str,
}

/// All spans.
pub const SPANS: &[Span] = &[
    Span {
        name: "create chain {type}",
        kind: "producer",
        parent: "the current context of the caller",
        links: "the existing chain, if it holds the key",
    },
    Span {
        name: "send {type}",
        kind: "client",
        parent: "the current context of the caller; the span exists only if one call starts several chains",
        links: "the chains; at most 128",
    },
    Span {
        name: "create {type}",
        kind: "producer",
        parent: "the chain",
        links: "for a continuation: the previous job, and the attempt that created this one",
    },
    Span {
        name: "await chain",
        kind: "producer",
        parent: "the waiting job",
        links: "the chain that the job waits for, if it is sampled",
    },
    Span {
        name: "resolve chain",
        kind: "consumer",
        parent: "the wait",
        links: "the chain that unblocked the job, unless one command closed several chains",
    },
    Span {
        name: "process {type}",
        kind: "consumer",
        parent: "the job",
        links: "the previous attempt; if another process ran it, only with `AttemptIds`",
    },
    Span { name: "prepare", kind: "internal", parent: "the attempt", links: "" },
    Span { name: "finish", kind: "internal", parent: "the attempt", links: "" },
    Span {
        name: "settle {type}",
        kind: "client",
        parent: "the job that is completed or failed from outside",
        links: "the current context of the caller",
    },
    Span { name: "close chain {type}", kind: "internal", parent: "the chain", links: "" },
];
