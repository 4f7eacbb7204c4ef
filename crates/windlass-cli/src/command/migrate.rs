//! `windlass migrate`: creates and migrates the store's tables.

use serde::Serialize;

use super::Context;
use crate::arguments::Migrate;
use crate::exit::{Code, Failure, Result};
use crate::store::Access;

pub(crate) async fn run(context: &Context, migrate: &Migrate) -> Result {
    if migrate.sql {
        return context.output.bytes(context.place.migrations_sql()?.as_bytes());
    }
    if migrate.status {
        return status(context).await;
    }
    context.open(Access::Migrate).await?;
    told(context, true, "the store is up to date")
}

async fn status(context: &Context) -> Result {
    if context.place.is_missing() {
        told(
            context,
            false,
            "there is no store here yet: `windlass migrate` makes it, and so does the first start",
        )?;
        return Err(Failure::told(Code::Failed));
    }
    match context.place.open(Access::Look).await {
        Ok(_) => told(context, true, "the store is up to date"),
        Err(failure) if failure.is_outdated() => {
            told(context, false, &failure.line().unwrap_or_default())?;
            Err(Failure::told(Code::Failed))
        }
        Err(failure) => Err(failure),
    }
}

#[derive(Serialize)]
struct Status<'a> {
    up_to_date: bool,
    what: &'a str,
}

fn told(context: &Context, up_to_date: bool, what: &str) -> Result {
    context.output.one(&Status { up_to_date, what }, || what.to_owned())
}
