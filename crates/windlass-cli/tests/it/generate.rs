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
    let page = |name: &str| fs::read_to_string(program.directory().join("pages/man1").join(name)).unwrap();
    assert!(page("windlass-work.1").contains("WINDLASS_OUTCOME"));
    assert!(page("windlass.1").contains("windlass"));
    for command in commands(&program).await {
        assert!(page(&format!("windlass-{command}.1")).contains("Example"), "{command}");
    }
}

/// Returns the commands that the help lists.
async fn commands(program: &Program) -> Vec<String> {
    let help = run(program.bare(&["--help"])).await.stdout;
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let list = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
    let names = list.map(|line| line.split_whitespace().next().unwrap().to_owned());
    let names: Vec<_> = names.filter(|name| name != "help").collect();
    assert!(names.len() > 20, "{names:?}");
    names
}

/// Colors appear only on a terminal or with `CLICOLOR_FORCE`, and never with `NO_COLOR`.
#[tokio::test]
async fn no_color_is_respected() {
    let program = Program::on_sqlite();
    for (variables, colored) in
        [(&[][..], false), (&["CLICOLOR_FORCE"], true), (&["CLICOLOR_FORCE", "NO_COLOR"], false)]
    {
        let mut command = program.bare(&["wait", "no-id"]);
        command.env_remove("CLICOLOR_FORCE").envs(variables.iter().map(|name| (name, "1")));
        let ran = run(command).await;
        assert_eq!(ran.stderr.contains('\u{1b}'), colored, "{variables:?}: {ran:?}");
    }
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
