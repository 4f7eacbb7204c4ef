//! Decides which payloads and errors a caller sees.

mod redaction;

use std::cell::OnceCell;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::value::RawValue;
use windlass_core::{ChainRecord, JobRecord, Payload};

use crate::auth::Role;
use redaction::Redaction;
pub use redaction::RedactionPath;

/// Larger payloads are not shown in lists, in bytes. They are shown with their job.
const LISTED_MAX_BYTES: usize = 16 * 1024;

/// Bytes of a payload of an unknown encoding that are shown.
const BYTES_MAX: usize = 4_096;

/// Rules about payloads.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The weakest role that sees payloads and errors.
    pub(crate) visible_from: Role,
    pub(crate) redacted: Vec<RedactionPath>,
}

/// The payload rules as they apply to one caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    rules: &'a Rules,
    role: Role,
    /// Larger payloads are not shown.
    payload_max_bytes: usize,
    /// The first job of the chain whose jobs are shown.
    first: Option<&'a JobRecord>,
}

/// A payload as it is shown: its encoding, and its content as JSON. Other content is shown as hexadecimal digits.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Content {
    /// The name of the encoding, such as `json`.
    pub(crate) codec: String,
    /// The size of the payload in bytes.
    pub(crate) size: usize,
    /// The content, if it can be shown as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AnyJson>")]
    pub(crate) json: Option<Box<RawValue>>,
    /// The first bytes of content that is not JSON, MessagePack or CBOR, as hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hex: Option<String>,
    /// Why the content is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hidden: Option<Hidden>,
    /// Whether some values are not shown.
    pub(crate) redacted: bool,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Hidden {
    /// The caller's role does not permit it.
    Role,
    /// Values must be redacted, and the payload cannot be decoded.
    Undecodable,
    /// The payload is too large for a list: query the job.
    Size,
}

/// Any JSON value.
pub(crate) struct AnyJson;

impl JsonSchema for AnyJson {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AnyJson".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "Any JSON value."})
    }
}

impl Rules {
    pub(crate) const fn sight(&self, role: Role) -> Sight<'_> {
        Sight { rules: self, role, payload_max_bytes: usize::MAX, first: None }
    }
}

impl<'a> Sight<'a> {
    /// Returns what the caller sees of the jobs of a chain with this first job.
    pub(crate) const fn of_chain(self, first: &'a JobRecord) -> Self {
        Self { first: Some(first), ..self }
    }

    /// Returns what the caller sees in a list: no large payloads.
    pub(crate) const fn in_list(self) -> Self {
        Self { payload_max_bytes: LISTED_MAX_BYTES, ..self }
    }

    pub(crate) fn sees_payloads(&self) -> bool {
        self.role >= self.rules.visible_from
    }

    /// Returns whether errors without their job can be shown. What must be removed from them is in the job's payload.
    pub(crate) fn sees_events_errors(&self) -> bool {
        self.sees_payloads() && self.rules.redacted.is_empty()
    }

    /// Returns a payload as this caller sees it.
    pub(crate) fn content(&self, payload: &Payload) -> Content {
        let (codec, size) = (payload.codec().to_string(), payload.bytes().len());
        let content = Content { codec, size, json: None, hex: None, hidden: None, redacted: false };
        if !self.sees_payloads() {
            return Content { hidden: Some(Hidden::Role), ..content };
        }
        if size > self.payload_max_bytes {
            return Content { hidden: Some(Hidden::Size), ..content };
        }
        let paths = &self.rules.redacted;
        match json_of(payload) {
            Some(json) if paths.is_empty() => Content { json: Some(json), ..content },
            Some(json) => {
                let mut redaction = Redaction::default();
                let shown = redaction.apply(&json, paths).and_then(|text| RawValue::from_string(text).ok());
                match shown {
                    Some(json) => Content { json: Some(json), redacted: redaction.is_redacted, ..content },
                    None => Content { hidden: Some(Hidden::Undecodable), ..content },
                }
            }
            None if paths.is_empty() => Content { hex: Some(hex(payload)), ..content },
            None => Content { hidden: Some(Hidden::Undecodable), ..content },
        }
    }

    /// Returns the errors of a job as this caller sees them.
    pub(crate) const fn errors_of_job(self, job: &'a JobRecord) -> Errors<'a> {
        Errors { sight: self, job, redaction: OnceCell::new() }
    }

    /// Returns the error of a chain as this caller sees it: that of its latest job.
    pub(crate) fn error_of_chain(self, chain: &'a ChainRecord) -> Option<String> {
        let error = chain.latest.error.as_ref()?;
        self.of_chain(&chain.first).errors_of_job(&chain.latest).show(error.as_str())
    }

    /// Finds the values that must be removed from errors which may quote these payloads. Returns `None` if the errors must be
    /// hidden: a payload cannot be decoded, or is too large for a list.
    fn redaction<'p>(&self, quoted: impl IntoIterator<Item = &'p Payload>) -> Option<Redaction> {
        let mut redaction = Redaction::default();
        for payload in quoted {
            if payload.bytes().len() > self.payload_max_bytes {
                return None;
            }
            redaction.apply(&json_of(payload)?, &self.rules.redacted)?;
        }
        Some(redaction)
    }
}

