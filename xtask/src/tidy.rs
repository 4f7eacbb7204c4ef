//! Project rules that no other tool checks.
//!
//! They apply to every file that git tracks, and to new files that it does not ignore, so that violations are found
//! before they are committed.

use std::{
    fmt, fs,
    path::{Component, Path},
};

use crate::{Result, Workspace, workspace};
use lockfiles::Problem;

mod lockfiles;
mod markdown;

/// Files of Rust code that are longer than this cause a warning.
const LINES_TO_DISCUSS: usize = 600;

/// Markers of unfinished work. They are assembled here, so that this file does not violate its own rule.
const UNFINISHED: [&str; 4] =
    [concat!("to", "do!("), concat!("un", "implemented!("), concat!("FIX", "ME"), concat!("#[", "ignore")];

/// Paths that exist on one machine only.
const PRIVATE_PLACES: [&str; 4] =
    [concat!("/", "work/"), concat!("/", "home/"), concat!("/", "root/"), concat!("/", "tmp/target")];

const SLEEP: &str = concat!("sl", "eep(");
const SLEEP_REASON: &str = "// tidy: ";

/// Sets the subscriber of a thread without those of other threads in mind.
const SUBSCRIBE: &str = "subscriber::set_default(";

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

pub(crate) fn run(workspace: &Workspace) -> Result {
    let root = workspace.root();
    let paths = list(workspace)?;
    let mut findings = Vec::new();
    for path in &paths {
        let place = root.join(path);
        // Git lists a deleted file until the deletion is staged. It also lists symbolic links. Only their targets are
        // checked: in another directory, the relative links of a page lead nowhere.
        if place.is_symlink() || !place.is_file() {
            continue;
        }
        let bytes = fs::read(&place).map_err(|error| format!("cannot read {path}: {error}"))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if lockfiles::is_separate(path) {
            match lockfiles::check(workspace, path) {
                Some(Problem::Stale(message)) => {
                    findings.push(Finding { path: path.clone(), line: 1, message })
                }
                Some(Problem::Unchecked(reason)) => println!("    warning: {path} was not checked: {reason}"),
                None => {}
            }
        }
        let complaints = check(path, &text, |link| resolves(root, path, link));
        findings.extend(complaints.into_iter().map(|(line, message)| Finding {
            path: path.clone(),
            line,
            message,
        }));
        if let Some(lines) = too_long(path, &text) {
            println!("    warning: {path} has {lines} lines; can it be split?");
        }
    }
    findings.sort();
    for finding in &findings {
        println!("    {finding}");
    }
    println!("    {} files", paths.len());
    if findings.is_empty() { Ok(()) } else { Err(format!("tidy has {} findings", findings.len())) }
}

fn list(workspace: &Workspace) -> Result<Vec<String>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let names = workspace::output(workspace.command("git").args(arguments))?;
    let names = String::from_utf8(names).map_err(|_| "a file name is not UTF-8".to_owned())?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}

/// Returns all violations in a file, by line. `resolves` returns whether a relative link has a target.
fn check(path: &str, text: &str, resolves: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let is_code = path.starts_with("crates/") || path.starts_with("xtask/");
    let is_test = path.rsplit('/').skip(1).any(|directory| directory == "tests");
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if is_code {
            complaints.extend(unfinished(line).map(|message| (number, message)));
        }
        if is_test {
            complaints.extend(unexplained_sleep(line).map(|message| (number, message)));
            complaints.extend(lost_lines(line).map(|message| (number, message)));
        }
        complaints.extend(private_place(line).map(|message| (number, message)));
    }
    if path.ends_with(".md") {
        complaints.extend(markdown::check(text, resolves));
    }
    complaints
}

fn unfinished(line: &str) -> Option<String> {
    let mark = UNFINISHED.into_iter().find(|mark| line.contains(mark))?;
    Some(format!("`{mark}`: finish it, or explain it in an issue"))
}

fn unexplained_sleep(line: &str) -> Option<String> {
    if !line.contains(SLEEP) {
        return None;
    }
    let explained = line.split_once(SLEEP_REASON).is_some_and(|(_, reason)| !reason.trim().is_empty());
    (!explained).then(|| format!("wait for a signal or use paused time, or add `{SLEEP_REASON}<why>`"))
}

fn lost_lines(line: &str) -> Option<String> {
    line.contains(SUBSCRIBE).then(|| {
        format!(
            "`{SUBSCRIBE}` alone loses lines while other tests log: use `windlass_testkit::logs::subscribe`"
        )
    })
}

