//! Files that were truncated or changed by something else.

use std::collections::BTreeMap;

use windlass_core::{ErrorKind, Store};
use windlass_testkit::logs::Warnings;

use super::compaction::rotate;
use super::disk::{TestDisk, Unsynced, power_failure};
use super::workload::{Dump, Step, Workload, create, open, run};
use crate::FileStore;
use crate::folder::{HEAD, Position, journal_name, snapshot_name};

type Image = BTreeMap<String, Vec<u8>>;

/// The state after a batch, and the end of that batch in its journal.
type At = (usize, Dump);

/// A small folder with a snapshot and a journal, and the states after each of its batches since the snapshot.
async fn image() -> (Image, Vec<Dump>) {
    let (image, states) = image_with_ends().await;
    (image, states.into_iter().map(|(_, state)| state).collect())
}

async fn image_with_ends() -> (Image, Vec<At>) {
    let workload = Workload::random(5, 9);
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    let mut states = Vec::new();
    for (step, state) in workload.steps.iter().zip(&workload.states[1..]) {
        run(&store, step).await.unwrap();
        if matches!(step, Step::Compact) {
            states.clear();
        }
        states.push((position(&store).offset as usize, state.clone()));
    }
    store.close().await.unwrap();
    let files = disk.files();
    assert_eq!(files.keys().filter(|name| name.starts_with("snapshot-")).count(), 1);
    assert!(files[&journal_name(2)].len() > 500 && files[&snapshot_name(2)].len() > 500);
    (files, states)
}

/// Returns the end of the records in the journal. After it, there is reserved room.
fn end(image: &Image) -> usize {
    let end = crate::frame::u64_at(&image[HEAD], 36) as usize;
    assert!(end < image[&journal_name(2)].len());
    end
}

/// Opens a changed folder, and returns its state, or checks the error.
fn recover(image: &Image, changed: &str) -> Option<Dump> {
    match open(&TestDisk::with_files(image.clone())) {
        Ok(store) => Some(Dump::of_store(&store)),
        Err(error) => {
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
            assert!(text.contains(changed) && text.contains("offset"), "{text}");
            None
        }
    }
}

fn position(store: &FileStore) -> Position {
    store.shared().state().unwrap().position
}

/// Without `head`, a truncated journal cannot be distinguished from one with an incomplete last batch: it is cut off after
/// its last complete batch.
#[tokio::test]
async fn a_truncated_journal_is_cut_off_after_its_last_complete_batch() {
    let (image, states) = image_with_ends().await;
    let name = journal_name(2);
    let warnings = Warnings::capture("windlass_file");
    let (mut cut_off, mut refused) = (0, 0);
    for length in 0..=image[&name].len() {
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap().truncate(length);
        changed.remove(HEAD);
        let recovered = recover(&changed, &name);
        let warnings = warnings.take();
        let Some((end, state)) = states.iter().rfind(|(end, _)| *end <= length) else {
            assert_eq!((recovered, warnings.len()), (None, 0), "the header is incomplete: length {length}");
            refused += 1;
            continue;
        };
        assert!(recovered.as_ref() == Some(state), "length {length}: not the state after the batch at {end}");
        // If the file ends with a batch or with reserved room, nothing was cut off.
        if *end == length || *end == self::end(&image) {
            assert_eq!(warnings, [""; 0], "length {length}");
        } else {
            assert!(
                warnings.len() == 1 && warnings[0].contains("incomplete batch"),
                "{length}: {warnings:?}"
            );
            assert!(warnings[0].contains(&format!("offset={end}")), "{length}: {warnings:?}");
            cut_off += 1;
        }
    }
    assert!(cut_off > 500 && refused == 64, "{cut_off} cut off, {refused} refused");
}

