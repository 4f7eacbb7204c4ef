//! The audit log: who changed what.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::time::timeout;
use windlass_core::{RequestId, Timestamp};

use crate::api::Problem;
use crate::api::wire::Time;
use crate::auth::{Caller, Role};

/// How long a change that stops something waits for the log, and how long an answer waits for the outcome in the log.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// A log of all changes, as JSON lines. It never contains payloads.
///
/// Each change has two lines with the same `id`: one before the change, with its targets, and one with its outcome. If the
/// first line cannot be written, the change is refused, unless it stops something: a logout, or the abort of a bulk
/// operation. A bulk operation also has a line every ten seconds. If that cannot be written, the operation ends.
///
/// A change that was made is answered, even if its outcome cannot be written within 3 s.
#[derive(Clone)]
pub struct AuditLog(Arc<Log>);

struct Log {
    /// Locked while a line is written, so that lines do not mix. A file is synced after that: the lines of other changes
    /// do not wait for the disk one after the other.
    destination: Mutex<Destination>,
    /// Whether the latest write to the log failed, for any change.
    is_broken: AtomicBool,
    /// Syncs a file to disk.
    sync: fn(&File) -> io::Result<()>,
}

enum Destination {
    /// Opened for each line, so that the file can be rotated.
    File {
        path: PathBuf,
        is_torn: bool,
    },
    Writer {
        writer: Box<dyn Write + Send>,
        is_torn: bool,
    },
}

/// A change that has begun. Dropping it writes that its outcome is not known.
pub(crate) struct Entry {
    log: AuditLog,
    id: RequestId,
    is_ended: bool,
}

/// A change that is about to begin.
pub(crate) struct Change<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) action: &'a str,
    pub(crate) subject: Subject,
}

/// The target of a change.
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
        Ok(Self::new(Destination::File { path, is_torn: false }))
    }

    /// Writes to a writer, such as standard error.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::new(Destination::Writer { writer: Box::new(writer), is_torn: false })
    }

    fn new(destination: Destination) -> Self {
        let (destination, is_broken) = (Mutex::new(destination), AtomicBool::new(false));
        Self(Arc::new(Log { destination, is_broken, sync: File::sync_data }))
    }

    /// Writes that a change begins. The change is refused if that fails.
    pub(crate) async fn begin(&self, change: Change<'_>) -> Result<Entry, Problem> {
        let (entry, line) = self.entry(&change);
        match self.write(&line).await {
            Ok(()) => Ok(entry),
            Err(error) => {
                entry.discard();
                tracing::error!("the audit log cannot be written, so changes are refused: {error}");
                Err(Problem::unavailable(
                    "the audit log cannot be written, so nothing was changed: see the log of the server",
                ))
            }
        }
    }

    /// Like [`begin`](Self::begin), for a change that stops something. It is made even if the log cannot be written, or
    /// not in time.
    pub(crate) async fn begin_anyway(&self, change: Change<'_>) -> Entry {
        let (entry, line) = self.entry(&change);
        if let Err(error) = self.write_in_time(&line).await {
            let Caller { identity, .. } = change.caller;
            tracing::error!(
                "the audit log cannot be written. It may lack change {} ({} by {:?}): {error}",
                entry.id,
                change.action,
                identity.name
            );
        }
        entry
    }

    /// Returns the entry of a change, and its first line.
    fn entry<'a>(&self, change: &'a Change<'_>) -> (Entry, Begin<'a>) {
        let (at, id) = (Timestamp::now().to_string(), RequestId::new());
        let Change { caller, remote, action, subject } = change;
        let (name, role) = (caller.identity.name.as_str(), caller.identity.role);
        let line = Begin { at, id, phase: "begin", name, role, remote: *remote, action, subject };
        (Entry { log: self.clone(), id, is_ended: false }, line)
    }

    /// Writes a line outside of the threads that serve requests: a disk can be slow.
    async fn write(&self, line: &impl Serialize) -> io::Result<()> {
        let (log, text) = (self.clone(), encoded(line)?);
        let written = tokio::task::spawn_blocking(move || log.0.write(&text)).await;
        written.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Like [`write`](Self::write), with a timeout. After it, the line may still be written.
    async fn write_in_time(&self, line: &impl Serialize) -> io::Result<()> {
        timeout(WRITE_TIMEOUT, self.write(line)).await.unwrap_or_else(|_| {
            self.0.is_broken.store(true, Ordering::Release);
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("not written within {WRITE_TIMEOUT:?}")))
        })
    }
}

fn encoded(line: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text)
}

impl Log {
    /// Writes a line. Returns after it was synced, by itself or with later lines.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        let written = self.destination.lock().unwrap_or_else(PoisonError::into_inner).write(line);
        let synced = written.and_then(|file| file.as_ref().map_or(Ok(()), self.sync));
        self.is_broken.store(synced.is_err(), Ordering::Release);
        synced
    }
}

