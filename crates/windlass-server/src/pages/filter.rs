//! The parameters of a page: its filters, as they are in its address.

use std::time::{Duration, SystemTime};

use axum::http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use windlass_core::Timestamp;

use crate::api::Problem;
use crate::api::wire::shortened;

/// Characters that need no encoding in a path or a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Encodes a part of a path, or a value in a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// The parameters of a page, without those that are empty: a form sends all its fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Pairs(Vec<(String, String)>);

/// The periods that a list can be limited to: name, description and seconds.
pub(super) const PERIODS: [(&str, &str, u64); 5] = [
    ("15m", "last 15 minutes", 15 * 60),
    ("1h", "last hour", 3_600),
    ("24h", "last 24 hours", 86_400),
    ("7d", "last 7 days", 7 * 86_400),
    ("30d", "last 30 days", 30 * 86_400),
];

impl Pairs {
    pub(super) fn of(uri: &Uri) -> Self {
        let pairs: Vec<(String, String)> =
            serde_html_form::from_str(uri.query().unwrap_or_default()).unwrap_or_default();
        // Keys and types are exact: spaces at their ends count.
        let is_exact = |name: &str| ["key", "type", "chain_type"].contains(&name);
        let used = pairs.into_iter().map(|(name, value)| {
            let value = if is_exact(&name) { value } else { value.trim().to_owned() };
            (name, value)
        });
        Self(used.filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a parameter that can be repeated.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the parameters with another value of one of them, or without it.
    pub(super) fn with(&self, name: &str, value: Option<&str>) -> Self {
        let mut pairs = self.0.clone();
        pairs.retain(|(known, _)| known != name);
        pairs.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        Self(pairs)
    }

    /// Returns the parameters without one value of one of them.
    pub(super) fn without(&self, name: &str, value: &str) -> Self {
        let mut pairs = self.0.clone();
        pairs.retain(|(known, is)| (known.as_str(), is.as_str()) != (name, value));
        Self(pairs)
    }

    /// Returns the query with its question mark, or nothing.
    pub(super) fn query(&self) -> String {
        let pair = |(name, value): &(String, String)| format!("{}={}", encoded(name), encoded(value));
        let text: Vec<_> = self.0.iter().map(pair).collect();
        if text.is_empty() { String::new() } else { format!("?{}", text.join("&")) }
    }

    /// Replaces `within` by the time at which the period began, and completes the times of date pickers.
    pub(super) fn resolved(&self) -> Result<Self, Problem> {
        let mut pairs = Vec::new();
        for (name, value) in &self.0 {
            match name.as_str() {
                "within" => {
                    let period = PERIODS.iter().find(|(known, _, _)| known == value);
                    let (_, _, seconds) = period.ok_or_else(|| {
                        let text =
                            format!("unknown period {:?}: use 15m, 1h, 24h, 7d or 30d", shortened(value));
                        Problem::invalid(text)
                    })?;
                    if self.get("created_from").is_some() {
                        continue;
                    }
                    let from = Timestamp::from(SystemTime::now() - Duration::from_secs(*seconds));
                    pairs.push(("created_from".to_owned(), from.to_string()));
                }
                "created_from" | "created_to" | "closed_from" | "closed_to" => {
                    pairs.push((name.clone(), completed(value)));
                }
                _ => pairs.push((name.clone(), value.clone())),
            }
        }
        Ok(Self(pairs))
    }

    pub(super) fn parse<Q: DeserializeOwned>(&self) -> Result<Q, Problem> {
        let query = self.query();
        let parsed = serde_html_form::from_str(query.trim_start_matches('?'));
        parsed.map_err(|error| Problem::invalid(format!("invalid query: {}", shortened(&error.to_string()))))
    }
}

/// Date pickers leave out seconds that are zero, and the zone.
fn completed(time: &str) -> String {
    match time.len() {
        16 => format!("{time}:00Z"),
        19 => format!("{time}Z"),
        _ => time.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &str) -> Pairs {
        Pairs::of(&format!("/jobs?{query}").parse().unwrap())
    }

    #[test]
    fn empty_fields_are_ignored_and_times_are_completed() {
        let pairs = pairs("type=&status=failed&created_from=2026-11-15T06%3A00&created_to=+");
        assert_eq!(
            pairs.resolved().unwrap().query(),
            "?status=failed&created_from=2026%2D11%2D15T06%3A00%3A00Z".replace("%2D", "-")
        );
        assert!(super::Pairs::default().query().is_empty());
    }

    #[test]
    fn keys_and_types_are_exact() {
        assert_eq!(pairs("key=a+&type=+&status=+failed").query(), "?key=a%20&type=%20&status=failed");
    }

    #[test]
    fn exact_times_win_over_periods() {
        let resolved = pairs("within=1h&created_from=2026-11-15T06%3A00").resolved().unwrap();
        assert_eq!(resolved.query(), "?created_from=2026-11-15T06%3A00%3A00Z");
    }

    #[test]
    fn periods_become_times() {
        let resolved = pairs("within=1h").resolved().unwrap();
        let from = resolved.get("created_from").unwrap();
        assert!(humantime::parse_rfc3339_weak(from).is_ok(), "{from}");
        assert!(pairs("within=1y").resolved().is_err());
    }

    #[test]
    fn values_cannot_leave_their_parameter() {
        let query = pairs("type=a").with("after", Some("x&y=\"<é")).query();
        assert_eq!(query, "?type=a&after=x%26y%3D%22%3C%C3%A9");
    }
}