/// The errors of one job as a caller sees them. The payloads are decoded once, for the first error.
pub(crate) struct Errors<'a> {
    sight: Sight<'a>,
    job: &'a JobRecord,
    redaction: OnceCell<Option<Redaction>>,
}

impl Errors<'_> {
    /// Returns an error as the caller sees it. Returns `None` if the caller sees no payloads, or if values must be redacted
    /// and not everything that the error may quote can be searched.
    pub(crate) fn show(&self, error: &str) -> Option<String> {
        if !self.sight.sees_payloads() {
            return None;
        }
        if self.sight.rules.redacted.is_empty() {
            return Some(error.to_owned());
        }
        self.redaction.get_or_init(|| self.find()).as_ref()?.remove_from(error)
    }

    /// Finds the values that must be removed. The error of a later job may quote the input of the first one, which is not
    /// always known. The error of a job with blockers may quote their outputs and errors, which may quote other payloads:
    /// the search would have no end.
    fn find(&self) -> Option<Redaction> {
        let (sight, job) = (&self.sight, self.job);
        let first = sight.first.filter(|first| first.chain == job.chain);
        if !job.blockers.is_empty() || (job.index > 0 && first.is_none()) {
            return None;
        }
        let inputs = first.map(|first| &first.input).into_iter().chain([&job.input]);
        sight.redaction(inputs.chain(&job.output))
    }
}

/// Returns a payload as JSON, if its encoding is known and it can be decoded.
fn json_of(payload: &Payload) -> Option<Box<RawValue>> {
    let text = match payload.codec().as_str() {
        "json" => String::from_utf8(payload.bytes().to_vec()).ok()?,
        "messagepack" => rmp_serde::from_slice::<serde_json::Value>(payload.bytes()).ok()?.to_string(),
        "cbor" => ciborium::from_reader::<serde_json::Value, _>(&payload.bytes()[..]).ok()?.to_string(),
        _ => return None,
    };
    RawValue::from_string(text).ok()
}

fn hex(payload: &Payload) -> String {
    payload.bytes().iter().take(BYTES_MAX).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use windlass_core::Codec;

    use super::*;

    fn rules(paths: &[&str]) -> Rules {
        let redacted = paths.iter().map(|path| RedactionPath::new(path).unwrap()).collect();
        Rules { visible_from: Role::Read, redacted }
    }

    fn shown(paths: &[&str], payload: &Payload) -> String {
        let rules = rules(paths);
        let content = rules.sight(Role::Read).content(payload);
        match (content.json, content.hidden) {
            (Some(json), None) => json.get().to_owned(),
            (None, Some(hidden)) => format!("{hidden:?}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn other_encodings_are_redacted_or_hidden() {
        let value = serde_json::json!({"a": 1, "secret": "s"});
        let redacted = r#"{"a":1,"secret":"[redacted]"}"#;
        let msgpack = rmp_serde::to_vec_named(&value).unwrap();
        let msgpack = Payload::new(Codec::new("messagepack").unwrap(), msgpack).unwrap();
        assert_eq!(shown(&["secret"], &msgpack), redacted);
        let mut cbor = Vec::new();
        ciborium::into_writer(&value, &mut cbor).unwrap();
        assert_eq!(shown(&["secret"], &Payload::new(Codec::new("cbor").unwrap(), cbor).unwrap()), redacted);
        for (codec, bytes) in [("json", "{\"secret\":"), ("cbor", "\u{7f}"), ("other", "secret")] {
            let payload = Payload::new(Codec::new(codec).unwrap(), bytes.to_owned()).unwrap();
            assert_eq!(shown(&["secret"], &payload), "Undecodable", "{codec}");
        }
    }

    #[test]
    fn deeply_nested_payloads_are_hidden_where_values_are_redacted() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(shown(&["**.a"], &Payload::json(deep).unwrap()), "Undecodable");
    }

    #[test]
    fn large_payloads_are_not_shown_in_lists() {
        let rules = rules(&["secret"]);
        let sight = rules.sight(Role::Read);
        let large = Payload::json(format!("\"{}\"", "x".repeat(LISTED_MAX_BYTES))).unwrap();
        assert!(sight.content(&large).json.is_some());
        let listed = sight.in_list().content(&large);
        assert!(listed.json.is_none() && matches!(listed.hidden, Some(Hidden::Size)));
        // What must be removed from the error is in the payload.
        assert!(sight.redaction([&large]).is_some());
        assert!(sight.in_list().redaction([&large]).is_none());
    }
}
