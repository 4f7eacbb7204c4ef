/// Behaviours of the sources without a counterpart, and why.
pub const BEHAVIOURS_EXCLUDED: &[(&str, &str)] = &[];

/// Behaviours of the sources that no program can break that compiles, and what proves it: a file of
/// `crates/windlass/tests/compile_fail`, or a type.
pub const BEHAVIOURS_PROVED_BY_TYPES: &[(&str, &str)] = &[];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::ops::RangeInclusive;
    use std::path::Path;

    use windlass_core::MemoryStore;

    use super::*;
    use crate::behaviour::{Behaviour, behaviours, transactional_behaviours};

    /// The numbers of the sources' behaviours, `BS-001` and so on, by group. The groups that are left out are those of
    /// the client, whose cases are to come.
    const GROUPS: &[(&str, RangeInclusive<u32>)] =
        &[("chains", 24..=30), ("blocker-chains", 33..=41), ("process to state-resilience", 160..=211)];

    /// The defects of the sources that are the worker's, and the sentences of "Never" that are about it.
    const WORKER: [(&str, &[u32]); 2] = [("A8.", &[6, 7, 8, 9, 10, 12, 13, 14]), ("never ", &[10, 11, 12])];

    fn all() -> Vec<Behaviour<MemoryStore>> {
        behaviours().into_iter().chain(transactional_behaviours()).collect()
    }

    #[test]
    fn every_behaviour_of_the_sources_has_a_case_a_proof_or_a_reason() {
        let sources: HashSet<_> = all().iter().flat_map(|case| case.sources).copied().collect();
        let proved: HashSet<_> = BEHAVIOURS_PROVED_BY_TYPES.iter().map(|(id, _)| *id).collect();
        let excluded: HashSet<_> = BEHAVIOURS_EXCLUDED.iter().map(|(id, _)| *id).collect();
        for (group, numbers) in GROUPS {
            let ids = numbers.clone().map(|number| format!("BS-{number:03}"));
            let known =
                |id: &String| [&sources, &proved, &excluded].iter().any(|set| set.contains(id.as_str()));
            let missing: Vec<_> = ids.filter(|id| !known(id)).collect();
            assert!(missing.is_empty(), "{group}: neither a case, nor a proof, nor a reason: {missing:?}");
        }
        let both: Vec<_> =
            excluded.iter().filter(|id| sources.contains(*id) || proved.contains(*id)).collect();
        assert!(both.is_empty(), "excluded, but there is a case or a proof: {both:?}");
    }

    #[test]
    fn every_defect_of_a_worker_has_a_case() {
        let sources: HashSet<_> = all().iter().flat_map(|case| case.sources).copied().collect();
        let wanted =
            WORKER.iter().flat_map(|(part, numbers)| numbers.iter().map(move |n| format!("{part}{n}")));
        let missing: Vec<_> = wanted.filter(|source| !sources.contains(source.as_str())).collect();
        assert!(missing.is_empty(), "no case: {missing:?}");
    }

    #[test]
    fn proofs_that_are_files_exist() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../windlass/tests/compile_fail");
        for (id, proof) in BEHAVIOURS_PROVED_BY_TYPES.iter().filter(|(_, proof)| proof.ends_with(".rs")) {
            assert!(folder.join(proof).exists(), "{id}: there is no {proof}");
        }
    }

    #[test]
    fn ids_are_unique_and_dotted_and_names_are_sentences() {
        let (mut ids, mut names) = (HashSet::new(), HashSet::new());
        for Behaviour { id, name, sources, .. } in all() {
            assert!(ids.insert(id), "{id} stands twice");
            let plain =
                |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(id.contains('.') && id.split('.').all(plain), "{id} is not a dotted name");
            let begins = name.chars().next().is_some_and(char::is_uppercase);
            assert!(
                begins && name.ends_with('.') && name.split(' ').count() >= 3,
                "{id}: {name:?} is no sentence"
            );
            assert!(names.insert(name), "{id}: another case says {name:?} too");
            assert!(!sources.is_empty(), "{id} has no source");
        }
    }
}
