//! Maps an ended command to a job outcome, from its exit code and the file `$WINDLASS_OUTCOME`.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitStatus;

use serde::Deserialize;
use windlass::command::{NewChain, NextJob, Outcome, Schedule};
use windlass::{BoxError, ErrorText, JobId, Millis, Payload};

use crate::arguments::{Options, duration, time};
use crate::command::start::Described;
use crate::exit::Failure;
use crate::input;

/// Exit code for a permanent failure: `EX_DATAERR` of `sysexits.h`.
const FAILED_FOR_GOOD: i32 = 65;

/// Exit code to run the job again later: `EX_TEMPFAIL` of `sysexits.h`.
const AGAIN: i32 = 75;

/// Delay after exit code 75 if the outcome file does not specify one.
const AGAIN_AFTER: Millis = Millis::from_secs(60);

/// The contents of `$WINDLASS_OUTCOME`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct OutcomeFile {
    /// The job that continues the chain.
    then: Option<Described>,
    /// Chains to start in the same write as the outcome.
    start: Vec<Described>,
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
            Err(error) => return Err(format!("$WINDLASS_OUTCOME cannot be read: {error}").into()),
        };
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(&text).map_err(|error| wrong(input::told(&error)))
    }

    fn schedule(&self) -> Result<Schedule, BoxError> {
        match (&self.again_in, &self.again_at) {
            (Some(delay), None) => {
                let delay = duration(delay).map_err(|why| wrong(format!("`again_in`: {why}")))?;
                Ok(Schedule::After(Millis::try_from(delay)?))
            }
            (None, Some(at)) => {
                Ok(Schedule::At(time(at).map_err(|why| wrong(format!("`again_at`: {why}")))?))
            }
            (None, None) => Ok(Schedule::After(AGAIN_AFTER)),
            (Some(_), Some(_)) => Err(wrong("it has both `again_in` and `again_at`: leave one out")),
        }
    }

    /// Returns the fields that do not apply to this exit code, each with the exit code that it requires.
    fn unfitting(&self, code: Option<i32>) -> Vec<String> {
        let done = code == Some(0);
        let again = code == Some(AGAIN);
        let said = [
            ("then", self.then.is_some() && !done, "0"),
            ("start", !self.start.is_empty() && !done, "0"),
            ("again_in", self.again_in.is_some() && !again, "75"),
            ("again_at", self.again_at.is_some() && !again, "75"),
            ("error", self.error.is_some() && done, "all exit codes but 0"),
        ];
        let unfitting = said.into_iter().filter(|(_, is_unfitting, _)| *is_unfitting);
        unfitting.map(|(field, _, code)| format!("`{field}`, which goes with {code}")).collect()
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The end of standard error.
    pub(super) error: String,
    pub(super) said: OutcomeFile,
}

impl Ended {
    /// Returns the outcome of the job. An error fails the attempt; the job is retried while it has attempts left.
    pub(super) fn outcome(self) -> Result<Outcome, BoxError> {
        let unfitting = self.said.unfitting(self.status.code()).join(", ");
        if !unfitting.is_empty() {
            let unfit =
                format!("$WINDLASS_OUTCOME says {unfitting}, and the command ended with {}", self.status);
            // A success must not drop what the command asked for, so it becomes a failure. A failed command already has
            // its own error, so a warning is enough.
            if self.status.success() {
                return Err(unfit.into());
            }
            tracing::warn!("{unfit}: that was ignored");
        }
        let error = self.said.error.clone().unwrap_or(self.error);
        match self.status.code() {
            Some(0) => done(self.said, self.stdout),
            Some(FAILED_FOR_GOOD) => Ok(Outcome::fail(or_status(error, self.status))),
            Some(AGAIN) => {
                let schedule = self.said.schedule()?;
                let error = (!error.is_empty()).then(|| ErrorText::new(error));
                Ok(Outcome::Reschedule { schedule, error })
            }
            _ => Err(or_status(error, self.status).into()),
        }
    }
}

fn done(said: OutcomeFile, stdout: Vec<u8>) -> Result<Outcome, BoxError> {
    let create = said.start.into_iter().map(described).collect::<Result<_, _>>()?;
    match said.then {
        Some(Described { key: Some(_), .. }) => {
            Err(wrong("`then` has a `key`: only a chain of its own has one"))
        }
        Some(then) => {
            let next = NextJob { id: JobId::new(), job: described(then)?.job };
            Ok(Outcome::Continue { next, create })
        }
        None => Ok(Outcome::Complete { output: output(stdout)?, retention: None, create }),
    }
}

fn described(described: Described) -> Result<NewChain, BoxError> {
    described
        .chain(None, &Options::default())
        .map_err(|failure: Failure| wrong(failure.line().unwrap_or_default()))
}

fn wrong(what: impl fmt::Display) -> BoxError {
    format!("$WINDLASS_OUTCOME is wrong: {what}").into()
}

