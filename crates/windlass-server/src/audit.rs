//! The audit log: who changed what.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use windlass_core::{RequestId, Timestamp};

use crate::api::Problem;
use crate::api::wire::Time;
use crate::auth::{Caller, Role};

/// A log of all changes, as JSON lines. It never contains payloads.
///
/// Each change has two lines with the same `id`: one before the change, with its targets, and one with its outcome. If the
/// first line cannot be written, the change is refused.
#[derive(Clone)]
pub struct AuditLog(Arc<Log>);

struct Log {
    destination: Destination,
    /// Whether the latest write failed: it may have left a part of its line.
    is_broken: AtomicBool,
}

enum Destination {
    /// Opened for each line, so that the file can be rotated.
    File(PathBuf),
    Writer(Mutex<Box<dyn Write + Send>>),
}

/// A change that has begun. Dropping it writes that its outcome is not known.
pub(crate) struct Entry {
    log: AuditLog,
    id: RequestId,
    is_ended: bool,
}

/// What a change concerns.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Subject {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) targets: Vec<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) filter: Option<Value>,
    /// Whether the change also concerns running chains.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) running: bool,
    /// The creation time up to which a bulk operation visits chains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cutoff: Option<Time>,
}

/// A chain, type or schedule that is changed, as it was before.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Target {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) job_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<bool>,
}

#[derive(Serialize)]
struct Begin<'a> {
    at: String,
    id: RequestId,
    phase: &'static str,
    name: &'a str,
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<IpAddr>,
    action: &'a str,
    #[serde(flatten)]
    subject: &'a Subject,
}

#[derive(Serialize)]
struct End<'a> {
    at: String,
    id: RequestId,
    phase: &'static str,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// How a change ended.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outcome {
    /// In a word: the new status of the target, `done`, `refused`, `failed` or `unknown`.
    pub(crate) outcome: String,
    /// The targets after the change, where they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) targets: Vec<Target>,
    /// The number of chains that were changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changed: Option<u64>,
    /// The status code of a change that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<u16>,
}

impl AuditLog {
    /// Appends to a file, which is created if needed. The file is opened for each line, so it can be rotated at any time.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        open(&path)?;
        Ok(Self::new(Destination::File(path)))
    }

    /// Writes to a writer, such as standard error.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::new(Destination::Writer(Mutex::new(Box::new(writer))))
    }

    fn new(destination: Destination) -> Self {
        Self(Arc::new(Log { destination, is_broken: AtomicBool::new(false) }))
    }

    /// Writes that a change begins.
    pub(crate) async fn begin(
        &self,
        caller: &Caller,
        remote: Option<IpAddr>,
        action: &str,
        subject: &Subject,
    ) -> Result<Entry, Problem> {
        let (at, id) = (Timestamp::now().to_string(), RequestId::new());
        let (name, role) = (caller.identity.name.as_str(), caller.identity.role);
        let line = Begin { at, id, phase: "begin", name, role, remote, action, subject };
        self.write(&line).await.map_err(|error| {
            tracing::error!("the audit log cannot be written, so changes are refused: {error}");
            Problem::unavailable(
                "the audit log cannot be written, so nothing was changed: see the log of the server",
            )
        })?;
        Ok(Entry { log: self.clone(), id, is_ended: false })
    }

    /// Writes a line outside of the threads that serve requests: a disk can be slow.
    async fn write(&self, line: &impl Serialize) -> io::Result<()> {
        let (log, text) = (self.clone(), encoded(line)?);
        let written = tokio::task::spawn_blocking(move || log.0.write(&text)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

fn encoded(line: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text)
}

impl Log {
    fn write(&self, line: &[u8]) -> io::Result<()> {
        // After an error, a part of a line may be there. Without a line break, it would swallow this line.
        let text =
            if self.is_broken.load(Ordering::Acquire) { [b"\n", line].concat() } else { line.to_vec() };
        let written = self.destination.write(&text);
        self.is_broken.store(written.is_err(), Ordering::Release);
        written
    }
}

impl Destination {
    fn write(&self, text: &[u8]) -> io::Result<()> {
        match self {
            // One write per line: lines of several servers do not mix.
            Self::File(path) => {
                let mut file = open(path)?;
                file.write_all(text)?;
                file.sync_data()
            }
            Self::Writer(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                writer.write_all(text).and_then(|()| writer.flush())
            }
        }
    }
}

fn open(path: &PathBuf) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Entry {
    /// Writes how the change ended.
    pub(crate) async fn end(mut self, outcome: &Outcome) {
        self.is_ended = true;
        let written = self.log.write(&self.line(outcome)).await;
        self.report(written);
    }

    /// Writes the outcome of a change that may have been refused, and returns it.
    pub(crate) async fn end_with<T>(
        self,
        result: Result<T, Problem>,
        outcome: impl FnOnce(&T) -> Outcome,
    ) -> Result<T, Problem> {
        let outcome = match &result {
            Ok(done) => outcome(done),
            Err(problem) => {
                let code = problem.status();
                let word = if code.is_server_error() { "failed" } else { "refused" };
                Outcome { outcome: word.to_owned(), code: Some(code.as_u16()), ..Outcome::default() }
            }
        };
        self.end(&outcome).await;
        result
    }

    fn line<'a>(&self, outcome: &'a Outcome) -> End<'a> {
        End { at: Timestamp::now().to_string(), id: self.id, phase: "end", outcome }
    }

    fn report(&self, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::error!("the outcome of change {} is missing in the audit log: {error}", self.id);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_ended {
            // The change was dropped or has panicked, so there is nothing that could wait for another thread.
            let outcome = Outcome::word("unknown");
            self.report(encoded(&self.line(&outcome)).and_then(|line| self.log.0.write(&line)));
        }
    }
}

impl From<Target> for Subject {
    fn from(target: Target) -> Self {
        Self { targets: vec![target], ..Self::default() }
    }
}

impl Outcome {
    pub(crate) fn word(word: impl fmt::Display) -> Self {
        Self { outcome: word.to_string(), ..Self::default() }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.destination {
            Destination::File(path) => f.debug_tuple("AuditLog").field(path).finish(),
            Destination::Writer(_) => f.write_str("AuditLog(writer)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that fails once, in the middle of a line.
    #[derive(Clone, Default)]
    struct Torn(Arc<Mutex<(Vec<u8>, bool)>>);

    impl Write for Torn {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.lock().unwrap();
            if !std::mem::replace(&mut state.1, true) {
                state.0.extend_from_slice(&bytes[..10]);
                return Err(io::Error::other("no space left"));
            }
            state.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_torn_line_does_not_swallow_the_next_one() {
        let torn = Torn::default();
        let log = AuditLog::writer(torn.clone());
        assert!(log.write(&Outcome::word("first")).await.is_err());
        log.write(&Outcome::word("second")).await.unwrap();
        log.write(&Outcome::word("third")).await.unwrap();
        let text = String::from_utf8(torn.0.lock().unwrap().0.clone()).unwrap();
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines, ["{\"outcome\":\"second\"}", "{\"outcome\":\"third\"}"], "{text}");
    }
}
