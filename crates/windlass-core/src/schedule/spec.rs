//! When a schedule fires, and its policies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cron::CronTimes;
use crate::error::{Error, ErrorKind, Result};
use crate::id::ScheduleId;
use crate::time::{Millis, Timestamp};

/// When a schedule fires, and what it does with missed and overlapping occurrences.
///
/// Create one with [`Cron::new`], [`Every::new`] or [`Once::at`].
///
/// ```
/// use std::time::Duration;
/// use windlass::schedule::{Cron, MissedRuns, Overlap};
///
/// let weekdays = Cron::new("0 9 * * MON-FRI")?
///     .in_zone("Europe/Berlin")
///     .overlap(Overlap::Wait)
///     .missed(MissedRuns::Skip)
///     .jitter(Duration::from_secs(30));
/// # let _ = weekdays;
/// # Ok::<(), windlass::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a specification does nothing until a schedule uses it"]
pub struct ScheduleSpec {
    when: When,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    jitter: u64,
    missed: MissedRuns,
    grace: u64,
    overlap: Overlap,
    /// How long an ended schedule is kept.
    retention: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum When {
    Cron(CronTimes),
    Every { interval: u64, anchor: Option<i64> },
    Once { at: i64 },
}

/// What to do with occurrences that are later than the grace time, because no worker was running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MissedRuns {
    /// Drops them.
    Skip,
    /// Starts the newest of them. The default.
    #[default]
    RunOnce,
    /// Starts the newest of them, up to this number.
    RunLatest(u32),
}

/// What to do with an occurrence while the chain that the schedule created last is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// Starts another chain.
    Allow,
    /// Skips the occurrence. The default.
    #[default]
    Skip,
    /// Starts the occurrence when the chain has closed. One occurrence waits at most; later ones are skipped.
    Wait,
    /// Asks the chain to stop, and then waits like [`Wait`](Self::Wait).
    Cancel,
}

/// Cron expressions.
#[derive(Clone, Copy, Debug)]
pub struct Cron;

/// Fixed intervals.
#[derive(Clone, Copy, Debug)]
pub struct Every;

/// Single times.
#[derive(Clone, Copy, Debug)]
pub struct Once;

/// The default grace time: 60 s.
pub(super) const GRACE: Millis = Millis::from_secs(60);

/// The shortest grace time of a schedule that skips missed runs.
const GRACE_MIN: Millis = Millis::from_secs(1);
/// How long an ended schedule is kept by default: 7 days.
const RETENTION: Millis = Millis::from_days(7);
/// The largest number of missed occurrences that a schedule can start at once.
const MISSED_MAX: u32 = 100;
/// The zone of a cron expression, unless another one is set.
const UTC: &str = "UTC";

impl Cron {
    /// Creates a specification from a cron expression.
    ///
    /// An expression has five fields (minute, hour, day of month, month, weekday), or six with the second first. Fields
    /// take names (`MON`, `JAN`), lists, ranges, steps, `L` (last), `W` (nearest weekday) and `#` (as in `FRI#2`, the
    /// second Friday). `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` are accepted. If both the day of month and
    /// the weekday are restricted, a day that matches either one counts, as in Vixie cron. A field that begins with `*`,
    /// such as `*/2`, does not count as restricted: then a day must match both fields.
    ///
    /// The zone is UTC, unless [`in_zone`](ScheduleSpec::in_zone) sets another one. At changes of the offset:
    ///
    /// - A time that is skipped runs at the end of the gap. Several skipped times run there once.
    /// - A time that is repeated runs once, at its first instance.
    /// - An expression with a wildcard (`*`) or a step (`/`) in its second, minute or hour follows real time instead: it
    ///   does not run in the gap, and runs in both instances of the repeated hour. Lists and ranges do not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the expression is malformed or never matches.
    #[allow(clippy::new_ret_no_self, reason = "reads well: `Cron::new(\"@daily\")`")]
    pub fn new(expression: impl AsRef<str>) -> Result<ScheduleSpec> {
        let spec = ScheduleSpec::new(When::Cron(CronTimes::new(expression.as_ref().trim(), UTC)));
        spec.check()?;
        Ok(spec)
    }
}

impl Every {
    /// Creates a specification with a fixed interval, in whole milliseconds. Occurrences are counted from the time at
    /// which the schedule is created, or from [`anchor`](ScheduleSpec::anchor).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the interval is zero or longer than 100 years.
    #[allow(clippy::new_ret_no_self, reason = "reads well: `Every::new(minute)`")]
    pub fn new(interval: Duration) -> Result<ScheduleSpec> {
        let spec =
            ScheduleSpec::new(When::Every { interval: Millis::try_from(interval)?.get(), anchor: None });
        spec.check()?;
        Ok(spec)
    }
}

