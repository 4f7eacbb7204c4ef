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
/// If that fails, for example because the disk is full, the journal only lacks the room. The zeros may still make the
/// following sync fail: see [`Pause`].
pub(crate) fn reserve(journal: &dyn DiskFile, end: u64) -> u64 {
    let room = room(end);
    match journal.write_at(room, end) {
        Ok(()) => end + room.len() as u64,
        Err(_) => end,
    }
}

/// The maximum pause is that of one failure, times 2 to the power of this.
const DOUBLINGS_MAX: u32 = 8;

/// Pauses reservations after a failed write or sync.
///
/// Some file systems and thin volumes allocate space late: they accept the zeros, and then the sync fails. The record that
/// shares this sync fails too, although there may be space for it alone. So after a failure, the next records are appended
/// without room, until they have as many bytes as the room would have had. The disk may stay as full as that, for example
/// because compactions free the space for the records again. So the pause doubles with each failure until a sync of room
/// succeeds.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    bytes: u64,
    /// The number of records in a row that failed with reserved room.
    failures: u32,
}

impl Pause {
    pub(crate) const fn is_over(&self) -> bool {
        self.bytes == 0
    }

    /// Records that a record up to this offset could not be written or synced, and whether it was to have room.
    pub(crate) fn failed(&mut self, end: u64, reserved: bool) {
        self.failures = self.failures.saturating_add(u32::from(reserved));
        let doublings = self.failures.saturating_sub(1).min(DOUBLINGS_MAX);
        self.bytes = (room(end).len() as u64) << doublings;
    }

    /// Records that `bytes` bytes were written and synced, and whether there were zeros after them.
    pub(crate) const fn appended(&mut self, bytes: u64, reserved: bool) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if reserved {
            self.failures = 0;
        }
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
    fn the_pause_doubles_until_room_was_synced() {
        let (mut pause, end) = (Pause::default(), 10 << 20);
        let once = room(end).len() as u64;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(pause.is_over());
            pause.failed(end, true);
            pauses.push(pause.bytes / once);
            pause.appended(pause.bytes - 1, false);
            assert!(!pause.is_over());
            pause.appended(1, false);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256]);
        pause.appended(1, true);
        pause.failed(end, true);
        assert_eq!(pause.bytes, once);
        // A record without room says nothing about room.
        pause.failed(end, false);
        assert_eq!(pause.bytes, once);
    }

    #[test]
    fn room_grows_with_the_journal_and_ends_with_a_block() {
        assert_eq!(room(64).len(), 4_096 - 64);
        assert_eq!(room(100_000).len(), 200_704 - 100_000);
        assert_eq!(room(10 << 20).len(), 256 << 10);
        assert_eq!(room((10 << 20) + 1).len(), (256 << 10) + 4_095);
        assert!(is_zero(room(1)));
    }
}
