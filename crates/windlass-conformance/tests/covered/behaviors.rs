//! Every behavior of the sources has a case, a proof or a reason.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::path::Path;

use windlass_conformance::{BEHAVIORS_EXCLUDED, BEHAVIORS_PROVED_BY_TYPES, Rule, rules};

/// Numbers of the sources' behaviors by group: `BS-001` and so on.
const GROUPS: &[(&str, RangeInclusive<u32>)] = &[
    ("start", 1..=23),
    ("chains", 24..=32),
    ("blocker-chains", 33..=41),
    ("deduplication to wait", 42..=159),
    ("process to state-resilience", 160..=211),
    ("validation", 212..=224),
];

/// Defects of the sources that concern the worker, and the sentences of "Never" about it.
const WORKER: [(&str, &[u32]); 2] = [("A8.", &[6, 7, 8, 9, 10, 12, 13, 14]), ("never ", &[10, 11, 12])];

#[test]
fn every_behavior_of_the_sources_has_a_case_a_proof_or_a_reason() {
    let sources: HashSet<_> = rules().iter().flat_map(|case| case.sources).copied().collect();
    let proved: HashSet<_> = BEHAVIORS_PROVED_BY_TYPES.iter().map(|(id, _)| *id).collect();
    let excluded: HashSet<_> = BEHAVIORS_EXCLUDED.iter().map(|(id, _)| *id).collect();
    for (group, numbers) in GROUPS {
        let ids = numbers.clone().map(|number| format!("BS-{number:03}"));
        let known = |id: &String| [&sources, &proved, &excluded].iter().any(|set| set.contains(id.as_str()));
        let missing: Vec<_> = ids.filter(|id| !known(id)).collect();
        assert!(missing.is_empty(), "{group}: neither a case, nor a proof, nor a reason: {missing:?}");
    }
    let both: Vec<_> = excluded.iter().filter(|id| sources.contains(*id) || proved.contains(*id)).collect();
    assert!(both.is_empty(), "excluded, but there is a case or a proof: {both:?}");
}

#[test]
fn every_defect_of_a_worker_has_a_case() {
    let sources: HashSet<_> = rules().iter().flat_map(|case| case.sources).copied().collect();
    let wanted = WORKER.iter().flat_map(|(part, numbers)| numbers.iter().map(move |n| format!("{part}{n}")));
    let missing: Vec<_> = wanted.filter(|source| !sources.contains(source.as_str())).collect();
    assert!(missing.is_empty(), "no case: {missing:?}");
}

#[test]
fn proofs_that_are_files_exist() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../windlass-macros/tests/compile_fail");
    for (id, proof) in BEHAVIORS_PROVED_BY_TYPES.iter().filter(|(_, proof)| proof.ends_with(".rs")) {
        assert!(directory.join(proof).exists(), "{id}: there is no {proof}");
    }
}

#[test]
fn ids_are_unique_and_dotted_and_names_are_sentences() {
    let (mut ids, mut names) = (HashSet::new(), HashSet::new());
    for Rule { id, name, sources, .. } in rules() {
        assert!(ids.insert(id), "{id} is listed twice");
        let plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(id.contains('.') && id.split('.').all(plain), "{id} is not a dotted name");
        let begins = name.chars().next().is_some_and(char::is_uppercase);
        assert!(
            begins && name.ends_with('.') && name.split(' ').count() >= 3,
            "{id}: {name:?} is not a sentence"
        );
        assert!(names.insert(name), "{id}: another case says {name:?} too");
        assert!(!sources.is_empty(), "{id} has no source");
    }
}

/// Behaviors of the sources about what is logged, and what is not.
const LOGGING: &[&str] = &[
    "logging: simple lifecycle",
    "logging: retry with backoff",
    "logging: continuations",
    "logging: blockers",
    "logging: workerless",
    "logging: lease renewal",
    "logging: lease expiry",
    "logging: reaper",
    "logging: state and worker errors",
    "logging: notify errors",
    "logging: creation rolled back",
    "logging: creation with blockers rolled back",
    "logging: workerless completion rolled back",
    "logging: worker completion rolled back",
    "logging: reschedule rolled back",
    "logging: user throw after continueWith",
    "logging: unblock failure",
    "logging: workerless internal failure",
    "logging: continuation create failure",
    "logging: chain deletion",
    "logging: trigger",
];

#[test]
fn every_log_event_of_the_sources_has_a_case() {
    let sources: HashSet<_> = rules().iter().flat_map(|case| case.sources).copied().collect();
    let missing: Vec<_> = LOGGING.iter().filter(|name| !sources.contains(*name)).collect();
    assert!(missing.is_empty(), "no case: {missing:?}");
}
