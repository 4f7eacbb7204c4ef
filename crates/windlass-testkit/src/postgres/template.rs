//! An initialized data directory that all servers of this process copy. Copying takes a tenth of the time of `initdb`.

use std::{fs, io, path::Path, process::Command};

use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::{DATA, Programs, USER};
use crate::{account::Account, supervised::Supervised};

#[derive(Debug)]
struct Template {
    directory: TempDir,
    /// Statics are not dropped, so a watchdog removes the directory when the process is gone.
    _guard: Supervised,
}

/// Creates an initialized data directory at `target`.
pub(super) async fn copy(programs: &Programs, target: &Path) {
    static TEMPLATE: OnceCell<Template> = OnceCell::const_new();

    let template = TEMPLATE.get_or_init(async || Template::make(programs)).await;
    copy_directory(&template.directory.path().join(DATA), target).expect("a data directory can be copied");
}

impl Template {
    fn make(programs: &Programs) -> Self {
        let directory = TempDir::with_prefix("windlass-postgres-template-")
            .expect("a temporary directory can be created");
        let path = directory.path();
        let waiting = ["sleep".to_owned(), "1000000000".to_owned()];
        let guard = Supervised::start(&waiting, path, &path.join("guard.log"), "KILL")
            .expect("a watchdog can be started");
        let data = path.join(DATA).to_string_lossy().into_owned();
        let arguments = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--pgdata", &data];
        let words = [programs.path("initdb"), format!("--username={USER}")];
        let words = words.into_iter().chain(arguments.map(str::to_owned));
        let command_line = Account::owning(path).command_line(words);
        let (program, arguments) = command_line.split_first().expect("it begins with the program");
        let output = Command::new(program).args(arguments).current_dir(path).output();
        let output = output.unwrap_or_else(|error| panic!("{program} could not be started: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "initdb failed: {said}");
        Self { directory, _guard: guard }
    }
}

/// Copies a directory with its permissions, which PostgreSQL checks.
fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
