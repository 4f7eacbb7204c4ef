/// Behaviors of the sources that have no counterpart here, with the reason.
pub const BEHAVIORS_EXCLUDED: &[(&str, &str)] =
    &[("BS-032", "ids are UUIDs by type, so there is no invalid id to reject")];

/// Behaviors of the sources that the compiler guarantees, with the proof: a file in
/// `crates/windlass-macros/tests/compile_fail`, or a type.
pub const BEHAVIORS_PROVED_BY_TYPES: &[(&str, &str)] = &[
    ("BS-006", "wrong_input.rs"),
    ("BS-007", "not_an_entry.rs"),
    ("BS-008", "missing_blockers.rs"),
    ("BS-020", "wrong_batch.rs"),
    ("BS-021", "wrong_batch.rs"),
    ("BS-022", "wrong_batch.rs"),
    ("BS-075", "wrong_outside.rs"),
    ("BS-214", "not_an_entry.rs"),
    ("BS-215", "wrong_input.rs"),
    ("BS-216", "wrong_blocker.rs"),
    ("BS-218", "wrong_output.rs"),
    ("BS-220", "wrong_continuation.rs"),
    ("BS-222", "wrong_outside.rs"),
    ("BS-224", "wrong_outside.rs"),
];
