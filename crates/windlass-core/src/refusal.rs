//! Reasons why an item is refused.

use std::fmt;

use crate::id::{ChainId, JobId};
use crate::limit;

/// The reason why one item of a command was refused. Nothing was written for the item, and the other items
/// are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A name is empty.
    NameEmpty,
    /// A name is longer than [`NAME_MAX_BYTES`](limit::NAME_MAX_BYTES).
    NameTooLong,
    /// A name contains a control character.
    NameWithControl,
    /// A key is empty.
    KeyEmpty,
    /// A key is longer than [`KEY_MAX_BYTES`](limit::KEY_MAX_BYTES).
    KeyTooLong,
    /// A key contains a NUL character.
    KeyWithNul,
    /// A trace context is empty, too long or contains control characters.
    TraceInvalid,
    /// A codec name is empty, too long or contains characters other than `a-z`, `0-9` and `-`.
    CodecInvalid,
    /// A payload is larger than [`PAYLOAD_MAX_BYTES`](limit::PAYLOAD_MAX_BYTES).
    PayloadTooLarge,
    /// A duration is longer than [`DURATION_MAX_MS`](limit::DURATION_MAX_MS).
    DurationTooLong,
    /// A time is before 1970 or after 9999.
    TimeOutOfRange,
    /// The maximum number of attempts is 0.
    NoAttempts,
    /// A job has more blockers than [`BLOCKERS_MAX`](limit::BLOCKERS_MAX).
    TooManyBlockers,
    /// A settlement or step carries more chains than [`CARRIED_MAX`](limit::CARRIED_MAX).
    TooManyCarried,
    /// There are no steps, more than [`STEPS_MAX`](limit::STEPS_MAX), or steps after the one that ends the
    /// chain.
    StepsInvalid,
    /// The id belongs to another chain or job.
    IdTaken,
    /// A blocker chain is not stored.
    BlockerNotFound(ChainId),
    /// A blocker chain failed or was cancelled, and the job's policy is to fail in that case.
    BlockerFailed(ChainId),
    /// The chain would wait for itself, directly or through other chains.
    WaitsForItself(ChainId),
    /// Another chain holds the key.
    KeyTaken(ChainId),
    /// The chain was asked to stop, so its successor is not started.
    CancelRequested,
    /// An open job outside the deleted set depends on the chain.
    Needed {
        /// The chain that cannot be deleted.
        chain: ChainId,
        /// The open job that depends on it.
        by: JobId,
    },
    /// The delete would remove more than [`DELETE_MAX_CHAINS`](limit::DELETE_MAX_CHAINS) chains.
    TooManyChains,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameEmpty => write!(f, "the name is empty: give 1 to {} bytes", limit::NAME_MAX_BYTES),
            Self::NameTooLong => write!(f, "the name is longer than {} bytes", limit::NAME_MAX_BYTES),
            Self::NameWithControl => f.write_str("the name has a control character: leave it out"),
            Self::KeyEmpty => {
                write!(f, "the key is empty: give 1 to {} bytes, or none at all", limit::KEY_MAX_BYTES)
            }
            Self::KeyTooLong => write!(f, "the key is longer than {} bytes: hash it", limit::KEY_MAX_BYTES),
            Self::KeyWithNul => f.write_str("the key has a NUL character: encode it"),
            Self::TraceInvalid => {
                write!(f, "the trace context is not 1 to {} bytes of plain text", limit::TRACE_MAX_BYTES)
            }
            Self::CodecInvalid => {
                write!(f, "the codec name is not 1 to {} bytes of a-z, 0-9 and -", limit::CODEC_MAX_BYTES)
            }
            Self::PayloadTooLarge => {
                write!(
                    f,
                    "the payload is larger than {} bytes: store it elsewhere and pass a reference",
                    limit::PAYLOAD_MAX_BYTES
                )
            }
            Self::DurationTooLong => f.write_str("the duration is longer than a hundred years"),
            Self::TimeOutOfRange => f.write_str("the time is before 1970 or after 9999"),
            Self::NoAttempts => {
                f.write_str("a job needs at least one attempt: give 1 or more, or no maximum")
            }
            Self::TooManyBlockers => {
                write!(f, "more than {} blockers: group them behind chains of their own", limit::BLOCKERS_MAX)
            }
            Self::TooManyCarried => {
                write!(
                    f,
                    "more than {} chains carried: start them with a command of their own",
                    limit::CARRIED_MAX
                )
            }
            Self::StepsInvalid => {
                write!(f, "give 1 to {} steps, and none after the one that ends the chain", limit::STEPS_MAX)
            }
            Self::IdTaken => {
                f.write_str("the id belongs to another chain or job: ids are fresh, use a key instead")
            }
            Self::BlockerNotFound(chain) => write!(f, "blocker chain {chain} is not stored: start it first"),
            Self::BlockerFailed(chain) => {
                write!(f, "blocker chain {chain} failed or was cancelled: retry it first")
            }
            Self::WaitsForItself(chain) => {
                write!(f, "the chain would wait for itself through blocker chain {chain}")
            }
            Self::KeyTaken(chain) => write!(f, "the key is held by chain {chain}"),
            Self::CancelRequested => f.write_str("the chain was asked to stop: its successor is not started"),
            Self::Needed { chain, by } => {
                write!(f, "open job {by} depends on chain {chain}: finish, cancel or delete it first")
            }
            Self::TooManyChains => {
                write!(f, "more than {} chains would go: delete fewer at once", limit::DELETE_MAX_CHAINS)
            }
        }
    }
}

impl std::error::Error for Refusal {}
