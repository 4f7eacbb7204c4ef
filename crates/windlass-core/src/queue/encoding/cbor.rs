//! CBOR, as an encoding of payloads and results.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Encoding;
use crate::name::Codec;
use crate::worker::BoxError;

/// CBOR (RFC 8949): compact, with native byte strings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cbor;

impl<T: Serialize + DeserializeOwned> Encoding<T> for Cbor {
    fn codec(&self) -> Codec {
        Codec::new("cbor").expect("`cbor` is a valid codec name")
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, BoxError> {
        let mut bytes = Vec::new();
        ciborium::into_writer(value, &mut bytes)?;
        Ok(bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        Ok(ciborium::from_reader(bytes)?)
    }
}
