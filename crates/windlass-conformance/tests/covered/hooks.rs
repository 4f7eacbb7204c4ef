//! The source's specs of transaction hooks.
//!
//! There, a transaction carries a container of hooks that have a key and a state. Here, `after_commit` and
//! `after_rollback` take closures, which own their state.

use std::collections::HashSet;

use windlass_conformance::rules;

use Covered::{By, Without};

enum Covered {
    /// By a case with this id.
    By(&'static str),
    /// Without a case, because it has no counterpart: with the reason.
    Without(&'static str),
}

const NO_CONTAINER: Covered =
    Without("hooks have no key by which another could find, replace or delete them");
const NO_STATE: Covered = Without("a hook owns its state, and is dropped with it");
const NO_CALLBACK: Covered =
    Without("begin, commit and rollback are calls, so no callback returns a value or throws");
const NOT_ASYNC: Covered = Without("a hook is a synchronous function; it can spawn a task");
const BY_TYPE: Covered = Without("a savepoint is a call on the transaction, which ends once, by its type");

/// The specs by their titles.
const SPECS: [(&str, Covered); 49] = [
    ("getOrInsert: lazily registers hook and returns state", NO_CONTAINER),
    ("set: sets hook, get: retrieves state", NO_CONTAINER),
    ("get: throws HookNotRegisteredError for missing key", NO_CONTAINER),
    ("has: checks existence", NO_CONTAINER),
    ("delete: deletes hook so it is not flushed", NO_CONTAINER),
    ("flush: calls all hooks in registration order on success", By("hooks.order")),
    ("flush: passes accumulated state to flush function", NO_STATE),
    ("flush: awaits async flush functions", NOT_ASYNC),
    ("flush: runs all hooks even if one throws, then rethrows first error", By("hooks.panic")),
    ("multiple getOrInsert calls with different keys", NO_CONTAINER),
    ("returns callback result on success", NO_CALLBACK),
    ("propagates callback error", NO_CALLBACK),
    ("discards hooks when callback throws", By("hooks.end")),
    ("calls hook discard functions when callback throws", By("hooks.end")),
    ("awaits async hook discard functions when callback throws", NOT_ASYNC),
    ("discard: runs all hooks even if one throws, then rethrows original error", By("hooks.panic")),
    ("manual lifecycle - flush on success", By("hooks.theirs")),
    ("manual lifecycle - discard on error", By("hooks.theirs")),
    ("manual lifecycle - discard calls hook discard functions", By("hooks.theirs")),
    ("returns fn result on success and keeps hooks", By("hooks.savepoint.release")),
    ("rolls back hooks added during fn when fn throws", By("hooks.savepoint")),
    ("restores checkpointed state of pre-existing hooks on rollback", By("hooks.savepoint")),
    ("passes the same transactionHooks instance to the callback", BY_TYPE),
    ("nested savepoints: inner rollback does not affect outer state", By("hooks.savepoint")),
    ("nested savepoints: outer rollback also rolls back inner changes", By("hooks.savepoint.nested")),
    ("works with Set-based hooks", NO_STATE),
    ("rollback on empty hooks removes hooks added inside fn", By("hooks.savepoint")),
    ("flush receives accumulated state, not checkpointed", NO_STATE),
    ("rollback removes hooks added after savepoint", By("hooks.savepoint")),
    ("rollback restores checkpointed state of existing hooks", By("hooks.savepoint")),
    ("release keeps current state", By("hooks.savepoint.release")),
    ("returns the same transactionHooks instance", BY_TYPE),
    ("selective rollback: error in one operation, rollback, then continue", By("hooks.savepoint")),
    ("rollback restores hooks deleted after savepoint", NO_CONTAINER),
    ("double rollback is a no-op on second call", By("hooks.savepoint.none")),
    ("rollback after release still restores", By("hooks.savepoint.nested")),
    ("savepoint on empty hooks removes hooks added after", By("hooks.savepoint")),
    ("checkpoint is called eagerly during createSavepoint", NO_STATE),
    ("bufferOnCommit callbacks run on flush", By("hooks.end")),
    ("bufferOnCommit callbacks do not run on discard", By("hooks.end")),
    ("bufferOnRollback callbacks run on discard", By("hooks.end")),
    ("bufferOnRollback callbacks do not run on flush", By("hooks.end")),
    ("savepoint rollback discards bufferOnCommit callbacks from scope", By("hooks.savepoint")),
    ("savepoint rollback runs bufferOnRollback callbacks from scope", By("hooks.savepoint")),
    ("savepoint release promotes bufferOnRollback callbacks to parent scope", By("hooks.savepoint.nested")),
    ("nested savepoints: inner rollback runs inner, outer rollback runs outer", By("hooks.savepoint.nested")),
    ("bufferOnCommit works alongside getOrInsert hooks", NO_CONTAINER),
    ("withTransactionHooks runs bufferOnRollback on error", By("hooks.attempt")),
    ("savepoint rollback runs bufferOnRollback even if callback throws", By("hooks.panic")),
];

#[test]
fn every_spec_of_transaction_hooks_has_a_case_or_a_reason() {
    let ids: HashSet<_> = rules().iter().map(|rule| rule.id).collect();
    let titles: HashSet<_> = SPECS.iter().map(|(title, _)| title).collect();
    assert_eq!(titles.len(), SPECS.len(), "each title is listed once");
    for (title, covered) in &SPECS {
        match covered {
            By(id) => assert!(ids.contains(id), "{title}: there is no case {id}"),
            Without(reason) => assert!(!reason.is_empty(), "{title} has no reason"),
        }
    }
}
