use std::sync::Arc;
use std::time::Duration;

use super::definition::{Definition, EncodedChain};
use super::state::State;
use super::visit::{ChainStatus, Visit, visit};
use super::{Cron, Every, MissedRuns, Once, Overlap, RunOutcome, ScheduleSpec, due_at};
use crate::command::{NewChain, NewJob, PutSchedule, ScheduleRecord};
use crate::error::ErrorKind;
use crate::id::{ChainId, RequestId, ScheduleId};
use crate::name::{ScheduleName, TypeName};
use crate::payload::Payload;
use crate::record::ClosedAs;
use crate::time::Timestamp;

fn at(text: &str) -> Timestamp {
    text.parse::<jiff::Timestamp>()
        .map(|time| Timestamp::from_millis(time.as_millisecond()).unwrap())
        .unwrap()
}

/// Checks the next occurrences after a time, all in UTC.
#[track_caller]
fn check(spec: &ScheduleSpec, after: &str, expected: &[&str]) {
    let next = spec.upcoming(at(after), expected.len()).unwrap();
    let next: Vec<_> = next.iter().map(ToString::to_string).collect();
    let expected: Vec<_> = expected.iter().map(|text| at(text).to_string()).collect();
    assert_eq!(next, expected);
    // The search backwards finds the same occurrences.
    let mut last = spec.upcoming(at(after), expected.len()).unwrap();
    let found: Vec<_> =
        last.iter().map(|time| spec.last_until(*time + Duration::from_millis(999)).unwrap()).collect();
    assert_eq!(found, last.drain(..).map(Some).collect::<Vec<_>>());
}

#[test]
fn cron_expressions_have_five_or_six_fields() {
    let from = "2026-11-15T06:00:00Z";
    check(&Cron::new("*/20 * * * *").unwrap(), from, &["2026-11-15T06:20:00Z", "2026-11-15T06:40:00Z"]);
    check(&Cron::new("15 0 9 * * *").unwrap(), from, &["2026-11-15T09:00:15Z", "2026-11-16T09:00:15Z"]);
    check(&Cron::new("0 9 * JAN MON-FRI").unwrap(), from, &["2027-01-01T09:00:00Z", "2027-01-04T09:00:00Z"]);
    check(&Cron::new("@daily").unwrap(), from, &["2026-11-16T00:00:00Z"]);
    check(&Cron::new("@monthly").unwrap(), from, &["2026-12-01T00:00:00Z"]);
    check(&Cron::new("0 0 L * *").unwrap(), from, &["2026-11-30T00:00:00Z", "2026-12-31T00:00:00Z"]);
    check(&Cron::new("0 0 * * FRI#2").unwrap(), from, &["2026-12-11T00:00:00Z"]);
    check(&Cron::new("0 0 15W * *").unwrap(), from, &["2026-11-16T00:00:00Z", "2026-12-15T00:00:00Z"]);
}

#[test]
fn day_of_month_and_weekday_combine_as_in_vixie_cron() {
    // The 13th, or a Friday.
    let spec = Cron::new("0 0 13 * FRI").unwrap();
    check(
        &spec,
        "2026-11-01T00:00:00Z",
        &[
            "2026-11-06T00:00:00Z",
            "2026-11-13T00:00:00Z",
            "2026-11-20T00:00:00Z",
            "2026-11-27T00:00:00Z",
            "2026-12-04T00:00:00Z",
            "2026-12-11T00:00:00Z",
            "2026-12-13T00:00:00Z",
        ],
    );
}

#[test]
fn a_day_field_that_begins_with_a_star_is_not_restricted() {
    // Mondays with an odd day of the month. The 2nd, 16th and 30th of November are not.
    let spec = Cron::new("0 0 */2 * MON").unwrap();
    let expected = ["2026-11-09T00:00:00Z", "2026-11-23T00:00:00Z", "2026-12-07T00:00:00Z"];
    check(&spec, "2026-11-01T00:00:00Z", &expected);
    // The 13th, if it is a Sunday, Tuesday, Thursday or Saturday.
    let spec = Cron::new("0 0 0 13 * */2").unwrap();
    check(&spec, "2026-11-01T00:00:00Z", &["2026-12-13T00:00:00Z", "2027-02-13T00:00:00Z"]);
    // A step over a range is a restriction.
    let spec = Cron::new("0 0 1-31/20 * MON").unwrap();
    let expected = ["2026-11-02T00:00:00Z", "2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z"];
    check(&spec, "2026-11-01T00:00:00Z", &expected);
    check(&spec, "2026-11-20T12:00:00Z", &["2026-11-21T00:00:00Z", "2026-11-23T00:00:00Z"]);
}