/// `head` says what was synced, so a truncated journal is an error.
#[tokio::test]
async fn a_truncated_journal_is_an_error_if_it_was_synced() {
    let (image, states) = image().await;
    let name = journal_name(2);
    let end = end(&image);
    for length in 0..=image[&name].len() {
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap().truncate(length);
        let expected = states.last().filter(|_| length >= end);
        assert_eq!(recover(&changed, &name).as_ref(), expected, "length {length}");
    }
}

#[tokio::test]
async fn every_flipped_byte_of_a_journal_is_detected() {
    let (image, states) = image().await;
    let name = journal_name(2);
    let (mut cut_off, end) = (0, end(&image));
    for at in end..image[&name].len() {
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap()[at] ^= 0x10;
        assert_eq!(recover(&changed, &name).as_ref(), states.last(), "byte {at} of the reserved room");
        changed.remove(HEAD);
        assert_eq!(recover(&changed, &name).as_ref(), states.last(), "byte {at} of the reserved room");
    }
    for at in 0..end {
        for mask in [0x01, 0x80, 0xff] {
            let mut changed = image.clone();
            changed.get_mut(&name).unwrap()[at] ^= mask;
            assert_eq!(recover(&changed, &name), None, "byte {at}");
            changed.remove(HEAD);
            if let Some(dump) = recover(&changed, &name) {
                // Without `head`, the last batch may be an incomplete one.
                assert_eq!(dump, states[states.len() - 2], "byte {at}");
                cut_off += 1;
            }
        }
    }
    assert!(cut_off > 100, "{cut_off} were cut off");
}

#[tokio::test]
async fn every_flipped_byte_and_truncation_of_a_snapshot_is_detected() {
    let (image, _) = image().await;
    let name = snapshot_name(2);
    for at in 0..image[&name].len() {
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap()[at] ^= 0x10;
        assert_eq!(recover(&changed, &name), None, "byte {at}");
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap().truncate(at);
        assert_eq!(recover(&changed, &name), None, "length {at}");
    }
}

/// `head` is only a help: without it, or with a damaged one, the journal is read to its end.
#[tokio::test]
async fn every_flipped_byte_of_head_is_harmless() {
    let (image, states) = image().await;
    for at in 0..image[HEAD].len() {
        let mut changed = image.clone();
        changed.get_mut(HEAD).unwrap()[at] ^= 0x10;
        assert_eq!(recover(&changed, HEAD).as_ref(), states.last(), "byte {at}");
        let mut changed = image.clone();
        changed.get_mut(HEAD).unwrap().truncate(at);
        assert_eq!(recover(&changed, HEAD).as_ref(), states.last(), "length {at}");
    }
}

/// A folder whose journal was sealed and has no snapshot yet, the state, and how `head` was after each batch.
async fn rotated_image() -> (Image, Dump, Vec<Vec<u8>>) {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    let mut heads = Vec::new();
    for batch in 0..6 {
        if batch == 3 {
            let sealed = disk.files()[&journal_name(1)].len();
            rotate(&store, 2);
            heads.push(disk.files()[HEAD].clone());
            // A process was killed after it wrote the seal, and another one has published its end.
            let (offset, number) = (disk.files()[&journal_name(1)].len() as u64, position(&store).number);
            assert!(offset < sealed as u64, "without reserved room");
            heads.push(store.shared().folder.encode_head(Position { generation: 1, offset, number }));
        }
        run(&store, &Step::Command(create())).await.unwrap();
        heads.push(disk.files()[HEAD].clone());
    }
    store.close().await.unwrap();
    let files = disk.files();
    assert!(files.keys().all(|name| !name.starts_with("snapshot-")) && files.contains_key(&journal_name(2)));
    (files, Dump::of_store(&store), heads)
}

