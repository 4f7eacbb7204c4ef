//! The framing of files: a header, then records with a length, a number and a checksum.
//!
//! The checksum covers the folder's id, the generation and the number of the record. So old data on the disk, from
//! another file or from an earlier, longer version of this file, is never mistaken for a record of this file.

use std::io;
use std::sync::Arc;

use uuid::Uuid;
use windlass_core::{Error, ErrorKind, Result};

use crate::disk::DiskFile;

/// The version of the format that this code writes.
pub(crate) const VERSION: u32 = 1;

/// The size of a file's header, in bytes.
pub(crate) const HEADER_BYTES: u64 = 64;

/// The size of a record's header, in bytes.
pub(crate) const FRAME_BYTES: usize = 20;

/// The maximum size of a record, in bytes. A single command has at most 16 MiB of payloads.
pub(crate) const RECORD_MAX_BYTES: usize = 1 << 30;

/// Fails if a record is too large to be read again. Only the record of a transaction can be that large.
pub(crate) fn check_size(record: &[u8], max_bytes: usize) -> Result<()> {
    if record.len() <= max_bytes {
        return Ok(());
    }
    let text = format!(
        "the transaction has {} bytes, and at most {max_bytes} are allowed: use several transactions",
        record.len()
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// The first bytes of every file.
const MAGIC: [u8; 8] = *b"windlass";

/// The first bytes of every record.
const RECORD_MAGIC: [u8; 4] = *b"WLR1";

/// How much is read from a file at once.
const READ_BYTES: usize = 256 << 10;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Journal,
    Snapshot,
}

impl Kind {
    const fn tag(self) -> [u8; 4] {
        match self {
            Self::Journal => *b"jrnl",
            Self::Snapshot => *b"snap",
        }
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) version: u32,
    /// The id of the folder.
    pub(crate) folder: Uuid,
    pub(crate) generation: u64,
    /// For a snapshot, the number of the first record in its journal. Otherwise 0.
    pub(crate) first: u64,
}

/// Why a header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// It is incomplete, or its checksum is wrong.
    Damaged,
    /// The file does not belong to a store.
    Foreign,
    /// A newer version of this library has written the file.
    Newer(u32),
}

impl Header {
    pub(crate) const fn new(kind: Kind, folder: Uuid, generation: u64, first: u64) -> Self {
        Self { kind, version: VERSION, folder, generation, first }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(MAGIC);
        bytes.extend(self.kind.tag());
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.folder.as_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        bytes.resize(60, 0);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; 64], kind: Kind) -> Result<Self, BadHeader> {
        if !bytes.starts_with(&MAGIC) {
            return Err(BadHeader::Foreign);
        }
        let (body, sum) = bytes.split_at(60);
        if crc32fast::hash(body).to_le_bytes() != *sum {
            return Err(BadHeader::Damaged);
        }
        let version = u32_at(bytes, 12);
        if version > VERSION {
            return Err(BadHeader::Newer(version));
        }
        if bytes.get(8..12) != Some(&kind.tag()) || version == 0 {
            return Err(BadHeader::Foreign);
        }
        let folder = bytes.get(16..32).and_then(|id| Uuid::from_slice(id).ok()).ok_or(BadHeader::Damaged)?;
        Ok(Self { kind, version, folder, generation: u64_at(bytes, 32), first: u64_at(bytes, 40) })
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The file that records belong to. Part of their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) kind: Kind,
    pub(crate) folder: Uuid,
    pub(crate) generation: u64,
}

impl Origin {
    fn checksum(self, number: u64, content: &[u8]) -> u32 {
        let mut hasher = self.hasher(number, content.len() as u64);
        hasher.update(content);
        hasher.finalize()
    }

    /// Returns the checksum of everything that precedes the content.
    fn hasher(self, number: u64, length: u64) -> crc32fast::Hasher {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.kind.tag());
        hasher.update(self.folder.as_bytes());
        hasher.update(&self.generation.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        hasher.update(&length.to_le_bytes());
        hasher
    }
}

/// Makes room for the header of a record at the start of a buffer.
pub(crate) fn begin(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(FRAME_BYTES, 0);
}

/// Writes the header of a record whose content follows it in the buffer.
pub(crate) fn finish(buffer: &mut [u8], origin: Origin, number: u64) {
    let Some((header, content)) = buffer.split_first_chunk_mut::<FRAME_BYTES>() else { return };
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let fields = RECORD_MAGIC
        .into_iter()
        .chain(length.to_le_bytes())
        .chain(number.to_le_bytes())
        .chain(origin.checksum(number, content).to_le_bytes());
    header.iter_mut().zip(fields).for_each(|(byte, value)| *byte = value);
}

