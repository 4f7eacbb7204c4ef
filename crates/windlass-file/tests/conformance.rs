//! Runs the store conformance suite on the file store.

#[path = "it/fixture.rs"]
mod fixture;

fn main() {
    windlass_conformance::main(fixture::Folder)
}