impl Destination {
    /// Writes a line. Returns the file to sync, if there is one.
    ///
    /// After an error or a crash, the end may be a part of a line: without a line break, it would swallow this one.
    fn write(&mut self, line: &[u8]) -> io::Result<Option<File>> {
        let text = |is_torn| if is_torn { [b"\n", line].concat() } else { line.to_vec() };
        match self {
            // One write per line: lines of several servers do not mix.
            Self::File { path, is_torn } => {
                let mut file = open(path)?;
                // The server may be permitted to write the file, and not to read it.
                let text = text(ends_torn(path).unwrap_or(*is_torn));
                let written = file.write_all(&text);
                *is_torn = written.is_err();
                written.map(|()| Some(file))
            }
            Self::Writer { writer, is_torn } => {
                let written = writer.write_all(&text(*is_torn)).and_then(|()| writer.flush());
                *is_torn = written.is_err();
                written.map(|()| None)
            }
        }
    }
}

/// Whether a file ends within a line.
fn ends_torn(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    // Pipes and devices have no length.
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

impl Entry {
    /// Whether the latest write to the log failed, for any change.
    pub(crate) fn is_log_broken(&self) -> bool {
        self.log.0.is_broken.load(Ordering::Acquire)
    }

    /// Writes how far a long change has got. The change must end if that fails.
    pub(crate) async fn progress(&self, outcome: &Outcome) -> Result<(), Problem> {
        self.log.write(&self.line("progress", outcome)).await.map_err(|error| {
            tracing::error!("the audit log cannot be written, so change {} ends: {error}", self.id);
            Problem::unavailable(
                "the audit log cannot be written, so the operation has ended: see the log of the server",
            )
        })
    }

    /// Writes how the change ended. The change was made, so its answer does not wait for a disk that has stalled.
    pub(crate) async fn end(mut self, outcome: &Outcome) {
        self.is_ended = true;
        let written = self.log.write_in_time(&self.line("end", outcome)).await;
        self.report(written);
    }

    /// Gives up a change that was not made.
    fn discard(mut self) {
        self.is_ended = true;
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

    fn line<'a>(&self, phase: &'static str, outcome: &'a Outcome) -> End<'a> {
        End { at: Timestamp::now().to_string(), id: self.id, phase, outcome }
    }

    fn report(&self, written: io::Result<()>) {
        if let Err(error) = written {
            tracing::error!("the audit log may lack the outcome of change {}: {error}", self.id);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_ended {
            // The change was dropped or has panicked, so there is nothing that could wait for another thread.
            let outcome = Outcome::word("unknown");
            self.report(encoded(&self.line("end", &outcome)).and_then(|line| self.log.0.write(&line)));
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
        match &*self.0.destination.lock().unwrap_or_else(PoisonError::into_inner) {
            Destination::File { path, .. } => f.debug_tuple("AuditLog").field(path).finish(),
            Destination::Writer { .. } => f.write_str("AuditLog(writer)"),
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

    /// Returns a log in a file, with another function that syncs it.
    fn file(folder: &tempfile::TempDir, sync: fn(&File) -> io::Result<()>) -> AuditLog {
        let path = folder.path().join("audit.jsonl");
        let destination = Mutex::new(Destination::File { path, is_torn: false });
        AuditLog(Arc::new(Log { destination, is_broken: AtomicBool::new(false), sync }))
    }

    #[tokio::test]
    async fn lines_do_not_wait_for_each_other_to_be_synced() {
        let folder = tempfile::tempdir().unwrap();
        // Each sync lasts until the other line has been written.
        let log = file(&folder, |file| {
            let both = 2 * "{\"outcome\":\"x\"}\n".len() as u64;
            for _ in 0..1_000 {
                if file.metadata()?.len() == both {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(io::Error::other("the other line was not written"))
        });
        let (one, two) = (Outcome::word("a"), Outcome::word("b"));
        let (one, two) = tokio::join!(log.write(&one), log.write(&two));
        assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    }

    #[tokio::test]
    async fn a_line_that_cannot_be_synced_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let log = file(&folder, |_| Err(io::Error::other("the disk is broken")));
        assert!(log.write(&Outcome::word("a")).await.is_err());
        assert!(log.0.is_broken.load(Ordering::Acquire));
        let log = AuditLog::file(folder.path().join("audit.jsonl")).unwrap();
        log.write(&Outcome::word("b")).await.unwrap();
        assert!(!log.0.is_broken.load(Ordering::Acquire));
        let text = std::fs::read_to_string(folder.path().join("audit.jsonl")).unwrap();
        assert_eq!(text, "{\"outcome\":\"a\"}\n{\"outcome\":\"b\"}\n");
    }
}
