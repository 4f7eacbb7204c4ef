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

/// How values of a type become bytes, and bytes values. The bytes stay exact in every store, with the name of
/// their encoding: a consumer that reads another one fails that job, and says so.
///
/// ```
/// use windlass_core::queue::Encoding;
/// use windlass_core::{BoxError, Client, Codec, MemoryStore};
///
/// #[derive(Clone)]
/// struct Plain;
///
/// impl Encoding<String> for Plain {
///     fn codec(&self) -> Codec {
///         Codec::new("plain").expect("the name is good")
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
    /// Its name, which is stored with the bytes.
    fn codec(&self) -> Codec;

    /// The bytes of a value.
    fn encode(&self, value: &T) -> Result<Vec<u8>, BoxError>;

    /// The value of bytes.
    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError>;
}

/// JSON, the default: readable in every store.
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

/// A value as it is stored.
pub(super) fn write<T: 'static>(encoding: &dyn Encoding<T>, value: &T) -> Result<Payload> {
    let codec = encoding.codec();
    let bytes = unless_it_panics(|| encoding.encode(value)).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the value cannot be written as `{codec}`: {error}"))
            .with_source(error)
    })?;
    Ok(Payload::new(codec, Bytes::from(bytes))?)
}

/// What was stored.
pub(super) fn read<T: 'static>(encoding: &dyn Encoding<T>, payload: &Payload) -> Result<T> {
    let (stored, codec) = (payload.codec(), encoding.codec());
    if *stored != codec {
        let text = format!(
            "the payload is encoded as `{stored}`, and this queue reads `{codec}`: give both sides one encoding"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    unless_it_panics(|| encoding.decode(payload.bytes())).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the stored `{codec}` cannot be read: {error}"))
            .with_source(error)
    })
}

/// An encoding that panics fails for good, like one that gives an error: the next attempt would meet the same.
fn unless_it_panics<T>(call: impl FnOnce() -> Result<T, BoxError>) -> Result<T, BoxError> {
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    called.unwrap_or_else(|_| Err("the encoding panicked".into()))
}
