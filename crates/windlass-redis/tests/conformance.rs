//! The store contract on Redis.

#![allow(clippy::unwrap_used)]

mod fixture;

fn main() {
    windlass_conformance::main(fixture::Redis)
}
