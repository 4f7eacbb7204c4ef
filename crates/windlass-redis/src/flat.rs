//! Flat arguments and replies of the scripts' short paths.

use std::fmt::Display;
use std::io::Write;

use redis::{FromRedisValue, Value};
use windlass_core::{Payload, Result, Timestamp};

use crate::error::{corrupt, from_driver};

/// Maximum size of an input that a short path creates. `lua/lib/layout.lua` marks larger ones, codec included.
pub(crate) const INPUT_MAX_BYTES: usize = 16 * 1024 - 64;

/// Flat arguments. The first one is empty, which distinguishes them from a MessagePack request.
#[derive(Debug)]
pub(crate) struct Arguments(Vec<Vec<u8>>);

impl Arguments {
    /// `now` is the time to use, or `None` for the server's clock.
    pub(crate) fn new(now: Option<i64>) -> Self {
        let now = now.map(|now| now.to_string()).unwrap_or_default();
        Self(vec![Vec::new(), now.into_bytes()])
    }

    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) {
        self.0.push(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.0.push(text.as_bytes().to_vec());
    }

    pub(crate) fn number(&mut self, number: &impl ToString) {
        self.0.push(number.to_string().into_bytes());
    }

    pub(crate) fn with(mut self, more: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        self.0.extend(more);
        self.0
    }
}

/// Appends the text of an id.
pub(crate) fn push_id(to: &mut Vec<u8>, id: impl Display) {
    write!(to, "{id}").expect("writing to memory succeeds");
}

/// A payload as it is stored: the codec's name, a colon, and the bytes.
pub(crate) fn payload(payload: &Payload) -> Vec<u8> {
    let codec = payload.codec().as_str().as_bytes();
    let mut bytes = Vec::with_capacity(codec.len() + 1 + payload.bytes().len());
    bytes.extend_from_slice(codec);
    bytes.push(b':');
    bytes.extend_from_slice(payload.bytes());
    bytes
}

/// Reads a time.
pub(crate) fn time(value: Option<Value>) -> Result<Timestamp> {
    match value {
        Some(Value::Int(millis)) => Timestamp::from_millis(millis).map_err(corrupt),
        value => Err(corrupt(format!("a script replied with {value:?} instead of a time"))),
    }
}

/// Reads a byte string, or `None`.
pub(crate) fn string(value: Option<Value>) -> Result<Option<Vec<u8>>> {
    Option::from_redis_value(value.unwrap_or(Value::Nil)).map_err(|error| from_driver(error.into()))
}

/// Reads a list of byte strings.
pub(crate) fn strings(value: Option<Value>) -> Result<Vec<Vec<u8>>> {
    Vec::from_redis_value(value.unwrap_or(Value::Nil)).map_err(|error| from_driver(error.into()))
}
