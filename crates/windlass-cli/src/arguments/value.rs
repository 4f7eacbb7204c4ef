//! Parsers for argument values.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass::ChainId;
use windlass::name::{Key, TypeName};
use windlass::time::Timestamp;

/// Parses a duration like `90s`, `5m` or `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("invalid duration `{text}`: use a form like `90s`, `5m` or `1h 30m`"))
}

/// Parses a UTC time in RFC 3339 format. The time of day is optional and defaults to midnight.
pub(crate) fn time(text: &str) -> Result<Timestamp, String> {
    let full = if text.contains(['T', 't', ' ']) { text.to_owned() } else { format!("{text}T00:00:00Z") };
    let parsed = humantime::parse_rfc3339_weak(&full).map(Timestamp::from);
    parsed.map_err(|_| format!("invalid time `{text}`: use RFC 3339 in UTC, like `2026-11-15T06:00:00Z`"))
}

/// Parses a time like [`time`], or an age like `2h`: the time that long ago.
pub(crate) fn past_time(text: &str) -> Result<Timestamp, String> {
    if let Ok(age) = humantime::parse_duration(text) {
        return Ok(SystemTime::now().checked_sub(age).unwrap_or(UNIX_EPOCH).into());
    }
    time(text).map_err(|error| format!("{error}, or an age like `2h`"))
}

/// Parses the id of a chain.
pub(crate) fn chain_id(text: &str) -> Result<ChainId, String> {
    let error = || format!("invalid id `{text}`: use a UUID like `019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11`");
    text.parse().map_err(|_| error())
}

/// Accepts any shell command that is not blank.
pub(crate) fn shell_command(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("the command is empty: name the command to run for each job".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses the name of a job type or queue.
pub(crate) fn type_name(text: &str) -> Result<TypeName, String> {
    TypeName::new(text).map_err(|refusal| refusal.to_string())
}

/// Parses a deduplication key.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::new(text).map_err(|refusal| refusal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_parsed() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5_400)));
        assert!(duration("soon").unwrap_err().contains("invalid duration `soon`"));
        let midnight = time("2026-11-15").unwrap();
        assert_eq!(midnight.to_string(), "2026-11-15T00:00:00.000Z");
        assert_eq!(time("2026-11-15T00:00:00Z"), Ok(midnight));
        assert_eq!(time("2026-11-15 00:00:00"), Ok(midnight));
        assert!(time("tomorrow").unwrap_err().contains("in UTC"));
    }

    #[test]
    fn a_past_time_is_a_time_or_an_age() {
        assert_eq!(past_time("2026-11-15"), time("2026-11-15"));
        let (earliest, parsed, latest) = (Timestamp::now(), past_time("2h").unwrap(), Timestamp::now());
        let two_hours = Duration::from_secs(7_200);
        assert!(earliest <= parsed + two_hours && parsed + two_hours <= latest, "{parsed}");
        assert_eq!(past_time("10000y").unwrap().as_millis(), 0);
        assert!(past_time("tomorrow").unwrap_err().contains("or an age like `2h`"));
    }
}
