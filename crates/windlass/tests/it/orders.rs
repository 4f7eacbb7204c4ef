//! Runs the example with orders on PostgreSQL. It checks its own results.

use std::process::Command;

use windlass_testkit::PostgresServer;

use crate::signup::example;

#[tokio::test]
async fn orders_are_shipped_or_declined() {
    let server = PostgresServer::start().await;
    let output = Command::new(example("orders")).env("DATABASE_URL", server.url()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(server.query("select count(*) from orders where payment is not null"), "1");
}
