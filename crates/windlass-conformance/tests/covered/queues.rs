//! Every test of the source's queue has a case, a test or a reason.

use std::collections::HashSet;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use windlass_conformance::{QUEUE_EXCLUDED, cases as contract_cases, notifier_cases, rules};

/// Titles of the source's tests by group: letters and a number, such as `Q01`.
const GROUPS: &[(&str, RangeInclusive<u32>)] = &[
    ("Q", 1..=37),
    ("D", 1..=13),
    ("RR", 1..=12),
    ("RE", 1..=12),
    ("LE", 1..=10),
    ("LF", 1..=7),
    ("MQ", 1..=8),
    ("E", 1..=12),
];

/// Rows of the source's table of storage tests (`ST-01` and so on): the number of its storages that each row applies
/// to.
const STORAGE: [usize; 47] = [
    4, 4, 4, 4, 2, 1, 1, 4, 4, 4, 4, 4, 1, 4, 4, 4, 4, 3, 1, 4, 4, 1, 4, 1, 4, 3, 4, 4, 1, 4, 4, 4, 4, 4, 4,
    2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1,
];

/// Total number of the source's tests.
const TITLES: usize = 245;

/// Numbers of the source's defects: `B4.1` and so on.
const DEFECTS: RangeInclusive<u32> = 1..=32;

/// Titles that are covered by a case of the store contract or the notifier contract.
const BY_CONTRACT: &[(&str, &str)] = &[
    ("ST-23", "worker.listed"),
    ("ST-24", "worker.beat"),
    ("ST-25", "worker.retired"),
    ("ST-26", "worker.gone"),
    ("ST-35", "store.erase"),
    ("ST-40", "lock.renewed"),
    ("ST-42", "lock.released"),
    ("RR12", "subscription.ended"),
];

/// Titles that are covered by a test of `windlass-core`, because they need a manual clock or a store that lacks a
/// capability.
const ELSEWHERE: &[(&str, &str)] = &[
    ("RR04", "a_wait_lasts_thirty_seconds_by_default"),
    ("LE10", "a_store_without_locks_is_refused"),
    ("ST-46", "the_leading_reaper_removes_expired_chains"),
    ("ST-47", "the_leading_reaper_removes_expired_chains"),
    ("RE04", "errors_of_a_reaper_are_observed"),
];

/// Defects that only one kind of store can have, and where they are tested.
const DEFECTS_ELSEWHERE: &[(&str, &str)] = &[
    ("B4.24", "scripts that a Redis forgot are loaded again: tests of `windlass-redis`"),
    (
        "B4.26",
        "the cost of a command does not depend on what is stored: `bound` cases and `tests/it/cost.rs`",
    ),
];

fn titles() -> Vec<String> {
    let named =
        GROUPS.iter().flat_map(|(letter, numbers)| numbers.clone().map(move |n| format!("{letter}{n:02}")));
    named.chain((1..=STORAGE.len()).map(|n| format!("ST-{n:02}"))).collect()
}

fn sources() -> HashSet<&'static str> {
    let of_queues = rules().into_iter().filter(|rule| rule.id.starts_with("queue."));
    of_queues.flat_map(|rule| rule.sources).copied().collect()
}

#[test]
fn every_title_of_the_source_has_a_case_a_test_or_a_reason() {
    let numbered: usize = GROUPS.iter().map(|(_, numbers)| numbers.clone().count()).sum();
    assert_eq!(numbered + STORAGE.iter().sum::<usize>(), TITLES);
    let sources = sources();
    let listed: HashSet<_> =
        [BY_CONTRACT, ELSEWHERE, QUEUE_EXCLUDED].concat().iter().map(|(title, _)| *title).collect();
    let is_known = |title: &String| sources.contains(title.as_str()) || listed.contains(title.as_str());
    let missing: Vec<_> = titles().into_iter().filter(|title| !is_known(title)).collect();
    assert!(missing.is_empty(), "neither a case, nor a test, nor a reason: {missing:?}");
    let both: Vec<_> = QUEUE_EXCLUDED.iter().filter(|(title, _)| sources.contains(title)).collect();
    assert!(both.is_empty(), "excluded, but there is a case: {both:?}");
}

#[test]
fn every_title_that_a_case_names_exists() {
    let titles: HashSet<_> = titles().into_iter().collect();
    let is_title = |source: &&str| source.len() <= 5 && !source.starts_with("B4.") && !source.contains(' ');
    let wrong: Vec<_> =
        sources().into_iter().filter(is_title).filter(|source| !titles.contains(*source)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn referenced_contract_cases_exist() {
    let known: HashSet<_> = contract_cases().iter().map(|case| case.id).collect();
    let notifier: HashSet<_> = notifier_cases().iter().map(|case| case.id).collect();
    for (title, id) in BY_CONTRACT {
        assert!(known.contains(id) || notifier.contains(id), "{title}: there is no case {id}");
    }
}

#[test]
fn referenced_tests_exist() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../windlass-core/tests/it/queue.rs");
    let tests = fs::read_to_string(place).unwrap();
    for (title, test) in ELSEWHERE {
        assert!(tests.contains(&format!("async fn {test}()")), "{title}: there is no test {test}");
    }
}

#[test]
fn every_defect_of_the_source_has_a_case() {
    let mut sources = sources();
    sources.extend(contract_cases().iter().flat_map(|case| case.sources).copied());
    let elsewhere: HashSet<_> = DEFECTS_ELSEWHERE.iter().map(|(defect, _)| *defect).collect();
    let ids = DEFECTS.map(|number| format!("B4.{number}"));
    let missing: Vec<_> =
        ids.filter(|id| !sources.contains(id.as_str()) && !elsewhere.contains(id.as_str())).collect();
    assert!(missing.is_empty(), "no case: {missing:?}");
}
