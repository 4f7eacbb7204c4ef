//! `windlass migrate`: creates and migrates the store's tables.

use serde::Serialize;
use windlass::observer::NoObserver;

use super::Context;
use crate::arguments::Migrate;
use crate::exit::{Code, Failure, Result};
use crate::store::OpenMode;

pub(crate) async fn run(context: &Context, migrate: &Migrate) -> Result {
    if migrate.sql {
        return context.output.bytes(context.config.migrations_sql(migrate.from)?.as_bytes());
    }
    if migrate.roles {
        return context.output.bytes(context.config.roles_sql()?.as_bytes());
    }
    if migrate.status {
        return status(context).await;
    }
    context.open(OpenMode::Migrate).await?;
    print_status(context, true, "the store is up to date")
}

async fn status(context: &Context) -> Result {
    if let Some(missing) = context.config.missing() {
        let remedy = "run `windlass migrate` or `windlass start` to create it";
        print_status(context, false, &format!("{missing}: {remedy}"))?;
        return Err(Failure::silent(Code::Failed));
    }
    match context.config.open(OpenMode::Existing, NoObserver).await {
        Ok(_) => print_status(context, true, "the store is up to date"),
        Err(failure) if failure.is_outdated() => {
            print_status(context, false, &failure.line().unwrap_or_default())?;
            Err(Failure::silent(Code::Failed))
        }
        Err(failure) => Err(failure),
    }
}

#[derive(Serialize)]
struct Status<'a> {
    up_to_date: bool,
    what: &'a str,
}

fn print_status(context: &Context, up_to_date: bool, what: &str) -> Result {
    context.output.print(&Status { up_to_date, what }, || what.to_owned())
}
