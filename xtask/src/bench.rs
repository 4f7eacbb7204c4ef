//! `cargo xtask bench`: the workloads of a store, and what a job costs in instructions.
//!
//! Times depend on the machine and its mood; the number of instructions hardly does. So the promise that a job
//! costs at most so many times the same work on a bare channel is kept in instructions of user code, as
//! valgrind counts them. What a run costs besides its jobs drops out of the difference of two runs.

use std::{path::PathBuf, process::Command};

use serde_json::{Value, json};

use crate::{HELP, Result, Workspace, prerequisites, workspace};

/// At most so many times the instructions of the bare version may a job cost.
pub(crate) const BUDGET: f64 = 10.0;

const PACKAGE: &str = "windlass-bench";
const SLOTS: u64 = 64;
const FEW_JOBS: u64 = 2_000;
const MANY_JOBS: u64 = 12_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    json: bool,
    instructions_only: bool,
}

impl Options {
    pub(crate) fn parse(flags: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        for flag in flags {
            match *flag {
                "--json" => options.json = true,
                "--instructions" => options.instructions_only = true,
                unknown => return Err(format!("unknown option `{unknown}` of `bench`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// Measures the memory store.
pub(crate) fn memory(options: Options) -> Result {
    let workspace = Workspace::locate();
    let program = build(&workspace)?;
    let workloads = if options.instructions_only { None } else { Some(run_workloads(&program, options)?) };
    prerequisites::provide_valgrind()?;
    let cost = Cost::count(&workspace, &program)?;
    if options.json {
        println!("{:#}", json!({ "workloads": workloads, "instructions": cost.json() }));
    } else {
        print!("{}", cost.table());
    }
    cost.check()
}

/// Builds the program that has the workloads, and says where it is.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package", PACKAGE, "--message-format=json-render-diagnostics"];
    let messages = workspace::output(&mut workspace.cargo_command(&arguments))?;
    let messages = String::from_utf8_lossy(&messages);
    messages.lines().find_map(executable).ok_or_else(|| format!("cargo built no program of {PACKAGE}"))
}

fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    message.get("executable")?.as_str().map(PathBuf::from)
}

/// Runs the workloads; their table goes to the terminal unless JSON was asked for.
fn run_workloads(program: &PathBuf, options: Options) -> Result<Value> {
    if !options.json {
        workspace::run(Command::new(program).arg("memory"))?;
        return Ok(Value::Null);
    }
    let figures = workspace::output(Command::new(program).args(["memory", "--json"]))?;
    serde_json::from_slice(&figures).map_err(|error| format!("the figures cannot be read: {error}"))
}

/// Instructions per job, started and drained.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cost {
    windlass: f64,
    bare: f64,
}

impl Cost {
    fn count(workspace: &Workspace, program: &PathBuf) -> Result<Self> {
        let per_job = |what: &str| {
            let few = count(workspace, program, what, FEW_JOBS)?;
            let many = count(workspace, program, what, MANY_JOBS)?;
            Ok::<_, String>(many.saturating_sub(few) as f64 / (MANY_JOBS - FEW_JOBS) as f64)
        };
        Ok(Self { windlass: per_job("windlass")?, bare: per_job("bare")? })
    }

    fn ratio(self) -> f64 {
        self.windlass / self.bare
    }

    fn check(self) -> Result {
        if self.ratio() <= BUDGET {
            return Ok(());
        }
        Err(format!(
            "a job costs {:.1} times the instructions of the bare version, and may cost {BUDGET}: find what \
             was added with `valgrind --tool=callgrind … {PACKAGE} drain windlass {MANY_JOBS} {SLOTS}`",
            self.ratio()
        ))
    }

    fn table(self) -> String {
        let (windlass, bare, ratio) = (self.windlass, self.bare, self.ratio());
        format!(
            "\ninstructions per job, started and drained with {SLOTS} slots\n\
             {:<32}{windlass:>12.0}\n{:<32}{bare:>12.0}\n{:<32}{ratio:>12.1}  of at most {BUDGET:.1}\n",
            "windlass, memory", "bare tokio channel with serde", "ratio"
        )
    }

    fn json(self) -> Value {
        json!({ "windlass": self.windlass, "bare": self.bare, "ratio": self.ratio(), "budget": BUDGET })
    }
}

/// How many instructions one run takes.
fn count(workspace: &Workspace, program: &PathBuf, what: &str, jobs: u64) -> Result<u64> {
    let mut command = workspace.command("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args(["drain", what, &jobs.to_string(), &SLOTS.to_string()]);
    let output = command.output().map_err(|error| format!("cannot start valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("valgrind: {}\n{text}", output.status));
    }
    collected(&text).ok_or_else(|| format!("valgrind did not say how many instructions it saw:\n{text}"))
}

/// Reads `==123== Collected : 4567`.
fn collected(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        let both = Options { json: true, instructions_only: true };
        assert_eq!(Options::parse(&["--instructions", "--json"]), Ok(both));
        assert!(Options::parse(&["--fast"]).unwrap_err().starts_with("unknown option `--fast`"));
    }

    #[test]
    fn the_count_of_valgrind_is_read() {
        let text = "==1== Events    : Ir\n==1== Collected : 100703500\n==1==\n";
        assert_eq!(collected(text), Some(100_703_500));
        assert_eq!(collected("==1== nothing"), None);
    }

    #[test]
    fn a_cost_above_the_budget_is_an_error() {
        assert_eq!(Cost { windlass: 1_000.0 * BUDGET, bare: 1_000.0 }.check(), Ok(()));
        let message = Cost { windlass: 2_000.0 * BUDGET, bare: 1_000.0 }.check().unwrap_err();
        assert!(message.starts_with("a job costs 20.0 times the instructions"), "{message}");
    }

    #[test]
    fn the_help_tells_the_budget() {
        assert!(HELP.contains(&format!("fails above {BUDGET} times")), "{HELP}");
    }

    #[test]
    fn the_program_is_found_among_the_messages_of_cargo() {
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable(r#"{"executable":"target/release/a"}"#), Some("target/release/a".into()));
        assert_eq!(executable("no message"), None);
    }
}
