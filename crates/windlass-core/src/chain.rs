//! A typed handle to a chain, and other references to chains.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use crate::command::Target;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{ChainId, JobId};
use crate::job::Job;
use crate::name::TypeName;

/// A handle to a chain that starts with a job of type `J`. Holds the chain's id, and knows the type of its
/// output.
pub struct Chain<J> {
    id: ChainId,
    is_new: bool,
    job: PhantomData<fn() -> J>,
}

impl<J> Chain<J> {
    /// Creates a handle to the chain with this id, which must have started with a job of type `J`.
    #[must_use]
    pub const fn from_id(id: ChainId) -> Self {
        Self { id, is_new: false, job: PhantomData }
    }

    pub(crate) const fn started(id: ChainId, is_new: bool) -> Self {
        Self { id, is_new, job: PhantomData }
    }

    /// Returns the chain's id.
    #[must_use]
    pub const fn id(&self) -> ChainId {
        self.id
    }

    /// Whether the start that returned this handle created the chain. `false` if this chain already existed
    /// and holds the key.
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

/// Formats the chain's id.
impl<J> fmt::Display for Chain<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl<J> fmt::Debug for Chain<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({})", self.id)
    }
}

/// Targets the chain by its id.
impl<J> From<Chain<J>> for Target {
    fn from(chain: Chain<J>) -> Self {
        Self::Chain(chain.id)
    }
}

impl<J> From<Chain<J>> for ChainId {
    fn from(chain: Chain<J>) -> Self {
        chain.id
    }
}

/// A reference to a chain: a typed handle, an id, one of its jobs, or a [`Target`]. With a typed handle, the
/// stored chain must have that type. Otherwise it may have any type.
#[derive(Clone, Debug)]
pub struct ChainRef {
    pub(crate) target: Target,
    expected: Option<Expected>,
}

/// The chain type that a typed handle expects.
#[derive(Clone, Copy, Debug)]
struct Expected {
    name: &'static str,
    is: fn(&TypeName) -> bool,
}

impl ChainRef {
    /// Returns an error if the type of the stored chain is not the expected one.
    pub(crate) fn check(&self, chain: ChainId, stored: &TypeName) -> Result<()> {
        match self.expected {
            Some(Expected { name, is }) if !is(stored) => Err(Error::new(
                ErrorKind::Invalid,
                format!("chain {chain} has type `{stored}`, expected `{name}`"),
            )),
            _ => Ok(()),
        }
    }
}

/// Whether `stored` is the name of type `J` or one of its aliases.
pub(crate) fn is_of<J: Job>(stored: &TypeName) -> bool {
    stored.as_str() == J::NAME || J::ALIASES.contains(&stored.as_str())
}

impl<J: Job> From<Chain<J>> for ChainRef {
    fn from(chain: Chain<J>) -> Self {
        Self { target: chain.into(), expected: Some(Expected { name: J::NAME, is: is_of::<J> }) }
    }
}

impl From<Target> for ChainRef {
    fn from(target: Target) -> Self {
        Self { target, expected: None }
    }
}

impl From<ChainId> for ChainRef {
    fn from(chain: ChainId) -> Self {
        Target::Chain(chain).into()
    }
}

impl From<JobId> for ChainRef {
    fn from(job: JobId) -> Self {
        Target::Job(job).into()
    }
}
