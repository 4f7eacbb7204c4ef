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
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 15] = [
        Self::Exchange,
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
    ];
}

/// The set of optional features that a store supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(u32);

impl Capabilities {
    /// No optional features.
    pub const CORE: Self = Self(0);

    /// Returns the set of all capabilities.
    #[must_use]
    pub fn all() -> Self {
        Capability::ALL.into_iter().fold(Self::CORE, Self::with)
    }

    /// Returns this set with `capability` added.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self(self.0 | 1 << capability as u8)
    }

    /// Whether the set contains `capability`.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }
}
