//! The seeded simulation, on virtual time.
//!
//! It runs real clients and workers. Handlers fail, panic, exceed their time and ignore aborts. The store and
//! the notifier delay calls, fail, and fail after the commit. Processes crash and stop, and the store has
//! outages. Schedules start jobs while the clocks change. The journal records what was committed below the faults; everything that clients, workers,
//! observers and notifiers receive is compared with it.
//!
//! `cargo xtask sim --seeds N` runs more seeds, `cargo xtask sim --seed X` replays one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod bad;
mod caller;
mod check;
mod dispatch;
mod fact;
mod fate;
mod invariant;
mod jobs;
mod journal;
mod scenario;
mod schedules;
mod settings;
mod store;
mod world;

use std::collections::BTreeMap;
use std::env;
use std::time::Instant;

use bad::Bad;
use scenario::run;
use world::Report;

/// How many seeds a normal test run covers.
const SEEDS: u64 = 500;

/// How many trace lines are printed for a seed that violates an invariant.
const LINES_SHOWN: usize = 150;

/// The number of seeds within which a known-bad variant must be detected.
const SEEDS_TO_FIND: u64 = 2_000;

/// What a simulation of many seeds must exercise. Without it, a successful run would prove little.
const EXERCISED: [&str; 75] = [
    "abort AlreadyClosed",
    "abort Cancelled",
    "abort NotFound",
    "abort StoreError",
    "abort TimedOut",
    "abort WorkerStopping",
    "act Deaf",
    "act Fail",
    "act GiveUp",
    "act Leases",
    "act Panic",
    "act Regret",
    "act Reschedule",
    "act Work",
    "chain Blocked",
    "chain Cancelled",
    "chain Completed",
    "chain Failed",
    "client cancel",
    "client commit",
    "client completion from outside",
    "client delete",
    "client dropped transaction",
    "client retry",
    "client rollback",
    "client run now",
    "client start",
    "client start blocked",
    "client start many",
    "client trigger",
    "continued in a transaction",
    "disturbance another worker",
    "disturbance crash",
    "disturbance cut off",
    "disturbance dropped worker",
    "disturbance outage",
    "disturbance stop",
    "disturbance store restart",
    "event AttemptFailed",
    "event AttemptLost",
    "event AttemptReaped",
    "event AttemptReleased",
    "event AttemptRescheduled",
    "event ChainClosed",
    "event ChainDeleted",
    "event ChainRetried",
    "event JobBlocked",
    "event JobCancelled",
    "event JobFailed",
    "event JobTriggered",
    "event JobUnblocked",
    "event LeaseRenewed",
    "fault answers late",
    "fault fails",
    "fault hangs",
    "fault is busy",
    "fault is late",
    "fault loses the reply",
    "hint doubled",
    "hint gap",
    "hint delivered",
    "hint late",
    "hint lost",
    "overlap Allow",
    "overlap Cancel",
    "overlap Skip",
    "overlap Wait",
    "schedule busy",
    "schedule conflict",
    "schedule repeated",
    "schedule started",
    "wait ChainCancelled",
    "wait ChainFailed",
    "wait NotFound",
    "wait completed",
];

#[test]
fn every_invariant_holds_for_every_seed() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let one = number("WINDLASS_SEED");
    let start = one.or_else(|| number("WINDLASS_SEED_START")).unwrap_or(0);
    let seeds = one.map(|_| 1).or_else(|| number("WINDLASS_SEEDS")).unwrap_or(SEEDS);
    let began = Instant::now();
    let mut tally = BTreeMap::<String, u64>::new();
    for (done, seed) in (1..).zip(start..start + seeds) {
        let report = run(seed, None, if one.is_some() { usize::MAX } else { LINES_SHOWN });
        if one.is_some() && report.violation.is_none() {
            report.trace_end.iter().for_each(|line| println!("{line}"));
        }
        assert!(report.violation.is_none(), "{}", explain(seed, &report));
        report.tally.into_iter().for_each(|(what, count)| *tally.entry(what).or_default() += count);
        if done % 1_000 == 0 {
            println!("{done} seeds, {:.1} s", began.elapsed().as_secs_f64());
        }
    }
    println!("{seeds} seeds in {:.1} s exercised:", began.elapsed().as_secs_f64());
    tally.iter().for_each(|(what, count)| println!("{count:>9}  {what}"));
    if seeds >= SEEDS {
        let idle: Vec<_> = EXERCISED.iter().filter(|what| !tally.contains_key(**what)).collect();
        assert!(idle.is_empty(), "the simulation no longer exercises {idle:?}");
    }
}

#[test]
fn a_seed_reproduces_the_same_world() {
    for seed in 0..30 {
        let (first, again) = (run(seed, None, LINES_SHOWN), run(seed, None, LINES_SHOWN));
        assert_eq!(first.trace_end, again.trace_end, "seed {seed}");
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed}");
    }
}

#[test]
fn known_bad_variants_are_found() {
    for bad in Bad::ALL {
        // A defect may violate other invariants first. Its own invariant must detect it too.
        let found = (0..SEEDS_TO_FIND).find_map(|seed| {
            let violation = run(seed, Some(bad), LINES_SHOWN).violation?;
            (violation.invariant == bad.found_by()).then_some((seed, violation))
        });
        let Some((seed, violation)) = found else { panic!("{bad:?} is not found in {SEEDS_TO_FIND} seeds") };
        println!("{bad:?}: seed {seed}, {:?}: {}", violation.invariant, violation.what);
    }
}

/// Returns the violation, the end of its trace, and how to replay it.
fn explain(seed: u64, report: &Report) -> String {
    let Some(violation) = &report.violation else { return String::new() };
    format!(
        "seed {seed} breaks {:?}: {}\n\nthe end of its trace (milliseconds, node, what):\n{}\n\n\
         replay it: cargo xtask sim --seed {seed}",
        violation.invariant,
        violation.what,
        report.trace_end.join("\n"),
    )
}