#[test]
fn skipped_times_run_after_the_gap_and_repeated_ones_once() {
    // Berlin: 2027-03-28 02:00 -> 03:00 (01:00 UTC), 2026-10-25 03:00 -> 02:00 (01:00 UTC).
    let berlin = Cron::new("30 2 * * *").unwrap().in_zone("Europe/Berlin");
    check(&berlin, "2027-03-27T12:00:00Z", &["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]);
    check(&berlin, "2026-10-24T12:00:00Z", &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    // New York: 2027-03-14 02:00 -> 03:00 (07:00 UTC), 2026-11-01 02:00 -> 01:00 (06:00 UTC).
    let york = Cron::new("30 2 * * *").unwrap().in_zone("America/New_York");
    check(&york, "2027-03-13T12:00:00Z", &["2027-03-14T07:00:00Z", "2027-03-15T06:30:00Z"]);
    let york = Cron::new("30 1 * * *").unwrap().in_zone("America/New_York");
    check(&york, "2026-10-31T12:00:00Z", &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]);
    // Lord Howe: half an hour. 2026-10-04 02:00 -> 02:30 (2026-10-03T15:30Z), 2027-04-04 02:00 -> 01:30 (2027-04-03T15:00Z).
    let howe = Cron::new("15 2 * * *").unwrap().in_zone("Australia/Lord_Howe");
    check(&howe, "2026-10-03T12:00:00Z", &["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]);
    let howe = Cron::new("45 1 * * *").unwrap().in_zone("Australia/Lord_Howe");
    check(&howe, "2027-04-03T12:00:00Z", &["2027-04-03T14:45:00Z", "2027-04-04T15:15:00Z"]);
}

#[test]
fn fixed_times_beside_a_gap_run_once() {
    let zoned = |cron: &str, zone: &str| Cron::new(cron).unwrap().in_zone(zone);
    let york = zoned("30 1 * * *", "America/New_York");
    check(&york, "2027-03-13T12:00:00Z", &["2027-03-14T06:30:00Z", "2027-03-15T05:30:00Z"]);
    let london = zoned("0 0 * * *", "Europe/London");
    check(&london, "2027-03-27T12:00:00Z", &["2027-03-28T00:00:00Z", "2027-03-28T23:00:00Z"]);
    let berlin = zoned("0 1 * * *", "Europe/Berlin");
    check(&berlin, "2027-03-27T12:00:00Z", &["2027-03-28T00:00:00Z", "2027-03-28T23:00:00Z"]);
    // Santiago: 2026-09-06 00:00 -> 01:00 (04:00 UTC). Cairo: 2026-04-24 00:00 -> 01:00 (2026-04-23T22:00Z).
    let santiago = zoned("0 9 * * *", "America/Santiago");
    check(&santiago, "2026-09-05T00:00:00Z", &["2026-09-05T13:00:00Z", "2026-09-06T12:00:00Z"]);
    check(&santiago, "2026-09-06T00:00:00Z", &["2026-09-06T12:00:00Z", "2026-09-07T12:00:00Z"]);
    let cairo = zoned("0 9 * * *", "Africa/Cairo");
    check(&cairo, "2026-04-23T00:00:00Z", &["2026-04-23T07:00:00Z", "2026-04-24T06:00:00Z"]);
    check(&cairo, "2026-04-24T00:00:00Z", &["2026-04-24T06:00:00Z", "2026-04-25T06:00:00Z"]);
    // Midnight itself is skipped.
    let santiago = zoned("0 0 * * *", "America/Santiago");
    check(&santiago, "2026-09-05T12:00:00Z", &["2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"]);
}

#[test]
fn lists_and_ranges_are_fixed_times() {
    let berlin = |cron: &str| Cron::new(cron).unwrap().in_zone("Europe/Berlin");
    let list = berlin("30 2,14 * * *");
    let spring = ["2027-03-28T01:00:00Z", "2027-03-28T12:30:00Z", "2027-03-29T00:30:00Z"];
    check(&list, "2027-03-27T20:00:00Z", &spring);
    let autumn = ["2026-10-25T00:30:00Z", "2026-10-25T13:30:00Z", "2026-10-26T01:30:00Z"];
    check(&list, "2026-10-24T20:00:00Z", &autumn);
    // 02:00 is skipped and runs at 03:00, which is an occurrence already.
    let range = berlin("0 2-3 * * *");
    let spring = ["2027-03-28T01:00:00Z", "2027-03-29T00:00:00Z", "2027-03-29T01:00:00Z"];
    check(&range, "2027-03-27T20:00:00Z", &spring);
    let autumn = ["2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-26T01:00:00Z"];
    check(&range, "2026-10-24T20:00:00Z", &autumn);
    // From inside the second instance of the repeated hour.
    check(&list, "2026-10-25T01:10:00Z", &["2026-10-25T13:30:00Z"]);
    assert_eq!(list.last_until(at("2026-10-25T01:10:00Z")).unwrap(), Some(at("2026-10-25T00:30:00Z")));
}

#[test]
fn both_searches_agree_over_a_year() {
    let crons = ["30 1 * * *", "0 0 * * *", "30 2,14 * * *", "0 2-3 * * *", "30 1-23/6 * * *"];
    let zones = ["Europe/Berlin", "America/New_York", "America/Santiago"];
    let (from, until) = (at("2026-10-01T00:00:00Z"), at("2027-10-01T00:00:00Z"));
    for (cron, zone) in crons.iter().flat_map(|cron| zones.map(|zone| (cron, zone))) {
        let spec = Cron::new(cron).unwrap().in_zone(zone);
        let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
        let mut next = spec.next_after(Some(from)).unwrap();
        while let Some(found) = next.filter(|found| *found < until) {
            forwards.push(found.as_millis());
            next = spec.next_after(Some(found)).unwrap();
        }
        let before = |time: Timestamp| Timestamp::from_millis(time.as_millis() - 1).unwrap();
        let mut last = spec.last_until(before(until)).unwrap();
        while let Some(found) = last.filter(|found| *found > from) {
            backwards.push(found.as_millis());
            last = spec.last_until(before(found)).unwrap();
        }
        backwards.reverse();
        assert!(forwards.len() >= 364, "{cron} in {zone}: {}", forwards.len());
        assert_eq!(forwards, backwards, "{cron} in {zone}");
    }
}

#[test]
fn wildcards_follow_real_time_at_changes_of_the_offset() {
    let spec = Cron::new("30 * * * *").unwrap().in_zone("Europe/Berlin");
    let expected = ["2027-03-28T00:30:00Z", "2027-03-28T01:30:00Z", "2027-03-28T02:30:00Z"];
    check(&spec, "2027-03-28T00:00:00Z", &expected);
    let expected = ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"];
    check(&spec, "2026-10-25T00:00:00Z", &expected);
    let quarters = Cron::new("*/30 * * * *").unwrap().in_zone("America/New_York");
    let expected = ["2026-11-01T05:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T06:30:00Z"];
    check(&quarters, "2026-11-01T05:00:00Z", &expected);
}

#[test]
fn intervals_are_counted_from_their_anchor() {
    let spec = Every::new(Duration::from_secs(90)).unwrap().anchor(at("2026-11-15T06:00:00Z"));
    check(&spec, "2026-11-15T00:00:00Z", &["2026-11-15T06:01:30Z", "2026-11-15T06:03:00Z"]);
    check(&spec, "2026-11-15T06:03:00Z", &["2026-11-15T06:04:30Z"]);
    assert_eq!(spec.last_until(at("2026-11-15T06:01:29Z")).unwrap(), None);
}

#[test]
fn start_and_end_limit_the_occurrences() {
    let spec = Cron::new("@hourly").unwrap();
    let spec = spec.starts_at(at("2026-11-15T06:30:00Z")).ends_at(at("2026-11-15T08:00:00Z"));
    let next = spec.upcoming(at("2026-11-01T00:00:00Z"), 10).unwrap();
    assert_eq!(next, [at("2026-11-15T07:00:00Z"), at("2026-11-15T08:00:00Z")]);
    assert_eq!(spec.last_until(at("2027-01-01T00:00:00Z")).unwrap(), Some(at("2026-11-15T08:00:00Z")));
    assert_eq!(spec.last_until(at("2026-11-15T06:59:00Z")).unwrap(), None);
}

#[track_caller]
fn refused(spec: crate::Result<ScheduleSpec>, expected: &str) {
    let error = spec.and_then(|spec| spec.check()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn bad_specifications_are_refused_with_the_value_and_the_rule() {
    refused(Cron::new("0 0 30 2 *"), "`0 0 30 2 * (UTC)` never fires");
    let minute = "the cron expression `61 * * * *` is invalid: the minute is `61`: use 0 to 59, or `*`, a list, a range or \
                  a step of these";
    refused(Cron::new("61 * * * *"), minute);
    refused(Cron::new("61 * * * * *"), "the second is `61`: use 0 to 59,");
    refused(Cron::new("0 25 * * *"), "the hour is `25`: use 0 to 23,");
    refused(Cron::new("0 9 32 * *"), "the day is `32`: use 1 to 31,");
    refused(Cron::new("0 9 * 1,13 *"), "the month is `1,13`: use 1 to 12, or JAN to DEC,");
    refused(Cron::new("0 0 9 * * MONDAY"), "the weekday is `MONDAY`: use 0 to 7, or SUN to SAT,");
    refused(Cron::new("@sometimes"), "is invalid: use `@hourly`,");
    let count =
        |count: &str| format!("it has {count}: use five fields (minute hour day month weekday), or six with");
    refused(Cron::new(""), &count("0 fields"));
    refused(Cron::new("9"), &count("1 field"));
    refused(Cron::new("0 9 * *"), &count("4 fields"));
    refused(Cron::new("0 0 0 1 1 * 2030"), &count("7 fields"));
    refused(Cron::new("@daily").map(|spec| spec.in_zone("Mars/Olympus")), "`Mars/Olympus` is unknown");
    refused(Every::new(Duration::ZERO), "the interval is 0");
    refused(Ok(Once::at(at("2026-11-15T06:00:00Z")).ends_at(at("2026-11-14T06:00:00Z"))), "never fires");
    refused(Cron::new("@daily").map(|spec| spec.missed(MissedRuns::RunLatest(0))), "must be 1 to 100, got 0");
    let skips = |spec: ScheduleSpec| spec.grace(Duration::ZERO).missed(MissedRuns::Skip);
    refused(Cron::new("@daily").map(skips), "at least 1000 ms if missed runs are skipped, got 0 ms");
}

#[test]
fn jitter_is_stable_and_bounded() {
    let spec = Cron::new("@daily").unwrap().jitter(Duration::from_secs(60));
    let id = ScheduleId::new();
    assert_eq!(spec.jitter_of(id), spec.jitter_of(id));
    let delays: std::collections::BTreeSet<_> =
        (0..100).map(|_| spec.jitter_of(ScheduleId::new()).get()).collect();
    assert!(delays.len() > 50 && delays.iter().all(|delay| *delay <= 60_000), "{delays:?}");
    assert_eq!(Cron::new("@daily").unwrap().jitter_of(id).get(), 0);
}

/// A schedule, and the chains that it has started.
struct World {
    row: ScheduleRecord,
    definition: Definition,
    now: Timestamp,
    chains: Vec<(ChainId, ChainStatus)>,
    cancelled: Vec<ChainId>,
    /// The number of chains that the visits have read.
    read: usize,
}

impl World {
    fn new(spec: ScheduleSpec, now: &str) -> Self {
        let now = at(now);
        let input = Payload::json("1").unwrap();
        let chain = NewChain::new(ChainId::new(), NewJob::new(TypeName::new("a").unwrap(), input));
        let job = EncodedChain::new(&chain).unwrap();
        let definition = Definition { spec: spec.anchored(now), job, declaration: None };
        let (mut state, id) = (State::new(now), ScheduleId::new());
        let due_at = due_at(id, &definition, &mut state, None, now).unwrap();
        let row = ScheduleRecord {
            name: ScheduleName::new("a").unwrap(),
            id,
            revision: RequestId::new(),
            due_at,
            handled: None,
            definition: definition.encode().into(),
            state: state.encode().into(),
        };
        Self { row, definition, now, chains: Vec::new(), cancelled: Vec::new(), read: 0 }
    }

    fn state(&self) -> State {
        State::decode(&self.row.state).unwrap()
    }

    /// Visits the schedule once. Returns the occurrence that it starts.
    fn visit(&mut self) -> Option<String> {
        let watched = self.state().watched_chains(self.definition.spec.overlap_policy(), self.now);
        assert!(watched.len() <= 40, "a visit reads {} chains", watched.len());
        self.read += watched.len();
        let find = |chain| {
            let known = self.chains.iter().find(|(known, _)| *known == chain);
            known.map_or(ChainStatus::Gone, |(_, status)| *status)
        };
        let status = |chain| watched.contains(&chain).then(|| find(chain));
        let visit = visit(&self.row, &self.definition, self.state(), self.now, status).unwrap();
        let Visit::Put(planned) = visit else { return None };
        let PutSchedule { due_at, handled, state, chain, .. } = planned.put;
        assert!(handled >= self.row.handled);
        assert!(planned.not_before.is_none_or(|time| time <= self.now));
        self.row = ScheduleRecord { due_at, handled, state, ..self.row.clone() };
        self.cancelled.extend(planned.cancel);
        let chain = chain?;
        assert!(!self.chains.iter().any(|(known, _)| *known == chain.id), "an occurrence is started twice");
        self.chains.push((chain.id, ChainStatus::Open));
        let occurrence = chain.id.occurrence().unwrap();
        assert!(!occurrence.is_manual && occurrence.schedule == self.row.id);
        Some(occurrence.at.to_string())
    }

    /// Visits the schedule whenever it is due, until `until`. Returns the occurrences that it starts.
    fn run(&mut self, until: &str) -> Vec<String> {
        let until = at(until);
        let mut started = Vec::new();
        while let Some(due_at) = self.row.due_at.filter(|due_at| *due_at <= until) {
            self.now = self.now.max(due_at);
            started.extend(self.visit());
        }
        self.now = until;
        started
    }

    fn close(&mut self, closed_as: ClosedAs) {
        let now = self.now;
        self.chains.iter_mut().for_each(|(_, status)| {
            if *status == ChainStatus::Open {
                *status = ChainStatus::Closed(closed_as, now);
            }
        });
    }
}

fn every_minute() -> ScheduleSpec {
    Cron::new("* * * * *").unwrap()
}

#[test]
fn each_occurrence_starts_once() {
    let mut world = World::new(every_minute().overlap(Overlap::Allow), "2026-11-15T06:00:30Z");
    let started = world.run("2026-11-15T06:03:10Z");
    assert_eq!(started, ["2026-11-15T06:01:00.000Z", "2026-11-15T06:02:00.000Z", "2026-11-15T06:03:00.000Z"]);
    assert_eq!(world.visit(), None, "nothing is due");
}

#[test]
fn missed_occurrences_follow_the_policy_and_are_counted() {
    let outage = |missed| {
        let mut world =
            World::new(every_minute().missed(missed).overlap(Overlap::Allow), "2026-11-15T06:00:30Z");
        world.now = at("2027-11-15T06:00:30Z");
        let started = world.run("2027-11-15T06:00:30Z");
        (started, world.state().missed)
    };
    let newest = "2027-11-15T05:59:00.000Z";
    let current = "2027-11-15T06:00:00.000Z";
    // A year has far more occurrences than are counted.
    assert_eq!(outage(MissedRuns::Skip), (vec![current.to_owned()], 1_000));
    assert_eq!(outage(MissedRuns::RunOnce), (vec![newest.to_owned(), current.to_owned()], 1_000));
    let (started, _) = outage(MissedRuns::RunLatest(3));
    assert_eq!(started, ["2027-11-15T05:57:00.000Z", "2027-11-15T05:58:00.000Z", newest, current]);
}

#[test]
fn an_overlapping_occurrence_is_skipped_until_the_chain_closes() {
    let mut world = World::new(every_minute(), "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:03:10Z"), ["2026-11-15T06:01:00.000Z"]);
    assert_eq!(world.state().overlapped, 2);
    world.close(ClosedAs::Completed);
    assert_eq!(world.run("2026-11-15T06:04:00Z"), ["2026-11-15T06:04:00.000Z"]);
    assert_eq!(world.state().last_success, Some(at("2026-11-15T06:01:00Z").as_millis()));
    let run = &world.state().runs[0];
    assert_eq!(
        (run.outcome, run.closed_at),
        (Some(RunOutcome::Completed), Some(at("2026-11-15T06:03:10Z").as_millis()))
    );
}

#[test]
fn a_failed_run_that_is_retried_is_open_again() {
    let mut world = World::new(every_minute(), "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:01:00Z").len(), 1);
    world.close(ClosedAs::Failed);
    world.run("2026-11-15T06:01:30Z");
    assert_eq!(world.state().runs[0].outcome, Some(RunOutcome::Failed));
    // An operator retries the chain.
    world.chains[0].1 = ChainStatus::Open;
    assert_eq!(world.run("2026-11-15T06:02:30Z"), Vec::<String>::new());
    assert_eq!((world.state().runs[0].outcome, world.state().overlapped), (None, 1));
    world.close(ClosedAs::Completed);
    assert_eq!(world.run("2026-11-15T06:03:00Z").len(), 1);
    assert_eq!(world.state().last_success, Some(at("2026-11-15T06:01:00Z").as_millis()));
    // A failed run whose chain was removed stays failed.
    world.close(ClosedAs::Failed);
    world.run("2026-11-15T06:03:30Z");
    world.chains.clear();
    world.visit();
    assert_eq!(world.state().runs[1].outcome, Some(RunOutcome::Failed));
}

#[test]
fn one_overlapping_occurrence_waits() {
    let mut world = World::new(every_minute().overlap(Overlap::Wait), "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:04:10Z"), ["2026-11-15T06:01:00.000Z"]);
    assert_eq!((world.state().overlapped, world.cancelled.len()), (2, 0));
    world.close(ClosedAs::Failed);
    // A visit after the close starts it at once.
    assert_eq!(world.visit().as_deref(), Some("2026-11-15T06:02:00.000Z"));
    assert_eq!(world.state().runs[0].outcome, Some(RunOutcome::Failed));
}

#[test]
fn an_overlapping_occurrence_cancels_the_chain() {
    let mut world = World::new(every_minute().overlap(Overlap::Cancel), "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:02:00Z"), ["2026-11-15T06:01:00.000Z"]);
    assert_eq!(world.cancelled, [world.chains[0].0]);
    world.close(ClosedAs::Cancelled);
    assert_eq!(world.visit().as_deref(), Some("2026-11-15T06:02:00.000Z"));
}

#[test]
fn checks_of_an_open_run_become_rare() {
    let mut world = World::new(Cron::new("@yearly").unwrap(), "2026-12-31T23:59:00Z");
    assert_eq!(world.run("2027-01-01T00:00:00Z").len(), 1);
    let mut visits = 0;
    while let Some(due_at) = world.row.due_at.filter(|due_at| *due_at <= at("2027-01-01T01:00:00Z")) {
        world.now = due_at;
        assert_eq!(world.visit(), None);
        visits += 1;
    }
    assert!((10..=30).contains(&visits), "{visits}");
    world.close(ClosedAs::Completed);
    assert_eq!(world.run("2027-01-01T01:10:00Z").len(), 0);
    assert_eq!(world.state().last_success, Some(at("2027-01-01T00:00:00Z").as_millis()));
    assert_eq!(world.row.due_at, Some(at("2028-01-01T00:00:00Z")), "no more checks");
}

#[test]
fn an_ended_schedule_is_removed_after_its_retention() {
    let spec = Once::at(at("2026-11-15T06:01:00Z")).retention(Duration::from_secs(3_600));
    let mut world = World::new(spec, "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:01:00Z"), ["2026-11-15T06:01:00.000Z"]);
    world.close(ClosedAs::Completed);
    world.run("2026-11-15T06:02:00Z");
    let ended = world.state().ended_at.expect("it has ended");
    let due_at = world.row.due_at.unwrap();
    assert_eq!(due_at.as_millis(), ended + 3_600_000);
    let status = |_| Some(ChainStatus::Gone);
    let visit = visit(&world.row, &world.definition, world.state(), due_at, status).unwrap();
    assert_eq!(visit, Visit::Delete);
}

#[test]
fn a_single_time_in_the_past_counts_as_missed() {
    let mut world = World::new(Once::at(at("2026-11-14T06:00:00Z")), "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:00:30Z"), ["2026-11-14T06:00:00.000Z"]);
    let skip = Once::at(at("2026-11-14T06:00:00Z")).missed(MissedRuns::Skip);
    let mut world = World::new(skip, "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:00:30Z"), Vec::<String>::new());
    assert_eq!(world.state().missed, 1);
}

