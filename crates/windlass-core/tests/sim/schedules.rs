//! The schedules of a simulation, which begins shortly before the clocks change in some zone.
//!
//! The expected occurrences do not come from the code under test: [`Times::between`] looks at every second, with offsets
//! that are written down here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::schedule::{Cron, Every, MissedRuns, Overlap, ScheduleDetails, ScheduleSpec};
use windlass_core::{ChainId, ChainRecord, Client, MemoryStore, ScheduleId, Timestamp};

use super::invariant::Invariant;
use super::jobs::{Act, Plain, Plan};
use super::journal::Journal;
use super::world::World;

/// A change of the clocks in a zone. Times are seconds since 1970, offsets are seconds from UTC.
#[derive(Clone, Copy, Debug)]
struct Change {
    zone: &'static str,
    at: i64,
    before: i64,
    after: i64,
}

/// An hour back, an hour forward, an hour back, and half an hour forward.
const CHANGES: [Change; 4] = [
    Change { zone: "Europe/Berlin", at: 1_792_890_000, before: 7_200, after: 3_600 },
    Change { zone: "Europe/Berlin", at: 1_806_195_600, before: 3_600, after: 7_200 },
    Change { zone: "America/New_York", at: 1_793_512_800, before: -14_400, after: -18_000 },
    Change { zone: "Australia/Lord_Howe", at: 1_791_041_400, before: 37_800, after: 39_600 },
];

/// The schedule that clients start by hand.
pub(crate) const MANUAL: &str = "manual";

/// The time of the store's clock when the simulation begins, and the change that follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    change: Change,
    pub(crate) start: Timestamp,
}

impl Epoch {
    pub(crate) fn choose(chance: &mut fastrand::Rng) -> Self {
        let change = CHANGES[chance.usize(..CHANGES.len())];
        Self { change, start: Timestamp::from_millis(change.at * 1_000 - chance.i64(0..60_000)).unwrap() }
    }
}

/// The times of a schedule.
#[derive(Clone, Copy, Debug)]
enum Times {
    /// At a fixed interval from the creation.
    Every(Duration),
    /// At the seconds of each minute that are multiples of this.
    Seconds(i64),
    /// At fixed times on both sides of the change.
    Fixed,
}

/// The seconds, minutes and hours of [`Times::Fixed`].
const FIXED: ([i64; 4], [i64; 8], [i64; 4]) = ([2, 17, 32, 47], [0, 1, 28, 29, 30, 31, 58, 59], [0, 1, 2, 3]);

impl Times {
    fn choose(world: &World) -> Self {
        match world.below(4) {
            0 => Self::Every(world.between(Duration::from_secs(2), Duration::from_secs(9))),
            1 => Self::Seconds(3 + i64::try_from(world.below(9)).unwrap()),
            2 => Self::Seconds(5),
            _ => Self::Fixed,
        }
    }

    fn spec(self, zone: &str) -> ScheduleSpec {
        match self {
            Self::Every(interval) => Every::new(interval).unwrap(),
            Self::Seconds(step) => Cron::new(format!("*/{step} * * * * *")).unwrap().in_zone(zone),
            Self::Fixed => {
                let list = |list: &[i64]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
                let (seconds, minutes, hours) = (list(&FIXED.0), list(&FIXED.1), list(&FIXED.2));
                Cron::new(format!("{seconds} {minutes} {hours} * * *")).unwrap().in_zone(zone)
            }
        }
    }

    /// Whether a clock that shows this time, in seconds, shows an occurrence.
    fn matches(self, clock: i64) -> bool {
        let (second, minute, hour) = (clock % 60, clock / 60 % 60, clock / 3_600 % 24);
        match self {
            Self::Every(_) => false,
            Self::Seconds(step) => second % step == 0,
            Self::Fixed => FIXED.0.contains(&second) && FIXED.1.contains(&minute) && FIXED.2.contains(&hour),
        }
    }

