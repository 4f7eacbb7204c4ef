//! Maps an ended command to a job outcome, from its exit code and the file `$WINDLASS_OUTCOME`.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitStatus;

use serde::Deserialize;
use windlass::command::{DueTime, NewChain, NextJob, Outcome};
use windlass::name::ErrorText;
use windlass::record::Payload;
use windlass::time::Millis;
use windlass::{BoxError, JobId};

use crate::arguments::{StartOptions, duration, time};
use crate::command::start::JobDescription;
use crate::exit::Failure;
use crate::input;

/// Exit code for a permanent failure: `EX_DATAERR` of `sysexits.h`.
const EXIT_FAIL: i32 = 65;

/// Exit code to run the job again later: `EX_TEMPFAIL` of `sysexits.h`.
const EXIT_LATER: i32 = 75;

/// Delay after exit code 75 if the outcome file does not specify one.
const LATER_DELAY: Millis = Millis::from_secs(60);

/// The contents of `$WINDLASS_OUTCOME`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OutcomeFile {
    /// The job that continues the chain.
    then: Option<JobDescription>,
    /// Chains to start in the same write as the outcome.
    start: Vec<JobDescription>,
    again_in: Option<String>,
    again_at: Option<String>,
    /// Error text that replaces standard error.
    error: Option<String>,
}

impl OutcomeFile {
    /// Reads the file. A missing or empty file is the default.
    pub(super) async fn read(path: &Path) -> Result<Self, BoxError> {
        let text = match tokio::fs::read(path).await {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(format!("cannot read $WINDLASS_OUTCOME: {error}").into()),
        };
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(&text).map_err(|error| invalid_file(input::json_error(&error)))
    }

    fn schedule(&self) -> Result<DueTime, BoxError> {
        match (&self.again_in, &self.again_at) {
            (Some(delay), None) => {
                let delay = duration(delay).map_err(|why| invalid_file(format!("`again_in`: {why}")))?;
                Ok(DueTime::After(Millis::try_from(delay)?))
            }
            (None, Some(at)) => {
                Ok(DueTime::At(time(at).map_err(|why| invalid_file(format!("`again_at`: {why}")))?))
            }
            (None, None) => Ok(DueTime::After(LATER_DELAY)),
            (Some(_), Some(_)) => {
                Err(invalid_file("`again_in` and `again_at` are mutually exclusive: remove one"))
            }
        }
    }

    /// Returns the fields that do not apply to this exit code, each with the exit code that it requires.
    fn misplaced(&self, code: Option<i32>) -> Vec<String> {
        let done = code == Some(0);
        let again = code == Some(EXIT_LATER);
        let fields = [
            ("then", self.then.is_some() && !done, "exit code 0"),
            ("start", !self.start.is_empty() && !done, "exit code 0"),
            ("again_in", self.again_in.is_some() && !again, "exit code 75"),
            ("again_at", self.again_at.is_some() && !again, "exit code 75"),
            ("error", self.error.is_some() && done, "a nonzero exit code"),
        ];
        let misplaced = fields.into_iter().filter(|(_, is_misplaced, _)| *is_misplaced);
        misplaced.map(|(field, _, code)| format!("`{field}` requires {code}")).collect()
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The end of standard error.
    pub(super) error: String,
    pub(super) file: OutcomeFile,
}

impl Ended {
    /// Returns the outcome of the job. An error fails the attempt; the job is retried while it has attempts left.
    pub(super) fn outcome(self) -> Result<Outcome, BoxError> {
        let misplaced = self.file.misplaced(self.status.code()).join(", ");
        if !misplaced.is_empty() {
            let message =
                format!("$WINDLASS_OUTCOME: {misplaced}, but the command ended with {}", self.status);
            // A success must not drop what the command asked for, so it becomes a failure. A failed command already has
            // its own error, so a warning is enough.
            if self.status.success() {
                return Err(message.into());
            }
            tracing::warn!("{message}; ignored");
        }
        let error = self.file.error.clone().unwrap_or(self.error);
        match self.status.code() {
            Some(0) => done(self.file, self.stdout),
            Some(EXIT_FAIL) => Ok(Outcome::fail(error_or_status(error, self.status))),
            Some(EXIT_LATER) => {
                let schedule = self.file.schedule()?;
                let error = (!error.is_empty()).then(|| ErrorText::new(error));
                Ok(Outcome::Reschedule { schedule, error })
            }
            _ => Err(error_or_status(error, self.status).into()),
        }
    }
}

fn done(file: OutcomeFile, stdout: Vec<u8>) -> Result<Outcome, BoxError> {
    let create = file.start.into_iter().map(new_chain).collect::<Result<_, _>>()?;
    match file.then {
        Some(JobDescription { key: Some(_), .. }) => Err(invalid_file(
            "`then` must not have a `key`: the job continues a chain, which keeps its own key",
        )),
        Some(then) => {
            let next = NextJob { id: JobId::new(), job: new_chain(then)?.job };
            Ok(Outcome::Continue { next, create })
        }
        None => Ok(Outcome::Complete { output: output(stdout)?, retention: None, create }),
    }
}

fn new_chain(described: JobDescription) -> Result<NewChain, BoxError> {
    described
        .chain(None, &StartOptions::default())
        .map_err(|failure: Failure| invalid_file(failure.line().unwrap_or_default()))
}

fn invalid_file(what: impl fmt::Display) -> BoxError {
    format!("$WINDLASS_OUTCOME is invalid: {what}").into()
}

/// Converts standard output to a payload: JSON as it is, other text as a JSON string without its final newline, and
/// `null` if it is empty.
fn output(stdout: Vec<u8>) -> Result<Payload, BoxError> {
    let text = String::from_utf8(stdout)
        .map_err(|_| "the output is neither JSON nor UTF-8 text: print one of them")?;
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Ok(Payload::json("null")?);
    }
    if serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
        return Ok(Payload::json(trimmed.to_owned())?);
    }
    Ok(Payload::encode(text.strip_suffix('\n').unwrap_or(&text))?)
}

