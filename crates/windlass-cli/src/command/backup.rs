//! `windlass backup`: copies a folder that is in use.

use std::path::{Path, absolute};

use serde::Serialize;

use super::Context;
use crate::arguments::Backup;
use crate::exit::{Failure, Result};
use crate::store::{AnyStore, OpenMode, StoreUrl};

#[derive(Serialize)]
struct Made<'a> {
    backup: &'a Path,
}

pub(crate) async fn run(context: &Context, wanted: &Backup) -> Result {
    check(&context.config.store)?;
    let connection = context.open(OpenMode::Existing).await?;
    let AnyStore::File(client) = &connection.store else { return check(&context.config.store) };
    client.store().backup(&wanted.destination).await?;
    let backup = absolute(&wanted.destination).unwrap_or_else(|_| wanted.destination.clone());
    let line = || format!("wrote the backup `{}`", backup.display());
    context.output.print_change(&Made { backup: &backup }, line)
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
