//! Encoded inputs and outputs of jobs.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::limit::PAYLOAD_MAX_BYTES;
use crate::name::Codec;
use crate::refusal::Refusal;

/// Encoded bytes and the name of their encoding. Stores keep the bytes exactly and never interpret them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload {
    codec: Codec,
    bytes: Bytes,
}

impl Payload {
    /// Creates a payload from encoded bytes.
    ///
    /// # Errors
    ///
    /// [`Refusal::PayloadTooLarge`] above 4 MiB.
    pub fn new(codec: Codec, bytes: impl Into<Bytes>) -> Result<Self, Refusal> {
        let bytes = bytes.into();
        if bytes.len() > PAYLOAD_MAX_BYTES {
            Err(Refusal::PayloadTooLarge)
        } else {
            Ok(Self { codec, bytes })
        }
    }

    /// Creates a payload from JSON text. Does not check that the text is valid JSON.
    ///
    /// # Errors
    ///
    /// [`Refusal::PayloadTooLarge`] above 4 MiB.
    pub fn json(text: impl Into<Bytes>) -> Result<Self, Refusal> {
        Self::new(Codec::json(), text)
    }

    /// Encodes a value as JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the value cannot be serialized or its encoding is larger than 4 MiB.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let bytes = serde_json::to_vec(value).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("cannot encode the value as JSON: {error}"))
                .with_inner(error)
        })?;
        Ok(Self::json(bytes)?)
    }

    /// Decodes the value from JSON.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the payload has another encoding or cannot be deserialized as `T`.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        if !self.codec.is_json() {
            let text = format!("the payload is encoded as `{}`, expected JSON", self.codec);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        serde_json::from_slice(&self.bytes).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("cannot decode the stored payload: {error}"))
                .with_inner(error)
        })
    }

    /// Returns the name of the encoding.
    #[must_use]
    pub const fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Returns the encoded bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        let shown = self.bytes.slice(..self.bytes.len().min(SHOWN));
        let rest = if self.bytes.len() > SHOWN { "…" } else { "" };
        write!(f, "{}:{:?}{rest}", self.codec, shown)
    }
}