/// Converts standard output to a payload: JSON as it is, other text as a JSON string without its final newline, and
/// `null` if it is empty.
fn output(stdout: Vec<u8>) -> Result<Payload, BoxError> {
    let text = String::from_utf8(stdout).map_err(|_| "the output is neither JSON nor a text in UTF-8")?;
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Ok(Payload::json("null")?);
    }
    if serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
        return Ok(Payload::json(trimmed.to_owned())?);
    }
    Ok(Payload::encode(text.strip_suffix('\n').unwrap_or(&text))?)
}

fn or_status(error: String, status: ExitStatus) -> String {
    if error.is_empty() { format!("the command ended with {status}") } else { error }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use windlass::Timestamp;

    use super::*;

    fn ended(code: i32, stdout: &str, said: &str) -> Result<Outcome, String> {
        let said = if said.is_empty() {
            OutcomeFile::default()
        } else {
            serde_json::from_str(said).expect("the test writes JSON")
        };
        let (status, stdout) = (ExitStatus::from_raw(code << 8), stdout.as_bytes().to_vec());
        let ended = Ended { status, stdout, error: "oh".to_owned(), said };
        ended.outcome().map_err(|error| error.to_string())
    }

    fn completed(stdout: &str) -> String {
        match ended(0, stdout, "").expect("0 is done") {
            Outcome::Complete { output, .. } => String::from_utf8_lossy(output.bytes()).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_output_is_json_or_a_text() {
        assert_eq!(completed("{\"a\": 1}\n"), "{\"a\": 1}");
        assert_eq!(completed("42\n"), "42");
        assert_eq!(completed("hello world\n"), "\"hello world\"");
        assert_eq!(completed("two\nlines\n"), "\"two\\nlines\"");
        assert_eq!(completed(""), "null");
    }

    #[test]
    fn the_exit_code_decides() {
        assert_eq!(ended(65, "", ""), Ok(Outcome::fail("oh")));
        assert_eq!(ended(65, "", r#"{"error": "why"}"#), Ok(Outcome::fail("why")));
        assert_eq!(ended(1, "", "").unwrap_err(), "oh");
        let error = Some(ErrorText::new("oh"));
        let again = |schedule| Ok(Outcome::Reschedule { schedule, error: error.clone() });
        assert_eq!(ended(75, "", ""), again(Schedule::After(Millis::from_secs(60))));
        assert_eq!(ended(75, "", r#"{"again_in": "5s"}"#), again(Schedule::After(Millis::from_secs(5))));
        let at = Timestamp::from_millis(1_000).unwrap();
        assert_eq!(ended(75, "", r#"{"again_at": "1970-01-01T00:00:01Z"}"#), again(Schedule::At(at)));
    }

    #[test]
    fn a_continuation_and_other_chains_are_told_in_the_file() {
        let said = r#"{"then": {"type": "ship", "input": 7, "priority": 3}, "start": [{"type": "mail"}]}"#;
        let Outcome::Continue { next, create } = ended(0, "ignored", said).unwrap() else {
            panic!("no continuation")
        };
        assert_eq!((next.job.job_type.as_str(), next.job.priority), ("ship", 3));
        assert_eq!(next.job.input.bytes(), "7");
        assert_eq!(create.len(), 1);
        check_wrong(0, r#"{"then": {"input": 7}}"#, "no `type`");
        check_wrong(0, r#"{"then": {"type": "ship", "key": "k"}}"#, "`then` has a `key`");
        check_wrong(
            0,
            r#"{"start": [{"type": "a", "delay": "1m", "at": "2026-11-15"}]}"#,
            "both `delay` and `at`",
        );
        check_wrong(
            0,
            r#"{"start": [{"type": "a", "blocked_by": ["b"]}]}"#,
            "`blocked_by`: `b` is not an id",
        );
    }

    #[test]
    fn what_does_not_fit_the_exit_code_is_told() {
        check_wrong(
            0,
            r#"{"again_in": "5m"}"#,
            "`again_in`, which goes with 75, and the command ended with exit status: 0",
        );
        check_wrong(0, r#"{"error": "why"}"#, "`error`, which goes with all exit codes but 0");
        check_wrong(75, r#"{"again_in": "5m", "again_at": "2026-11-15"}"#, "both `again_in` and `again_at`");
        check_wrong(75, r#"{"again_in": "soon"}"#, "`again_in`: `soon` is no duration");
        // A failed command keeps its own error.
        check_wrong(1, r#"{"then": {"type": "ship"}}"#, "oh");
        assert_eq!(ended(65, "", r#"{"again_in": "5m"}"#), Ok(Outcome::fail("oh")));
    }

    fn check_wrong(code: i32, said: &str, what: &str) {
        let error = ended(code, "", said).expect_err("it is wrong");
        assert!(error.contains(what), "{error}");
    }
}
