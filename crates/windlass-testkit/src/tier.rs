use std::env;

/// Environment variable that `cargo xtask test --full` sets.
const FULL_VARIABLE: &str = "WINDLASS_FULL";

/// Whether this is a full run of the tests. A normal run leaves out combinations whose parts it tests in other
/// combinations, and repeats random tests less often.
#[must_use]
pub fn is_full_run() -> bool {
    env::var_os(FULL_VARIABLE).is_some()
}
