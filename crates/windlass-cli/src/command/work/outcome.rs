//! What an ended command comes to: its exit code decides, and a file says more.

use std::io;
use std::path::Path;
use std::process::ExitStatus;

use serde::Deserialize;
use windlass::command::{NewChain, NextJob, Outcome, Schedule};
use windlass::{BoxError, ErrorText, JobId, Millis, Payload};

use crate::arguments::Options;
use crate::command::start::Described;
use crate::exit::Failure;

/// No more attempts: `EX_DATAERR` of `sysexits.h`.
const FAILED_FOR_GOOD: i32 = 65;

/// Again later: `EX_TEMPFAIL` of `sysexits.h`.
const AGAIN: i32 = 75;

/// When a command is run again that does not say when.
const AGAIN_AFTER: Millis = Millis::from_secs(60);

/// What a command wrote into `$WINDLASS_OUTCOME`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Said {
    /// The job that the chain goes on with.
    then: Option<Described>,
    /// Chains to start in the same write.
    start: Vec<Described>,
    again_in: Option<String>,
    again_at: Option<String>,
    /// In place of what was written to standard error.
    error: Option<String>,
}

impl Said {
    /// What the file says; nothing if there is none.
    pub(super) async fn read(path: &Path) -> Result<Self, BoxError> {
        let text = match tokio::fs::read(path).await {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(format!("$WINDLASS_OUTCOME cannot be read: {error}").into()),
        };
        if text.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(&text).map_err(|error| format!("$WINDLASS_OUTCOME is wrong: {error}").into())
    }

    fn schedule(&self) -> Result<Schedule, BoxError> {
        match (&self.again_in, &self.again_at) {
            (Some(delay), _) => Ok(Schedule::After(Millis::try_from(humantime::parse_duration(delay)?)?)),
            (None, Some(at)) => Ok(Schedule::At(humantime::parse_rfc3339_weak(at)?.into())),
            (None, None) => Ok(Schedule::After(AGAIN_AFTER)),
        }
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The end of standard error.
    pub(super) error: String,
    pub(super) said: Said,
}

impl Ended {
    /// What becomes of the job. An error is a failure that is tried again.
    pub(super) fn outcome(self) -> Result<Outcome, BoxError> {
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

fn done(said: Said, stdout: Vec<u8>) -> Result<Outcome, BoxError> {
    let create = said.start.into_iter().map(described).collect::<Result<_, _>>()?;
    match said.then {
        Some(then) => {
            let next = NextJob { id: JobId::new(), job: described(then)?.job };
            Ok(Outcome::Continue { next, create })
        }
        None => Ok(Outcome::Complete { output: output(stdout)?, retention: None, create }),
    }
}

fn described(described: Described) -> Result<NewChain, BoxError> {
    let wrong =
        |failure: Failure| format!("$WINDLASS_OUTCOME is wrong: {}", failure.line().unwrap_or_default());
    described.chain(None, &Options::default()).map_err(|failure| wrong(failure).into())
}

/// What was written to standard output: JSON, or else a text without its last line end; nothing is `null`.
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
            Said::default()
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
        let error = ended(0, "", r#"{"then": {"input": 7}}"#).unwrap_err();
        assert!(error.contains("no `type`"), "{error}");
    }
}
