use std::{io, net::TcpStream, time::Duration};

use windlass_testkit::{PostgresServer, wait_until};

use crate::is_alive;

fn write(server: &PostgresServer, value: i32) {
    server.query(&format!("CREATE TABLE IF NOT EXISTS t (v int); INSERT INTO t VALUES ({value})"));
}

#[tokio::test]
async fn it_answers_and_leaves_nothing_behind() {
    let server = PostgresServer::start().await;
    assert_eq!(server.query("SELECT 1, 'two'"), "1|two");
    assert_eq!(server.query("SHOW fsync; SHOW synchronous_commit"), "on\non");
    assert_eq!(server.url(), format!("postgres://windlass@127.0.0.1:{}/postgres", server.port()));
    let pid = server.pid().unwrap();
    let folder = server.folder().to_owned();
    assert!(is_alive(pid) && folder.is_dir());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!folder.exists());
}

#[tokio::test]
async fn servers_are_apart_and_have_settings_of_their_own() {
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
    let mut client = connect(&server);
    server.pause().await;
    ask(&mut client);
    assert!(matches!(read(&mut client, Duration::from_millis(50)), Err(error) if is_timeout(&error)));
    server.resume();
    assert_ne!(read(&mut client, Duration::from_secs(10)).unwrap(), 0);
}

#[tokio::test]
async fn a_paused_server_can_be_ended() {
    let mut server = PostgresServer::start().await;
    let _client = connect(&server);
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
    let mut clients = [connect(&server), connect(&server)];
    assert_eq!(server.kill_backends(), 2);
    for client in &mut clients {
        // The server says why, then closes.
        while read(client, Duration::from_secs(10)).unwrap() != 0 {}
    }
    wait_until("they are gone", Duration::from_secs(10), async || server.kill_backends() == 0).await;
}

#[tokio::test]
#[should_panic(expected = "unrecognized configuration parameter")]
async fn a_server_that_does_not_start_says_why() {
    let _ = PostgresServer::builder().setting("no_such_setting", "yes").start().await;
}

#[tokio::test]
#[should_panic(expected = "relation \"none\" does not exist")]
async fn sql_that_fails_says_why() {
    PostgresServer::start().await.query("SELECT 1 FROM none");
}

/// A session, as far as the server is ready for a question.
fn connect(server: &PostgresServer) -> TcpStream {
    use io::Write;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let words = b"user\0windlass\0database\0postgres\0\0";
    let length = u32::try_from(8 + words.len()).unwrap();
    let version = 3_u32 << 16;
    let start = [&length.to_be_bytes()[..], &version.to_be_bytes(), words].concat();
    stream.write_all(&start).unwrap();
    let mut greeting = Vec::new();
    while !greeting.ends_with(b"Z\0\0\0\x05I") {
        let mut byte = [0];
        io::Read::read_exact(&mut stream, &mut byte).unwrap();
        greeting.push(byte[0]);
    }
    stream
}

/// Asks for nothing, which the server answers.
fn ask(client: &mut TcpStream) {
    io::Write::write_all(client, b"Q\0\0\0\x05\0").unwrap();
}

fn read(client: &mut TcpStream, timeout: Duration) -> io::Result<usize> {
    client.set_read_timeout(Some(timeout)).unwrap();
    io::Read::read(client, &mut [0; 100])
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
