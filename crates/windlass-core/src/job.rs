//! Job types: what a job takes, gives, waits for and goes on with, checked by the compiler.
//!
//! `#[derive(Job)]` writes these implementations; by hand they look like this:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use windlass_core::{Entry, Job, Then};
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

pub use blockers::{Blockers, Failure, Fallible, IsReady, NeedsBlockedBy, Ready, Rest, Slot};
pub use continuations::Continuations;
pub use graph::{JobGraph, JobInfo};
pub use options::{Backoff, JobOptions};

use crate::error::{Error, ErrorKind, Result};
use crate::name::TypeName;
use crate::payload::Payload;

/// How many continuations a chain's output is followed through before it counts as undeclared. The search
/// recurses that deep, so it is kept where no stack is in danger.
const PATH_MAX: usize = 64;

/// A job type: a serializable input with a name, an output, and what may come before and after it.
pub trait Job: Serialize + DeserializeOwned + Send + Sync + Sized + 'static {
    /// The name under which jobs of this type are stored. It must not change while jobs are stored; see
    /// [`ALIASES`](Self::ALIASES).
    const NAME: &'static str;

    /// Names that this type had before. Jobs stored under them are still worked on, and their outputs read.
    const ALIASES: &'static [&'static str] = &[];

    /// What a chain that ends with this job gives.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The declared continuations: a tuple of job types, `()` for none.
    type Next: Continuations<Self>;

    /// The chains that a job of this type waits for: `()`, a tuple of entry types, a `Vec` of one, or a tuple
    /// that ends in [`Rest`].
    type Blockers: Blockers;

    /// How jobs of this type are run and kept, unless said otherwise at the start.
    fn options() -> JobOptions {
        JobOptions::default()
    }
}

/// A job type that may start a chain.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may not start a chain",
    label = "this is not an entry type",
    note = "add `entry` to the #[job(...)] attribute of `{Self}`, or start the chain with the type that continues with it"
)]
pub trait Entry: Job {}

/// Says that a chain may go on from this job type to `N`.
///
/// Whoever implements it by hand lists `N` in [`Job::Next`] too; `#[derive(Job)]` does both. The compiler sees
/// a type that is listed without this, but not this without the listing: such a continuation starts and runs,
/// but the output of a chain that ended with it finds no way back, so waiting for it gives an error, and a
/// [`JobGraph`] does not show it.
#[diagnostic::on_unimplemented(
    message = "`{N}` is not declared as a continuation of `{Self}`",
    label = "`{Self}` does not continue with this",
    note = "add `then({N})` to the #[job(...)] attribute of `{Self}`"
)]
pub trait Then<N: Job>: Job<Output: From<N::Output>> {}

impl TypeName {
    /// The stored name of a job type.
    pub fn of<J: Job>() -> Result<Self> {
        Ok(Self::new(J::NAME)?)
    }
}

/// What a chain gave whose latest job is of the type `last`: decoded as that type's output, and turned into
/// `J`'s along the shortest declared path.
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
            "the chain ended with a job of type `{last}`, to which no declared path of up to {PATH_MAX} \
             continuations leads from `{}`: declare one, or give the present type that alias",
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
    /// Types that were looked behind in vain, with how far. With it a search takes at most as many steps as
    /// there are types times lengths of a path; without it, types that continue with each other would be
    /// searched again and again.
    seen: HashSet<(TypeId, usize)>,
}

impl Search<'_> {
    /// Looks exactly `depth` continuations ahead.
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
