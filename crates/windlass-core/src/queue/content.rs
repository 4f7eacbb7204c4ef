//! Derives the id of a job from its payload.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// How many bytes of the hash are kept. 128 bits make accidental collisions negligible.
const KEPT_BYTES: usize = 16;

/// Derives an id from the payload, so that equal payloads are deduplicated.
///
/// The id is the first half of the SHA-256 hash of the payload as JSON, with map keys sorted, as 32
/// hexadecimal digits.
///
/// ```
/// use windlass::queue::content_id;
///
/// assert_eq!(content_id(&("resize", 200))?, content_id(&("resize", 200))?);
/// assert_ne!(content_id(&("resize", 200))?, content_id(&("resize", 201))?);
/// # Ok::<(), windlass::Error>(())
/// ```
pub fn content_id<T: Serialize + ?Sized>(payload: &T) -> Result<String> {
    let not_encodable = |error: serde_json::Error| {
        let text =
            format!("cannot derive an id from the payload, since it cannot be encoded as JSON: {error}");
        Error::new(ErrorKind::Invalid, text).with_inner(error)
    };
    let json = serde_json::to_value(payload).and_then(|value| serde_json::to_vec(&ordered(value)));
    let hash = Sha256::digest(json.map_err(not_encodable)?);
    let mut id = String::with_capacity(2 * KEPT_BYTES);
    for byte in hash.iter().take(KEPT_BYTES) {
        write!(id, "{byte:02x}").expect("writing to a `String` cannot fail");
    }
    Ok(id)
}

/// Sorts the keys of maps. Another crate may enable `serde_json`'s `preserve_order` feature, which would
/// otherwise make the id depend on insertion order.
fn ordered(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(ordered).collect(),
        Value::Object(entries) => {
            let entries = entries.into_iter().map(|(key, value)| (key, ordered(value)));
            Value::Object(entries.collect::<BTreeMap<_, _>>().into_iter().collect())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn maps_with_equal_entries_have_equal_ids() {
        let forth: HashMap<_, _> = (0..100).map(|n| (n.to_string(), n)).collect();
        let back: HashMap<_, _> = (0..100).rev().map(|n| (n.to_string(), n)).collect();
        assert_eq!(content_id(&forth).unwrap(), content_id(&back).unwrap());
    }

    #[test]
    fn ids_are_stable() {
        assert_eq!(content_id("").unwrap(), "12ae32cb1ec02d01eda3581b127c1fee");
    }
}