#[test]
fn a_superseded_declaration_does_not_return() {
    let world = World::new(every_minute(), "2026-11-15T06:00:30Z");
    let now = world.now;
    let (job, hourly, daily) =
        (&world.definition.job, Cron::new("@hourly").unwrap(), Cron::new("@daily").unwrap());
    let first = Definition::declared("app", &hourly, job);
    assert_eq!(first.declare("app", &hourly, job, now), None, "nothing has changed");
    let second = first.declare("app", &daily, job, now).unwrap();
    assert_eq!(second.spec, daily);
    let refused = second.declare("app", &hourly, job, now).unwrap();
    assert_eq!(refused.spec, daily, "superseded content is not applied");
    assert_eq!(refused.declare("app", &hourly, job, now), None, "refused before");
    let accepted = refused.accept().unwrap();
    assert_eq!(accepted.spec, hourly);
    assert_eq!(accepted.accept(), None);
    assert_eq!(
        accepted.declare("app", &daily, job, now).unwrap().spec,
        hourly,
        "the other one is superseded now"
    );
}

#[test]
fn the_highest_version_of_a_declaration_wins() {
    let world = World::new(every_minute(), "2026-11-15T06:00:30Z");
    let (job, now) = (&world.definition.job, world.now);
    let (old, new) = (Cron::new("@hourly").unwrap().version(1), Cron::new("@daily").unwrap().version(2));
    let first = Definition::declared("app", &old, job);
    let second = first.declare("app", &new, job, now).unwrap();
    assert_eq!(second.spec, new);
    assert_eq!(second.declare("app", &old, job, now).unwrap().spec, new);
    let third = second.declare("app", &Cron::new("@hourly").unwrap().version(3), job, now).unwrap();
    assert_eq!(third.spec.describe(), "@hourly (UTC)", "a higher version may return to an earlier content");
}

