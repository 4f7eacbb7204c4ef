//! The schedules of a simulation, which begins shortly before the clocks change in some zone.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_core::command::{GetSchedules, ScheduleTarget};
use windlass_core::schedule::{Cron, Every, MissedRuns, Overlap, ScheduleSpec};
use windlass_core::{ChainRecord, Client, MemoryStore, ScheduleId, Store, Timestamp};

use super::invariant::Invariant;
use super::jobs::{Act, Plain, Plan};
use super::journal::Journal;
use super::world::World;

/// Changes of the clocks: an hour back, an hour forward, an hour back, and half an hour forward.
const CHANGES: [(&str, i64); 4] = [
    ("Europe/Berlin", 1_792_890_000_000),
    ("Europe/Berlin", 1_806_195_600_000),
    ("America/New_York", 1_793_512_800_000),
    ("Australia/Lord_Howe", 1_791_041_400_000),
];

/// The schedule that clients start by hand.
pub(crate) const MANUAL: &str = "manual";

/// A zone, and the time of the store's clock when the simulation begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch {
    zone: &'static str,
    pub(crate) start: Timestamp,
}

impl Epoch {
    pub(crate) fn choose(chance: &mut fastrand::Rng) -> Self {
        let (zone, change) = CHANGES[chance.usize(..CHANGES.len())];
        Self { zone, start: Timestamp::from_millis(change - chance.i64(0..60_000)).unwrap() }
    }
}

/// A schedule whose occurrences are all started, and known in advance.
#[derive(Debug)]
pub(crate) struct Exact {
    id: ScheduleId,
    expected: BTreeSet<Timestamp>,
}

/// Stores the schedules.
pub(crate) async fn create(world: &World, store: &MemoryStore) -> Vec<Exact> {
    let client = Client::new(store.clone());
    let start = world.settings.epoch.start;
    // Its next occurrence comes after the simulation.
    client.schedules().put(MANUAL, Cron::new("@yearly").unwrap(), Plain(Plan::default())).await.unwrap();
    let mut exact = Vec::new();
    for number in 0..world.settings.schedules {
        let end = start + world.between(Duration::from_secs(20), Duration::from_secs(90));
        // Every occurrence is started, however late. So they are known in advance.
        let spec = spec(world).ends_at(end).overlap(Overlap::Allow).missed(MissedRuns::Skip);
        let spec = spec.grace(Duration::from_secs(24 * 60 * 60));
        let acts = if world.percent(20) { vec![Act::Fail] } else { Vec::new() };
        let (name, plan) = (format!("schedule {number}"), Plan { acts, ..Plan::default() });
        client.schedules().put(&name, spec, Plain(plan)).await.unwrap();
        let stored = client.schedules().get(&name).await.unwrap().unwrap();
        let expected = stored.details.unwrap().spec.upcoming(stored.now, 1_000).unwrap();
        exact.push(Exact { id: stored.id, expected: expected.into_iter().collect() });
    }
    exact
}

fn spec(world: &World) -> ScheduleSpec {
    let zone = world.settings.epoch.zone;
    match world.below(4) {
        0 => Every::new(world.between(Duration::from_secs(2), Duration::from_secs(9))).unwrap(),
        1 => Cron::new(format!("*/{} * * * * *", 3 + world.below(9))).unwrap().in_zone(zone),
        2 => {
            let delay = world.between(Duration::ZERO, Duration::from_secs(2));
            Cron::new("*/5 * * * * *").unwrap().in_zone(zone).jitter(delay)
        }
        // Fixed times on both sides of the change.
        _ => Cron::new("2,17,32,47 0,1,28,29,30,31,58,59 0,1,2,3 * * *").unwrap().in_zone(zone),
    }
}

/// Whether all occurrences of a schedule were started or dropped.
pub(crate) async fn is_over(store: &MemoryStore, exact: &[Exact]) -> bool {
    let schedules = exact.iter().map(|exact| ScheduleTarget::Id(exact.id)).collect();
    let rows = store.get_schedules(GetSchedules { schedules }).await.unwrap().schedules;
    let is_over = |(row, exact): (&Option<_>, &Exact)| {
        let row: &windlass_core::command::ScheduleRecord = row.as_ref().expect("it is kept for days");
        row.handled >= exact.expected.last().copied()
    };
    rows.iter().zip(exact).all(is_over)
}

impl Exact {
    /// Checks that each occurrence has started one chain.
    pub(crate) fn check(&self, journal: &Journal) -> Option<(Invariant, String)> {
        let occurrences = journal.chains.keys().filter_map(|chain| chain.occurrence());
        let mut started = BTreeSet::new();
        for occurrence in occurrences.filter(|occurrence| occurrence.schedule == self.id) {
            if occurrence.is_manual || !started.insert(occurrence.at) {
                let what = format!("the occurrence of {} has started two chains", occurrence.at);
                return Some((Invariant::OccurrencesStartOnce, what));
            }
        }
        let other = started.symmetric_difference(&self.expected).next()?;
        let has = if started.contains(other) { "should not have" } else { "has not" };
        Some((Invariant::OccurrencesStartOnce, format!("the occurrence of {other} {has} started a chain")))
    }
}

/// Checks that a chain was not started before its occurrence.
pub(crate) fn check_time(chain: &ChainRecord) -> Option<(Invariant, String)> {
    let occurrence = chain.id.occurrence().filter(|occurrence| !occurrence.is_manual)?;
    let what = format!("the occurrence of {} was started at {}", occurrence.at, chain.created_at);
    (chain.created_at < occurrence.at).then_some((Invariant::OccurrencesStartInTime, what))
}
