//! The contract of stores, case by case, on SQLite.

#[path = "it/fixture.rs"]
mod fixture;

fn main() {
    windlass_conformance::main(fixture::Sqlite::default())
}
