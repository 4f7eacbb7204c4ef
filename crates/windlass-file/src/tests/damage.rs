//! Files that were truncated or changed by something else.

use std::collections::BTreeMap;

use windlass_core::{ErrorKind, Store};
use windlass_testkit::logs::Warnings;

use super::disk::{TestDisk, Unsynced, power_failure};
use super::workload::{Dump, Step, Workload, create, open, run};
use crate::folder::{HEAD, journal_name, snapshot_name};

type Image = BTreeMap<String, Vec<u8>>;

/// A small folder with a snapshot and a journal, and the states after each of its batches since the snapshot.
async fn image() -> (Image, Vec<Dump>) {
    let workload = Workload::random(5, 9);
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    let mut states = Vec::new();
    for (step, state) in workload.steps.iter().zip(&workload.states[1..]) {
        run(&store, step).await.unwrap();
        if matches!(step, Step::Compact) {
            states.clear();
        }
        states.push(state.clone());
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

/// Without `head`, a truncated journal cannot be told from one with an incomplete last batch: it is cut off after its last
/// complete batch.
#[tokio::test]
async fn a_truncated_journal_is_cut_off_after_its_last_complete_batch() {
    let (image, states) = image().await;
    let name = journal_name(2);
    let (mut recovered, mut refused) = (0, 0);
    for length in 0..=image[&name].len() {
        let mut changed = image.clone();
        changed.get_mut(&name).unwrap().truncate(length);
        changed.remove(HEAD);
        match recover(&changed, &name) {
            Some(dump) => {
                assert!(states.contains(&dump), "length {length}: {} jobs", dump.jobs());
                recovered += 1;
            }
            // The header is incomplete.
            None => {
                assert!(length < 64, "length {length}");
                refused += 1;
            }
        }
    }
    assert!(recovered > 500 && refused == 64, "{recovered} recovered, {refused} refused");
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
