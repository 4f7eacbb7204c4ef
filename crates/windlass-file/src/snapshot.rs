//! Snapshots: all rows, for the start of a generation.
//!
//! Rows are read in groups while writers continue, so a snapshot is not the state at one point in time. It records the
//! end of its generation's journal when the last rows were read. A row that changed in between is also in that journal,
//! with its whole value. So replaying the journal from its beginning up to that offset leads to the state at that
//! offset.

use std::sync::Arc;

use windlass_core::model::{Model, Row, RowKey};
use windlass_core::{Result, Timestamp};

use crate::codec::{Encoder, Names};
use crate::disk::DiskFile;
use crate::error::damaged;
use crate::folder::{Folder, SNAPSHOT_CUT, snapshot_name, temporary};
use crate::frame::{self, HEADER_BYTES, Header, Kind, Next, Origin, Reader};
use crate::record::{self, Replayed, SnapshotEnd, Stamp};

/// The size at which buffered rows are written as a record, in bytes.
const RECORD_BYTES: usize = 1 << 20;

/// The data about its journal that a snapshot records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    /// The number of the first record in the journal.
    pub(crate) first: u64,
    pub(crate) time: Timestamp,
    pub(crate) consistent_at: u64,
    pub(crate) bytes: u64,
}

impl Loaded {
    /// The start of the first generation, which has no snapshot.
    pub(crate) fn nothing() -> Self {
        Self { first: 1, time: Timestamp::default(), consistent_at: 0, bytes: 0 }
    }
}

/// Reads a snapshot into an empty model.
pub(crate) fn load(folder: &Folder, generation: u64, model: &mut Model, names: &mut Names) -> Result<Loaded> {
    let name = snapshot_name(generation);
    let (file, header) = folder.open_snapshot(generation)?;
    let bytes = file.size().map_err(|error| folder.io("cannot read a snapshot", error))?;
    let origin = folder.origin(Kind::Snapshot, generation);
    let mut reader = Reader::new(file, origin, HEADER_BYTES, 1, bytes);
    let (mut end, mut rows) = (None, 0);
    loop {
        let (content, offset) = match reader
            .next()
            .map_err(|error| folder.io("cannot read a snapshot", error))?
        {
            Next::Record(record) => (record.content, record.offset),
            Next::End => break,
            Next::Invalid { offset, reason } => return Err(damaged(folder.path(), &name, offset, reason)),
        };
        let replayed = record::replay(content, names, model, false, |_| rows += 1);
        match replayed.map_err(|malformed| folder.malformed(&name, offset, malformed))? {
            Replayed::SnapshotEnd(found) => end = Some(found),
            Replayed::Changes(_) if end.is_none() => {}
            _ => return Err(damaged(folder.path(), &name, offset, "this record does not belong here")),
        }
    }
    match end {
        Some(SnapshotEnd { stamp, consistent_at, rows: stated }) if stated == rows => {
            Ok(Loaded { first: header.first, time: stamp.time, consistent_at, bytes })
        }
        Some(_) => Err(damaged(folder.path(), &name, bytes, "rows are missing")),
        None => Err(damaged(folder.path(), &name, bytes, SNAPSHOT_CUT)),
    }
}

/// Writes a snapshot under a temporary name.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    folder: &'a Folder,
    file: Arc<dyn DiskFile>,
    origin: Origin,
    offset: u64,
    number: u64,
    rows: u64,
    buffer: Encoder,
}

impl<'a> Writer<'a> {
    /// Creates the file. `first` is the number of the first record in the journal of this generation.
    pub(crate) fn create(folder: &'a Folder, generation: u64, first: u64) -> Result<Self> {
        let header = Header::new(Kind::Snapshot, folder.id, generation, first);
        let create = || {
            let file = folder.disk.open_or_create(&temporary(&snapshot_name(generation)))?;
            file.set_size(0)?;
            file.write_at(&header.encode(), 0)?;
            Ok(file)
        };
        let file = create().map_err(|error| folder.io("cannot create a snapshot", error))?;
        let origin = folder.origin(Kind::Snapshot, generation);
        let mut writer = Self {
            folder,
            file,
            origin,
            offset: HEADER_BYTES,
            number: 1,
            rows: 0,
            buffer: Encoder::default(),
        };
        writer.begin();
        Ok(writer)
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, key: &RowKey, row: &Row) -> Result<()> {
        record::encode_whole(&mut self.buffer, key, row);
        self.rows += 1;
        if self.buffer.0.len() >= RECORD_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes the rest and syncs the file. Returns its size.
    pub(crate) fn finish(mut self, stamp: Stamp, consistent_at: u64) -> Result<u64> {
        self.flush()?;
        frame::begin(&mut self.buffer.0);
        record::encode_end(&mut self.buffer, SnapshotEnd { stamp, consistent_at, rows: self.rows });
        self.write()?;
        self.file.sync().map_err(|error| self.folder.io("cannot sync a snapshot", error))?;
        Ok(self.offset)
    }

    fn begin(&mut self) {
        frame::begin(&mut self.buffer.0);
        // Only the stamp in the last record of a snapshot is used.
        record::encode_changes(&mut self.buffer, Stamp { time: Timestamp::default(), last_seq: 0 });
    }

    fn flush(&mut self) -> Result<()> {
        self.write()?;
        self.begin();
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        frame::finish(&mut self.buffer.0, self.origin, self.number);
        let written = self.file.write_at(&self.buffer.0, self.offset);
        written.map_err(|error| self.folder.io("cannot write a snapshot", error))?;
        self.offset += self.buffer.0.len() as u64;
        self.number += 1;
        Ok(())
    }
}
