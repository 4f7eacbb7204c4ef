use std::fs;

use crate::program::{Program, run};

#[tokio::test]
async fn completions_know_the_commands() {
    let program = Program::on_sqlite();
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(program.bare(&["completions", shell])).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.contains("enqueue") && ran.stdout.contains("max-attempts"), "{shell}");
    }
}

#[tokio::test]
async fn man_pages_are_written_for_each_command() {
    let program = Program::on_sqlite();
    let ran = run(program.bare(&["man", "pages/man1"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let page = fs::read_to_string(program.folder().join("pages/man1/windlass-work.1")).unwrap();
    assert!(page.contains("WINDLASS_OUTCOME"), "{page}");
    assert!(program.folder().join("pages/man1/windlass.1").exists());
}

#[tokio::test]
async fn help_has_examples_and_exit_codes_and_no_secrets() {
    let program = Program::on_sqlite();
    let mut command = program.bare(&["help", "start"]);
    command.env("WINDLASS_STORE", "postgres://ada:s3cret@host/db");
    let ran = run(command).await;
    assert!(ran.stdout.contains("Examples:") && ran.stdout.contains("WINDLASS_STORE"), "{ran:?}");
    assert!(!ran.stdout.contains("s3cret"), "{ran:?}");
    let ran = run(program.bare(&["--help"])).await;
    assert!(ran.stdout.contains("Exit codes:"), "{ran:?}");
}
