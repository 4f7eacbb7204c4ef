//! `windlass demo`: runs a small shop on the store, then checks what the store contains.

mod jobs;
mod progress;
mod rows;
mod shop;
mod summary;

use std::sync::Arc;

use super::Context;
use crate::arguments::Demo;
use crate::exit::{Code, Failure, Result};
use crate::output::note;
use crate::signal;
use crate::store::{Access, AnyStore, Connection, Place, StoreUrl};
use progress::{Progress, Watch};
use shop::{Plain, Shop, Transactions};

pub(crate) async fn run(context: &Context, demo: &Demo) -> Result {
    // Without a named store, use a temporary directory.
    let folder = match context.is_store_named {
        true => None,
        false => Some(
            tempfile::tempdir().map_err(|error| Failure::failed(format!("no folder to work in: {error}")))?,
        ),
    };
    let mut place = context.place.clone().apart("demo");
    if let Some(folder) = &folder {
        place.store = StoreUrl::Sqlite(folder.path().join("demo.db"));
    }
    let progress = Arc::new(Progress::new(demo.orders, &place));
    let connection = place.open_with(Access::Migrate, Watch(Arc::clone(&progress))).await?;
    let ended = tokio::select! {
        ended = take_orders(&connection, &place, demo, &progress) => ended,
        never = progress.print_lines() => match never {},
        () = signal::end_requested() => Err(Failure::new(Code::Interrupted, "interrupted: what it made is removed")),
    };
    progress.finish();
    // Always remove what the demo created. An earlier error takes precedence over an error of the removal.
    let removed = connection.remove(&place).await;
    let summary = ended?;
    removed?;
    summary.print(context.output)?;
    if summary.holds() {
        Ok(())
    } else {
        note("the store does not hold what it should: please report this with the store and its version");
        Err(Failure::told(Code::Failed))
    }
}

async fn take_orders(
    connection: &Connection,
    place: &Place,
    demo: &Demo,
    progress: &Arc<Progress>,
) -> Result<summary::Summary> {
    let namespace = place.namespace.clone().unwrap_or_default();
    let (orders, progress) = (demo.orders, Arc::clone(progress));
    let done = match &connection.store {
        AnyStore::Sqlite(client) => {
            Shop::new(client.clone(), Transactions { table: format!("{namespace}_orders") }, progress)
                .run(orders)
                .await
        }
        AnyStore::Postgres(client) => {
            Shop::new(client.clone(), Transactions { table: format!("{namespace}.orders") }, progress)
                .run(orders)
                .await
        }
        AnyStore::Memory(_) | AnyStore::Redis(_) => {
            Shop::new(connection.client(), Plain, progress).run(orders).await
        }
    };
    done.map_err(|error| match error.downcast::<windlass::Error>() {
        Ok(error) => (*error).into(),
        Err(error) => Failure::failed(error),
    })
}
