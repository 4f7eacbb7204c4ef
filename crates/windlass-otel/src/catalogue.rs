//! The list of all instruments and spans. The [monitoring guide] has it as a table, with alerts.
//!
//! [monitoring guide]: https://docs.rs/windlass/latest/windlass/guide/monitoring/

pub use crate::instruments::INSTRUMENTS;

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instrument {
    /// The name, as OpenTelemetry has it.
    pub name: &'static str,
    /// What kind of instrument it is.
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
    /// A number that only grows.
    Counter,
    /// A number that grows and shrinks.
    UpDownCounter,
    /// A distribution.
    Histogram,
    /// A value of the store, which only one process reports.
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
    /// The name. A part in braces is replaced.
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
        links: "the existing chain, if its key was held",
    },
    Span {
        name: "send {type}",
        kind: "client",
        parent: "the current context of the caller, if one call starts several chains",
        links: "the chains; at most 128",
    },
    Span {
        name: "create {type}",
        kind: "producer",
        parent: "the chain; the job before it, if that was completed from outside",
        links: "for a continuation: the job before it and the attempt that created it",
    },
    Span { name: "await chain", kind: "producer", parent: "the waiting job", links: "" },
    Span {
        name: "resolve chain",
        kind: "consumer",
        parent: "the wait",
        links: "the chain whose end unblocked the job, unless several ended with one command",
    },
    Span {
        name: "process {type}",
        kind: "consumer",
        parent: "the job",
        links: "the attempt before; if another process ran it, only with `AttemptIds`",
    },
    Span { name: "prepare", kind: "internal", parent: "the attempt", links: "" },
    Span { name: "finish", kind: "internal", parent: "the attempt", links: "" },
    Span {
        name: "settle {type}",
        kind: "client",
        parent: "the job, completed or failed from outside",
        links: "the current context of the caller",
    },
    Span { name: "close chain {type}", kind: "internal", parent: "the chain", links: "" },
];
