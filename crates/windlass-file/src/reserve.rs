//! Room after the end of the journal.
//!
//! A sync after an append must also store the new size of the file, which takes a second write, in the log of the file
//! system. So the file is extended by zeros in advance, and most records overwrite zeros: their syncs store only their
//! bytes. The reserved zeros begin where the last record ends.

use std::io;

use crate::disk::DiskFile;

/// The minimum size of a journal with reserved room. A smaller one would consist mostly of zeros, and is not under load.
pub(crate) const RESERVE_FROM_BYTES: u64 = 64 << 10;

/// The maximum size of the reserved room. Writing it takes about as long as a sync.
const ROOM_MAX_BYTES: u64 = 256 << 10;

/// The unit in which disks and file systems allocate.
const BLOCK_BYTES: u64 = 4 << 10;

/// The maximum number of zeros after the last record: the room is rounded up to a block.
pub(crate) const MAX_BYTES: u64 = ROOM_MAX_BYTES + BLOCK_BYTES;

static ZEROS: [u8; MAX_BYTES as usize] = [0; MAX_BYTES as usize];

/// Returns how many zeros to write after a journal that ends at this offset: at most as many bytes as it has, rounded
/// up to a block.
fn room(end: u64) -> &'static [u8] {
    let until = (end + end.min(ROOM_MAX_BYTES)).next_multiple_of(BLOCK_BYTES);
    let count = usize::try_from(until - end).unwrap_or(0);
    ZEROS.get(..count).unwrap_or_default()
}

/// Writes zeros after the end of a journal. Returns the new size of the file.
///
/// If that fails, for example because the disk is full, the journal only lacks the room.
pub(crate) fn reserve(journal: &dyn DiskFile, end: u64) -> u64 {
    let room = room(end);
    match journal.write_at(room, end) {
        Ok(()) => end + room.len() as u64,
        Err(_) => end,
    }
}

/// Whether anything but zeros begins at this offset. A process writes a record from its beginning, so its header is enough
/// to find a record of a process that was killed.
pub(crate) fn has_record(journal: &dyn DiskFile, offset: u64) -> io::Result<bool> {
    let mut header = [0; crate::frame::FRAME_BYTES];
    journal.read_at(&mut header, offset)?;
    Ok(!is_zero(&header))
}

/// Whether these bytes are reserved room.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_with_the_journal_and_ends_with_a_block() {
        assert_eq!(room(64).len(), 4_096 - 64);
        assert_eq!(room(100_000).len(), 200_704 - 100_000);
        assert_eq!(room(10 << 20).len(), 256 << 10);
        assert_eq!(room((10 << 20) + 1).len(), (256 << 10) + 4_095);
        assert!(is_zero(room(1)));
    }
}
