//! The fuzzing entry points, with records of real folders that are changed at random.

use std::path::Path;

use fastrand::Rng;

use super::decode::{change, records};
use crate::frame::Kind;
use crate::fuzz;

/// Records are changed, repeated, left out and swapped. Their checksums are valid.
#[tokio::test]
async fn changed_journals_and_snapshots_are_read_or_refused() {
    let rounds = if windlass_testkit::is_full_run() { 100_000 } else { 1_500 };
    for (kind, entry) in
        [(Kind::Journal, fuzz::journal as fn(&[u8]) -> bool), (Kind::Snapshot, fuzz::snapshot)]
    {
        let records = records(kind).await;
        assert!(entry(&fuzz::from_contents(&records)), "{kind:?}: unchanged");
        let mut random = Rng::with_seed(13);
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..rounds {
            let mut contents = records.clone();
            for _ in 0..random.usize(1..4) {
                mutate(&mut contents, &mut random);
            }
            let mut data = fuzz::from_contents(&contents);
            if random.u8(..4) == 0 {
                // The end of the file is missing.
                data[0] = random.u8(..) | 3;
            } else if kind == Kind::Journal && random.bool() {
                // There is reserved room.
                data[0] = random.u8(..) & !2 | 1;
            }
            match entry(&data) {
                true => opened += 1,
                false => refused += 1,
            }
        }
        println!("{kind:?}: {opened} opened, {refused} refused");
        assert!(
            opened > rounds / 100 && refused > rounds / 10,
            "{kind:?}: {opened} opened, {refused} refused"
        );
    }
}

/// The seeds for the programs in `fuzz/`. `WINDLASS_UPDATE=1` creates those that are missing.
#[tokio::test]
async fn seeds_can_be_opened() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (kind, name) in [(Kind::Journal, "journal"), (Kind::Snapshot, "snapshot")] {
        let path = seeds.join(name).join("workload");
        if std::env::var_os("WINDLASS_UPDATE").is_some() && !path.exists() {
            std::fs::create_dir_all(seeds.join(name)).unwrap();
            std::fs::write(&path, fuzz::from_contents(&records(kind).await)).unwrap();
        }
        let seed = std::fs::read(path).unwrap();
        assert!(if kind == Kind::Journal { fuzz::journal(&seed) } else { fuzz::snapshot(&seed) });
    }
}

fn mutate(contents: &mut Vec<Vec<u8>>, random: &mut Rng) {
    if contents.is_empty() {
        return;
    }
    let (at, other) = (random.usize(..contents.len()), random.usize(..contents.len()));
    match random.u8(..8) {
        0 => drop(contents.remove(at)),
        1 => contents.insert(at, contents[other].clone()),
        2 => contents.swap(at, other),
        3 => contents.truncate(at),
        // A seal.
        4 => contents.insert(at, vec![2, random.u8(..4)]),
        _ => change(&mut contents[at], random),
    }
}

/// Files of any bytes, without valid checksums.
#[test]
fn files_of_any_bytes_are_refused() {
    let mut random = Rng::with_seed(14);
    for _ in 0..3_000 {
        let mut data: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
        if let Some(mode) = data.first_mut() {
            *mode &= !1;
        }
        assert!(!fuzz::journal(&data) && !fuzz::snapshot(&data));
    }
}