/// The journal that follows proves that everything in the sealed one was acknowledged, also if `head` is old or missing.
/// Without this, opening the folder would lose the batches in both.
#[tokio::test]
async fn damage_to_a_sealed_journal_without_a_snapshot_is_an_error() {
    let (image, state, heads) = rotated_image().await;
    let name = journal_name(1);
    let warnings = Warnings::capture("windlass_file");
    let length = image[&name].len();
    let flips = (0..length).flat_map(|at| [0x01, 0x80, 0xff].map(|mask| (at, mask)));
    let changes = flips.map(Some).chain([None]).map(|flip| (flip, length));
    let changes = changes.chain((0..length).map(|length| (None, length)));
    let (mut refused, mut unsealed) = (0, 0);
    for (flip, kept) in changes {
        for head in heads.iter().map(Some).chain([None]) {
            let mut changed = image.clone();
            let journal = changed.get_mut(&name).unwrap();
            journal.truncate(kept);
            if let Some((at, mask)) = flip {
                journal[at] ^= mask;
            }
            match head {
                Some(head) => drop(changed.insert(HEAD.to_owned(), head.clone())),
                None => drop(changed.remove(HEAD)),
            }
            let disk = TestDisk::with_files(changed.clone());
            let opened = open(&disk).map(|store| Dump::of_store(&store));
            let after = disk.files();
            assert_eq!(opened.is_ok(), flip.is_none() && kept == length, "{flip:?}, length {kept}");
            match opened {
                Ok(dump) => assert_eq!(dump, state),
                Err(error) => {
                    let text = error.to_string();
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
                    assert!(text.contains(&name) && text.contains("offset"), "{text}");
                    refused += 1;
                    unsealed += usize::from(text.contains("it is not sealed"));
                }
            }
            assert!(after[&name] == changed[&name], "{name} was changed: {flip:?}, length {kept}");
            // The room of the other one may have been cut off.
            let (before, after) = (&changed[&journal_name(2)], &after[&journal_name(2)]);
            let room = before.strip_prefix(after.as_slice()).expect("its records are unchanged");
            assert!(room.iter().all(|byte| *byte == 0), "{flip:?}, length {kept}");
        }
    }
    assert!(refused > 1_000 && unsealed > 100, "{refused} were refused, {unsealed} as not sealed");
    assert_eq!(warnings.take(), [""; 0]);
}

/// A process that is killed before it writes the seal leaves a journal without records. Other programs may leave anything.
#[tokio::test]
async fn a_journal_that_was_prepared_but_not_used_is_ignored() {
    let (image, state, _) = rotated_image().await;
    let (first, next) = (journal_name(1), journal_name(2));
    let others = TestDisk::new();
    let store = open(&others).unwrap();
    rotate(&store, 2);
    run(&store, &Step::Command(create())).await.unwrap();
    let mut incomplete = image[&next].clone();
    incomplete[64 + 30] ^= 1;
    let leftovers = [
        image[&next][..64].to_vec(),
        image[&next][..83].to_vec(),
        incomplete,
        image[&first].clone(),
        others.files()[&next].clone(),
        b"left before it was used".to_vec(),
        Vec::new(),
    ];
    let seal = crate::frame::FRAME_BYTES + 2;
    for (case, leftover) in leftovers.into_iter().enumerate() {
        let mut changed = image.clone();
        let sealed = changed[&first].len();
        changed.get_mut(&first).unwrap().truncate(sealed - seal);
        changed.insert(next.clone(), leftover);
        changed.remove(HEAD);
        let disk = TestDisk::with_files(changed);
        let store = open(&disk).unwrap();
        assert_eq!(Dump::of_store(&store).jobs(), state.jobs() / 2, "case {case}");
        run(&store, &Step::Command(create())).await.unwrap();
        store.compact().await.unwrap();
        let again = open(&TestDisk::with_files(disk.files())).unwrap();
        assert_eq!(Dump::of_store(&again), Dump::of_store(&store), "case {case}");
    }
}

