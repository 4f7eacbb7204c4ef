use std::fmt;
use std::sync::Arc;

use super::has_control;
use crate::limit::TRACE_MAX_BYTES;
use crate::refusal::Refusal;

/// A W3C trace context as text: 1 to 512 bytes without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext(Arc<str>);

impl TraceContext {
    /// Creates the context from `text`.
    ///
    /// # Errors
    ///
    /// [`Refusal::TraceInvalid`] if `text` is not valid.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Refusal> {
        let text = text.as_ref();
        if text.is_empty() || text.len() > TRACE_MAX_BYTES || has_control(text) {
            return Err(Refusal::TraceInvalid);
        }
        Ok(Self(text.into()))
    }

    /// Formats a `traceparent` of version 00.
    #[must_use]
    pub fn traceparent(trace_id: [u8; 16], span_id: [u8; 8], is_sampled: bool) -> Self {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let (high, low) = split(trace_id);
        text[3..19].copy_from_slice(&hex(high));
        text[19..35].copy_from_slice(&hex(low));
        text[36..52].copy_from_slice(&hex(u64::from_be_bytes(span_id)));
        text[54] += u8::from(is_sampled);
        Self(str::from_utf8(&text).expect("hexadecimal digits and dashes are ASCII").into())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const fn split(trace_id: [u8; 16]) -> (u64, u64) {
    let trace_id = u128::from_be_bytes(trace_id);
    ((trace_id >> 64) as u64, trace_id as u64)
}

/// Formats a number as lowercase hexadecimal digits: eight at once, because every chain has a context.
fn hex(number: u64) -> [u8; 16] {
    let (high, low) = (digits(number >> 32).to_be_bytes(), digits(number & 0xffff_ffff).to_be_bytes());
    let mut text = [0; 16];
    text[..8].copy_from_slice(&high);
    text[8..].copy_from_slice(&low);
    text
}

/// Returns the digits of a number of 32 bits, one in each byte.
const fn digits(number: u64) -> u64 {
    /// The same number in each of the eight bytes.
    const fn each(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    // Move the halves of bytes apart: eights, then fours, then pairs.
    let fours = (number | number << 16) & 0x0000_ffff_0000_ffff;
    let pairs = (fours | fours << 8) & 0x00ff_00ff_00ff_00ff;
    let values = (pairs | pairs << 4) & each(0x0f);
    // The letters begin later than the digits end.
    let letters = (values + each(6)) >> 4 & each(1);
    values + each(b'0') + letters * (b'a' - b'0' - 10) as u64
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl AsRef<str> for TraceContext {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl TryFrom<&str> for TraceContext {
    type Error = Refusal;

    fn try_from(text: &str) -> Result<Self, Refusal> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_texts() {
        assert_eq!(TraceContext::new("a\nb"), Err(Refusal::TraceInvalid));
        assert_eq!(TraceContext::new("a\u{85}b"), Err(Refusal::TraceInvalid));
        assert_eq!(TraceContext::new(""), Err(Refusal::TraceInvalid));
        assert_eq!(TraceContext::new("x".repeat(513)), Err(Refusal::TraceInvalid));
    }

    #[test]
    fn a_traceparent_has_the_w3c_format() {
        let (trace, span) = (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128, 0x00f0_67aa_0ba9_02b7_u64);
        let text =
            |is_sampled| TraceContext::traceparent(trace.to_be_bytes(), span.to_be_bytes(), is_sampled);
        assert_eq!(text(true).as_str(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert_eq!(text(false).as_str(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
        assert_eq!(TraceContext::new(text(true).as_str()), Ok(text(true)));
        for number in [0, u64::MAX, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210] {
            assert_eq!(str::from_utf8(&hex(number)).unwrap(), format!("{number:016x}"));
        }
    }
}
