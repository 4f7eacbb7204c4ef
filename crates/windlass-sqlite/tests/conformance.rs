//! Runs the store conformance suite on SQLite.

#[path = "it/fixture.rs"]
mod fixture;

fn main() {
    windlass_conformance::main(fixture::Sqlite::default())
}