/// Returns the number in the header of a record.
pub(crate) fn record_number(header: &[u8; FRAME_BYTES]) -> u64 {
    u64_at(header, 8)
}

/// A valid record.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) content: &'a [u8],
    /// The offset of the record in the file.
    pub(crate) offset: u64,
    /// The offset after the record.
    pub(crate) end: u64,
}

/// The content of a file at an offset.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    Record(Record<'a>),
    /// The end of the range to read.
    End,
    /// No valid record with the expected number.
    Invalid {
        offset: u64,
        reason: &'static str,
    },
}

/// Reads the records of a file one after the other, up to an offset.
#[derive(Debug)]
pub(crate) struct Reader {
    file: Arc<dyn DiskFile>,
    origin: Origin,
    /// The offset of the next record.
    offset: u64,
    /// The number of the next record.
    number: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The offset of the first byte in the buffer.
    buffered_at: u64,
}

impl Reader {
    pub(crate) const fn new(
        file: Arc<dyn DiskFile>,
        origin: Origin,
        offset: u64,
        number: u64,
        end: u64,
    ) -> Self {
        Self { file, origin, offset, number, end, buffer: Vec::new(), buffered_at: offset }
    }

    /// The number of the next record.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The offset of the next record.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next record.
    pub(crate) fn next(&mut self) -> io::Result<Next<'_>> {
        let offset = self.offset;
        if offset == self.end {
            return Ok(Next::End);
        }
        let invalid = |reason| Ok(Next::Invalid { offset, reason });
        if !self.fill(FRAME_BYTES)? {
            return invalid("it ends within the header of a record");
        }
        let header = self.buffered(FRAME_BYTES);
        let (magic, length) = (header.starts_with(&RECORD_MAGIC), u32_at(header, 4) as usize);
        let (number, sum) = (u64_at(header, 8), u32_at(header, 16));
        if !magic {
            return invalid("there is no record");
        }
        if number != self.number {
            return invalid("the number of the record is wrong");
        }
        if length > RECORD_MAX_BYTES {
            return invalid("the length of the record is wrong");
        }
        if !self.fill(FRAME_BYTES + length)? {
            return invalid("it ends within a record");
        }
        let content = self.buffered(FRAME_BYTES + length).get(FRAME_BYTES..).unwrap_or_default();
        if self.origin.checksum(number, content) != sum {
            return invalid("the checksum of the record is wrong");
        }
        self.offset += (FRAME_BYTES + length) as u64;
        self.number += 1;
        let start = usize::try_from(offset - self.buffered_at).unwrap_or(usize::MAX);
        let content = start.checked_add(FRAME_BYTES).and_then(|from| self.buffer.get(from..from + length));
        Ok(Next::Record(Record { content: content.unwrap_or_default(), offset, end: self.offset }))
    }

    fn buffered(&self, count: usize) -> &[u8] {
        let start = usize::try_from(self.offset - self.buffered_at).unwrap_or(usize::MAX);
        let end = start.saturating_add(count);
        self.buffer.get(start..end).unwrap_or_default()
    }

    /// Reads until the buffer contains this many bytes from the offset on. Returns `false` if there are fewer.
    fn fill(&mut self, count: usize) -> io::Result<bool> {
        if self.offset + count as u64 > self.end {
            return Ok(false);
        }
        if self.buffered(count).len() == count {
            return Ok(true);
        }
        let used = usize::try_from(self.offset - self.buffered_at).unwrap_or(usize::MAX);
        self.buffer.drain(..used.min(self.buffer.len()));
        self.buffered_at = self.offset;
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let (have, wanted) = (self.buffer.len(), count.max(READ_BYTES).min(left));
        self.buffer.resize(wanted, 0);
        let mut have = have;
        while let Some(rest) = self.buffer.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, self.offset + have as u64)? {
                // The file is shorter than it should be.
                0 => break,
                read => have += read,
            }
        }
        self.buffer.truncate(have);
        Ok(have >= count)
    }
}

/// Whether there is a valid record with a higher number anywhere in these bytes.
///
/// The bytes may be the input of a job, which its author chose, and may contain any number of record headers. Computing
/// the checksum of each of these records from its content would take time proportional to the square of the length. It
/// is derived from the checksums of two prefixes instead, so that each header costs the same, whatever its length.
pub(crate) fn has_later_record(bytes: &[u8], origin: Origin, number: u64) -> bool {
    let prefixes = Prefixes::new(bytes);
    let is_record = |at: usize| {
        let header = bytes.get(at..).unwrap_or_default();
        let (length, found) = (u32_at(header, 4) as usize, u64_at(header, 8));
        let (start, end) = (at + FRAME_BYTES, (at + FRAME_BYTES).saturating_add(length));
        // Within one file, numbers have no gaps, so a much higher number is a coincidence. No record is empty.
        found > number
            && found - number < bytes.len().max(1 << 20) as u64
            && length > 0
            && end <= bytes.len()
            && prefixes.checksum(origin, found, start, end) == u32_at(header, 16)
    };
    let starts = bytes.windows(RECORD_MAGIC.len()).enumerate().filter(|(_, four)| **four == RECORD_MAGIC);
    starts.map(|(at, _)| at).any(is_record)
}

