use std::{io::ErrorKind, net::TcpStream, time::Duration};

use windlass_testkit::{PostgresServer, wait_until};

use crate::{is_alive, session::Session};

fn write(server: &PostgresServer, value: i32) {
    server.query(&format!("CREATE TABLE IF NOT EXISTS t (v int); INSERT INTO t VALUES ({value})"));
}

#[tokio::test]
async fn a_server_answers_and_leaves_no_files() {
    let server = PostgresServer::start().await;
    assert_eq!(server.query("SELECT 1, 'two'"), "1|two");
    assert_eq!(server.query("SHOW fsync; SHOW synchronous_commit"), "on\non");
    assert_eq!(server.url(), format!("postgres://windlass@127.0.0.1:{}/postgres", server.port()));
    let pid = server.pid().unwrap();
    let directory = server.directory().to_owned();
    assert!(is_alive(pid) && directory.is_dir());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!directory.exists());
}

#[tokio::test]
async fn servers_are_independent_and_have_their_own_settings() {
    let (a, b) = tokio::join!(
        PostgresServer::start(),
        PostgresServer::builder().setting("synchronous_commit", "off").start()
    );
    for (server, value) in [(&a, 1), (&b, 2)] {
        write(server, value);
    }
    assert_eq!([&a, &b].map(|server| server.query("SELECT v FROM t")), ["1", "2"]);
    assert_eq!([&a, &b].map(|server| server.query("SHOW synchronous_commit")), ["on", "off"]);
}

#[tokio::test]
async fn a_crashed_server_recovers_what_was_committed() {
    let mut server = PostgresServer::start().await;
    let (pid, url) = (server.pid().unwrap(), server.url());
    write(&server, 7);
    server.crash().await;
    assert!(!is_alive(pid));
    assert_eq!(server.pid(), None);
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());

    server.restart().await;
    assert!(server.log().contains("automatic recovery in progress"), "{}", server.log());
    assert_eq!(server.query("SELECT v FROM t"), "7");
    assert_eq!(server.url(), url);
}

#[tokio::test]
async fn a_stopped_server_has_nothing_to_recover() {
    let mut server = PostgresServer::start().await;
    write(&server, 7);
    server.stop().await;
    server.stop().await;
    server.restart().await;
    assert!(!server.log().contains("recovery"), "{}", server.log());
    assert_eq!(server.query("SELECT v FROM t"), "7");
}

#[tokio::test]
async fn a_paused_server_is_silent_until_it_is_resumed() {
    let mut server = PostgresServer::start().await;
    let mut session = Session::open(server.port());
    server.pause().await;
    session.send("SELECT 1");
    let silence = session.answer(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    server.resume();
    session.answer(Duration::from_secs(10)).unwrap();
}

#[tokio::test]
async fn a_paused_server_can_be_ended() {
    let mut server = PostgresServer::start().await;
    let _session = Session::open(server.port());
    server.pause().await;
    server.crash().await;
    server.restart().await;
    server.pause().await;
    let pid = server.pid().unwrap();
    drop(server);
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn backends_are_killed_and_clients_connect_again() {
    let server = PostgresServer::start().await;
    let sessions = [Session::open(server.port()), Session::open(server.port())];
    assert_eq!(server.kill_backends(), 2);
    for mut session in sessions {
        assert!(session.answer(Duration::from_secs(10)).is_err());
    }
    wait_until("they are gone", Duration::from_secs(10), async || server.kill_backends() == 0).await;
}

#[tokio::test]
#[should_panic(expected = "unrecognized configuration parameter")]
async fn a_server_that_does_not_start_reports_why() {
    let _ = PostgresServer::builder().setting("no_such_setting", "yes").start().await;
}

#[tokio::test]
#[should_panic(expected = "relation \"none\" does not exist")]
async fn failing_sql_reports_why() {
    PostgresServer::start().await.query("SELECT 1 FROM none");
}