impl Once {
    /// Creates a specification with a single occurrence.
    ///
    /// If the time is in the past when the schedule is stored, the occurrence counts as missed: by default, it starts
    /// immediately ([`missed`](ScheduleSpec::missed)). A worker does not store a declaration whose time and grace time have
    /// passed: its schedule may have run and been removed already.
    pub fn at(time: impl Into<Timestamp>) -> ScheduleSpec {
        ScheduleSpec::new(When::Once { at: time.into().as_millis() })
    }
}

impl ScheduleSpec {
    fn new(when: When) -> Self {
        Self {
            when,
            start: None,
            end: None,
            jitter: 0,
            missed: MissedRuns::default(),
            grace: GRACE.get(),
            overlap: Overlap::default(),
            retention: RETENTION.get(),
            version: None,
        }
    }

    /// Sets the time zone of a cron expression, by its name in the IANA database. An unknown zone is refused when the
    /// schedule is stored.
    pub fn in_zone(mut self, name: impl AsRef<str>) -> Self {
        if let When::Cron(times) = &mut self.when {
            *times = times.in_zone(name.as_ref());
        }
        self
    }

    /// Sets the time from which an interval is counted.
    pub fn anchor(mut self, time: impl Into<Timestamp>) -> Self {
        if let When::Every { anchor, .. } = &mut self.when {
            *anchor = Some(time.into().as_millis());
        }
        self
    }

    /// Sets the earliest occurrence.
    pub fn starts_at(mut self, time: impl Into<Timestamp>) -> Self {
        self.start = Some(time.into().as_millis());
        self
    }

    /// Sets the latest occurrence. After it, the schedule has ended, and is removed after its retention.
    pub fn ends_at(mut self, time: impl Into<Timestamp>) -> Self {
        self.end = Some(time.into().as_millis());
        self
    }

