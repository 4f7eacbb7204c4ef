//! What clients and workers do, as cases that run on any pair of a store and a notifier.
//!
//! An adapter writes a [`BehaviourFixture`], which opens a fresh [`Scene`] for each case, and a
//! `tests/behaviour.rs` with `harness = false` whose `main` gives its pairs to a [`BehaviourSuite`].
//!
//! They run in real time, since real servers do: a case waits for signals and for conditions, with a
//! deadline that is there to say what did not happen.

mod covered;
mod faulty;
mod fixture;
mod groups;
mod job;
mod scene;
mod seen;
mod suite;

use std::fmt;

pub use covered::{BEHAVIOURS_EXCLUDED, BEHAVIOURS_PROVED_BY_TYPES};
pub use fixture::{BehaviourFixture, MuteNotifier, Need};
pub use groups::{QUEUE_EXCLUDED, behaviours, transactional_behaviours};
pub use scene::Scene;
pub use seen::Seen;
pub use suite::{BehaviourSuite, run_behaviours};

use windlass_core::BoxFuture;

/// One sentence about clients and workers, and the code that tries it on a store of type `S`.
pub struct Behaviour<S> {
    /// A dotted name that stays the same: `chains.linear`.
    pub id: &'static str,
    /// The sentence.
    pub name: &'static str,
    /// Where it comes from: cases and defects of the source designs, and places of the design.
    pub sources: &'static [&'static str],
    /// What the pair must be able to do for it.
    pub needs: &'static [Need],
    /// Tries it. It panics, and says what was expected, if the pair does otherwise.
    pub run: fn(Scene<S>) -> BoxFuture<'static, ()>,
}

impl<S> fmt::Debug for Behaviour<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behaviour").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Makes a [`Behaviour`]: id, sentence, sources, needs if any, and an async function of a scene, or a closure
/// that gives its future.
macro_rules! behaviour {
    ($id:literal, $name:literal, [$($source:literal),*], $run:expr) => {
        behaviour!($id, $name, [$($source),*], [], $run)
    };
    ($id:literal, $name:literal, [$($source:literal),*], [$($need:expr),*], $run:expr) => {
        $crate::behaviour::Behaviour {
            id: $id,
            name: $name,
            sources: &[$($source),*],
            needs: &[$($need),*],
            run: |scene| Box::pin(($run)(scene)),
        }
    };
}
pub(crate) use behaviour;
