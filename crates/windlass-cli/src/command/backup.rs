//! `windlass backup`: copies a folder that is in use.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, absolute};

use serde::Serialize;

use super::Context;
use crate::arguments::Backup;
use crate::exit::{Failure, Result};
use crate::store::{AnyStore, OpenMode, StoreConfig, StoreUrl};

/// The maximum number of namespaces that an error names.
const NAMES_SHOWN: usize = 5;

#[derive(Serialize)]
struct Made<'a> {
    backup: &'a Path,
    jobs: usize,
}

pub(crate) async fn run(context: &Context, wanted: &Backup) -> Result {
    check(&context.config.store)?;
    check_folder(&context.config)?;
    let connection = context.open(OpenMode::Existing).await?;
    let AnyStore::File(client) = &connection.store else { return check(&context.config.store) };
    let jobs = client.store().backup(&wanted.destination).await?.jobs;
    let backup = absolute(&wanted.destination).unwrap_or_else(|_| wanted.destination.clone());
    let line = || format!("wrote the backup `{}` (jobs: {jobs})", backup.display());
    context.output.print_change(&Made { backup: &backup, jobs }, line)
}

/// Refuses stores that have better tools of their own, and names these.
fn check(store: &StoreUrl) -> Result {
    let tool = match store {
        // Opening it reports that it keeps nothing.
        StoreUrl::File(_) | StoreUrl::Memory => return Ok(()),
        StoreUrl::Sqlite(path) => {
            format!(
                "for SQLite, run `sqlite3 {} \".backup DESTINATION\"` or use `VACUUM INTO`",
                path.display()
            )
        }
        StoreUrl::Postgres(_) => "for PostgreSQL, use `pg_dump` or a backup of the server".to_owned(),
        StoreUrl::Redis(_) => {
            "for Redis, copy the files of its persistence: see `BGSAVE` and `BGREWRITEAOF`".to_owned()
        }
    };
    Err(Failure::usage(format!("`windlass backup` copies only folders (`file:FOLDER`): {tool}")))
}

/// Refuses a folder without a store. Opening it would create an empty store, and the backup of that would succeed.
fn check_folder(config: &StoreConfig) -> Result {
    let (StoreUrl::File(outer), Some(folder)) = (&config.store, config.folder()) else { return Ok(()) };
    match names(&folder) {
        Ok(names) if names.iter().any(|name| is_data(name)) => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && outer.exists() => {}
        // Opening it reports the error.
        Err(_) => return Ok(()),
    }
    let names = names(outer).unwrap_or_default();
    let mut namespaces: Vec<_> = names
        .iter()
        .filter_map(|name| name.strip_prefix("namespace-"))
        .map(|name| format!("`{name}`"))
        .collect();
    namespaces.sort_unstable();
    if namespaces.len() > NAMES_SHOWN {
        namespaces.truncate(NAMES_SHOWN);
        namespaces.push("…".to_owned());
    }
    let text = format!("the folder `{}` contains no store: choose another --store", folder.display());
    Err(Failure::store(match namespaces.as_slice() {
        [] => text,
        namespaces => format!("{text}, or one of its namespaces with --namespace: {}", namespaces.join(", ")),
    }))
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |name: &OsStr| name.to_string_lossy().into_owned();
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| name(&entry.file_name()))).collect()
}

/// Whether a file with this name is a journal or a snapshot.
fn is_data(name: &str) -> bool {
    let generation = name.strip_prefix("journal-").or_else(|| name.strip_prefix("snapshot-"));
    generation.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}
