//! Job types: inputs, outputs, blockers and continuations, checked by the compiler.
//!
//! `#[derive(Job)]` generates these implementations. Written by hand, they look like this:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use windlass::{Entry, Job, Then};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Provision { user: i64 }
//! #[derive(Serialize, Deserialize)]
//! struct Welcome { user: i64, account: String }
//!
//! impl Job for Provision {
//!     const NAME: &'static str = "provision";
//!     type Output = String;
//!     type Next = (Welcome,);
//!     type Blockers = ();
//! }
//! impl Entry for Provision {}
//! impl Then<Welcome> for Provision {}
//!
//! impl Job for Welcome {
//!     const NAME: &'static str = "welcome";
//!     type Output = String;
//!     type Next = ();
//!     type Blockers = ();
//! }
//! ```

mod blockers;
mod continuations;
mod graph;
mod options;

use std::any::TypeId;
use std::collections::HashSet;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use blockers::{BlockerSlot, Blockers, Failure, Fallible, IsReady, NeedsBlockedBy, Ready, Rest};
pub use continuations::Continuations;
pub use graph::{JobGraph, JobInfo};
pub use options::{Backoff, JobOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::name::TypeName;
use crate::payload::Payload;

/// The longest path of continuations from a chain's entry type to its last type that `decode_output` follows.
/// The search recurses this deep, so the limit also protects the stack.
const PATH_MAX: usize = 64;

/// A job type: a serializable input with a name, an output, blockers and continuations.
pub trait Job: Serialize + DeserializeOwned + Send + Sync + Sized + 'static {
    /// The name under which jobs of this type are stored. It must not change while jobs are stored; to rename
    /// a type, list the old name in [`ALIASES`](Self::ALIASES).
    const NAME: &'static str;

    /// Former names of this type. Jobs stored under them are still run, and their outputs can still be read.
    const ALIASES: &'static [&'static str] = &[];

    /// The output of a chain that ends with this job.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The declared continuations: a tuple of job types, or `()` for none.
    type Next: Continuations<Self>;

    /// The chains that a job of this type waits for: `()`, a tuple of entry types, a `Vec` of one entry type,
    /// or a tuple that ends in [`Rest`].
    type Blockers: Blockers;

    /// Returns how jobs of this type are run and kept. A start can override the priority, the maximum number
    /// of attempts and the retention.
    fn options() -> JobOptions {
        JobOptions::default()
    }
}

/// A job type that may start a chain.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot start a chain",
    label = "not an entry type",
    note = "add `entry` to the #[job(...)] attribute of `{Self}`, or start the chain with an entry type that continues with it"
)]
pub trait Entry: Job {}

/// Declares that a chain may continue from this job type with `N`.
///
/// `#[derive(Job)]` implements this trait and lists `N` in [`Job::Next`]. A manual implementation must do
/// both.
///
/// The compiler rejects a type that is listed in `Next` without this implementation, but it cannot detect an
/// implementation that is not listed. Such a continuation starts and runs, but the output of a chain that ends with it
/// cannot be converted to the output of the entry type. Waiting for the chain then returns an error. A [`JobGraph`]
/// does not show the continuation either.
#[diagnostic::on_unimplemented(
    message = "`{N}` is not declared as a continuation of `{Self}`",
    label = "not a continuation of `{Self}`",
    note = "add `then({N})` to the #[job(...)] attribute of `{Self}`"
)]
pub trait Then<N: Job>: Job<Output: From<N::Output>> {}

impl TypeName {
    /// Returns the stored name of a job type.
    ///
    /// # Errors
    /// Returns an error if [`Job::NAME`] is not a valid name.
    pub fn of<J: Job>() -> Result<Self> {
        Ok(Self::new(J::NAME)?)
    }
}

/// Decodes the output of a chain whose last job has the type `last`.
///
/// The payload is decoded as the output of that type and converted to `J::Output` along the shortest declared
/// path of continuations.
///
/// # Errors
/// [`ErrorKind::Invalid`] if no declared path leads from `J` to `last`, or if the payload cannot be decoded.
pub fn decode_output<J: Job>(last: &str, output: &Payload) -> Result<J::Output> {
    let mut search = Search { last, output, seen: HashSet::new() };
    for depth in 0..=PATH_MAX {
        if let Some(found) = search.resolve::<J>(depth) {
            return found;
        }
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "the chain ended with a job of type `{last}`, which `{}` does not reach within {PATH_MAX} \
             declared continuations: declare the missing continuation, or add `{last}` as an alias of its \
             current type",
            J::NAME
        ),
    ))
}

/// A search for the declared path to the type that a chain ended with.
#[doc(hidden)]
#[derive(Debug)]
pub struct Search<'a> {
    last: &'a str,
    output: &'a Payload,
    /// Pairs of type and depth that were already searched without success. They bound the search to the number of types
    /// times the number of path lengths. Without them, types that continue with each other would be searched
    /// repeatedly.
    seen: HashSet<(TypeId, usize)>,
}

impl Search<'_> {
    /// Resolves `last` exactly `depth` continuations away from `J`.
    fn resolve<J: Job>(&mut self, depth: usize) -> Option<Result<J::Output>> {
        if !self.seen.insert((TypeId::of::<J>(), depth)) {
            return None;
        }
        if depth > 0 {
            return J::Next::resolve(self, depth - 1);
        }
        let is_it = self.last == J::NAME || J::ALIASES.contains(&self.last);
        is_it.then(|| self.output.decode())
    }
}
