//! Reads JSON from an argument or from standard input.

use std::io::Read;

use serde_json::value::RawValue;
use windlass::limit::PAYLOAD_MAX_BYTES;
use windlass::record::Payload;

use crate::exit::{Failure, Result};

/// Returns the JSON of the argument, of standard input if the argument is `-`, or `null` if it is missing.
pub(crate) async fn payload(argument: Option<&str>, what: &'static str) -> Result<Payload> {
    match argument {
        None => json("null", what),
        Some("-") => {
            let reading = tokio::task::spawn_blocking(move || standard_input(what));
            json(&reading.await.map_err(Failure::failed)??, what)
        }
        Some(text) => json(text, what),
    }
}

/// Converts the text to a payload. Returns an error if it is not JSON or is too large.
pub(crate) fn json(text: &str, what: &str) -> Result<Payload> {
    let text = text.trim();
    if text.len() > PAYLOAD_MAX_BYTES {
        return Err(too_large(what));
    }
    serde_json::from_str::<&RawValue>(text).map_err(|error| {
        let error = json_error(&error);
        Failure::usage(format!(
            "the {what} is not valid JSON: {error}; a JSON string needs double quotes: '\"text\"'"
        ))
    })?;
    Ok(Payload::json(text.to_owned())?)
}

/// Formats a JSON error. Drops `line 1` from the position, because a batch reports its own line numbers.
pub(crate) fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line 1 column ") {
        Some((what, column)) => format!("{what} at column {column}"),
        None => text,
    }
}

/// Returns the error for a value that is larger than the payload limit.
pub(crate) fn too_large(what: &str) -> Failure {
    let mebibytes = PAYLOAD_MAX_BYTES / (1024 * 1024);
    Failure::usage(format!(
        "the {what} is larger than {mebibytes} MiB: store it elsewhere and pass a reference"
    ))
}

fn standard_input(what: &str) -> Result<String> {
    let mut bytes = Vec::new();
    // One byte above the limit shows that the input is too large, without reading all of it.
    let limit = PAYLOAD_MAX_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
    read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    if bytes.len() > PAYLOAD_MAX_BYTES {
        return Err(too_large(what));
    }
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage(format!("the {what} is not valid JSON: it is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_kept_as_written() {
        assert_eq!(json(" {\"a\":  1.0} \n", "input").unwrap().bytes(), "{\"a\":  1.0}");
    }

    #[test]
    fn invalid_json_is_rejected_with_its_position() {
        let line = json("hello", "input").unwrap_err().line().unwrap();
        assert!(line.starts_with("the input is not valid JSON") && line.contains("quote"), "{line}");
        assert!(line.contains("at column 1;"), "{line}");
        let line = json("[1,\nx]", "input").unwrap_err().line().unwrap();
        assert!(line.contains("at line 2 column 1;"), "{line}");
    }

    #[test]
    fn a_payload_above_the_limit_is_rejected() {
        let large = format!("\"{}\"", "x".repeat(PAYLOAD_MAX_BYTES));
        let line = json(&large, "input").unwrap_err().line().unwrap();
        assert!(line.starts_with("the input is larger than 4 MiB"), "{line}");
    }
}
