//! Test cases for clients and workers, which run on any pair of a store and a notifier.
//!
//! An adapter implements [`BehaviorFixture`], which opens a fresh [`Scene`] for each case. It also has a
//! `tests/behavior.rs` with `harness = false` whose `main` passes its pairs to a [`BehaviorSuite`].
//!
//! The cases run in real time, because real servers do. A case waits for events and conditions, with a deadline
//! whose message says what did not happen.

mod any;
mod covered;
mod faulty;
mod fixture;
mod groups;
mod job;
mod scene;
mod seen;
mod suite;

use std::fmt;

pub use any::AnyStore;
pub use covered::{BEHAVIORS_EXCLUDED, BEHAVIORS_PROVED_BY_TYPES};
pub use fixture::{BehaviorFixture, MuteNotifier, Need};
pub use groups::{QUEUE_EXCLUDED, behaviors, rules, transactional_behaviors};
pub use scene::Scene;
pub use seen::Seen;
pub use suite::{BehaviorSuite, run_behaviors};

use windlass_core::BoxFuture;

/// One rule about clients and workers, with the code that checks it. Only cases about transactions depend on the type
/// of the store.
pub struct Behavior<S = AnyStore> {
    /// Stable dotted id, such as `chains.linear`.
    pub id: &'static str,
    /// The rule, as one sentence.
    pub name: &'static str,
    /// Origin of the rule, with the same names as in `docs/conformance.md`. BS- are the cases of Queuert's behavior suites.
    /// *bad input* is a mistake of the application, such as a handler that blocks, panics or ignores a signal.
    pub sources: &'static [&'static str],
    /// What the pair needs for this case.
    pub needs: &'static [Need],
    /// Runs the check. Panics with the expectation if the pair violates the rule.
    pub run: fn(Scene<S>) -> BoxFuture<'static, ()>,
}

/// Groups whose cases depend on the notifier, besides the cases that [need](Need) hints or an outage.
const NOTIFIER_GROUPS: [&str; 7] =
    ["events", "notify", "queue.answer", "queue.events", "resilience", "schedule", "wait"];

impl<S> Behavior<S> {
    /// Whether another notifier could change the verdict.
    pub(crate) fn depends_on_notifier(&self) -> bool {
        let in_group = |group: &&str| {
            self.id.strip_prefix(*group).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let needs_it = |need: &Need| matches!(need, Need::Hints | Need::Outage);
        NOTIFIER_GROUPS.iter().any(in_group) || self.needs.iter().any(needs_it)
    }

    const fn rule(&self, transactional: bool) -> Rule {
        Rule { id: self.id, name: self.name, sources: self.sources, transactional }
    }
}

/// What a [`Behavior`] says, without its code.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The id of the case.
    pub id: &'static str,
    /// The rule, as one sentence.
    pub name: &'static str,
    /// Origin of the rule.
    pub sources: &'static [&'static str],
    /// Whether the case is about transactions.
    pub transactional: bool,
}

impl<S> fmt::Debug for Behavior<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Behavior").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Builds a [`Behavior`] from an id, a sentence, its sources, optional needs, and an async function of a scene (or a
/// closure that returns its future).
macro_rules! behavior {
    ($id:literal, $name:literal, [$($source:literal),*], $run:expr) => {
        behavior!($id, $name, [$($source),*], [], $run)
    };
    ($id:literal, $name:literal, [$($source:literal),*], [$($need:expr),*], $run:expr) => {
        $crate::behavior::Behavior {
            id: $id,
            name: $name,
            sources: &[$($source),*],
            needs: &[$($need),*],
            run: |scene| Box::pin(($run)(scene)),
        }
    };
}
pub(crate) use behavior;
