//! Cron expressions: their occurrences in a time zone.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use croner::CronPattern;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use super::spec::invalid;
use crate::error::Result;

/// The time zones that are compiled into the program. Those of the machine may be missing or outdated.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A cron expression and its time zone. The expression is parsed once, when an occurrence is computed first.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct CronTimes {
    expression: String,
    zone: String,
    #[serde(skip)]
    parsed: OnceLock<Arc<Parsed>>,
}

struct Parsed {
    cron: croner::Cron,
    zone: TimeZone,
}

impl CronTimes {
    pub(super) fn new(expression: &str, zone: &str) -> Self {
        Self { expression: expression.to_owned(), zone: zone.to_owned(), parsed: OnceLock::new() }
    }

    /// Returns the expression in another zone.
    pub(super) fn in_zone(&self, zone: &str) -> Self {
        Self::new(&self.expression, zone)
    }

    /// Returns the first occurrence at or after a time, in milliseconds.
    pub(super) fn next(&self, earliest: i64) -> Result<Option<i64>> {
        let parsed = self.parsed()?;
        let Parsed { cron, zone } = &*parsed;
        // Occurrences are whole seconds. Round up, because the search includes its start.
        let earliest = earliest.saturating_add(999).div_euclid(1_000);
        let Ok(earliest) = jiff::Timestamp::from_second(earliest) else { return Ok(None) };
        if follows_real_time(cron) {
            let found = cron.find_next_occurrence(&earliest.to_zoned(zone.clone()), true);
            return Ok(self.found(found)?.map(|next| next.timestamp().as_millisecond()));
        }
        // Count on from the second before: if `earliest` is the end of a gap, the times in the gap are included.
        let second = jiff::SignedDuration::from_secs(1);
        let Ok(mut start) = earliest.checked_sub(second).map(|before| zone.to_datetime(before)) else {
            return Ok(None);
        };
        loop {
            let found = cron.find_next_occurrence(&start, false);
            let Some(next) = self.found(found)? else { return Ok(None) };
            match instant(zone, next) {
                // The first instance of a repeated time, while the second one passes.
                Some(at) if at < earliest => start = next,
                at => return Ok(at.map(jiff::Timestamp::as_millisecond)),
            }
        }
    }

    /// Returns the last occurrence at or before a time, in milliseconds.
    pub(super) fn last(&self, latest: i64) -> Result<Option<i64>> {
        let parsed = self.parsed()?;
        let Parsed { cron, zone } = &*parsed;
        let Ok(latest) = jiff::Timestamp::from_second(latest.div_euclid(1_000)) else { return Ok(None) };
        if follows_real_time(cron) {
            let found = cron.find_previous_occurrence(&latest.to_zoned(zone.clone()), true);
            return Ok(self.found(found)?.map(|last| last.timestamp().as_millisecond()));
        }
        let mut start = zone.to_datetime(latest);
        if let AmbiguousOffset::Fold { before, after } = zone.to_ambiguous_timestamp(start).offset()
            && zone.to_offset(latest) == after
        {
            // The second instance of a repeated hour: all times of the first one are over.
            start = before.to_datetime(latest);
        }
        let mut is_included = true;
        loop {
            let found = cron.find_previous_occurrence(&start, is_included);
            let Some(last) = self.found(found)? else { return Ok(None) };
            match instant(zone, last) {
                Some(at) if at > latest => (start, is_included) = (last, false),
                at => return Ok(at.map(jiff::Timestamp::as_millisecond)),
            }
        }
    }

    fn found<T>(&self, found: Result<T, CronError>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(CronError::TimeSearchLimitExceeded) => Ok(None),
            Err(error) => {
                let expression = &self.expression;
                invalid(format!("the cron expression `{expression}` cannot be evaluated: {error}"))
            }
        }
    }

    fn parsed(&self) -> Result<Arc<Parsed>> {
        if let Some(parsed) = self.parsed.get() {
            return Ok(Arc::clone(parsed));
        }
        let parsed = Parsed { cron: parse(&self.expression)?, zone: find_zone(&self.zone)? };
        Ok(Arc::clone(self.parsed.get_or_init(|| Arc::new(parsed))))
    }
}

impl fmt::Display for CronTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.expression, self.zone)
    }
}

