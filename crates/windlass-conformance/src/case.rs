use windlass_core::{BoxFuture, Capability};

use crate::cases::GROUPS;
use crate::subject::Subject;

/// One rule of the store contract, with the code that checks it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Stable dotted id, such as `create.key.held_while_open`.
    pub id: &'static str,
    /// The rule, as one sentence of the contract.
    pub name: &'static str,
    /// Origin of the rule: cases and defects of the source designs, and sections of the design.
    pub sources: &'static [&'static str],
    /// Capabilities that the store needs for this case.
    pub needs: &'static [Capability],
    /// Runs the check. Panics with the expectation if the store violates the rule.
    pub run: fn(Subject) -> BoxFuture<'static, ()>,
}

/// Returns all cases of the store contract.
#[must_use]
pub fn cases() -> Vec<Case> {
    GROUPS.iter().flat_map(|group| group.iter().copied()).collect()
}

/// Builds a [`Case`] from an id, a sentence, its sources, the needed capabilities and an async function.
macro_rules! case {
    ($id:literal, $name:literal, [$($source:literal),*], $run:path) => {
        case!($id, $name, [$($source),*], [], $run)
    };
    ($id:literal, $name:literal, [$($source:literal),*], [$($need:ident),*], $run:path) => {
        $crate::case::Case {
            id: $id,
            name: $name,
            sources: &[$($source),*],
            needs: &[$(windlass_core::Capability::$need),*],
            run: |subject| Box::pin($run(subject)),
        }
    };
}
pub(crate) use case;