/// The checksums of the prefixes of some bytes.
#[derive(Debug)]
struct Prefixes<'a> {
    bytes: &'a [u8],
    /// The checksums of the first 0, 1, 2, … × [`STRIDE`](Self::STRIDE) bytes.
    sums: Vec<u32>,
}

impl<'a> Prefixes<'a> {
    const STRIDE: usize = 256;

    fn new(bytes: &'a [u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        let mut sums = vec![hasher.clone().finalize()];
        for part in bytes.chunks_exact(Self::STRIDE) {
            hasher.update(part);
            sums.push(hasher.clone().finalize());
        }
        Self { bytes, sums }
    }

    /// Returns the checksum of the first `length` bytes.
    fn sum(&self, length: usize) -> u32 {
        let whole = length / Self::STRIDE;
        let mut hasher = crc32fast::Hasher::new_with_initial(self.sums.get(whole).copied().unwrap_or(0));
        hasher.update(self.bytes.get(whole * Self::STRIDE..length).unwrap_or_default());
        hasher.finalize()
    }

    /// Returns the checksum of a record whose content is in this range, which is not empty.
    fn checksum(&self, origin: Origin, number: u64, start: usize, end: usize) -> u32 {
        let length = (end - start) as u64;
        let before = origin.hasher(number, length).finalize();
        // CRCs are linear. Let `shift` append `length` zero bytes. Then
        // crc(before + content) = shift(crc(before)) ^ crc(content), and
        // crc(prefix + content) = shift(crc(prefix)) ^ crc(content). `combine` computes shift(a) ^ b.
        let mut combined = crc32fast::Hasher::new_with_initial(before ^ self.sum(start));
        combined.combine(&crc32fast::Hasher::new_with_initial_len(self.sum(end), length));
        combined.finalize()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const ORIGIN: Origin = Origin { kind: Kind::Journal, folder: Uuid::from_u128(7), generation: 3 };

    fn record(number: u64, content: &[u8]) -> Vec<u8> {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        buffer.extend(content);
        finish(&mut buffer, ORIGIN, number);
        buffer
    }

    #[test]
    fn a_later_record_is_found_wherever_it_begins() {
        let content: Vec<u8> = (0..5_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        for before in [0, 1, 20, 1_003, 1_004, 1_024, 4_000] {
            for length in [1, 2, 1_023, 1_024, 1_025, 4_999] {
                let mut bytes = vec![b'W'; before];
                bytes.extend(record(9, &content[..length]));
                bytes.extend([1, 2, 3]);
                assert!(has_later_record(&bytes, ORIGIN, 8), "{length} bytes at {before}");
                assert!(!has_later_record(&bytes, ORIGIN, 9), "it is not later");
                let end = bytes.len() - 3;
                assert!(!has_later_record(&bytes[..end - 1], ORIGIN, 8), "it is incomplete");
                let other = Origin { generation: 4, ..ORIGIN };
                assert!(!has_later_record(&bytes, other, 8), "it belongs to another file");
                bytes[before + FRAME_BYTES] ^= 1;
                assert!(!has_later_record(&bytes, ORIGIN, 8), "it is damaged");
            }
        }
    }

    /// The input of a job can contain the headers of many long records. Reading all of them would take minutes.
    #[test]
    fn forged_headers_do_not_make_the_search_slow() {
        let mut bytes = Vec::new();
        let total: usize = 2 << 20;
        while bytes.len() + FRAME_BYTES < total {
            let length = u32::try_from(total - bytes.len() - FRAME_BYTES).unwrap();
            bytes.extend(RECORD_MAGIC);
            bytes.extend(length.to_le_bytes());
            bytes.extend(9_u64.to_le_bytes());
            bytes.extend([0; 4]);
        }
        bytes.resize(total, 0);
        let began_at = Instant::now();
        assert!(!has_later_record(&bytes, ORIGIN, 8));
        assert!(began_at.elapsed() < Duration::from_secs(20), "{:?}", began_at.elapsed());
        println!("{} forged headers took {:?}", total / FRAME_BYTES, began_at.elapsed());
    }
}
