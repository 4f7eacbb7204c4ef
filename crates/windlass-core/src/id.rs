//! Ids, and the fences and versions that guard writes.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid};

use crate::time::Timestamp;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Generates a new id (UUIDv7: later ids sort after earlier ones).
            #[must_use]
            #[allow(clippy::new_without_default, reason = "each call returns a different id")]
            pub fn new() -> Self {
                Self(fresh())
            }

            /// Creates the id from a UUID.
            #[must_use]
            pub const fn from_uuid(value: Uuid) -> Self {
                Self(value)
            }

            /// Returns the id as a UUID.
            #[must_use]
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id! {
    /// The id of a job. Always newly generated; an id that the caller chooses is the chain's
    /// [`Key`](crate::Key).
    JobId
}
id! {
    /// The id of a chain, equal to the id of its first job.
    ChainId
}
id! {
    /// The id of a worker, from its start to its end. A restarted worker has a new id.
    WorkerId
}
id! {
    /// The id of one call of a command. A repeated call is recognized by it.
    RequestId
}

thread_local! {
    /// The seed and the number of ids generated so far. `None` if this thread generates normal ids.
    static SEEDED: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// Makes the ids that this thread generates deterministic: they are derived from `seed`, and their first 48 bits count
/// up from 1.
///
/// For simulations that must be reproducible. Such ids are unique only within one run.
#[doc(hidden)]
pub fn seed_ids(seed: u64) {
    SEEDED.set(Some((seed, 0)));
}

fn fresh() -> Uuid {
    let Some((seed, count)) = SEEDED.get() else { return Uuid::now_v7() };
    SEEDED.set(Some((seed, count + 1)));
    let mut tail = [0; 10];
    tail.iter_mut().zip(seed.to_be_bytes()).for_each(|(byte, seed)| *byte = seed);
    Builder::from_unix_timestamp_millis(count + 1, &tail).into_uuid()
}

/// The id of a schedule, chosen when it is created: 73 random bits, as a UUID of version 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScheduleId(Uuid);

/// The occurrence of a schedule that a chain was started for. See [`ChainId::occurrence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Occurrence {
    /// The schedule.
    pub schedule: ScheduleId,
    /// The planned time; or, for a manual run, the time of the request.
    pub at: Timestamp,
    /// Whether the run was started by hand.
    pub is_manual: bool,
}

/// The bit of a UUID that marks a manual run: the first one after the variant.
const MANUAL: u128 = 1 << 61;
/// The bits of a UUID before the version: a time in milliseconds.
const TIME: u128 = !0 << 80;

impl ScheduleId {
    /// Generates a new id.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "each call returns a different id")]
    pub fn new() -> Self {
        // Hashed, because ids that are derived from a seed differ only in their time.
        let mut random = [0; 16];
        random.iter_mut().zip(Sha256::digest(fresh().as_bytes())).for_each(|(byte, hashed)| *byte = hashed);
        Self::from_uuid(Uuid::from_bytes(random))
    }

    /// Creates the id from a UUID. Only the bits that identify a schedule are kept.
    #[must_use]
    pub fn from_uuid(value: Uuid) -> Self {
        let bits = value.as_u128() & !TIME & !MANUAL;
        Self(Builder::from_custom_bytes(bits.to_be_bytes()).into_uuid())
    }

    /// Returns the id as a UUID.
    #[must_use]
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl fmt::Display for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for ScheduleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScheduleId({})", self.0)
    }
}

impl FromStr for ScheduleId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::from_uuid)
    }
}

impl Occurrence {
    /// Returns the id of the chain of this occurrence. It depends on nothing else.
    #[must_use]
    pub fn chain(&self) -> ChainId {
        let time = u128::from(self.at.as_millis().unsigned_abs()) << 80;
        let manual = if self.is_manual { MANUAL } else { 0 };
        ChainId(Uuid::from_u128(self.schedule.0.as_u128() | time | manual))
    }
}

impl ChainId {
    /// Returns the occurrence that the chain was started for, if a schedule started it. Such ids have version 8, and
    /// all others version 7.
    #[must_use]
    pub fn occurrence(&self) -> Option<Occurrence> {
        if self.0.get_version_num() != 8 {
            return None;
        }
        let bits = self.0.as_u128();
        let at = Timestamp::from_millis(i64::try_from(bits >> 80).ok()?).ok()?;
        Some(Occurrence { schedule: ScheduleId::from_uuid(self.0), at, is_manual: bits & MANUAL != 0 })
    }

    /// Returns the id of the chain's first job.
    #[must_use]
    pub const fn first_job(self) -> JobId {
        JobId(self.0)
    }
}

/// A number that increases each time a job is acquired. Every write for an attempt carries it, so that the
/// store can reject writes of a stale attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// The number of fences reserved for each millisecond of creation time.
const FENCES_PER_MS: u64 = 1_024;

/// The number of changes to a job since its creation, starting at 0. Every change of status, every trigger
/// and every cancel request counts. Renewals and resolved blockers do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Fence {
    /// Returns the lowest fence of a job that is created at this time, before its first acquire.
    ///
    /// It is derived from the time in milliseconds, so that the fences of a chain that is deleted and later created again with
    /// the same id do not overlap with the earlier ones. A store uses a larger fence if a deleted job had a larger one,
    /// because that job was created in the same millisecond or the clock has gone back.
    #[must_use]
    pub fn at_creation(created_at: Timestamp) -> Self {
        Self(u64::try_from(created_at.as_millis()).unwrap_or(0) * FENCES_PER_MS)
    }

    /// Returns how many times a job with this fence, which was created at this time, has been acquired. The number is larger
    /// if the fences of the job start above the fence of a deleted job.
    pub(crate) fn acquired_since(self, created_at: Timestamp) -> u64 {
        self.0.saturating_sub(Self::at_creation(created_at).0)
    }

    /// Returns the fence of the next acquire.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Version {
    /// Returns the version after one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_id_contains_its_occurrence() {
        let (schedule, at) = (ScheduleId::new(), Timestamp::from_millis(1_794_744_000_123).unwrap());
        for is_manual in [false, true] {
            let occurrence = Occurrence { schedule, at, is_manual };
            assert_eq!(occurrence.chain().occurrence(), Some(occurrence));
        }
        let other = Occurrence { schedule: ScheduleId::new(), at, is_manual: false };
        assert_ne!(other.chain(), Occurrence { schedule, at, is_manual: false }.chain());
        assert_eq!(ChainId::new().occurrence(), None);
    }

    #[test]
    fn ids_of_schedules_from_a_seed_differ() {
        std::thread::spawn(|| {
            seed_ids(7);
            assert_ne!(ScheduleId::new(), ScheduleId::new());
        })
        .join()
        .unwrap();
    }
}
