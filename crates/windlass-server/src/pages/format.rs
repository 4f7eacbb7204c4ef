//! Numbers and durations for people.

/// Returns a number with separators: `1 234 567`, with narrow spaces that do not break.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Returns a duration in its two largest units: `3 min 5 s`.
pub(super) fn duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    if ms < 10_000 {
        return format!("{}.{} s", ms / 1_000, ms % 1_000 / 100);
    }
    let index = UNITS.iter().position(|(unit, _)| ms >= *unit).unwrap_or(UNITS.len() - 1);
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, name) in UNITS.iter().skip(index).take(2) {
        if rest >= *unit {
            parts.push(format!("{} {name}", rest / unit));
        }
        rest %= unit;
    }
    parts.join(" ")
}

/// Returns a rate or a level with few digits: `0.4`, `12`, `1.2k`.
pub(super) fn compact(value: f64) -> String {
    match value {
        value if value >= 999_500.0 => format!("{:.1}M", value / 1e6),
        value if value >= 9_950.0 => format!("{:.0}k", value / 1e3),
        value if value >= 999.5 => format!("{:.1}k", value / 1e3),
        value if value >= 9.95 || value == value.trunc() => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Returns the singular or plural of a noun, with its number.
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(count), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_are_short() {
        assert_eq!(number(1_234_567).replace('\u{202f}', " "), "1 234 567");
        assert_eq!(number(999), "999");
        let expected = [
            (0, "0 ms"),
            (1_500, "1.5 s"),
            (59_000, "59 s"),
            (185_000, "3 min 5 s"),
            (7_200_000, "2 h"),
            (90_061_000, "1 d 1 h"),
        ];
        for (ms, text) in expected {
            assert_eq!(duration(ms), text);
        }
        for (value, text) in [(0.0, "0"), (0.44, "0.4"), (12.3, "12"), (1_234.0, "1.2k"), (12_345.0, "12k")] {
            assert_eq!(compact(value), text);
        }
        assert_eq!((counted(1, "job").as_str(), counted(2, "job").as_str()), ("1 job", "2 jobs"));
    }
}
