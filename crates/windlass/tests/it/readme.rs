//! The program in the README is a copy of the first example, so it compiles and runs.

use std::fs;
use std::path::Path;

#[test]
fn the_readme_program_is_the_first_example() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(directory.join("README.md")).unwrap();
    let example = fs::read_to_string(directory.join("examples/first_chain.rs")).unwrap();
    let program = example.split_once("\n\n").unwrap().1;
    assert!(
        readme.contains(&format!("```rust,no_run\n{program}```\n")),
        "copy examples/first_chain.rs, without its first comment, into the README"
    );
}
