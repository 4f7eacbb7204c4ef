//! The decoders take any bytes, and return an error for those that make no sense.

use std::sync::Arc;

use fastrand::Rng;
use windlass_core::command::{Count, Types};
use windlass_core::model::Model;
use windlass_core::{Timestamp, command::Command};

use super::disk::TestDisk;
use super::workload::{Workload, open, run};
use crate::codec::Names;
use crate::disk::Disk;
use crate::frame::{Next, Reader};
use crate::record;

/// Returns the contents of all records of a random workload, and of a snapshot.
async fn records() -> Vec<Vec<u8>> {
    let disk = TestDisk::new();
    let store = open(&disk).unwrap();
    for step in &Workload::random(3, 40).steps {
        run(&store, step).await.unwrap();
    }
    let position = store.shared().state().unwrap().position;
    let mut contents = Vec::new();
    for kind in [crate::frame::Kind::Journal, crate::frame::Kind::Snapshot] {
        let (name, first) = match kind {
            crate::frame::Kind::Journal => (crate::folder::journal_name(position.generation), None),
            crate::frame::Kind::Snapshot => (crate::folder::snapshot_name(position.generation), Some(1)),
        };
        let file = Disk::open(&disk, &name).unwrap();
        let size = file.size().unwrap();
        let mut header = [0; 80];
        file.read_exact_at(&mut header, 0).unwrap().unwrap();
        let first = first.unwrap_or_else(|| crate::frame::u64_at(&header, 64 + 8));
        let origin = store.shared().folder.origin(kind, position.generation);
        let mut reader = Reader::new(file, origin, crate::frame::HEADER_BYTES, first, size);
        while let Next::Record(record) = reader.next().unwrap() {
            contents.push(record.content.to_vec());
        }
    }
    assert!(contents.len() > 5, "{}", contents.len());
    contents
}

/// Decodes records with random changes. A model that accepted one still answers.
#[tokio::test]
async fn changed_records_are_decoded_or_refused() {
    let records = records().await;
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

fn change(content: &mut Vec<u8>, random: &mut Rng) {
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
        let origin = crate::frame::Origin { kind: crate::frame::Kind::Journal, folder, generation: 1 };
        let mut reader = Reader::new(Arc::clone(&file), origin, 0, 1, size);
        assert!(!matches!(reader.next().unwrap(), Next::Record(_)));
        assert!(open(&disk).is_err());
    }
}