    /// Returns the occurrences after `since` up to `end`.
    fn between(self, change: Change, since: Timestamp, end: Timestamp) -> BTreeSet<Timestamp> {
        if let Self::Every(interval) = self {
            return (1..).map(|count| since + interval * count).take_while(|at| *at <= end).collect();
        }
        let seconds = since.as_millis() / 1_000 + 1..=end.as_millis() / 1_000;
        let is_occurrence = |utc: &i64| {
            let Change { at, before, after, .. } = change;
            if *utc < at {
                return self.matches(utc + before);
            }
            // Skipped times run at the end of the gap, and repeated times at their first instance. A step follows real
            // time.
            let follows = matches!(self, Self::Seconds(_));
            let is_repeated = utc + after < at + before;
            let skipped = at + before..at + after;
            self.matches(utc + after) && (follows || !is_repeated)
                || *utc == at && !follows && skipped.into_iter().any(|clock| self.matches(clock))
        };
        seconds.filter(is_occurrence).map(|utc| Timestamp::from_millis(utc * 1_000).unwrap()).collect()
    }
}

/// A schedule whose occurrences are known in advance.
#[derive(Debug)]
pub(crate) struct Exact {
    id: ScheduleId,
    expected: BTreeSet<Timestamp>,
    overlap: Overlap,
    /// How late an occurrence can start. `None` if all of them start, however late.
    latest: Option<Duration>,
    missed: MissedRuns,
}

/// Stores the schedules.
pub(crate) async fn create(world: &World, store: &MemoryStore) -> Vec<Exact> {
    let client = Client::new(store.clone());
    let Epoch { change, start } = world.settings.epoch;
    // Its next occurrence comes after the simulation.
    client.schedules().put(MANUAL, Cron::new("@yearly").unwrap(), Plain(Plan::default())).await.unwrap();
    let mut exact = Vec::new();
    for number in 0..world.settings.schedules {
        let end = start + world.between(Duration::from_secs(20), Duration::from_secs(90));
        let (times, policies) = (Times::choose(world), Policies::choose(world));
        let jitter = world.between(Duration::ZERO, Duration::from_secs(2));
        let jitter = if world.percent(30) { jitter } else { Duration::ZERO };
        let spec = policies.apply(times.spec(change.zone)).ends_at(end).jitter(jitter);
        let acts = if world.percent(20) { vec![Act::Fail] } else { Vec::new() };
        let (name, plan) = (format!("schedule {number}"), Plan { acts, ..Plan::default() });
        client.schedules().put(&name, spec, Plain(plan)).await.unwrap();
        let stored = client.schedules().get(&name).await.unwrap().unwrap();
        let Policies { overlap, missed, grace } = policies;
        world.count(format!("overlap {overlap:?}"));
        exact.push(Exact {
            id: stored.id,
            expected: times.between(change, stored.details.unwrap().created_at, end),
            overlap,
            latest: grace.map(|grace| grace + jitter),
            missed,
        });
    }
    exact
}

#[derive(Clone, Copy, Debug)]
struct Policies {
    overlap: Overlap,
    missed: MissedRuns,
    /// `None` if no occurrence counts as missed during the simulation.
    grace: Option<Duration>,
}

impl Policies {
    /// Half of the schedules start every occurrence, however late. The others drop some.
    fn choose(world: &World) -> Self {
        if world.percent(50) {
            return Self { overlap: Overlap::Allow, missed: MissedRuns::Skip, grace: None };
        }
        let overlap = match world.below(4) {
            0 => Overlap::Allow,
            1 => Overlap::Skip,
            2 => Overlap::Wait,
            _ => Overlap::Cancel,
        };
        let missed = match world.below(3) {
            0 => MissedRuns::Skip,
            1 => MissedRuns::RunOnce,
            _ => MissedRuns::RunLatest(3),
        };
        Self { overlap, missed, grace: Some(world.between(Duration::from_secs(1), Duration::from_secs(8))) }
    }

    fn apply(self, spec: ScheduleSpec) -> ScheduleSpec {
        let grace = self.grace.unwrap_or(Duration::from_secs(24 * 60 * 60));
        spec.overlap(self.overlap).missed(self.missed).grace(grace)
    }
}

/// Returns the content of the schedules.
pub(crate) async fn details(
    store: &MemoryStore,
    exact: &[Exact],
) -> Vec<(Option<Timestamp>, ScheduleDetails)> {
    let client = Client::new(store.clone());
    let mut all = Vec::new();
    for exact in exact {
        let stored = client.schedules().get_by_id(exact.id).await.unwrap().expect("it is kept for days");
        all.push((stored.handled, stored.details.unwrap()));
    }
    all
}

