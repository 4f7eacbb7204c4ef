//! Whose rights a server has.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
    process::Command,
    sync::OnceLock,
};

/// Whom a server runs as when the tests run as root, which PostgreSQL and PgBouncer refuse to.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// An account for a server: that of the tests, or an unprivileged one where the tests run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    /// The ids of user and group to change to.
    change: Option<(u32, u32)>,
}

impl Account {
    /// The account for servers in `folder`, which becomes its owner. The folder was made by this process.
    pub(crate) fn owning(folder: &Path) -> Self {
        static UNPRIVILEGED_IDS: OnceLock<(u32, u32)> = OnceLock::new();

        let owner = fs::metadata(folder).expect("the folder is there").uid();
        let change = (owner == 0).then(|| *UNPRIVILEGED_IDS.get_or_init(unprivileged));
        let account = Self { change };
        account.give(folder).expect("root may give folders away");
        account
    }

    /// The ids of its user and group, if they are others than those of the tests.
    pub(crate) const fn ids(self) -> Option<(u32, u32)> {
        self.change
    }

    /// A program and its arguments, as this account runs them. The process keeps its id.
    pub(crate) fn command_line(self, words: impl IntoIterator<Item = String>) -> Vec<String> {
        let change = self.change.map(|(user, group)| {
            let ids = [format!("--reuid={user}"), format!("--regid={group}")];
            ["setpriv".to_owned()].into_iter().chain(ids).chain(["--clear-groups".to_owned()])
        });
        change.into_iter().flatten().chain(words).collect()
    }

    /// Makes it the owner of what is at a path, and of all below.
    pub(crate) fn give(self, path: &Path) -> io::Result<()> {
        let Some((user, group)) = self.change else { return Ok(()) };
        chown(path, Some(user), Some(group))?;
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                self.give(&entry?.path())?;
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
    ids.unwrap_or_else(|| panic!("the tests run as root, and there is none of the accounts {UNPRIVILEGED:?}"))
}
