//! Runs the program in its own directory and on its own store.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use windlass_testkit::{PgBouncer, shared_postgres, shared_redis, wait_until};

/// Timeout for one call of the program.
const LIMIT: Duration = Duration::from_secs(600);

/// The program with a store to run it on.
pub(crate) struct Program {
    directory: TempDir,
    store: String,
    namespace: Option<String>,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    /// Uses SQLite, with a file that does not exist yet.
    pub(crate) fn on_sqlite() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), store: "sqlite:jobs.db".to_owned(), namespace: None }
    }

    /// Uses a folder that does not exist yet.
    pub(crate) fn on_file() -> Self {
        Self { store: "file:queue".to_owned(), ..Self::on_sqlite() }
    }

    /// Uses PostgreSQL, with its own schema that does not exist yet.
    pub(crate) async fn on_postgres() -> Self {
        let shared = shared_postgres().await;
        let namespace = Some(shared.namespace().to_owned());
        Self { directory: tempfile::tempdir().unwrap(), store: shared.url(), namespace }
    }

    /// Like [`on_postgres`](Self::on_postgres), but connects only through the pooler.
    pub(crate) async fn behind(pooler: &PgBouncer) -> Self {
        Self { store: pooler.url(), ..Self::on_postgres().await }
    }

    /// Uses Redis, with its own namespace.
    pub(crate) async fn on_redis() -> Self {
        let shared = shared_redis().await;
        let namespace = Some(shared.namespace().to_owned());
        Self { directory: tempfile::tempdir().unwrap(), store: shared.url(), namespace }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the namespace, on a shared server.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap()
    }

    /// Returns the program with these arguments and the store in its environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bare(arguments);
        command.env("WINDLASS_STORE", &self.store);
        command.envs(self.namespace.iter().map(|namespace| ("WINDLASS_NAMESPACE", namespace)));
        command
    }

    /// Returns the program with these arguments, without a store.
    pub(crate) fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(arguments).current_dir(self.directory()).kill_on_drop(true);
        let known =
            ["WINDLASS_STORE", "WINDLASS_NAMESPACE", "WINDLASS_NOTIFIER", "WINDLASS_TOKENS", "NO_COLOR"];
        for name in known {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end, with any exit code.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Ran {
        run(self.command(arguments)).await
    }

    /// Like [`run`](Self::run), with standard input.
    pub(crate) async fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        // The program may end before it has read everything.
        let writing = tokio::spawn(async move {
            let _ = stdin.write_all(input.as_bytes()).await;
        });
        let ran = ended(child).await;
        writing.await.unwrap();
        ran
    }

    /// Runs the program, which must succeed, and returns what it printed.
    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments).await;
        assert_eq!(ran.code, 0, "windlass {arguments:?}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// Like [`ok`](Self::ok) with `--json`: returns one object per line.
    pub(crate) async fn json(&self, arguments: &[&str]) -> Vec<Value> {
        objects(&self.ok(&[arguments, &["--json"]].concat()).await)
    }

    /// Repeats `doctor` until the result is as expected. A slow answer or hint is a finding too, but a temporary one.
    pub(crate) async fn doctor(&self, arguments: &[&str], is_expected: impl Fn(&Ran) -> bool) -> Ran {
        let mut found = None;
        wait_until("the doctor reports the expected result", Duration::from_secs(60), async || {
            let ran = found.insert(self.run(&[&["doctor"], arguments].concat()).await);
            is_expected(ran) || {
                println!("{ran:?}");
                false
            }
        })
        .await;
        found.unwrap()
    }

    /// Runs a worker with this command until no job is due.
    pub(crate) async fn drain(&self, types: &[&str], command: &str) -> Ran {
        let options = ["--exec", command, "--drain", "--backoff", "10ms", "--concurrency", "4"];
        self.run(&[&["work"], types, &options[..]].concat()).await
    }
}

/// Parses the output of `--json`.
pub(crate) fn objects(printed: &str) -> Vec<Value> {
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) async fn run(mut command: Command) -> Ran {
    ended(command.spawn().unwrap()).await
}

pub(crate) async fn ended(child: Child) -> Ran {
    let output = timeout(LIMIT, child.wait_with_output()).await.expect("the program ends in time").unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Sends SIGTERM.
pub(crate) async fn terminate(child: &Child) {
    send(child, "TERM").await;
}

/// Sends SIGINT, as Ctrl-C does.
pub(crate) async fn interrupt(child: &Child) {
    send(child, "INT").await;
}

async fn send(child: &Child, signal: &str) {
    let kill = format!("kill -{signal} {}", child.id().unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
}
