//! Runs the notifier conformance suite on NATS, with wake budgets.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;

fn main() {
    windlass_conformance::notifier_main(fixture::Nats { has_bucket: true })
}
