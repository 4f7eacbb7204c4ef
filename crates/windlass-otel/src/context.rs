//! Trace contexts as text: the `traceparent` of W3C Trace Context.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use windlass_core::TraceContext;

/// Returns the current OpenTelemetry context as a `traceparent`, or `None` if there is no span. In a handler, this is the
/// span of its attempt. Pass it to programs that the handler starts, in the environment variable `TRACEPARENT`.
#[must_use]
pub fn current_traceparent() -> Option<String> {
    Context::map_current(|context| encode(context.span().span_context()))
}

/// Whether this text is a valid `traceparent`.
#[must_use]
pub fn is_traceparent(text: &str) -> bool {
    decode(text).is_some()
}

/// Formats a span context, unless it is invalid.
pub(crate) fn encode(context: &SpanContext) -> Option<String> {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    context
        .is_valid()
        .then(|| format!("00-{:032x}-{:016x}-{:02x}", context.trace_id(), context.span_id(), flags.to_u8()))
}

/// Formats a span context as it is stored.
pub(crate) fn store(context: &SpanContext) -> Option<TraceContext> {
    TraceContext::new(encode(context)?).ok()
}

/// Parses a stored context. Returns `None` if it is not a valid `traceparent`.
pub(crate) fn parse(text: &TraceContext) -> Option<SpanContext> {
    decode(text.as_str())
}

fn decode(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    // A later version may have further parts, version 00 must not.
    let is_known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !is_known || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, TraceState::default())).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_contexts_round_trip_and_others_are_ignored() {
        let check = |text: &str| {
            let context = TraceContext::new(text).unwrap();
            parse(&context).and_then(|context| encode(&context))
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