fn error_or_status(error: String, status: ExitStatus) -> String {
    if error.is_empty() { format!("the command ended with {status}") } else { error }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use windlass::time::Timestamp;

    use super::*;

    fn ended(code: i32, stdout: &str, file: &str) -> Result<Outcome, String> {
        let file = if file.is_empty() {
            OutcomeFile::default()
        } else {
            serde_json::from_str(file).expect("the test writes JSON")
        };
        let (status, stdout) = (ExitStatus::from_raw(code << 8), stdout.as_bytes().to_vec());
        let ended = Ended { status, stdout, error: "oh".to_owned(), file };
        ended.outcome().map_err(|error| error.to_string())
    }

    fn completed(stdout: &str) -> String {
        match ended(0, stdout, "").expect("0 is done") {
            Outcome::Complete { output, .. } => String::from_utf8_lossy(output.bytes()).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn output_is_json_or_text() {
        assert_eq!(completed("{\"a\": 1}\n"), "{\"a\": 1}");
        assert_eq!(completed("42\n"), "42");
        assert_eq!(completed("hello world\n"), "\"hello world\"");
        assert_eq!(completed("two\nlines\n"), "\"two\\nlines\"");
        assert_eq!(completed(""), "null");
    }

    #[test]
    fn the_exit_code_determines_the_outcome() {
        assert_eq!(ended(65, "", ""), Ok(Outcome::fail("oh")));
        assert_eq!(ended(65, "", r#"{"error": "why"}"#), Ok(Outcome::fail("why")));
        assert_eq!(ended(1, "", "").unwrap_err(), "oh");
        let error = Some(ErrorText::new("oh"));
        let again = |schedule| Ok(Outcome::Reschedule { schedule, error: error.clone() });
        assert_eq!(ended(75, "", ""), again(DueTime::After(Millis::from_secs(60))));
        assert_eq!(ended(75, "", r#"{"again_in": "5s"}"#), again(DueTime::After(Millis::from_secs(5))));
        let at = Timestamp::from_millis(1_000).unwrap();
        assert_eq!(ended(75, "", r#"{"again_at": "1970-01-01T00:00:01Z"}"#), again(DueTime::At(at)));
    }

    #[test]
    fn the_file_names_a_continuation_and_other_chains() {
        let file = r#"{"then": {"type": "ship", "input": 7, "priority": 3}, "start": [{"type": "mail"}]}"#;
        let Outcome::Continue { next, create } = ended(0, "ignored", file).unwrap() else {
            panic!("no continuation")
        };
        assert_eq!((next.job.job_type.as_str(), next.job.priority), ("ship", 3));
        assert_eq!(next.job.input.bytes(), "7");
        assert_eq!(create.len(), 1);
        check_error(0, r#"{"then": {"input": 7}}"#, "`type` is missing");
        check_error(0, r#"{"then": {"type": "ship", "key": "k"}}"#, "`then` must not have a `key`");
        check_error(
            0,
            r#"{"start": [{"type": "a", "delay": "1m", "at": "2026-11-15"}]}"#,
            "`delay` and `at` are mutually exclusive",
        );
        check_error(0, r#"{"start": [{"type": "a", "blocked_by": ["b"]}]}"#, "`blocked_by`: invalid id `b`");
    }

    #[test]
    fn fields_for_another_exit_code_are_rejected() {
        check_error(
            0,
            r#"{"again_in": "5m"}"#,
            "`again_in` requires exit code 75, but the command ended with exit status: 0",
        );
        check_error(0, r#"{"error": "why"}"#, "`error` requires a nonzero exit code");
        check_error(
            75,
            r#"{"again_in": "5m", "again_at": "2026-11-15"}"#,
            "`again_in` and `again_at` are mutually exclusive",
        );
        check_error(75, r#"{"again_in": "soon"}"#, "`again_in`: invalid duration `soon`");
        // A failed command keeps its own error.
        check_error(1, r#"{"then": {"type": "ship"}}"#, "oh");
        assert_eq!(ended(65, "", r#"{"again_in": "5m"}"#), Ok(Outcome::fail("oh")));
    }

    fn check_error(code: i32, file: &str, what: &str) {
        let error = ended(code, "", file).expect_err("it is invalid");
        assert!(error.contains(what), "{error}");
    }
}
