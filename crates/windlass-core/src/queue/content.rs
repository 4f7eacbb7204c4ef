use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// How much of the hash is kept, in bytes: enough that no two payloads ever meet by chance.
const KEPT_BYTES: usize = 16;

/// An id that follows from the payload, for those who want equal payloads to be one job: half of the SHA-256 of
/// the payload as JSON, with the keys of maps in order, as 32 hexadecimal digits.
///
/// ```
/// use windlass_core::queue::content_id;
///
/// assert_eq!(content_id(&("resize", 200))?, content_id(&("resize", 200))?);
/// assert_ne!(content_id(&("resize", 200))?, content_id(&("resize", 201))?);
/// # Ok::<(), windlass_core::Error>(())
/// ```
pub fn content_id<T: Serialize + ?Sized>(payload: &T) -> Result<String> {
    let unwritable = |error: serde_json::Error| {
        let text = format!("the payload cannot be written as JSON, so that it has no id: {error}");
        Error::new(ErrorKind::Invalid, text).with_source(error)
    };
    let json = serde_json::to_value(payload).and_then(|value| serde_json::to_vec(&ordered(value)));
    let hash = Sha256::digest(json.map_err(unwritable)?);
    let mut id = String::with_capacity(2 * KEPT_BYTES);
    for byte in hash.iter().take(KEPT_BYTES) {
        write!(id, "{byte:02x}").expect("a string takes any text");
    }
    Ok(id)
}

/// With the keys of maps in order, whatever `serde_json` is told by another package to keep them in.
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
