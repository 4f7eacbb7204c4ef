//! What jobs take and give.

use std::fmt;

use bytes::Bytes;

use crate::limit::PAYLOAD_MAX_BYTES;
use crate::name::Codec;
use crate::refusal::Refusal;

/// Encoded bytes and the name of their encoding. Stores keep the bytes exactly and never look into them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload {
    codec: Codec,
    bytes: Bytes,
}

impl Payload {
    /// The bytes in this encoding; refused above 4 MiB.
    pub fn new(codec: Codec, bytes: impl Into<Bytes>) -> Result<Self, Refusal> {
        let bytes = bytes.into();
        if bytes.len() > PAYLOAD_MAX_BYTES {
            Err(Refusal::PayloadTooLarge)
        } else {
            Ok(Self { codec, bytes })
        }
    }

    /// JSON text.
    pub fn json(text: impl Into<Bytes>) -> Result<Self, Refusal> {
        Self::new(Codec::json(), text)
    }

    /// The encoding.
    #[must_use]
    pub const fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The encoded bytes.
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