    /// Delays each start by up to this time. The delay is the same for all occurrences of a schedule, and differs between
    /// schedules. Default: none.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.jitter = Millis::try_from(most).unwrap_or(Millis::MAX).get();
        self
    }

    /// Sets what to do with missed occurrences. Default: start the newest one.
    pub const fn missed(mut self, missed: MissedRuns) -> Self {
        self.missed = missed;
        self
    }

    /// Sets how late an occurrence may be before it counts as missed. Default: 60 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Millis::try_from(grace).unwrap_or(Millis::MAX).get();
        self
    }

    /// Sets what to do with an occurrence while the previous chain is open. Default: skip it.
    pub const fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets how long the schedule is kept after its last occurrence. Default: 7 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Millis::try_from(retention).unwrap_or(Millis::MAX).get();
        self
    }

    /// Sets the version of a declaration. If programs declare the same schedule differently, the highest version is
    /// used. See [`Worker::schedule`](crate::Worker::schedule).
    pub const fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// Returns the overlap policy.
    #[must_use]
    pub const fn overlap_policy(&self) -> Overlap {
        self.overlap
    }

    /// Returns the policy for missed occurrences.
    #[must_use]
    pub const fn missed_policy(&self) -> MissedRuns {
        self.missed
    }

    /// Returns the next occurrences after a time, at most `max`, without jitter.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if this program cannot compute them: it does not know the zone or the expression.
    pub fn upcoming(&self, after: impl Into<Timestamp>, max: usize) -> Result<Vec<Timestamp>> {
        let (mut after, mut found) = (Some(after.into()), Vec::new());
        while found.len() < max
            && let Some(next) = self.next_after(after)?
        {
            found.push(next);
            after = Some(next);
        }
        Ok(found)
    }

    /// Describes when the schedule fires: an expression with its zone, an interval, or a time.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.when {
            When::Cron(times) => times.to_string(),
            When::Every { interval, .. } => {
                format!("every {}", humantime::format_duration(Duration::from_millis(*interval)))
            }
            When::Once { at } => format!("once at {}", time(*at)),
        }
    }

    /// Returns an error if the schedule never fires, or if a value is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        if let When::Every { interval: 0, .. } = self.when {
            return invalid("the interval is 0: use at least 1 ms".to_owned());
        }
        if let MissedRuns::RunLatest(count) = self.missed
            && !(1..=MISSED_MAX).contains(&count)
        {
            return invalid(format!("the number of missed runs must be 1 to {MISSED_MAX}, got {count}"));
        }
        if self.missed == MissedRuns::Skip && self.grace_ms() < GRACE_MIN {
            return invalid(format!(
                "the grace time must be at least {} ms if missed runs are skipped, got {} ms: no worker starts a run at \
                 its exact time",
                GRACE_MIN.get(),
                self.grace
            ));
        }
        if self.next_after(None)?.is_none() {
            let when = self.describe();
            return invalid(format!(
                "the schedule `{when}` never fires: check its expression, start and end"
            ));
        }
        Ok(())
    }

    /// Fixes the anchor of an interval.
    pub(crate) fn anchored(mut self, now: Timestamp) -> Self {
        if let When::Every { anchor, .. } = &mut self.when {
            anchor.get_or_insert(now.as_millis());
        }
        self
    }

    /// Returns the specification with the anchor of another one, if both have the same interval. So an unchanged
    /// declaration compares equal to the stored one.
    pub(crate) fn anchored_like(mut self, other: &Self) -> Self {
        if let (When::Every { interval, anchor }, When::Every { interval: others, anchor: known }) =
            (&mut self.when, &other.when)
            && interval == others
            && anchor.is_none()
        {
            *anchor = *known;
        }
        self
    }

    /// Whether both specifications have the same occurrences.
    pub(crate) fn fires_like(&self, other: &Self) -> bool {
        self.when == other.when && self.start == other.start && self.end == other.end
    }

    /// Whether the schedule has one occurrence, at a fixed time.
    pub(crate) const fn is_once(&self) -> bool {
        matches!(self.when, When::Once { .. })
    }

    pub(crate) fn grace_ms(&self) -> Millis {
        Millis::new(self.grace).unwrap_or(Millis::MAX)
    }

    pub(crate) fn retention_ms(&self) -> Millis {
        Millis::new(self.retention).unwrap_or(Millis::MAX)
    }

    /// Returns the delay of all occurrences of a schedule.
    pub(crate) fn jitter_of(&self, schedule: ScheduleId) -> Millis {
        // The last 61 bits of an id are random.
        let random = schedule.as_uuid().as_u128() & ((1 << 61) - 1);
        let delay = random % (u128::from(self.jitter) + 1);
        u64::try_from(delay).ok().and_then(|delay| Millis::new(delay).ok()).unwrap_or_default()
    }

    /// Returns the first occurrence after a time, or the first of all.
    pub(crate) fn next_after(&self, after: Option<Timestamp>) -> Result<Option<Timestamp>> {
        let earliest = after.map_or(0, |after| after.as_millis().saturating_add(1));
        let earliest = earliest.max(self.start.unwrap_or(0));
        let next = match &self.when {
            When::Cron(times) => times.next(earliest)?,
            When::Every { interval, anchor } => Some(next_multiple(*interval, anchor.unwrap_or(0), earliest)),
            When::Once { at } => Some(*at).filter(|at| *at >= earliest),
        };
        Ok(next
            .filter(|at| self.end.is_none_or(|end| *at <= end))
            .and_then(|at| Timestamp::from_millis(at).ok()))
    }

    /// Returns the last occurrence at or before a time.
    pub(crate) fn last_until(&self, until: Timestamp) -> Result<Option<Timestamp>> {
        let latest = until.as_millis().min(self.end.unwrap_or(i64::MAX));
        let last = match &self.when {
            When::Cron(times) => times.last(latest)?,
            When::Every { interval, anchor } => last_multiple(*interval, anchor.unwrap_or(0), latest),
            When::Once { at } => Some(*at).filter(|at| *at <= latest),
        };
        Ok(last
            .filter(|at| self.start.is_none_or(|start| *at >= start))
            .and_then(|at| Timestamp::from_millis(at).ok()))
    }
}

/// Returns the first time at or after `earliest` that is a whole number of intervals, at least one, after the anchor.
fn next_multiple(interval: u64, anchor: i64, earliest: i64) -> i64 {
    let interval = i64::try_from(interval).unwrap_or(i64::MAX).max(1);
    let since = earliest.saturating_sub(anchor);
    let count = if since <= 0 { 1 } else { (since - 1) / interval + 1 };
    anchor.saturating_add(count.max(1).saturating_mul(interval))
}

/// Returns the last such time at or before `latest`.
fn last_multiple(interval: u64, anchor: i64, latest: i64) -> Option<i64> {
    let interval = i64::try_from(interval).unwrap_or(i64::MAX).max(1);
    let count = latest.checked_sub(anchor).filter(|since| *since >= interval)? / interval;
    Some(anchor.saturating_add(count.saturating_mul(interval)))
}

pub(super) fn invalid<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, text))
}

fn time(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms).unwrap_or_default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}
