//! Runs the example with an API and a worker, as two processes on PostgreSQL.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use windlass_testkit::{PgBouncer, PostgresServer, wait_until};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the path of an example, which `cargo test` builds next to the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let directory = tests.parent().and_then(|deps| deps.parent()).unwrap();
    let example = directory.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(example.exists(), "build the examples first: `cargo build --examples --all-features`");
    example
}

/// A process of the example. Dropping it kills the process.
struct Process {
    child: Child,
    /// Read only in part, but kept open, because the process prints more.
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, url: &str) -> Self {
        let mut command = Command::new(example("signup"));
        command.arg(role).env("DATABASE_URL", url).env("ADDRESS", "127.0.0.1:0");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Returns the next line that the process prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Asks the process to end, as an orchestrator does, and waits for it.
    async fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut status = None;
        wait_until("the process ends", TIMEOUT, async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Posts an address and returns the status line.
fn sign_up(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let body = "\"ada@example.com\"";
    let head =
        "POST /users HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn an_api_and_a_worker_share_a_database() {
    let server = PostgresServer::start().await;
    check(&server, &server.url()).await;
}

/// The processes share the pooler's server connections, so a prepared statement of one would collide with the other's.
#[tokio::test]
async fn an_api_and_a_worker_run_behind_a_pooler() {
    let server = PostgresServer::start().await;
    let pooler = PgBouncer::start(&server).await;
    check(&server, &pooler.url()).await;
}

async fn check(server: &PostgresServer, url: &str) {
    let mut api = Process::start("api", url);
    let line = api.line();
    let address = line.trim().strip_prefix("http://").unwrap().strip_suffix("/users").unwrap();
    assert!(sign_up(address).unwrap().contains("201"));
    let mut worker = Process::start("worker", url);
    assert_eq!(worker.line(), "to ada@example.com: welcome\n");
    let welcomed = "select bool_and(welcomed) from users";
    wait_until("the first user is welcomed", TIMEOUT, async || server.query(welcomed) == "t").await;
    assert!(sign_up(address).unwrap().contains("201"));
    wait_until("the second user is welcomed", TIMEOUT, async || server.query(welcomed) == "t").await;
    api.stop().await;
    worker.stop().await;
    assert_eq!(server.query("select count(*) from users"), "2");
}
