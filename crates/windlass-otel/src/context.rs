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
        let text = encode(context.span().span_context())?;
        Some(text.iter().copied().map(char::from).collect())
    })
}

/// Whether this text is a valid `traceparent`.
#[must_use]
pub fn is_traceparent(text: &str) -> bool {
    decode(text).is_some()
}

/// Formats a span context, unless it is invalid. Every start does this, so it formats no numbers and allocates nothing.
fn encode(context: &SpanContext) -> Option<[u8; LENGTH]> {
    if !context.is_valid() {
        return None;
    }
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    let mut text = [b'-'; LENGTH];
    let mut at = 0;
    let mut write = |bytes: &[u8]| {
        for byte in bytes {
            if let Some([high, low]) = text.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
                (*high, *low) = (to_hex(byte >> 4), to_hex(byte & 15));
            }
            at += 2;
        }
        at += 1;
    };
    write(&[0]);
    write(&context.trace_id().to_bytes());
    write(&context.span_id().to_bytes());
    write(&[flags.to_u8()]);
    Some(text)
}

const fn to_hex(digit: u8) -> u8 {
    if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
}

/// Formats a span context as it is stored.
pub(crate) fn store(context: &SpanContext) -> Option<TraceContext> {
    TraceContext::new(str::from_utf8(&encode(context)?).ok()?).ok()
}

/// Parses a stored context. Returns `None` if it is not a valid `traceparent`.
pub(crate) fn parse(text: &TraceContext) -> Option<SpanContext> {
    decode(text.as_str())
}

fn decode(text: &str) -> Option<SpanContext> {
    let mut text = text.as_bytes();
    let [version] = read_hex(&mut text)?;
    read_dash(&mut text)?;
    let trace = TraceId::from_bytes(read_hex(&mut text)?);
    read_dash(&mut text)?;
    let span = SpanId::from_bytes(read_hex(&mut text)?);
    read_dash(&mut text)?;
    let [flags] = read_hex(&mut text)?;
    // A later version may have further parts, version 00 must not.
    let has_end = text.is_empty() || (version != 0 && text.starts_with(b"-"));
    if version == 0xff || !has_end {
        return None;
    }
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    Some(SpanContext::new(trace, span, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}

fn read_dash(text: &mut &[u8]) -> Option<()> {
    *text = text.strip_prefix(b"-")?;
    Some(())
}

/// Reads lowercase hexadecimal digits.
fn read_hex<const N: usize>(text: &mut &[u8]) -> Option<[u8; N]> {
    let (digits, rest) = text.split_at_checked(2 * N)?;
    *text = rest;
    let mut bytes = [0; N];
    let mut seen = 0;
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = <[u8; 2]>::try_from(digits).ok()?.map(from_hex);
        seen |= high | low;
        *byte = high << 4 | low & 15;
    }
    // All digits are checked at once: every start and every attempt reads a context.
    (seen < 16).then_some(bytes)
}

/// Returns the value of a digit, or [`u8::MAX`] if it is none.
const fn from_hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
