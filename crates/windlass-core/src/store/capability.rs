//! The optional features of a store.

#[cfg(doc)]
use super::{Store, Transactional};

/// An optional feature of a store. Every store supports create, acquire, renew, settle, reap, expire,
/// `get_chains` and `get_jobs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Capability {
    /// [`Store::exchange`].
    Exchange,
    /// [`Store::create_and_acquire`].
    CreateAndAcquire,
    /// [`Store::next_due`].
    NextDue,
    /// [`Store::complete_from_outside`].
    Outside,
    /// [`Store::cancel`].
    Cancel,
    /// [`Store::trigger`].
    Trigger,
    /// [`Store::retry`].
    Retry,
    /// [`Store::delete`].
    Delete,
    /// [`Store::set_retention`].
    SetRetention,
    /// [`Store::pause`].
    Pause,
    /// [`Store::list_chains`], [`Store::list_jobs`] and [`Store::list_dependents`].
    Lists,
    /// [`Store::list_attempts`].
    Attempts,
    /// [`Store::count`].
    Count,
    /// [`Store::beat`], [`Store::retire`] and [`Store::list_workers`].
    Workers,
    /// [`Store::leader_lock`].
    LeaderLock,
    /// [`Transactional`].
    Transactions,
    /// [`Store::change_schedules`], [`Store::get_schedules`], [`Store::list_schedules`] and
    /// [`Store::due_schedules`].
    Schedules,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 17] = [
        Self::Exchange,
        Self::CreateAndAcquire,
        Self::NextDue,
        Self::Outside,
        Self::Cancel,
        Self::Trigger,
        Self::Retry,
        Self::Delete,
        Self::SetRetention,
        Self::Pause,
        Self::Lists,
        Self::Attempts,
        Self::Count,
        Self::Workers,
        Self::LeaderLock,
        Self::Transactions,
        Self::Schedules,
    ];
}

/// The set of optional features that a store supports, and how a client uses it best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities {
    set: u32,
    /// One less than the number of exchanges, so that the default is one.
    more_exchanges: u8,
    is_ordered: bool,
    is_parallel: bool,
    is_joining: bool,
}

impl Capabilities {
    /// No optional features.
    pub const CORE: Self =
        Self { set: 0, more_exchanges: 0, is_ordered: false, is_parallel: false, is_joining: false };

    /// Returns the set of all capabilities.
    #[must_use]
    pub fn all() -> Self {
        Capability::ALL.into_iter().fold(Self::CORE, Self::with)
    }

    /// Returns this set with `capability` added.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self { set: self.set | 1 << capability as u8, ..self }
    }

    /// Returns this set with `capability` removed.
    #[must_use]
    pub const fn without(self, capability: Capability) -> Self {
        Self { set: self.set & !(1 << capability as u8), ..self }
    }

    /// Whether the set contains `capability`.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.set & (1 << capability as u8) != 0
    }

    /// Sets how many exchanges a worker may have in flight at the same time. Default: 1, which is also the minimum.
    ///
    /// More than one keeps a store busy that would otherwise wait for the worker. It does not pay where concurrent
    /// exchanges compete for the same rows.
    #[must_use]
    pub const fn exchanges_in_flight(self, count: u8) -> Self {
        Self { more_exchanges: count.saturating_sub(1), ..self }
    }

    /// Declares that the store executes commands in the order in which they are sent (first polled). A client then acquires
    /// a job without waiting for the reply to its creation. If the order is sometimes different, the acquire finds nothing,
    /// and the job is acquired later.
    #[must_use]
    pub const fn ordered(self) -> Self {
        Self { is_ordered: true, ..self }
    }

    /// Whether the store executes commands in the order in which they are sent.
    #[must_use]
    pub const fn is_ordered(self) -> bool {
        self.is_ordered
    }

    /// Returns how many exchanges a worker may have in flight at the same time.
    #[must_use]
    pub const fn max_exchanges(self) -> usize {
        self.more_exchanges as usize + 1
    }

    /// Declares that the store executes a settlement and an acquire at the same time, on two cores. Default: it does not.
    ///
    /// A worker with a prefetch then settles and acquires with separate calls instead of exchanges. Its waiting jobs keep
    /// its handlers busy, so it gains more by the second core than it loses by the second call.
    #[must_use]
    pub const fn in_parallel(self) -> Self {
        Self { is_parallel: true, ..self }
    }

    /// Whether the store executes a settlement and an acquire at the same time.
    #[must_use]
    pub const fn is_parallel(self) -> bool {
        self.is_parallel
    }

    /// Declares that [`Store::create_and_acquire`] costs less than a creation and an acquire, because both are committed
    /// together. Default: it does not.
    ///
    /// If a worker of the same client is idle, a creation then acquires for it, so that a single job is committed once
    /// instead of twice before its handler starts.
    #[must_use]
    pub const fn joining(self) -> Self {
        Self { is_joining: true, ..self }
    }

    /// Whether a creation should acquire for an idle worker.
    #[must_use]
    pub const fn is_joining(self) -> bool {
        self.is_joining && self.has(Capability::CreateAndAcquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_can_be_removed() {
        let all = Capabilities::all().joining();
        let left = all.without(Capability::CreateAndAcquire);
        assert!(!left.has(Capability::CreateAndAcquire) && !left.is_joining());
        assert_eq!(left.with(Capability::CreateAndAcquire), all);
        assert_eq!(left.without(Capability::CreateAndAcquire), left);
    }
}