#[test]
fn a_higher_version_of_the_same_content_is_stored() {
    let world = World::new(every_minute(), "2026-11-15T06:00:30Z");
    let (job, now) = (&world.definition.job, world.now);
    let hourly = |version| Cron::new("@hourly").unwrap().version(version);
    let first = Definition::declared("app", &hourly(1), job);
    let third = first.declare("app", &hourly(3), job, now).unwrap();
    assert_eq!(third.declare("app", &hourly(1), job, now), None);
    let second = Cron::new("@daily").unwrap().version(2);
    let refused = third.declare("app", &second, job, now).unwrap();
    assert_eq!(refused.spec.describe(), "@hourly (UTC)", "version 3 was declared");
}

#[test]
fn a_refused_declaration_is_forgotten_when_nobody_declares_it() {
    let world = World::new(every_minute(), "2026-11-15T06:00:30Z");
    let (job, now) = (&world.definition.job, world.now);
    let (old, new) = (Cron::new("@hourly").unwrap(), Cron::new("@daily").unwrap());
    let current = Definition::declared("app", &old, job).declare("app", &new, job, now).unwrap();
    let hours = |count: u64| now + Duration::from_secs(count * 3_600);
    let refused = current.declare("app", &old, job, now).unwrap();
    assert_eq!(refused.declare("app", &new, job, hours(2)), None, "it may be declared again");
    // The old program still runs.
    let again = refused.declare("app", &old, job, hours(2)).unwrap();
    assert_eq!(again.declare("app", &new, job, hours(4)), None);
    let forgotten = again.declare("app", &new, job, hours(5)).unwrap();
    assert_eq!(forgotten, current);
    assert_eq!(forgotten.accept(), None);
}

