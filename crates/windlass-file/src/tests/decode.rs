//! The decoders take any bytes, and return an error for those that make no sense.

use std::sync::Arc;

use fastrand::Rng;
use windlass_core::command::{Count, Types};
use windlass_core::model::Model;
use windlass_core::{Timestamp, command::Command};

use super::disk::TestDisk;
use super::workload::{Step, Workload, open, run};
use crate::codec::Names;
use crate::disk::Disk;
use crate::folder::{journal_name, snapshot_name};
use crate::frame::{Kind, Next, Reader};
use crate::record;

/// Returns the contents of all records in the first journal of a random workload, or in a snapshot after it.
pub(crate) async fn records(kind: Kind) -> Vec<Vec<u8>> {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    for step in &Workload::random(3, 40).steps {
        // A snapshot after everything was erased would be nearly empty.
        let is_left_out =
            matches!(step, Step::Compact) || matches!(step, Step::Erase) && kind == Kind::Snapshot;
        if !is_left_out {
            run(&store, step).await.unwrap();
        }
    }
    let (name, generation) = match kind {
        Kind::Journal => (journal_name(1), 1),
        Kind::Snapshot => {
            store.compact().await.unwrap();
            (snapshot_name(2), 2)
        }
    };
    let file = Disk::open(&disk, &name).unwrap();
    let size = file.size().unwrap();
    let origin = store.shared().folder.origin(kind, generation);
    let mut reader = Reader::new(file, origin, crate::frame::HEADER_BYTES, 1, size);
    let mut contents = Vec::new();
    while let Next::Record(record) = reader.next().unwrap() {
        contents.push(record.content.to_vec());
    }
    assert!(reader.offset() == size || kind == Kind::Journal, "a journal ends with reserved room");
    contents
}

/// Decodes records with random changes. A model that accepted one still answers.
#[tokio::test]
async fn changed_records_are_decoded_or_refused() {
    let records = [records(Kind::Journal).await, records(Kind::Snapshot).await].concat();
    assert!(records.len() > 5, "{}", records.len());
    let rounds = if windlass_testkit::is_full_run() { 2_000_000 } else { 60_000 };
    let mut random = Rng::with_seed(11);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..rounds {
        let mut content = records[random.usize(..records.len())].clone();
        for _ in 0..random.usize(1..4) {
            change(&mut content, &mut random);
        }
        let (mut model, mut names) = (Model::new(), Names::default());
        match record::replay(&content, &mut names, &mut model, random.bool(), drop) {
            Ok(_) => accepted += 1,
            Err(_) => refused += 1,
        }
        let count = Command::from(Count { types: Types::All });
        model.apply(Timestamp::default(), &count).unwrap();
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 100 && refused > rounds / 10);
}

pub(crate) fn change(content: &mut Vec<u8>, random: &mut Rng) {
    if content.is_empty() {
        return;
    }
    let at = random.usize(..content.len());
    match random.u8(..4) {
        0 => content[at] = random.u8(..),
        1 => content.truncate(at),
        2 => content.insert(at, random.u8(..)),
        _ => {
            let until = (at + random.usize(..9)).min(content.len());
            content.drain(at..until);
        }
    }
}

/// Random bytes, and bytes with random lengths, are no records.
#[test]
fn random_bytes_are_no_records() {
    let mut random = Rng::with_seed(12);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
        let _ = record::replay(&bytes, &mut Names::default(), &mut Model::new(), true, drop);
        let _ = record::sealed(&bytes, 1);
        let disk = TestDisk::with_files([("journal-0000000001".to_owned(), bytes)].into());
        let file = Disk::open(&disk, "journal-0000000001").unwrap();
        let size = file.size().unwrap();
        let folder = uuid::Uuid::nil();
        let origin = crate::frame::Origin { kind: Kind::Journal, folder, generation: 1 };
        let mut reader = Reader::new(Arc::clone(&file), origin, 0, 1, size);
        assert!(!matches!(reader.next().unwrap(), Next::Record(_)));
        assert!(open(&disk).is_err());
    }
}
