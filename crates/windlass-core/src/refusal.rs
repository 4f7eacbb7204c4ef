//! Reasons why an item is refused.

use std::fmt;

use crate::id::{ChainId, JobId};
use crate::limit::{
    BLOCKERS_MAX, CARRIED_MAX, CODEC_MAX_BYTES, DELETE_MAX_CHAINS, KEY_MAX_BYTES, NAME_MAX_BYTES,
    PAYLOAD_MAX_BYTES, STEPS_MAX, TRACE_MAX_BYTES,
};

/// The reason why one item of a command was refused. Nothing was written for the item, and the other items
/// are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// A name is empty.
    NameEmpty,
    /// A name is longer than [`NAME_MAX_BYTES`].
    NameTooLong,
    /// A name contains a control character.
    NameWithControl,
    /// A key is empty.
    KeyEmpty,
    /// A key is longer than [`KEY_MAX_BYTES`].
    KeyTooLong,
    /// A key contains a NUL character.
    KeyWithNul,
    /// A trace context is empty, too long or contains control characters.
    TraceInvalid,
    /// A codec name is empty, too long or contains characters other than `a-z`, `0-9` and `-`.
    CodecInvalid,
    /// A payload is larger than [`PAYLOAD_MAX_BYTES`].
    PayloadTooLarge,
    /// A duration is longer than [`DURATION_MAX_MS`](crate::limit::DURATION_MAX_MS).
    DurationTooLong,
    /// A time is before 1970 or after 9999.
    TimeOutOfRange,
    /// The maximum number of attempts is 0.
    NoAttempts,
    /// A job has more blockers than [`BLOCKERS_MAX`].
    TooManyBlockers,
    /// A settlement or step carries more chains than [`CARRIED_MAX`].
    TooManyCarried,
    /// There are no steps, more than [`STEPS_MAX`] steps, or steps after the one that ends the chain.
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
    /// The chain is not in the state that the caller has read.
    Changed(ChainId),
    /// An open job outside the deleted set depends on the chain.
    Needed {
        /// The chain that cannot be deleted.
        chain: ChainId,
        /// The open job that depends on it.
        by: JobId,
    },
    /// The delete would remove more than [`DELETE_MAX_CHAINS`] chains.
    TooManyChains,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameEmpty => write!(f, "the name is empty: use 1 to {NAME_MAX_BYTES} bytes"),
            Self::NameTooLong => write!(f, "the name is longer than {NAME_MAX_BYTES} bytes: shorten it"),
            Self::NameWithControl => f.write_str("the name contains a control character: remove it"),
            Self::KeyEmpty => {
                write!(f, "the key is empty: use 1 to {KEY_MAX_BYTES} bytes, or omit the key")
            }
            Self::KeyTooLong => write!(f, "the key is longer than {KEY_MAX_BYTES} bytes: hash it"),
            Self::KeyWithNul => f.write_str("the key contains a NUL character: encode it"),
            Self::TraceInvalid => {
                write!(f, "the trace context must be 1 to {TRACE_MAX_BYTES} bytes without control characters")
            }
            Self::CodecInvalid => {
                write!(f, "the codec name must be 1 to {CODEC_MAX_BYTES} bytes of `a-z`, `0-9` and `-`")
            }
            Self::PayloadTooLarge => {
                write!(
                    f,
                    "the payload is larger than {PAYLOAD_MAX_BYTES} bytes: store it elsewhere and pass a reference"
                )
            }
            Self::DurationTooLong => f.write_str("the duration is longer than 100 years: shorten it"),
            Self::TimeOutOfRange => f.write_str("the time must be in the years 1970 to 9999"),
            Self::NoAttempts => f.write_str("max attempts must be at least 1, got 0: omit it for no limit"),
            Self::TooManyBlockers => {
                write!(
                    f,
                    "the job has more than {BLOCKERS_MAX} blockers: group them behind intermediate chains"
                )
            }
            Self::TooManyCarried => {
                write!(
                    f,
                    "more than {CARRIED_MAX} chains start with the outcome: take an `Attempt` and call \
                     `step.start_many`, or start some of them separately"
                )
            }
            Self::StepsInvalid => {
                write!(
                    f,
                    "the completion must have 1 to {STEPS_MAX} steps, and only the last may end the chain"
                )
            }
            Self::IdTaken => {
                f.write_str("the id already belongs to another chain or job: generate a new id, or use a key")
            }
            Self::BlockerNotFound(chain) => write!(f, "blocker chain {chain} was not found: start it first"),
            Self::BlockerFailed(chain) => {
                write!(f, "blocker chain {chain} failed or was cancelled: retry it first")
            }
            Self::WaitsForItself(chain) => {
                write!(
                    f,
                    "the chain would wait for itself through blocker chain {chain}: remove that blocker"
                )
            }
            Self::KeyTaken(chain) => write!(f, "the key is held by chain {chain}"),
            Self::CancelRequested => {
                f.write_str("the chain was asked to stop, so its successor was not started")
            }
            Self::Changed(chain) => write!(f, "chain {chain} has changed since it was read: read it again"),
            Self::Needed { chain, by } => {
                write!(f, "open job {by} depends on chain {chain}: finish, cancel or delete that job first")
            }
            Self::TooManyChains => {
                write!(f, "the delete would remove more than {DELETE_MAX_CHAINS} chains: delete fewer")
            }
        }
    }
}

impl std::error::Error for Refusal {}