#[test]
fn of_missed_occurrences_that_overlap_the_newest_starts() {
    let outage = |overlap| {
        let spec = every_minute().missed(MissedRuns::RunLatest(5)).overlap(overlap);
        let mut world = World::new(spec.grace(Duration::from_secs(10)), "2026-11-15T06:00:30Z");
        world.now = at("2026-11-15T08:00:30Z");
        let started = world.visit().unwrap();
        while world.row.due_at.is_some_and(|due_at| due_at <= world.now) {
            assert_eq!(world.visit(), None);
        }
        (started, world.state().waiting.map(|ms| Timestamp::from_millis(ms).unwrap().to_string()))
    };
    let (before, newest) = ("2026-11-15T07:59:00.000Z".to_owned(), "2026-11-15T08:00:00.000Z".to_owned());
    assert_eq!(outage(Overlap::Skip), (newest.clone(), None));
    assert_eq!(outage(Overlap::Cancel), (newest.clone(), None));
    assert_eq!(outage(Overlap::Wait), (before, Some(newest)));
}

#[test]
fn an_occurrence_that_is_due_comes_before_missed_ones() {
    let outage = |overlap| {
        let mut world = World::new(every_minute().overlap(overlap), "2026-11-15T06:00:30Z");
        world.now = at("2026-11-15T08:00:30Z");
        let started = world.visit().unwrap();
        while world.row.due_at.is_some_and(|due_at| due_at <= world.now) {
            assert_eq!(world.visit(), None);
        }
        let waiting = world.state().waiting.map(|ms| Timestamp::from_millis(ms).unwrap().to_string());
        (started, waiting, world.state().missed, world.state().overlapped)
    };
    // The newest missed one, and the one that is due.
    let (missed, due) = ("2026-11-15T07:59:00.000Z".to_owned(), "2026-11-15T08:00:00.000Z".to_owned());
    assert_eq!(outage(Overlap::Skip), (due.clone(), None, 119, 0));
    assert_eq!(outage(Overlap::Cancel), (due.clone(), None, 119, 0));
    assert_eq!(outage(Overlap::Wait), (missed, Some(due), 118, 0));
}

