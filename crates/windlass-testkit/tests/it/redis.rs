use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use windlass_testkit::RedisServer;

use crate::is_alive;

/// Sends a command and returns its answer: the value of a string, or the whole line.
fn ask(server: &RedisServer, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(stream, "{command}\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let Some(length) = line.trim_end().strip_prefix('$').and_then(|length| length.parse().ok()) else {
        return line.trim_end().to_owned();
    };
    let mut value = vec![0; length];
    reader.read_exact(&mut value).unwrap();
    String::from_utf8(value).unwrap()
}

#[tokio::test]
async fn a_server_answers_and_leaves_no_files() {
    let server = RedisServer::start().await;
    assert_eq!(ask(&server, "PING"), "+PONG");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    let pid = server.pid().unwrap();
    let directory = server.directory().to_owned();
    assert!(is_alive(pid) && directory.is_dir());
    drop(server);
    assert!(!is_alive(pid));
    assert!(!directory.exists());
}

#[tokio::test]
async fn servers_are_independent() {
    let (a, b, c) = tokio::join!(RedisServer::start(), RedisServer::start(), RedisServer::start());
    for (server, value) in [(&a, "a"), (&b, "b"), (&c, "c")] {
        assert_eq!(ask(server, &format!("SET key {value}")), "+OK");
    }
    assert_eq!([&a, &b, &c].map(|server| ask(server, "GET key")), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_killed_server_restarts_with_the_data_on_disk() {
    let mut server =
        RedisServer::builder().arg("--appendonly", "yes").arg("--appendfsync", "always").start().await;
    let (pid, url) = (server.pid().unwrap(), server.url());
    assert_eq!(ask(&server, "SET key value"), "+OK");

    server.kill().await;
    assert!(!is_alive(pid));
    assert_eq!(server.pid(), None);
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());

    server.restart().await;
    assert_eq!(ask(&server, "GET key"), "value");
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), Some(pid));
}

#[tokio::test]
async fn nothing_is_persisted_by_default() {
    let mut server = RedisServer::start().await;
    assert_eq!(ask(&server, "SET key value"), "+OK");
    server.restart().await;
    assert_eq!(ask(&server, "GET key"), "$-1");
}

#[tokio::test]
async fn a_stopped_server_saves_and_a_killed_one_does_not() {
    let mut server = RedisServer::builder().arg("--save", "3600 1").start().await;
    assert_eq!(ask(&server, "SET key saved"), "+OK");
    server.stop().await;
    server.stop().await;
    server.restart().await;
    assert_eq!(ask(&server, "GET key"), "saved");

    assert_eq!(ask(&server, "SET key lost"), "+OK");
    server.kill().await;
    server.restart().await;
    assert_eq!(ask(&server, "GET key"), "saved");
}

#[tokio::test]
async fn a_server_that_ended_by_itself_can_be_restarted() {
    let mut server = RedisServer::start().await;
    assert_eq!(ask(&server, "SHUTDOWN NOSAVE"), "");
    server.restart().await;
    assert_eq!(ask(&server, "PING"), "+PONG");
}

#[tokio::test]
async fn the_directory_of_a_stopped_server_is_removed_on_drop() {
    let mut server = RedisServer::start().await;
    let directory = server.directory().to_owned();
    server.kill().await;
    assert!(directory.exists());
    drop(server);
    assert!(!directory.exists());
}

#[tokio::test]
#[should_panic(expected = "Bad directive or wrong number of arguments")]
async fn a_server_that_does_not_start_reports_why() {
    let _ = RedisServer::builder().arg("--no-such-setting", "yes").start().await;
}
