//! Trace contexts as text: the `traceparent` of W3C Trace Context.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use windlass_core::TraceContext;

/// The length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// Returns the current OpenTelemetry context as a `traceparent`, or `None` if there is no current span. In a handler, the
/// current span is that of the attempt. To continue the trace in a program that the handler starts, pass the value in the
/// environment variable `TRACEPARENT`.
#[must_use]
pub fn current_traceparent() -> Option<String> {
    Context::map_current(|context| {
        let stored = store(context.span().span_context())?;
        Some(stored.as_str().to_owned())
    })
}

/// Whether this text is a valid `traceparent`.
#[must_use]
pub fn is_traceparent(text: &str) -> bool {
    decode(text.as_bytes()).is_some()
}

/// Formats a span context as it is stored, unless it is invalid.
pub(crate) fn store(context: &SpanContext) -> Option<TraceContext> {
    let (trace, span) = (context.trace_id().to_bytes(), context.span_id().to_bytes());
    context.is_valid().then(|| TraceContext::traceparent(trace, span, context.is_sampled()))
}

/// Parses a stored context. Returns `None` if it is not a valid `traceparent`.
pub(crate) fn parse(text: &TraceContext) -> Option<SpanContext> {
    decode(text.as_str().as_bytes())
}

/// Whether a stored context is that of a chain which is not sampled, as nearly all are. Several events of each job are
/// skipped because of this, so it must be cheap: the ids are not checked.
pub(crate) fn is_unsampled(text: &TraceContext) -> bool {
    let text = text.as_str().as_bytes();
    matches!(text, [b'0', b'0', b'-', _, .., b'-', b'0', b'0'] if text.len() == LENGTH)
}

fn decode(text: &[u8]) -> Option<SpanContext> {
    let (text, rest) = text.split_first_chunk::<LENGTH>()?;
    let [v1, v2, b'-', ids @ .., b'-', f1, f2] = text else { return None };
    let (trace, ids) = ids.split_first_chunk::<32>()?;
    let (b'-', span) = ids.split_first()? else { return None };
    // The version and the flags, in one number.
    let numbers = from_hex([b'0', b'0', b'0', b'0', *v1, *v2, *f1, *f2])?;
    let (version, flags) = (numbers >> 8, numbers as u8);
    let (trace, span) = (from_hex_all(trace)?, from_hex_all(span)?);
    // A later version may have further parts, version 00 must not.
    let has_end = rest.is_empty() || (version != 0 && rest.starts_with(b"-"));
    if version == 0xff || !has_end {
        return None;
    }
    let (trace, span) = (TraceId::from(trace), SpanId::from(span as u64));
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    Some(SpanContext::new(trace, span, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}

fn from_hex_all(digits: &[u8]) -> Option<u128> {
    let (parts, _) = digits.as_chunks();
    parts.iter().try_fold(0, |number, part| Some(number << 32 | u128::from(from_hex(*part)?)))
}

/// Parses eight lowercase hexadecimal digits at once: every attempt reads a context.
fn from_hex(digits: [u8; 8]) -> Option<u32> {
    /// The same number in each of the eight bytes.
    const fn each(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    let digits = u64::from_be_bytes(digits);
    // The letters have bit 6, and `a` is 1 in the lower half of the byte.
    let values = (digits & each(0x0f)) + 9 * (digits >> 6 & each(1));
    // The input is valid if encoding the values returns the same digits. Values above 15 are invalid.
    let letters = (values + each(6)) >> 4 & each(1);
    let are_valid = values + each(b'0') + letters * u64::from(b'a' - b'0' - 10) == digits;
    if !are_valid || values & each(0xf0) != 0 {
        return None;
    }
    // Move the halves of bytes together: pairs, then fours, then eights.
    let pairs = (values | values >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    u32::try_from((fours | fours >> 16) & 0xffff_ffff).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_parsed() {
        assert_eq!(from_hex(*b"0123cdef"), Some(0x0123_cdef));
        assert_eq!(from_hex(*b"456789ab"), Some(0x4567_89ab));
        for byte in 0..=u8::MAX {
            for position in 0..8 {
                let mut digits = *b"89abcdef";
                digits[position] = byte;
                let expected = str::from_utf8(&digits).ok().filter(|_| !b"ABCDEF+".contains(&byte));
                let expected = expected.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                assert_eq!(from_hex(digits), expected, "{digits:?}");
            }
        }
    }

    #[test]
    fn valid_contexts_round_trip_and_others_are_ignored() {
        let check = |text: &str| -> Option<String> {
            let context = TraceContext::new(text).unwrap();
            let stored = store(&parse(&context)?)?;
            Some(stored.as_str().to_owned())
        };
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for flags in ["00", "01"] {
            let text = format!("00-{trace}-{span}-{flags}");
            assert_eq!(check(&text), Some(text.clone()));
        }
        let unsampled = |text: &str| is_unsampled(&TraceContext::new(text).unwrap());
        assert!(unsampled(&format!("00-{trace}-{span}-00")));
        assert!(!unsampled(&format!("00-{trace}-{span}-01")) && !unsampled("00-00"));
        assert!(!unsampled(&format!("cc-{trace}-{span}-00")), "its flags may mean something else");
        for malformed in [
            format!("00-{trace}0{span}-00"),
            format!("00-{}-{span}-00", trace.to_uppercase()),
            format!("00-{trace}-{}-00", span.replace('f', "g")),
            format!("00-{}-{span}-00", "0".repeat(32)),
            format!("00-{trace}-{}-00", "0".repeat(16)),
            format!("00-{}-00", "x".repeat(49)),
        ] {
            assert!(check(&malformed).is_none(), "{malformed}");
        }
        let sampled = Some(format!("00-{trace}-{span}-01"));
        assert_eq!(check(&format!("00-{trace}-{span}-ff")), sampled, "unknown flags are dropped");
        assert_eq!(check(&format!("cc-{trace}-{span}-01-what-the-future")), sampled, "a later version");
        let zeros = "0".repeat(32);
        for malformed in [
            "nonsense".to_owned(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{zeros}-{span}-01"),
            format!("00-{trace}-{}-01", &zeros[..16]),
            format!("00-{trace}é-{span}-01"),
            "-".repeat(512),
            "a".repeat(512),
        ] {
            assert_eq!(check(&malformed), None, "{malformed}");
        }
    }
}
