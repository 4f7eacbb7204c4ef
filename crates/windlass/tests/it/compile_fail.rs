//! What is wrong does not compile, and the message names the cure. `TRYBUILD=overwrite` writes the messages anew.

#[test]
fn wrong_programs_do_not_compile_and_are_told_the_cure() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