#[test]
fn the_start_of_an_occurrence_is_right_until_it_is_missed() {
    let late = |now: &str| {
        let mut world = World::new(every_minute().overlap(Overlap::Allow), "2026-11-15T06:00:30Z");
        world.now = at(now);
        let status = |_| Some(ChainStatus::Gone);
        match visit(&world.row, &world.definition, world.state(), world.now, status).unwrap() {
            Visit::Put(planned) => planned.not_after.map(|time| time.to_string()),
            other => panic!("expected a start, got {other:?}"),
        }
    };
    assert_eq!(late("2026-11-15T06:01:00Z").as_deref(), Some("2026-11-15T06:02:00.000Z"));
    assert_eq!(late("2026-11-15T06:01:59Z").as_deref(), Some("2026-11-15T06:02:00.000Z"));
    // Already missed: newer ones may be missed a minute later.
    assert_eq!(late("2026-11-15T06:02:30Z").as_deref(), Some("2026-11-15T06:03:30.000Z"));
}

#[test]
fn the_success_of_a_run_behind_many_open_ones_counts() {
    let mut world = World::new(every_minute().overlap(Overlap::Allow), "2026-11-15T06:00:30Z");
    assert_eq!(world.run("2026-11-15T06:30:10Z").len(), 30);
    assert_eq!((world.state().runs.len(), world.state().older.len()), (20, 10));
    world.chains[3].1 = ChainStatus::Closed(ClosedAs::Completed, world.now);
    world.chains[5].1 = ChainStatus::Closed(ClosedAs::Failed, world.now);
    world.run("2026-11-15T06:31:10Z");
    assert_eq!(world.state().last_success, Some(at("2026-11-15T06:04:00Z").as_millis()));
    assert_eq!(world.state().older.len(), 9, "one more is behind");
    // Their number is bounded, and so is the text.
    world.run("2026-11-15T16:00:10Z");
    assert_eq!((world.state().runs.len(), world.state().older.len()), (20, 200));
    assert!(world.row.state.len() < crate::limit::SCHEDULE_TEXT_MAX_BYTES / 4, "{}", world.row.state.len());
}

