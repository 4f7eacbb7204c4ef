//! The content of records: batches of changes, seals, and the end of a snapshot.

use windlass_core::Timestamp;
use windlass_core::model::{Effect, Model, Row, RowKey};

use crate::codec::{Change, Decoder, Encoder, Malformed, Names, apply, encode_effect, encode_row};

/// The first byte of a record.
mod tag {
    /// Changes to rows. Also the rows of a snapshot.
    pub(super) const CHANGES: u8 = 1;
    /// The journal ends here, and continues in another generation.
    pub(super) const SEAL: u8 = 2;
    /// Everything was removed.
    pub(super) const ERASED: u8 = 3;
    /// A snapshot ends here.
    pub(super) const SNAPSHOT_END: u8 = 4;
}

/// The time and creation number in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The time of the batch on the store's clock.
    pub(crate) time: Timestamp,
    /// The last creation number that was used.
    pub(crate) last_seq: u64,
}

/// A record that was replayed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Replayed {
    Changes(Stamp),
    Erased(Stamp),
    /// The generation in which the journal continues.
    Sealed(u64),
    SnapshotEnd(SnapshotEnd),
}

/// The last record of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotEnd {
    pub(crate) stamp: Stamp,
    /// The end of the snapshot's journal when the last rows were read. The snapshot may contain changes of the journal
    /// up to this offset.
    pub(crate) consistent_at: u64,
    /// The number of rows, as a check.
    pub(crate) rows: u64,
}

/// Begins a batch.
pub(crate) fn encode_changes(to: &mut Encoder, stamp: Stamp) {
    to.byte(tag::CHANGES);
    encode_stamp(to, stamp);
}

/// Adds changes to a batch.
pub(crate) fn encode_effects(to: &mut Encoder, effects: &[Effect]) {
    effects.iter().for_each(|effect| encode_effect(to, effect));
}

/// Adds a row to a batch.
pub(crate) fn encode_whole(to: &mut Encoder, key: &RowKey, row: &Row) {
    encode_row(to, key, row);
}

pub(crate) fn encode_seal(to: &mut Encoder, next: u64) {
    to.byte(tag::SEAL);
    to.number(next);
}

pub(crate) fn encode_erased(to: &mut Encoder, stamp: Stamp) {
    to.byte(tag::ERASED);
    encode_stamp(to, stamp);
}

pub(crate) fn encode_end(to: &mut Encoder, end: SnapshotEnd) {
    to.byte(tag::SNAPSHOT_END);
    encode_stamp(to, end.stamp);
    to.number(end.consistent_at);
    to.number(end.rows);
}

fn encode_stamp(to: &mut Encoder, stamp: Stamp) {
    to.time(stamp.time);
    to.number(stamp.last_seq);
}

fn decode_stamp(from: &mut Decoder<'_>) -> Result<Stamp, Malformed> {
    Ok(Stamp { time: from.time()?, last_seq: from.seq()? })
}

/// Returns the next generation if the record is a seal. Fails if that does not follow the journal's own generation.
pub(crate) fn sealed(content: &[u8], generation: u64) -> Result<Option<u64>, Malformed> {
    match content.split_first() {
        Some((&tag::SEAL, rest)) => match Decoder::new(rest, &mut Names::default()).number()? {
            next if next == generation + 1 => Ok(Some(next)),
            _ => Err(Malformed("the journal continues in a wrong generation")),
        },
        _ => Ok(None),
    }
}

/// Whether the record is the last one of a snapshot.
pub(crate) fn is_snapshot_end(content: &[u8]) -> bool {
    content.first() == Some(&tag::SNAPSHOT_END)
}

/// Applies a record to the model, and passes each change to `noted`. See [`apply`] for `is_partial`.
///
/// After an error, the model may contain a part of the record, and must be discarded.
pub(crate) fn replay(
    content: &[u8],
    names: &mut Names,
    model: &mut Model,
    is_partial: bool,
    mut noted: impl FnMut(Change),
) -> Result<Replayed, Malformed> {
    let mut from = Decoder::new(content, names);
    let replayed = match from.byte()? {
        tag::CHANGES => {
            let stamp = decode_stamp(&mut from)?;
            while !from.is_empty() {
                noted(apply(&mut from, model, is_partial)?);
            }
            model.skip_seq(stamp.last_seq);
            Replayed::Changes(stamp)
        }
        tag::ERASED => {
            let stamp = decode_stamp(&mut from)?;
            *model = Model::new();
            model.skip_seq(stamp.last_seq);
            Replayed::Erased(stamp)
        }
        tag::SEAL => Replayed::Sealed(from.number()?),
        tag::SNAPSHOT_END => {
            let stamp = decode_stamp(&mut from)?;
            let end = SnapshotEnd { stamp, consistent_at: from.number()?, rows: from.number()? };
            model.skip_seq(stamp.last_seq);
            Replayed::SnapshotEnd(end)
        }
        _ => return Err(Malformed("a record has an unknown kind")),
    };
    if from.is_empty() { Ok(replayed) } else { Err(Malformed("a record is too long")) }
}
