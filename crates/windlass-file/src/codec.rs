//! The encoding of rows and effects. `docs/file-format.md` describes it.
//!
//! Numbers are variable-length (LEB128), ids have 16 bytes, and texts and bytes are preceded by their length. Decoding
//! never trusts a length: it fails if there are fewer bytes. Every decoded value is validated in the same way as a
//! value from a client.

mod chain;
mod code;
mod job;
mod registry;
mod row;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::HashMap;
use uuid::Uuid;
use windlass_core::{Codec, ErrorText, Millis, Payload, Timestamp, TraceContext, TypeName};

pub(crate) use row::{Change, apply, encode_effect, encode_row};

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The highest valid creation number. No store can create that many jobs.
const SEQ_MAX: u64 = 1 << 62;

/// The number of cached names above which the cache is cleared. Most programs have a few dozen.
const NAMES_MAX: usize = 10_000;

type Decoded<T> = Result<T, Malformed>;

/// Appends values to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    pub(crate) fn id(&mut self, id: &Uuid) {
        self.0.extend_from_slice(id.as_bytes());
    }

    pub(crate) fn time(&mut self, time: Timestamp) {
        self.number(u64::try_from(time.as_millis()).unwrap_or(0));
    }

    pub(crate) fn span(&mut self, span: Millis) {
        self.number(span.get());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn payload(&mut self, payload: &Payload) {
        // JSON is by far the most common codec, so it is stored as an empty name.
        self.text(if payload.codec().is_json() { "" } else { payload.codec().as_str() });
        self.bytes(payload.bytes());
    }
}

/// Reads values from bytes.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
    names: &'a mut Names,
}

/// Names that were decoded before. Rows with the same type share its name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    types: HashMap<String, TypeName>,
}

impl Names {
    fn get(&mut self, text: &str) -> Decoded<TypeName> {
        if let Some(known) = self.types.get(text) {
            return Ok(known.clone());
        }
        let name = TypeName::new(text).map_err(|_| Malformed("a name is invalid"))?;
        if self.types.len() >= NAMES_MAX {
            self.types.clear();
        }
        self.types.insert(text.to_owned(), name.clone());
        Ok(name)
    }
}

impl<'a> Decoder<'a> {
    pub(crate) const fn new(bytes: &'a [u8], names: &'a mut Names) -> Self {
        Self { rest: bytes, names }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn take(&mut self, count: usize) -> Decoded<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Decoded<u8> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Decoded<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number is too large"))
    }

    pub(crate) fn small(&mut self) -> Decoded<u32> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number is too large"))
    }

    /// Reads the creation number of a row, which counts up from 1.
    pub(crate) fn row_seq(&mut self) -> Decoded<u64> {
        match self.seq()? {
            0 => Err(Malformed("a creation number is 0")),
            seq => Ok(seq),
        }
    }

    /// Reads a creation number, or 0 if none was used yet.
    pub(crate) fn seq(&mut self) -> Decoded<u64> {
        let seq = self.number()?;
        if seq < SEQ_MAX { Ok(seq) } else { Err(Malformed("a number is too large")) }
    }

    pub(crate) fn id(&mut self) -> Decoded<Uuid> {
        Uuid::from_slice(self.take(16)?).map_err(|_| Malformed("an id is invalid"))
    }

    pub(crate) fn time(&mut self) -> Decoded<Timestamp> {
        let millis = i64::try_from(self.number()?).map_err(|_| Malformed("a time is out of range"))?;
        Timestamp::from_millis(millis).map_err(|_| Malformed("a time is out of range"))
    }

    pub(crate) fn span(&mut self) -> Decoded<Millis> {
        Millis::new(self.number()?).map_err(|_| Malformed("a duration is too long"))
    }

    pub(crate) fn bytes(&mut self) -> Decoded<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed("it ends too early"))?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Decoded<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// Reads a text and checks it.
    pub(crate) fn name<T, E>(&mut self, new: impl FnOnce(&'a str) -> Result<T, E>) -> Decoded<T> {
        new(self.text()?).map_err(|_| Malformed("a name is invalid"))
    }

    pub(crate) fn type_name(&mut self) -> Decoded<TypeName> {
        let text = self.text()?;
        self.names.get(text)
    }

    pub(crate) fn payload(&mut self) -> Decoded<Payload> {
        let codec = match self.text()? {
            "" => Codec::json(),
            name => Codec::new(name).map_err(|_| Malformed("a codec is invalid"))?,
        };
        let bytes = Bytes::copy_from_slice(self.bytes()?);
        Payload::new(codec, bytes).map_err(|_| Malformed("a payload is too large"))
    }

    pub(crate) fn error(&mut self) -> Decoded<ErrorText> {
        self.text().map(ErrorText::new)
    }

    /// Reads a trace context, or an empty text if there is none.
    pub(crate) fn optional_trace(&mut self) -> Decoded<Option<TraceContext>> {
        if self.rest.first() == Some(&0) {
            self.byte()?;
            return Ok(None);
        }
        self.name(TraceContext::new).map(Some)
    }

    /// Reads a number, and as many values.
    pub(crate) fn list<T>(&mut self, decode: impl Fn(&mut Self) -> Decoded<T>) -> Decoded<Arc<[T]>> {
        let count = self.number()?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(decode(self)?);
        }
        Ok(list.into())
    }
}

/// A value that is stored as one byte.
trait Coded: Copy + Eq + 'static {
    /// All values with their bytes.
    const CODES: &'static [(u8, Self)];

    fn code(self) -> u8 {
        Self::CODES.iter().find(|(_, value)| *value == self).map_or(u8::MAX, |(code, _)| *code)
    }

    fn decode(from: &mut Decoder<'_>) -> Decoded<Self> {
        let byte = from.byte()?;
        let known = Self::CODES.iter().find(|(code, _)| *code == byte);
        known.map(|(_, value)| *value).ok_or(Malformed("a status or policy is unknown"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_values() {
        let mut encoder = Encoder::default();
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        numbers.into_iter().for_each(|number| encoder.number(number));
        let mut names = Names::default();
        let mut decoder = Decoder::new(&encoder.0, &mut names);
        for number in numbers {
            assert_eq!(decoder.number(), Ok(number));
        }
        assert!(decoder.is_empty());
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_malformed() {
        for bytes in
            [&[0xff; 10][..], &[0x80; 11], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]]
        {
            assert_eq!(
                Decoder::new(bytes, &mut Names::default()).number(),
                Err(Malformed("a number is too large"))
            );
        }
        assert!(Decoder::new(&[0x80], &mut Names::default()).number().is_err());
    }
}
