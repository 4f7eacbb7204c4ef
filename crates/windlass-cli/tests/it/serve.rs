//! `windlass serve`.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::time::timeout;

use crate::program::{Program, Ran, ended, objects, terminate};

const LIMIT: Duration = Duration::from_secs(60);

/// A server that listens on a free port.
pub(crate) struct Serving {
    child: Child,
    pub(crate) first_line: String,
    address: String,
}

impl Serving {
    pub(crate) async fn start(program: &Program, options: &[&str]) -> Self {
        let arguments = [&["serve", "--listen", "127.0.0.1:0"], options].concat();
        let mut child = program.command(&arguments).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut first_line = String::new();
        timeout(LIMIT, stdout.read_line(&mut first_line)).await.expect("it listens in time").unwrap();
        let (_, address) = first_line.split_once("//").unwrap();
        let (address, _) = address.split_once('/').unwrap();
        Self { child, address: address.to_owned(), first_line }
    }

    /// Sends a request and returns the answer.
    async fn request(&self, head: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{head}\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}",
            self.address
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(LIMIT, stream.read_to_string(&mut answer)).await.expect("an answer in time").unwrap();
        answer
    }

    /// Stops the server, as a service manager does.
    pub(crate) async fn stop(self) -> Ran {
        terminate(&self.child).await;
        let ran = ended(self.child).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }
}

#[tokio::test]
async fn the_api_is_served_without_tokens_on_loopback() {
    let program = Program::on_sqlite();
    let server = Serving::start(&program, &[]).await;
    let start = "POST /api/v1/chains HTTP/1.1\r\ncontent-type: application/json";
    let answer = server.request(start, r#"{"type": "mail", "input": 7}"#).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    // The printed address is that of the dashboard.
    assert!(
        server.first_line.ends_with("/\n") && !server.first_line.contains("api"),
        "{}",
        server.first_line
    );
    let page = server.request("GET / HTTP/1.1", "").await;
    assert!(page.contains("<h1>Overview</h1>"), "{page}");
    let ran = server.stop().await;
    assert!(
        ran.stderr.contains("no tokens are set") && ran.stderr.contains("\"action\":\"start\""),
        "{ran:?}"
    );
    assert_eq!(program.json(&["jobs", "--type", "mail"]).await.len(), 1);
}

#[tokio::test]
async fn tokens_are_created_used_and_revoked() {
    let program = Program::on_sqlite();
    let tokens = ["--tokens", "tokens.toml"];
    let create = |name: &'static str, role: &'static str| {
        let arguments = ["serve", "token", "create", name, "--role", role, "--expires", "1d"];
        [&arguments[..], &tokens].concat()
    };
    let token = program.ok(&create("ada", "produce")).await;
    assert_eq!(program.run(&create("ada", "produce")).await.code, 2, "the name is taken");
    assert_eq!(program.run(&create("bob", "king")).await.code, 2);
    let stored = std::fs::read_to_string(program.directory().join("tokens.toml")).unwrap();
    assert!(stored.contains("ada") && !stored.contains(&token));
    let options = ["--tokens", "tokens.toml", "--audit", "audit.jsonl", "--payloads-from", "operate"];
    let server = Serving::start(&program, &options).await;
    let types = "GET /api/v1/types HTTP/1.1";
    assert!(server.request(types, "").await.starts_with("HTTP/1.1 401"));
    let with_token = |head: &str| format!("{head}\r\nauthorization: Bearer {token}");
    assert!(server.request(&with_token(types), "").await.starts_with("HTTP/1.1 200"));
    let start = with_token("POST /api/v1/chains HTTP/1.1\r\ncontent-type: application/json");
    let answer = server.request(&start, r#"{"type": "mail", "wait_ms": 1}"#).await;
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("\"hidden\":\"role\""), "{answer}");
    server.stop().await;
    let log = std::fs::read_to_string(program.directory().join("audit.jsonl")).unwrap();
    let lines = objects(&log);
    assert_eq!(
        (lines.len(), &lines[0]["name"], &lines[0]["remote"]),
        (2, &"ada".into(), &"127.0.0.1".into())
    );
    let listed = program.ok(&[&["serve", "token", "list"], &tokens[..]].concat()).await;
    assert!(listed.contains("ada") && listed.contains("produce"), "{listed}");
    program.ok(&[&["serve", "token", "revoke", "ada"], &tokens[..]].concat()).await;
    assert_eq!(program.run(&[&["serve", "token", "revoke", "ada"], &tokens[..]].concat()).await.code, 3);
    let none = program.run(&[&["serve"], &tokens[..]].concat()).await;
    assert!(none.code == 2 && none.stderr.contains("no token"), "{none:?}");
}

#[tokio::test]
async fn unsafe_and_invalid_options_are_refused() {
    let program = Program::on_sqlite();
    for (options, expected) in [
        (&["--listen", "0.0.0.0:0"][..], "without authentication"),
        (&["--tokens", "missing.toml"], "cannot read"),
        (&["--trust-proxy"], "--tokens"),
        (&["--tls-cert", "cert.pem"], "--tls-key"),
        (&["--tls-cert", "cert.pem", "--tls-key", "key.pem"], "cannot read"),
        (&["--audit", "missing/audit.jsonl"], "cannot write"),
        (&["--redact", "a..b"], "invalid path"),
        (&["--payloads-from", "king"], "unknown role"),
        (&["--listen", "here"], "invalid"),
    ] {
        let ran = program.run(&[&["serve"], options].concat()).await;
        assert!(ran.code == 2 && ran.stderr.contains(expected), "{options:?}: {ran:?}");
    }
    assert!(!program.directory().join("jobs.db").exists(), "an invalid call creates no store");
}
