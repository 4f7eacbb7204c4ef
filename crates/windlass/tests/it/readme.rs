//! The programs in the README are copies of examples, so they compile and run.

use std::fs;
use std::path::Path;

#[test]
fn the_programs_of_the_readme_are_examples() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(directory.join("README.md")).unwrap();
    for name in ["signup", "first_chain"] {
        let example = fs::read_to_string(directory.join(format!("examples/{name}.rs"))).unwrap();
        let program = example.split_once("\n\n").unwrap().1;
        assert!(
            readme.contains(&format!("```rust,no_run\n{program}```\n")),
            "copy examples/{name}.rs, without its first comment, into the README"
        );
    }
}