/// Whether all occurrences of the schedules were started or dropped.
pub(crate) async fn is_over(store: &MemoryStore, exact: &[Exact]) -> bool {
    let details = details(store, exact).await;
    details.iter().zip(exact).all(|((handled, details), exact)| {
        *handled >= exact.expected.last().copied() && details.waiting.is_none()
    })
}

impl Exact {
    /// Checks the chains that a schedule has started.
    pub(crate) fn check(
        &self,
        journal: &Journal,
        chains: &BTreeMap<ChainId, ChainRecord>,
        details: &ScheduleDetails,
    ) -> Option<(Invariant, String)> {
        let mut started = BTreeMap::new();
        for chain in journal.chains.keys() {
            let Some(occurrence) = chain.occurrence().filter(|of| of.schedule == self.id) else { continue };
            if occurrence.is_manual || started.insert(occurrence.at, *chain).is_some() {
                let what = format!("the occurrence of {} has started two chains", occurrence.at);
                return Some((Invariant::OccurrencesStartOnce, what));
            }
        }
        let wrong = |at: &Timestamp, what: &str| {
            Some((Invariant::OccurrencesStartOnce, format!("the occurrence of {at} {what} started a chain")))
        };
        if let Some(at) = started.keys().find(|at| !self.expected.contains(at)) {
            return wrong(at, "should not have");
        }
        if let Some(at) = self.expected.iter().find(|at| self.latest.is_none() && !started.contains_key(at)) {
            return wrong(at, "has not");
        }
        let dropped = details.missed + details.overlapped;
        if started.len() as u64 + dropped != self.expected.len() as u64 {
            let (missed, overlapped) = (details.missed, details.overlapped);
            let what = format!(
                "of {} occurrences, {} were started, {missed} missed and {overlapped} overlapped",
                self.expected.len(),
                started.len()
            );
            return Some((Invariant::OccurrencesAreCounted, what));
        }
        self.check_late(&started, chains).or_else(|| self.check_overlap(&started, journal))
    }

    /// Checks that no occurrence started that was missed, unless the policies allow it.
    fn check_late(
        &self,
        started: &BTreeMap<Timestamp, ChainId>,
        chains: &BTreeMap<ChainId, ChainRecord>,
    ) -> Option<(Invariant, String)> {
        let waits = matches!(self.overlap, Overlap::Wait | Overlap::Cancel);
        let latest = self.latest.filter(|_| self.missed == MissedRuns::Skip && !waits)?;
        let is_late = |(at, chain): &(&Timestamp, &ChainId)| {
            chains.get(chain).is_some_and(|chain| chain.created_at.since(**at) > latest)
        };
        let (at, _) = started.iter().find(is_late)?;
        Some((Invariant::OccurrencesStartInTime, format!("the occurrence of {at} was missed, but started")))
    }

    /// Checks that a chain starts after the former one has closed, unless they may overlap.
    fn check_overlap(
        &self,
        started: &BTreeMap<Timestamp, ChainId>,
        journal: &Journal,
    ) -> Option<(Invariant, String)> {
        if self.overlap == Overlap::Allow {
            return None;
        }
        let life = |chain: &ChainId| &journal.chains[chain];
        let overlap = started.iter().zip(started.iter().skip(1)).find(|((_, former), (_, next))| {
            let (former, next) = (life(former), life(next));
            let begin = next.open.first().map(|(begin, _)| *begin);
            let end = former.open.first().and_then(|(_, end)| *end);
            !former.deleted && end.is_none_or(|end| begin.is_some_and(|begin| begin < end))
        });
        let ((at, _), (next, _)) = overlap?;
        let what = format!("the occurrence of {next} started while that of {at} was open");
        Some((Invariant::OccurrencesDoNotOverlap, what))
    }
}

/// Checks that a chain was not started before its occurrence.
pub(crate) fn check_time(chain: &ChainRecord) -> Option<(Invariant, String)> {
    let occurrence = chain.id.occurrence().filter(|occurrence| !occurrence.is_manual)?;
    let what = format!("the occurrence of {} was started at {}", occurrence.at, chain.created_at);
    (chain.created_at < occurrence.at).then_some((Invariant::OccurrencesStartInTime, what))
}
