//! The store contract on PostgreSQL, through tokio-postgres.

#![allow(clippy::unwrap_used)]

mod fixture;

fn main() {
    let connect = |url: String| async move { windlass_postgres::TokioPostgres::connect(&url).await.unwrap() };
    windlass_conformance::main(fixture::Postgres { name: "postgres, tokio-postgres", connect })
}
