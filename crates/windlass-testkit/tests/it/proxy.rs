use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use windlass_testkit::{Proxy, RedisServer, wait_until};

/// How long a stalled connection must stay silent.
const SILENCE: Duration = Duration::from_millis(50);

struct Session(TcpStream);

impl Session {
    async fn open(proxy: &Proxy) -> io::Result<Self> {
        TcpStream::connect(("127.0.0.1", proxy.port())).await.map(Self)
    }

    async fn send(&mut self, command: &str) {
        self.0.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
    }

    /// Returns the next line without its line break, or an empty string at the end of the connection.
    async fn hear(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && self.0.read_buf(&mut line).await.unwrap_or(0) > 0 {}
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    async fn ask(&mut self, command: &str) -> String {
        self.send(command).await;
        self.hear().await
    }

    async fn is_silent(&mut self) -> bool {
        timeout(SILENCE, self.0.readable()).await.is_err()
    }
}

async fn fixture() -> (RedisServer, Proxy, Session) {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port()).await;
    let mut session = Session::open(&proxy).await.unwrap();
    assert_eq!(session.ask("SET key before").await, "+OK");
    (server, proxy, session)
}

#[tokio::test]
async fn a_cut_ends_connections_and_lets_clients_come_back() {
    let (_server, mut proxy, mut session) = fixture().await;
    assert_eq!(proxy.connections(), 1);
    proxy.cut().await;
    assert_eq!(proxy.connections(), 0);
    assert_eq!(session.hear().await, "");
    assert_eq!(Session::open(&proxy).await.unwrap().ask("PING").await, "+PONG");
}

#[tokio::test]
async fn refused_clients_cannot_connect_and_others_continue() {
    let (_server, mut proxy, mut session) = fixture().await;
    proxy.refuse().await;
    let refused = Session::open(&proxy).await.err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(session.ask("PING").await, "+PONG");
    proxy.resume().await;
    assert_eq!(Session::open(&proxy).await.unwrap().ask("PING").await, "+PONG");
}

#[tokio::test]
async fn stalled_bytes_are_forwarded_later() {
    let (server, mut proxy, mut session) = fixture().await;
    let mut direct = Session(TcpStream::connect(("127.0.0.1", server.port())).await.unwrap());
    proxy.stall();
    session.send("SET key after").await;
    let mut late = Session::open(&proxy).await.unwrap();
    late.send("PING").await;
    assert!(session.is_silent().await && late.is_silent().await);
    assert_eq!(direct.ask("STRLEN key").await, ":6");
    proxy.resume().await;
    assert_eq!(session.hear().await, "+OK");
    assert_eq!(late.hear().await, "+PONG");
    assert_eq!(direct.ask("STRLEN key").await, ":5");
}

#[tokio::test]
async fn a_reply_is_lost_after_the_command_was_executed() {
    let (server, mut proxy, mut session) = fixture().await;
    let mut direct = Session(TcpStream::connect(("127.0.0.1", server.port())).await.unwrap());
    proxy.stall_replies();
    session.send("SET key after").await;
    wait_until("the command has arrived", Duration::from_secs(10), async || {
        direct.ask("STRLEN key").await == ":5"
    })
    .await;
    assert!(session.is_silent().await);
    proxy.cut().await;
    assert_eq!(session.hear().await, "");
}

#[tokio::test]
async fn a_connection_is_cut_when_its_client_sends_a_text() {
    for (is_heard, length) in [(false, ":6"), (true, ":5")] {
        let (_server, mut proxy, mut session) = fixture().await;
        let mut other = Session::open(&proxy).await.unwrap();
        let sprung =
            if is_heard { proxy.cut_after("PING", "after") } else { proxy.cut_before("PING", "after") };
        assert_eq!(other.ask("SET other after").await, "+OK", "it has not sent the mark");
        assert_eq!(session.ask("PING").await, "+PONG");
        assert_eq!(session.ask("SET key after").await, "");
        sprung.await.unwrap();
        assert_eq!(other.ask("STRLEN key").await, length);
        assert_eq!(other.ask("SET key after").await, "+OK", "it happens once");
    }
}

#[tokio::test]
async fn the_end_of_either_side_is_forwarded() {
    let (mut server, proxy, mut session) = fixture().await;
    let other = Session::open(&proxy).await.unwrap();
    wait_until("there are two", Duration::from_secs(10), async || proxy.connections() == 2).await;
    drop(other);
    wait_until("the client is gone", Duration::from_secs(10), async || proxy.connections() == 1).await;
    server.kill().await;
    assert_eq!(session.hear().await, "");
    drop(proxy);
}
