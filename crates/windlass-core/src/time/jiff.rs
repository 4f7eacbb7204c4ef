//! Conversions to and from the timestamps of [`jiff`].

use crate::limit::TIMESTAMP_MAX_MS;
use crate::time::Timestamp;

/// Clamps times before 1970 to the Unix epoch, and drops fractions of a millisecond.
#[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
impl From<jiff::Timestamp> for Timestamp {
    fn from(time: jiff::Timestamp) -> Self {
        Self(time.as_millisecond().clamp(0, TIMESTAMP_MAX_MS))
    }
}

/// Clamps to the latest time of [`jiff`], which is a day before the end of the year 9999.
#[cfg_attr(docsrs, doc(cfg(feature = "jiff")))]
impl From<Timestamp> for jiff::Timestamp {
    fn from(time: Timestamp) -> Self {
        Self::from_millisecond(time.0).unwrap_or(Self::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_convert_from_and_to_jiff() {
        let time: jiff::Timestamp = "2026-11-15T06:00:00.123Z".parse().unwrap();
        assert_eq!(Timestamp::from(time).to_string(), "2026-11-15T06:00:00.123Z");
        assert_eq!(jiff::Timestamp::from(Timestamp::from(time)), time);
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        assert_eq!(Timestamp::from(jiff::Timestamp::MIN), Timestamp::default());
        let last = Timestamp::from_millis(TIMESTAMP_MAX_MS).unwrap();
        assert_eq!(jiff::Timestamp::from(last), jiff::Timestamp::MAX);
        assert!(Timestamp::from(jiff::Timestamp::MAX) < last);
    }
}
