//! Timestamps and durations in whole milliseconds, bounded so that adding them cannot overflow.

#[cfg(feature = "jiff")]
mod jiff;

use std::fmt;
use std::ops::Add;
use std::time::{Duration, SystemTime};

use crate::limit::{DURATION_MAX_MS, TIMESTAMP_MAX_MS};
use crate::refusal::Refusal;

/// A point in time on the store's clock, in milliseconds since the Unix epoch.
///
/// Converts to and from [`SystemTime`], and methods that take a time accept both. With the feature `jiff`, it also
/// converts to and from `jiff::Timestamp`.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use windlass::Timestamp;
///
/// let noon = Timestamp::from_millis(1_794_744_000_000)?;
/// let later = SystemTime::from(noon) + Duration::from_secs(90);
/// assert_eq!(Timestamp::from(later).to_string(), "2026-11-15T12:01:30.000Z");
/// assert_eq!(Timestamp::from(later).since(noon), Duration::from_secs(90));
/// # Ok::<(), windlass::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates a timestamp from milliseconds since the Unix epoch.
    ///
    /// # Errors
    ///
    /// [`Refusal::TimeOutOfRange`] before the Unix epoch or after the year 9999.
    pub const fn from_millis(ms: i64) -> Result<Self, Refusal> {
        if ms < 0 || ms > TIMESTAMP_MAX_MS { Err(Refusal::TimeOutOfRange) } else { Ok(Self(ms)) }
    }

    /// Returns the milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns the current time of this machine's clock.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Formats the time as RFC 3339 in UTC: `2026-11-15T06:00:00.000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis((*self).into()).fmt(f)
    }
}

/// The same as [`Display`](fmt::Display).
impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Clamps times before 1970 or after 9999 to the nearest valid timestamp.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(TIMESTAMP_MAX_MS).min(TIMESTAMP_MAX_MS))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        // A timestamp is not negative, and the end of the year 9999 is in the range of every platform.
        Self::UNIX_EPOCH + Duration::from_millis(time.0.unsigned_abs())
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates at the end of the year 9999.
    fn add(self, span: Duration) -> Self {
        self + Millis::try_from(span).unwrap_or(Millis::MAX)
    }
}

impl Add<Millis> for Timestamp {
    type Output = Self;

    /// Saturates at the end of the year 9999.
    fn add(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0).min(TIMESTAMP_MAX_MS))
    }
}

/// A duration in whole milliseconds: at most 100 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(u64);

impl Millis {
    /// Zero milliseconds.
    pub const ZERO: Self = Self(0);
    /// The longest duration: 100 years.
    pub const MAX: Self = Self(DURATION_MAX_MS);

    /// Creates a duration of `ms` milliseconds.
    ///
    /// # Errors
    ///
    /// [`Refusal::DurationTooLong`] above 100 years.
    pub const fn new(ms: u64) -> Result<Self, Refusal> {
        if ms > DURATION_MAX_MS { Err(Refusal::DurationTooLong) } else { Ok(Self(ms)) }
    }

    /// Creates a duration of whole seconds. Infallible because every `u16` is in range, so it suits
    /// constants.
    #[must_use]
    pub const fn from_secs(seconds: u16) -> Self {
        Self(seconds as u64 * 1_000)
    }

    /// Creates a duration of whole days. Infallible because every `u8` is in range, so it suits constants.
    #[must_use]
    pub const fn from_days(days: u8) -> Self {
        Self(days as u64 * 24 * 60 * 60 * 1_000)
    }

    /// Returns the number of milliseconds.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<Duration> for Millis {
    type Error = Refusal;

    /// Rounds up, so that a lease or delay is never shorter than requested.
    fn try_from(duration: Duration) -> Result<Self, Refusal> {
        let whole = duration.as_nanos().div_ceil(1_000_000);
        u64::try_from(whole).map_err(|_| Refusal::DurationTooLong).and_then(Self::new)
    }
}

impl From<Millis> for Duration {
    fn from(span: Millis) -> Self {
        Self::from_millis(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_and_are_bounded() {
        assert_eq!(Millis::try_from(Duration::from_nanos(1)), Ok(Millis(1)));
        assert_eq!(Millis::try_from(Duration::from_millis(7)), Ok(Millis(7)));
        assert_eq!(Millis::try_from(Duration::MAX), Err(Refusal::DurationTooLong));
        assert_eq!(Millis::new(u64::MAX), Err(Refusal::DurationTooLong));
    }

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(Timestamp::default().to_string(), "1970-01-01T00:00:00.000Z");
        let last = Timestamp::from_millis(TIMESTAMP_MAX_MS).unwrap();
        assert_eq!(last.to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn times_convert_from_and_to_the_system_time() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_722_400_123);
        assert_eq!(Timestamp::from(time).to_string(), "2026-11-15T06:00:00.123Z");
        assert_eq!(SystemTime::from(Timestamp::from(time)), time);
        let last = Timestamp::from_millis(TIMESTAMP_MAX_MS).unwrap();
        assert_eq!(Timestamp::from(SystemTime::from(last)), last);
        assert_eq!(Timestamp::from(SystemTime::from(last) + Duration::from_secs(1)), last);
        assert_eq!(Timestamp::from(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), Timestamp::default());
    }

    #[test]
    fn times_are_bounded_and_never_overflow() {
        assert_eq!(Timestamp::from_millis(-1), Err(Refusal::TimeOutOfRange));
        assert_eq!(Timestamp::from_millis(i64::MAX), Err(Refusal::TimeOutOfRange));
        let last = Timestamp::from_millis(TIMESTAMP_MAX_MS).unwrap();
        assert_eq!(last + Millis::new(DURATION_MAX_MS).unwrap(), last);
        assert_eq!(Timestamp::default().since(last), Duration::ZERO);
    }
}