/// Only absolute paths count: in `crates/home/src`, the match continues a word.
fn private_place(line: &str) -> Option<String> {
    let begins = |at: usize| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        before.is_none_or(|c| !(c.is_alphanumeric() || "_-.~*})]>".contains(c)))
    };
    let place =
        PRIVATE_PLACES.into_iter().find(|place| line.match_indices(place).any(|(at, _)| begins(at)))?;
    Some(format!("`{place}` exists on one machine only"))
}

fn too_long(path: &str, text: &str) -> Option<usize> {
    let lines = text.lines().count();
    (path.ends_with(".rs") && lines > LINES_TO_DISCUSS).then_some(lines)
}

/// Whether a link in the file `path` points to something inside the repository.
fn resolves(root: &Path, path: &str, link: &str) -> bool {
    let base = match link.strip_prefix('/') {
        Some(from_root) => Path::new(from_root).to_owned(),
        None => Path::new(path).parent().unwrap_or(Path::new("")).join(link),
    };
    let mut depth = 0_i32;
    for component in base.components() {
        depth += if component == Component::ParentDir { -1 } else { 1 };
        if depth < 0 {
            return false;
        }
    }
    root.join(base).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines with violations.
    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text, |_| true).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn unfinished_work_is_found_in_code_only() {
        for mark in UNFINISHED {
            let text = format!("fn a() {{}}\n    {mark} later\n");
            assert_eq!(lines("crates/a/src/lib.rs", &text), [2]);
            assert_eq!(lines("xtask/src/main.rs", &text), [2]);
            assert_eq!(lines("docs/style.txt", &text), [0_usize; 0]);
        }
    }

    #[test]
    fn a_sleep_in_a_test_needs_a_reason() {
        let text = format!(
            "tokio::time::{SLEEP}x).await;\n\
             {SLEEP}x); // tidy: \n\
             {SLEEP}x); // tidy: the kernel gives no signal for it\n"
        );
        assert_eq!(lines("crates/a/tests/it/main.rs", &text), [1, 2]);
        assert_eq!(lines("crates/a/src/tests.rs", &text), [0_usize; 0]);
    }

    #[test]
    fn a_test_subscribes_to_log_lines_through_the_test_kit() {
        let text = format!("let guard = tracing::{SUBSCRIBE}lines);\nlet guard = subscribe(lines);\n");
        assert_eq!(lines("crates/a/tests/it/main.rs", &text), [1]);
        assert_eq!(lines("crates/a/src/logs.rs", &text), [0_usize; 0]);
    }

    #[test]
    fn paths_of_one_machine_are_found_everywhere() {
        for place in PRIVATE_PLACES {
            assert_eq!(lines("notes.txt", &format!("{place}x")), [1]);
            assert_eq!(lines("notes.txt", &format!("see `{place}x`")), [1]);
            assert_eq!(lines("notes.txt", &format!("sqlite://{place}x")), [1]);
            assert_eq!(lines("notes.txt", &format!("crates{place}x and $HOME-a{place}")), [0_usize; 0]);
        }
    }

    #[test]
    fn markdown_is_checked_by_its_extension() {
        assert_eq!(lines("docs/a.md", "no title\n"), [1]);
        assert_eq!(lines("docs/a.txt", "no title\n"), [0_usize; 0]);
    }

    #[test]
    fn long_source_files_cause_a_warning() {
        let long = "\n".repeat(LINES_TO_DISCUSS + 1);
        assert_eq!(too_long("crates/a/src/lib.rs", &long), Some(LINES_TO_DISCUSS + 1));
        assert_eq!(too_long("Cargo.lock", &long), None);
        assert_eq!(too_long("crates/a/src/lib.rs", "\n"), None);
    }

    #[test]
    fn links_resolve_within_the_repository() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("repository");
        fs::create_dir_all(root.join("docs/design")).unwrap();
        fs::write(root.join("README.md"), "").unwrap();
        fs::write(directory.path().join("outside.md"), "").unwrap();
        let check = |link, expected| assert_eq!(resolves(&root, "docs/index.md", link), expected, "{link}");
        check("design", true);
        check("../README.md", true);
        check("/README.md", true);
        check("README.md", false);
        check("../../outside.md", false);
        check("../../repository/README.md", false);
    }
}