impl fmt::Debug for CronTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cron").field("expression", &self.expression).field("zone", &self.zone).finish()
    }
}

impl PartialEq for CronTimes {
    fn eq(&self, other: &Self) -> bool {
        self.expression == other.expression && self.zone == other.zone
    }
}

impl Eq for CronTimes {}

/// Whether an expression has a wildcard or a step in its second, minute or hour.
fn follows_real_time(cron: &croner::Cron) -> bool {
    let CronPattern { seconds, minutes, hours, .. } = &cron.pattern;
    [seconds, minutes, hours].iter().any(|field| field.from_wildcard || field.step != 1)
}

/// Returns when a clock in the zone shows a time first. If it skips the time, returns the end of the gap. A later time has
/// never an earlier instant, so a search over clock times finds instants in order.
fn instant(zone: &TimeZone, clock: DateTime) -> Option<jiff::Timestamp> {
    let ambiguous = zone.to_ambiguous_timestamp(clock);
    let AmbiguousOffset::Gap { after, .. } = ambiguous.offset() else { return ambiguous.earlier().ok() };
    let before_gap = after.to_timestamp(clock).ok()?;
    zone.following(before_gap).next().map(|change| change.timestamp())
}

fn parse(expression: &str) -> Result<croner::Cron> {
    let parser = CronParser::builder()
        .seconds(Seconds::Optional)
        .year(Year::Disallowed)
        .dom_and_dow(has_starred_day(expression))
        .build();
    parser.parse(expression).or_else(|error| {
        let problem = problem(&parser, expression).unwrap_or_else(|| error.to_string());
        invalid(format!("the cron expression `{expression}` is invalid: {problem}"))
    })
}

/// The fields of an expression with six fields, and the values that each accepts.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31"),
    ("month", "1 to 12, or JAN to DEC"),
    ("weekday", "0 to 7, or SUN to SAT"),
];

/// Returns what is wrong with an expression that the library refuses, and how to correct it. The library's own message
/// does not name the field.
fn problem(parser: &CronParser, expression: &str) -> Option<String> {
    let given: Vec<_> = expression.split_whitespace().collect();
    if expression.contains('@') {
        return Some("use `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly` or fields".to_owned());
    }
    let Some(first) = FIELDS.len().checked_sub(given.len()).filter(|first| *first <= 1) else {
        let (count, noun) = (given.len(), if given.len() == 1 { "field" } else { "fields" });
        return Some(format!(
            "it has {count} {noun}: use five fields (minute hour day month weekday), or six with the second first"
        ));
    };
    // A field is the cause if the library refuses it among fields that are always valid.
    let is_refused = |place: usize, text: &str| {
        let field = |other| if other == place { text } else { "*" };
        let fields: Vec<_> = (0..FIELDS.len()).map(field).collect();
        parser.parse(&fields.join(" ")).is_err()
    };
    let mut fields = FIELDS.iter().enumerate().skip(first).zip(given);
    let ((_, (name, range)), text) = fields.find(|((place, _), text)| is_refused(*place, text))?;
    Some(format!("the {name} is `{text}`: use {range}, or `*`, a list, a range or a step of these"))
}

/// Whether the day of month or the weekday begins with `*`, as in `*/2`. In Vixie cron such a field does not count as
/// restricted, so a day must match both fields. The library knows this for `*` alone.
fn has_starred_day(expression: &str) -> bool {
    let mut fields = expression.split_whitespace().rev();
    let (weekday, day) = (fields.next(), fields.nth(1));
    [weekday, day].into_iter().flatten().any(|field| field.starts_with(['*', '?']))
}

fn find_zone(name: &str) -> Result<TimeZone> {
    ZONES.get(name).or_else(|_| {
        invalid(format!(
            "the time zone `{name}` is unknown: use a name of the IANA database, such as `Europe/Berlin`"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_parsed_once() {
        let times = CronTimes::new("0 9 * * *", "Europe/Berlin");
        let first = times.parsed().unwrap();
        times.next(0).unwrap();
        assert!(Arc::ptr_eq(&first, &times.parsed().unwrap()));
        assert!(Arc::ptr_eq(&first, &times.clone().parsed().unwrap()), "a clone is parsed already");
        let tokyo = times.in_zone("Asia/Tokyo");
        assert_ne!(tokyo.next(0).unwrap(), times.next(0).unwrap());
    }
}
