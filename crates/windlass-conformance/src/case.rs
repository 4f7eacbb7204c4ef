use windlass_core::{BoxFuture, Capability};

use crate::cases::GROUPS;
use crate::subject::Subject;

/// One sentence of the store contract and the code that tries it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// A dotted name that stays the same: `create.key.held_while_open`.
    pub id: &'static str,
    /// The sentence of the contract.
    pub name: &'static str,
    /// Where it comes from: cases and defects of the source designs, and places of the design.
    pub sources: &'static [&'static str],
    /// What a store must be able to do for it.
    pub needs: &'static [Capability],
    /// Tries it. It panics, and says what was expected, if the store does otherwise.
    pub run: fn(Subject) -> BoxFuture<'static, ()>,
}

/// All cases of the store contract.
#[must_use]
pub fn cases() -> Vec<Case> {
    GROUPS.iter().flat_map(|group| group.iter().copied()).collect()
}

/// Makes a [`Case`] of an async function: id, sentence, sources, needed capabilities, function.
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