#[test]
fn visits_read_few_of_many_open_runs() {
    // Several occurrences between two checks.
    let spec = Every::new(Duration::from_millis(100)).unwrap().overlap(Overlap::Allow);
    let mut world = World::new(spec, "2026-11-15T06:00:00Z");
    assert_eq!(world.run("2026-11-15T06:00:40Z").len(), 400);
    assert_eq!((world.state().runs.len(), world.state().older.len()), (20, 200));
    world.read = 0;
    let started = world.run("2026-11-15T06:00:50Z").len();
    assert_eq!(started, 100);
    assert!(world.read <= 11 * 40, "{started} visits have read {} chains", world.read);
    // Without further occurrences, every open run is read within the time that a closed chain is kept.
    let first = world.state().older.iter().min().copied().unwrap();
    let place = world.chains.iter().position(|(chain, _)| *chain == first).unwrap();
    world.definition.spec = world.definition.spec.clone().ends_at(world.now);
    world.run("2026-11-15T06:20:00Z");
    world.chains[place].1 = ChainStatus::Closed(ClosedAs::Completed, world.now);
    world.run("2026-11-15T06:29:59Z");
    assert_eq!(world.state().last_success, first.occurrence().map(|of| of.at.as_millis()));
}

#[test]
fn texts_round_trip() {
    let world = World::new(every_minute().in_zone("Asia/Tokyo"), "2026-11-15T06:00:30Z");
    let mut definition = world.definition;
    let mut chain = definition.job.decode(ChainId::new()).unwrap();
    chain.job.input = Payload::new(crate::Codec::new("x").unwrap(), vec![0, 255, 16]).unwrap();
    definition.job = EncodedChain::new(&chain).unwrap();
    let decoded = Definition::decode(&definition.encode()).unwrap();
    assert_eq!(decoded, definition);
    assert_eq!(decoded.job.decode(chain.id).unwrap(), chain);
    assert_eq!(Definition::decode("{}").unwrap_err().kind(), ErrorKind::Incompatible);
    let _: Arc<str> = definition.encode().into();
}
