use std::net::TcpStream;

use windlass_testkit::{PgBouncer, PostgresServer};

use crate::session::Session;

#[tokio::test]
async fn sessions_share_a_connection_between_transactions() {
    let server = PostgresServer::start().await;
    let bouncer = PgBouncer::start(&server).await;
    assert_eq!(bouncer.url(), format!("postgres://windlass@127.0.0.1:{}/postgres", bouncer.port()));
    let backends = |port| {
        let mut sessions = [Session::open(port), Session::open(port)];
        sessions.each_mut().map(|session| session.ask("SELECT pg_backend_pid()").unwrap())
    };
    let [one, other] = backends(bouncer.port());
    assert_eq!(one, other);
    let [one, other] = backends(server.port());
    assert_ne!(one, other);
}

#[tokio::test]
async fn a_killed_pooler_ends_its_sessions_and_comes_back() {
    let server = PostgresServer::start().await;
    let mut bouncer = PgBouncer::start(&server).await;
    let mut session = Session::open(bouncer.port());
    session.ask("SELECT 1").unwrap();
    bouncer.kill().await;
    assert!(session.ask("SELECT 1").is_err());
    assert!(TcpStream::connect(("127.0.0.1", bouncer.port())).is_err());
    bouncer.restart().await;
    Session::open(bouncer.port()).ask("SELECT 1").unwrap();
    assert!(bouncer.log().contains("process up"));
}
