//! The notifier contract on PostgreSQL, through sqlx.

#![allow(clippy::unwrap_used)]

mod fixture;

fn main() {
    let connect = |url: String| async move { windlass_postgres::Sqlx::connect(&url).await.unwrap() };
    windlass_conformance::notifier_main(fixture::Postgres { name: "postgres", connect })
}
