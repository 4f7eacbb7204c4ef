//! Ids and the numbers that guard writes.

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
            /// A fresh id (UUIDv7: later ids sort after earlier ones).
            #[must_use]
            #[allow(clippy::new_without_default, reason = "each call gives another value")]
            pub fn new() -> Self {
                Self(fresh())
            }

            /// The id with this value.
            #[must_use]
            pub const fn from_uuid(value: Uuid) -> Self {
                Self(value)
            }

            /// The id's value.
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
    /// One stored unit of work. Always fresh; a caller's own id is its chain's [`Key`](crate::Key).
    JobId
}
id! {
    /// A chain: the id of its first job.
    ChainId
}
id! {
    /// One worker, for as long as it lives. A worker that starts again has another id.
    WorkerId
}
id! {
    /// One call of a command, so that a repeated call is recognized.
    RequestId
}

thread_local! {
    /// The seed and the number of ids so far, in a thread whose ids follow from a seed.
    static SEEDED: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// From now on this thread's fresh ids follow from the seed: the first 48 bits count them, from 1. For
/// simulations, which must be able to repeat a run exactly; such ids are unique within one run only.
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
    /// The id of the chain's first job.
    #[must_use]
    pub const fn first_job(self) -> JobId {
        JobId(self.0)
    }
}

/// A number that only grows, given to a job at each acquisition. Every write for an attempt carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

/// How many fences there are for each millisecond of the time of creation.
const FENCES_PER_MS: u64 = 1_024;

/// Counts the changes of a job since its creation, from 0: each change of its status, each trigger and each
/// request to cancel. Renewals and resolved blockers do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Fence {
    /// The fence of a job that was never acquired. It comes from the time of creation, in milliseconds, so
    /// that a chain that is deleted and later created again under its id does not use the fences of its
    /// former life.
    #[must_use]
    pub fn at_creation(created_at: Timestamp) -> Self {
        Self(u64::try_from(created_at.as_millis()).unwrap_or(0) * FENCES_PER_MS)
    }

    /// The fence of the next acquisition.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Version {
    /// The version after one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
