//! Chains.

use windlass_core::model::ChainRow;
use windlass_core::{ChainId, ChainKey, Closed, ClosedAs, JobId, Key, KeyHold, Retention};

use super::row::tag;
use super::{Coded as _, Decoded, Decoder, Encoder, Malformed};

pub(super) fn encode_chain(to: &mut Encoder, row: &ChainRow) {
    to.byte(tag::CHAIN);
    to.id(row.id.as_uuid());
    let window = row.key.as_ref().and_then(|key| key.window);
    let flags = [
        row.key.is_some(),
        row.closed.is_some(),
        row.rippling,
        row.key.as_ref().is_some_and(|key| key.held),
        window.is_some(),
    ];
    to.byte(flags.iter().rev().fold(0, |all, flag| all << 1 | u8::from(*flag)));
    to.number(row.seq);
    to.text(row.chain_type.as_str());
    if let Some(key) = &row.key {
        to.text(key.key.as_str());
        to.byte(key.hold.code());
    }
    window.into_iter().for_each(|window| to.span(window));
    to.span(row.retention.completed);
    to.span(row.retention.failed);
    to.span(row.retention.cancelled);
    to.time(row.created_at);
    if let Some(closed) = &row.closed {
        to.time(closed.at);
        to.byte(closed.closed_as.code());
        to.time(closed.retain_until);
    }
    to.text(row.trace.as_ref().map_or("", |trace| trace.as_str()));
    to.id(row.latest.as_uuid());
    to.number(u64::from(row.latest_index));
}

pub(super) fn decode_chain(from: &mut Decoder<'_>) -> Decoded<ChainRow> {
    let id = ChainId::from_uuid(from.id()?);
    let flags = from.byte()?;
    let has = |bit: u8| flags & 1 << bit != 0;
    if flags >> 5 != 0 {
        return Err(Malformed("a chain has unknown parts"));
    }
    let seq = from.row_seq()?;
    let chain_type = from.type_name()?;
    let key = has(0).then(|| Ok((from.name(Key::new)?, KeyHold::decode(from)?))).transpose()?;
    let window = has(4).then(|| from.span()).transpose()?;
    let key = key.map(|(key, hold)| ChainKey { key, hold, window, held: has(3) });
    let retention = Retention { completed: from.span()?, failed: from.span()?, cancelled: from.span()? };
    let created_at = from.time()?;
    let closed = has(1).then(|| decode_closed(from)).transpose()?;
    let trace = from.optional_trace()?;
    let (latest, latest_index) = (JobId::from_uuid(from.id()?), from.small()?);
    Ok(ChainRow {
        id,
        chain_type,
        seq,
        key,
        retention,
        created_at,
        closed,
        trace,
        latest,
        latest_index,
        rippling: has(2),
    })
}

fn decode_closed(from: &mut Decoder<'_>) -> Decoded<Closed> {
    Ok(Closed { at: from.time()?, closed_as: ClosedAs::decode(from)?, retain_until: from.time()? })
}
