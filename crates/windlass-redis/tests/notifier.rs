//! The notifier contract on Redis.

#![allow(clippy::unwrap_used)]

mod fixture;

fn main() {
    windlass_conformance::notifier_main(fixture::Redis)
}
