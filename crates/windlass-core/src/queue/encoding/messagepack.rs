//! MessagePack, as an encoding of payloads and results.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Encoding;
use crate::name::Codec;
use crate::worker::BoxError;

/// MessagePack: compact, with native byte strings. Structs are stored with field names, so fields can be
/// added later.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessagePack;

impl<T: Serialize + DeserializeOwned> Encoding<T> for MessagePack {
    fn codec(&self) -> Codec {
        Codec::new("messagepack").expect("`messagepack` is a valid codec name")
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, BoxError> {
        Ok(rmp_serde::to_vec_named(value)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        Ok(rmp_serde::from_slice(bytes)?)
    }
}
