//! A typed handle on a chain.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use crate::id::ChainId;

/// A chain that a job of type `J` started: its id, and what it will give.
pub struct Chain<J> {
    id: ChainId,
    is_new: bool,
    job: PhantomData<fn() -> J>,
}

impl<J> Chain<J> {
    /// The chain with this id, which was started with a job of type `J`.
    #[must_use]
    pub const fn from_id(id: ChainId) -> Self {
        Self { id, is_new: false, job: PhantomData }
    }

    pub(crate) const fn started(id: ChainId, is_new: bool) -> Self {
        Self { id, is_new, job: PhantomData }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> ChainId {
        self.id
    }

    /// Whether the start that gave this handle created it; false if its key was held by this chain, which was
    /// there before.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.is_new
    }
}

impl<J> Clone for Chain<J> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<J> Copy for Chain<J> {}

impl<J> PartialEq for Chain<J> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<J> Eq for Chain<J> {}

impl<J> Hash for Chain<J> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl<J> fmt::Debug for Chain<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({})", self.id)
    }
}
