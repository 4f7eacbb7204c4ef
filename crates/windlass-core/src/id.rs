//! Ids, and the fences and versions that guard writes.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
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

impl ChainId {
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
    /// Returns the fence of a job that has never been acquired.
    ///
    /// It is derived from the creation time in milliseconds, so that the fences of a chain that is deleted and later
    /// created again with the same id do not overlap with the earlier ones.
    #[must_use]
    pub fn at_creation(created_at: Timestamp) -> Self {
        Self(u64::try_from(created_at.as_millis()).unwrap_or(0) * FENCES_PER_MS)
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
