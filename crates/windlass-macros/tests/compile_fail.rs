//! Wrong programs do not compile, and the compiler's message names the fix. `TRYBUILD=overwrite` rewrites the expected
//! messages. The test is in this crate because `trybuild` builds all dependencies of its crate anew.

#![allow(clippy::unwrap_used)]

use std::process::Command;

/// The compiler version that produced the stored messages. The test skips other versions, which word them differently.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn wrong_programs_do_not_compile_and_the_message_names_the_fix() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().unwrap();
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.starts_with(COMPILER) {
        trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
    } else {
        eprintln!("not compared: the messages are those of {COMPILER}x, and this is {version}");
    }
}
