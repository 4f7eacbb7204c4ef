//! Encodings of payloads and results: JSON, and CBOR and MessagePack behind features.

#[cfg(feature = "cbor")]
mod cbor;
#[cfg(feature = "messagepack")]
mod messagepack;

use bytes::Bytes;
#[cfg(feature = "cbor")]
pub use cbor::Cbor;
#[cfg(feature = "messagepack")]
pub use messagepack::MessagePack;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::name::Codec;
use crate::payload::Payload;
use crate::worker::BoxError;

/// Encodes and decodes values of a type.
///
/// Every store keeps the bytes exactly, together with the name of their encoding. If a consumer uses a different
/// encoding, the attempt fails with an error that names both, and the job is retried.
///
/// ```
/// use windlass::name::Codec;
/// use windlass::queue::Encoding;
/// use windlass::{BoxError, Client, MemoryStore};
///
/// #[derive(Clone)]
/// struct Plain;
///
/// impl Encoding<String> for Plain {
///     fn codec(&self) -> Codec {
///         Codec::new("plain").expect("the name is valid")
///     }
///     fn encode(&self, text: &String) -> Result<Vec<u8>, BoxError> {
///         Ok(text.clone().into_bytes())
///     }
///     fn decode(&self, bytes: &[u8]) -> Result<String, BoxError> {
///         Ok(String::from_utf8(bytes.to_vec())?)
///     }
/// }
///
/// let client = Client::new(MemoryStore::new());
/// let echo = client.queue_with::<String, String>("echo", Plain).build();
/// # assert!(echo.is_ok());
/// ```
pub trait Encoding<T>: Send + Sync + 'static {
    /// Returns the name of the encoding, which is stored with the bytes.
    fn codec(&self) -> Codec;

    /// Encodes a value.
    fn encode(&self, value: &T) -> Result<Vec<u8>, BoxError>;

    /// Decodes a value.
    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError>;
}

/// JSON, the default: human-readable in every store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<T: Serialize + DeserializeOwned> Encoding<T> for Json {
    fn codec(&self) -> Codec {
        Codec::json()
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, BoxError> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// Encodes a value for storage.
pub(super) fn write<T: 'static>(encoding: &dyn Encoding<T>, value: &T) -> Result<Payload> {
    let codec = encoding.codec();
    let bytes = catch_panic(|| encoding.encode(value)).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("cannot encode the value as `{codec}`: {error}"))
            .with_inner(error)
    })?;
    Ok(Payload::new(codec, Bytes::from(bytes))?)
}

/// Decodes a stored value.
pub(super) fn read<T: 'static>(encoding: &dyn Encoding<T>, payload: &Payload) -> Result<T> {
    let (stored, codec) = (payload.codec(), encoding.codec());
    if *stored != codec {
        let text = format!(
            "the payload is encoded as `{stored}`, but this queue decodes `{codec}`: use one encoding on both sides"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    catch_panic(|| encoding.decode(payload.bytes())).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("cannot decode the stored `{codec}`: {error}"))
            .with_inner(error)
    })
}

/// Converts a panic of the encoding into an error.
fn catch_panic<T>(call: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    called.unwrap_or_else(|_| Err("the encoding panicked".into()))
}
