//! Texts that are read as values.

use std::time::Duration;

use windlass::{Key, Timestamp, TypeName};

/// A duration: `90s`, `5m`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like `90s`, `5m` or `1h 30m`"))
}

/// A point in time as RFC 3339 has it, in UTC; the time of day may be left out.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    let full = if text.contains(['T', 't', ' ']) { text.to_owned() } else { format!("{text}T00:00:00Z") };
    let parsed = humantime::parse_rfc3339_weak(&full).map(Timestamp::from);
    parsed.map_err(|error| format!("{error}; write it in UTC like `2026-11-15T06:00:00Z`"))
}

/// The name of a job type or queue.
pub(crate) fn type_name(text: &str) -> Result<TypeName, String> {
    TypeName::new(text).map_err(|refusal| refusal.to_string())
}

/// A deduplication key.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).map_err(|refusal| refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_read_as_people_write_them() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        assert!(duration("soon").unwrap_err().contains("write it like"));
        let midnight = time("2026-11-15").unwrap();
        assert_eq!(midnight.to_string(), "2026-11-15T00:00:00.000Z");
        assert_eq!(time("2026-11-15T00:00:00Z"), Ok(midnight));
        assert_eq!(time("2026-11-15 00:00:00"), Ok(midnight));
        assert!(time("tomorrow").unwrap_err().contains("write it in UTC"));
    }
}
