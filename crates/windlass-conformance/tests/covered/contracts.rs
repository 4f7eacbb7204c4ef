//! Every case of the sources' stores and notifiers has a counterpart or a reason.

use std::collections::HashSet;

use windlass_conformance::{EXCLUDED, cases, notifier_cases};

/// Number of store cases in each group of the source.
const STORE_GROUPS: &[(&str, u32)] = &[
    ("CJ", 25),
    ("TX", 6),
    ("GC", 6),
    ("AB", 4),
    ("UB", 9),
    ("BT", 2),
    ("GB", 3),
    ("NX", 3),
    ("AQ", 4),
    ("RL", 2),
    ("RS", 3),
    ("TJ", 7),
    ("CP", 3),
    ("RP", 3),
    ("DC", 8),
    ("GJ", 2),
    ("LC", 12),
    ("LJ", 10),
    ("LX", 5),
    ("LB", 4),
    ("SP", 6),
    ("CC", 5),
    ("RI", 12),
    ("CL", 1),
];

/// Defects of the sources that a store can have. Each needs a case. The other defects concern workers,
/// clients, notifiers, dashboards and providers.
const STORE_DEFECTS: &[(&str, &[u32])] = &[
    ("A8", &[1, 2, 3, 4, 5, 7, 11, 12, 16, 17]),
    ("B4", &[1, 2, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 27, 28, 29, 30, 31, 32]),
];

#[test]
fn every_store_defect_of_the_sources_has_a_case() {
    let sources: HashSet<_> = all().iter().flat_map(|(.., sources)| sources.iter().copied()).collect();
    let defects =
        STORE_DEFECTS.iter().flat_map(|(part, numbers)| numbers.iter().map(move |n| format!("{part}.{n}")));
    let missing: Vec<_> = defects.filter(|defect| !sources.contains(defect.as_str())).collect();
    assert!(missing.is_empty(), "no case: {missing:?}");
}

fn source_ids() -> Vec<String> {
    let store = STORE_GROUPS
        .iter()
        .flat_map(|(group, last)| (1..=*last).map(move |number| format!("SA-{group}{number:02}")));
    store.chain((1..=24).map(|number| format!("NA-{number:03}"))).collect()
}

/// Returns the id, name and sources of every store case and notifier case.
fn all() -> Vec<(&'static str, &'static str, &'static [&'static str])> {
    let store = cases().into_iter().map(|case| (case.id, case.name, case.sources));
    store.chain(notifier_cases().into_iter().map(|case| (case.id, case.name, case.sources))).collect()
}

#[test]
fn every_case_of_the_sources_has_a_counterpart_or_a_reason() {
    let ids = source_ids();
    assert_eq!(ids.len(), 145 + 24);
    let sources: HashSet<_> = all().iter().flat_map(|(.., sources)| sources.iter().copied()).collect();
    let excluded: HashSet<_> = EXCLUDED.iter().map(|(id, _)| *id).collect();
    let missing: Vec<_> =
        ids.iter().filter(|id| !sources.contains(id.as_str()) && !excluded.contains(id.as_str())).collect();
    assert!(missing.is_empty(), "neither a case nor a reason: {missing:?}");
    let both: Vec<_> = excluded.iter().filter(|id| sources.contains(*id)).collect();
    assert!(both.is_empty(), "excluded, but there is a case: {both:?}");
    let known: HashSet<_> = ids.iter().map(String::as_str).collect();
    let stray: Vec<_> = sources
        .iter()
        .chain(&excluded)
        .filter(|source| (source.starts_with("SA-") || source.starts_with("NA-")) && !known.contains(*source))
        .collect();
    assert!(stray.is_empty(), "no such case in the sources: {stray:?}");
}

#[test]
fn ids_are_unique_and_dotted() {
    let mut seen = HashSet::new();
    for (id, ..) in all() {
        assert!(seen.insert(id), "{id} is listed twice");
        let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(id.contains('.') && id.split('.').all(plain), "{id} is not a dotted name");
    }
}

#[test]
fn names_are_sentences_and_sources_are_named() {
    let mut seen = HashSet::new();
    for (id, name, sources) in all() {
        let begins = name.chars().next().is_some_and(char::is_uppercase);
        assert!(
            begins && name.ends_with('.') && name.split(' ').count() >= 3,
            "{id}: {name:?} is not a sentence"
        );
        assert!(seen.insert(name), "{id}: another case says {name:?} too");
        assert!(!sources.is_empty(), "{id} has no source");
    }
}
