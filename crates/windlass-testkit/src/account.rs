//! The user account that a server runs as.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
    process::Command,
    sync::OnceLock,
};

/// Accounts to run servers as if the tests run as root, because PostgreSQL and PgBouncer refuse to run as root.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// The account of a server: that of the tests, or an unprivileged one if the tests run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// The user id and group id to change to.
    change: Option<(u32, u32)>,
}

impl Account {
    /// Returns the account for servers in `directory`, and makes it the owner of that directory. This process must have
    /// created the directory.
    pub(crate) fn owning(directory: &Path) -> Self {
        static UNPRIVILEGED_IDS: OnceLock<(u32, u32)> = OnceLock::new();

        let owner = fs::metadata(directory).expect("the directory is there").uid();
        let change = (owner == 0).then(|| *UNPRIVILEGED_IDS.get_or_init(unprivileged));
        let account = Self { change };
        account.chown(directory).expect("root can change the owner of a directory");
        account
    }

    /// Returns the user id and group id, if they differ from those of the tests.
    pub(crate) const fn ids(self) -> Option<(u32, u32)> {
        self.change
    }

    /// Returns the command line that runs a program under this account. The process keeps its id.
    pub(crate) fn command_line(self, words: impl IntoIterator<Item = String>) -> Vec<String> {
        let change = self.change.map(|(user, group)| {
            let ids = [format!("--reuid={user}"), format!("--regid={group}")];
            ["setpriv".to_owned()].into_iter().chain(ids).chain(["--clear-groups".to_owned()])
        });
        change.into_iter().flatten().chain(words).collect()
    }

    /// Makes the account the owner of a path and everything below it.
    pub(crate) fn chown(self, path: &Path) -> io::Result<()> {
        let Some((user, group)) = self.change else { return Ok(()) };
        chown(path, Some(user), Some(group))?;
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                self.chown(&entry?.path())?;
            }
        }
        Ok(())
    }
}

fn unprivileged() -> (u32, u32) {
    let id = |option: &str, name: &str| -> Option<u32> {
        let output = Command::new("id").args([option, name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let ids = UNPRIVILEGED.iter().find_map(|name| Some((id("-u", name)?, id("-g", name)?)));
    ids.unwrap_or_else(|| panic!("the tests run as root, and none of the accounts {UNPRIVILEGED:?} exists"))
}
