//! What is read: JSON from an argument or from standard input.

use std::io::Read;

use serde_json::value::RawValue;
use windlass::Payload;
use windlass::limit::PAYLOAD_MAX_BYTES;

use crate::exit::{Failure, Result};

/// The JSON of an argument, of standard input if the argument is `-`, or `null` without one.
pub(crate) fn payload(argument: Option<&str>, what: &str) -> Result<Payload> {
    match argument {
        None => json("null", what),
        Some("-") => json(&standard_input(what)?, what),
        Some(text) => json(text, what),
    }
}

/// The text as a payload, if it is JSON.
pub(crate) fn json(text: &str, what: &str) -> Result<Payload> {
    let text = text.trim();
    serde_json::from_str::<&RawValue>(text).map_err(|error| {
        Failure::usage(format!("the {what} is not JSON: {error}; a text needs quotes of its own: '\"text\"'"))
    })?;
    Ok(Payload::json(text.to_owned())?)
}

fn standard_input(what: &str) -> Result<String> {
    let mut bytes = Vec::new();
    // One byte more than is allowed shows that there is too much, without reading all of it.
    let limit = PAYLOAD_MAX_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
    read.map_err(|error| Failure::usage(format!("standard input cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("the {what} is not JSON: it is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_as_it_was_written() {
        assert_eq!(json(" {\"a\":  1.0} \n", "input").unwrap().bytes(), "{\"a\":  1.0}");
        assert_eq!(payload(None, "input").unwrap().bytes(), "null");
    }

    #[test]
    fn what_is_not_json_is_told_with_its_cure() {
        let line = json("hello", "input").unwrap_err().line().unwrap();
        assert!(line.starts_with("the input is not JSON") && line.contains("quotes"), "{line}");
    }
}