/// The files of two copies of a folder were mixed: `head` has a valid offset, and the number of another record.
#[tokio::test]
async fn a_head_with_a_wrong_number_is_an_error() {
    let (image, _) = image().await;
    let disk = TestDisk::with_files(image.clone());
    let store = open(&disk).unwrap();
    let end = position(&store);
    for number in [end.number + 1, end.number - 1] {
        let mut changed = image.clone();
        changed.insert(HEAD.to_owned(), store.shared().folder.encode_head(Position { number, ..end }));
        let error = open(&TestDisk::with_files(changed)).unwrap_err();
        assert!(error.to_string().contains("files of two copies were mixed"), "{error}");
        assert!(error.to_string().contains(&format!("offset {}", end.offset)), "{error}");
    }
}

#[tokio::test]
async fn a_missing_journal_or_snapshot_is_named() {
    let (image, _) = image().await;
    let mut changed = image.clone();
    changed.remove(&journal_name(2));
    let error = open(&TestDisk::with_files(changed)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("`disk/journal-0000000002` is missing"), "{error}");
    let mut changed = image.clone();
    changed.remove(&snapshot_name(2));
    let error = open(&TestDisk::with_files(changed)).unwrap_err();
    assert!(error.to_string().contains("`disk/journal-0000000001` is missing"), "{error}");
}

/// Damage that appears while the store is open is reported by `health`.
#[tokio::test]
async fn health_reports_damage() {
    let (image, _) = image().await;
    let disk = TestDisk::with_files(image.clone());
    let store = open(&disk).unwrap();
    assert_eq!(store.health().await.unwrap(), []);
    let other = crate::disk::Disk::open(&disk, &journal_name(2)).unwrap();
    other.write_at(b"damage", 100).unwrap();
    let findings = store.health().await.unwrap();
    assert!(findings[0].problem.contains("journal-0000000002` is damaged at offset"), "{findings:?}");
}

/// Anything but zeros after the last record is an incomplete batch, wherever it begins.
#[tokio::test]
async fn an_incomplete_batch_in_the_reserved_room_is_cut_off() {
    let (image, states) = image().await;
    let (name, end) = (journal_name(2), end(&image));
    for at in [end, end + 20, end + 600, image[&name].len() - 1] {
        let warnings = Warnings::capture("windlass_file");
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap()[at] = b'x';
        let disk = TestDisk::with_files(changed);
        assert_eq!(Some(&Dump::of_store(&open(&disk).unwrap())), states.last());
        assert_eq!(disk.files()[&name].len(), end, "byte {at}");
        let warnings = warnings.lines();
        assert!(warnings.len() == 1 && warnings[0].contains("incomplete batch"), "{warnings:?}");
    }
}

/// Something changes a byte of the reserved room while two processes use the folder. Whether the byte is found or
/// overwritten, they go on and lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_in_the_reserved_room_stops_nobody() {
    let (image, states) = image().await;
    let (name, end) = (journal_name(2), end(&image));
    let jobs = states.last().unwrap().jobs();
    for at in [end, end + 19, end + 20, end + 150, end + 600, image[&name].len() - 1] {
        let disk = TestDisk::with_files(image.clone());
        let stores = [open(&disk.process(1)).unwrap(), open(&disk.process(2)).unwrap()];
        crate::disk::Disk::open(&disk, &name).unwrap().write_at(b"x", at as u64).unwrap();
        for store in stores.iter().cycle().take(30) {
            run(store, &Step::Command(create())).await.unwrap();
        }
        let dump = Dump::of_store(&stores[0]);
        assert_eq!((dump.jobs(), &dump), (jobs + 30, &Dump::of_store(&stores[1])), "byte {at}");
        for unsynced in [Unsynced::Kept, Unsynced::Dropped, Unsynced::Mixed(at as u64)] {
            let mut files = power_failure(&disk.log(), unsynced);
            assert_eq!(
                Dump::of_store(&open(&TestDisk::with_files(files.clone())).unwrap()),
                dump,
                "byte {at}"
            );
            files.remove(HEAD);
            assert_eq!(Dump::of_store(&open(&TestDisk::with_files(files)).unwrap()), dump, "byte {at}");
        }
    }
}
