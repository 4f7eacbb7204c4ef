//! The store contract on PostgreSQL, through sqlx.

#![allow(clippy::unwrap_used)]

mod fixture;

fn main() {
    windlass_conformance::main(fixture::Postgres)
}
