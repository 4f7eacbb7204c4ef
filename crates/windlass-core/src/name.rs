//! Texts that users choose. Each type validates its text on construction, so stores only ever receive valid
//! ones.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::limit::{CODEC_MAX_BYTES, ERROR_MAX_BYTES, KEY_MAX_BYTES, NAME_MAX_BYTES};
use crate::refusal::Refusal;

mod trace_context;

pub use trace_context::TraceContext;

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates the name from `text`.
            ///
            /// # Errors
            ///
            /// A [`Refusal`] if `text` is not valid for this type.
            pub fn new(text: impl AsRef<str>) -> Result<Self, Refusal> {
                let text = text.as_ref();
                let check: fn(&str) -> Result<(), Refusal> = $check;
                check(text)?;
                Ok(Self(text.into()))
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Refusal;

            fn try_from(text: &str) -> Result<Self, Refusal> {
                Self::new(text)
            }
        }
    };
}

text! {
    /// The name of a job type or queue: 1 to 200 bytes without control characters.
    TypeName, check_name
}
text! {
    /// A deduplication key: 1 to 1,000 bytes of any text without NUL. Keys are opaque and compared byte by
    /// byte.
    Key, |text| match text.len() {
        0 => Err(Refusal::KeyEmpty),
        length if length > KEY_MAX_BYTES => Err(Refusal::KeyTooLong),
        _ if text.contains('\0') => Err(Refusal::KeyWithNul),
        _ => Ok(()),
    }
}
text! {
    /// The name of a leader lock: 1 to 200 bytes without control characters.
    LockName, check_name
}
text! {
    /// The name of a worker: 1 to 200 bytes without control characters.
    WorkerName, check_name
}
text! {
    /// The name of a schedule: 1 to 200 bytes without control characters.
    ScheduleName, check_name
}
text! {
    /// The name of a payload's encoding: 1 to 32 bytes of lowercase letters, digits and `-`.
    Codec, |text| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if text.is_empty() || text.len() > CODEC_MAX_BYTES || !text.bytes().all(plain) {
            Err(Refusal::CodecInvalid)
        } else {
            Ok(())
        }
    }
}

/// Whether a text contains control characters. Every name and trace context of a reply is checked, and most are ASCII.
fn has_control(text: &str) -> bool {
    if text.is_ascii() {
        // Without an early end, so that the compiler can check many bytes at once.
        text.bytes().fold(false, |found, byte| found | byte.is_ascii_control())
    } else {
        text.contains(char::is_control)
    }
}

fn check_name(text: &str) -> Result<(), Refusal> {
    match text.len() {
        0 => Err(Refusal::NameEmpty),
        length if length > NAME_MAX_BYTES => Err(Refusal::NameTooLong),
        _ if has_control(text) => Err(Refusal::NameWithControl),
        _ => Ok(()),
    }
}

impl TypeName {
    /// Whether this is the same name. Most names that are compared share their text.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self == other
    }

    /// Like [`new`](Self::new), for the name of a declared job type. Jobs of one type that a thread creates one after
    /// the other share an allocation.
    pub(crate) fn declared(name: &'static str) -> Result<Self, Refusal> {
        thread_local! {
            static LATEST: RefCell<Option<(&'static str, TypeName)>> = const { RefCell::new(None) };
        }
        LATEST.with_borrow_mut(|latest| match latest {
            Some((known, shared)) if std::ptr::eq(*known, name) => Ok(shared.clone()),
            _ => {
                let new = Self::new(name)?;
                *latest = Some((name, new.clone()));
                Ok(new)
            }
        })
    }
}

impl Codec {
    /// Returns the codec for JSON, the default.
    #[must_use]
    pub fn json() -> Self {
        // Nearly every payload is JSON, so they share one allocation.
        static JSON: LazyLock<Codec> = LazyLock::new(|| Codec("json".into()));
        JSON.clone()
    }

    /// Whether this is the codec for JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.as_str() == "json"
    }
}

/// The text of an error: at most 10,000 bytes, without NUL, which some stores cannot hold.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ErrorText(Arc<str>);

const SHORTENED: &str = " … (shortened)";

impl ErrorText {
    /// Creates the text. Shortens it if it is too long, and replaces NUL characters.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        // Cut before copying, so that the cost of a huge text is bounded by the part that is kept.
        let start = &text[..text.floor_char_boundary(ERROR_MAX_BYTES)];
        let mut owned = start.replace('\0', "\u{fffd}");
        if start.len() < text.len() || owned.len() > ERROR_MAX_BYTES {
            owned.truncate(owned.floor_char_boundary(ERROR_MAX_BYTES - SHORTENED.len()));
            owned.push_str(SHORTENED);
        }
        Self(owned.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_are_bounded() {
        assert_eq!(TypeName::new(""), Err(Refusal::NameEmpty));
        assert_eq!(TypeName::new("x".repeat(201)), Err(Refusal::NameTooLong));
        assert_eq!(TypeName::new("a\nb"), Err(Refusal::NameWithControl));
        assert!(TypeName::new("a:b{c}/../d 'e' — f").is_ok());
        assert_eq!(Key::new(""), Err(Refusal::KeyEmpty));
        assert_eq!(Key::new("x".repeat(10_000)), Err(Refusal::KeyTooLong));
        assert_eq!(Key::new("a\0b"), Err(Refusal::KeyWithNul));
        assert!(Key::new("a:{b}\n/../c'").is_ok());
        assert_eq!(Codec::new("JSON"), Err(Refusal::CodecInvalid));
    }

    #[test]
    fn shortened_error_texts_end_with_a_marker() {
        let long = ErrorText::new("ß".repeat(ERROR_MAX_BYTES));
        assert!(long.as_str().len() <= ERROR_MAX_BYTES);
        assert!(long.as_str().ends_with("(shortened)"));
        assert_eq!(ErrorText::new("a\0b").as_str(), "a\u{fffd}b");
        assert!(ErrorText::new("\0".repeat(ERROR_MAX_BYTES)).as_str().len() <= ERROR_MAX_BYTES);
        assert_eq!(ErrorText::new("boom").as_str(), "boom");
    }
}
