//! `windlass demo`: runs a small shop on the store, then checks what the store contains.

mod jobs;
mod open;
mod progress;
mod rows;
mod shop;
mod summary;

use std::sync::Arc;

use super::Context;
use crate::arguments::Demo;
use crate::exit::{Code, Failure, Result, with_sources};
use crate::output::note;
use crate::store::{AnyStore, Connection, OpenMode, StoreConfig, StoreUrl};
use progress::{Progress, ProgressObserver};
use shop::{Shop, WithTransactions, WithoutTransactions};
use windlass::{BoxError, shutdown_signal};

pub(crate) async fn run(context: &Context, demo: &Demo) -> Result {
    // Without a named store, use a temporary directory.
    let directory = match context.is_store_named {
        true => None,
        false => Some(
            tempfile::tempdir()
                .map_err(|error| Failure::failed(format!("cannot create a temporary directory: {error}")))?,
        ),
    };
    let mut config = context.config.clone().with_unique_namespace("demo");
    if let Some(directory) = &directory {
        config.store = StoreUrl::Sqlite(directory.path().join("demo.db"));
    }
    if demo.serve {
        return serve(context, demo, &config).await;
    }
    let progress = Arc::new(Progress::new(demo.orders, &config));
    let connection = config.open_with(OpenMode::Migrate, ProgressObserver(Arc::clone(&progress))).await?;
    let ended = tokio::select! {
        ended = take_orders(&connection, &config, demo, &progress) => ended,
        never = progress.print_lines() => match never {},
        () = shutdown_signal() => Err(Failure::new(Code::Interrupted, "interrupted; the demo's data was removed")),
    };
    progress.finish();
    // Always remove what the demo created. An earlier error takes precedence over an error of the removal.
    let removed = connection.remove(&config).await;
    let summary = ended?;
    removed?;
    summary.print(context.output)?;
    if summary.ok() {
        Ok(())
    } else {
        note("the store does not contain what it should: please report this with the store and its version");
        Err(Failure::silent(Code::Failed))
    }
}

/// Runs the shop until a signal arrives, with the dashboard.
async fn serve(context: &Context, demo: &Demo, config: &StoreConfig) -> Result {
    let listener = open::listen(demo.listen).await?;
    let progress = Arc::new(Progress::hidden());
    let connection = config.open_with(OpenMode::Migrate, ProgressObserver(Arc::clone(&progress))).await?;
    let served =
        open::serve(context, connection.client(), listener, stay_open(&connection, config, &progress)).await;
    let removed = connection.remove(config).await;
    served.and(removed)
}

async fn stay_open(connection: &Connection, config: &StoreConfig, progress: &Arc<Progress>) -> Result {
    let namespace = config.namespace.clone().unwrap_or_default();
    let progress = Arc::clone(progress);
    let ended = match &connection.store {
        AnyStore::Sqlite(client) => {
            let table = format!("{namespace}_orders");
            Shop::new(client.clone(), WithTransactions { table }, progress).stay_open().await
        }
        AnyStore::Postgres(client) => {
            let table = format!("{namespace}.orders");
            Shop::new(client.clone(), WithTransactions { table }, progress).stay_open().await
        }
        AnyStore::Memory(_) | AnyStore::File(_) | AnyStore::Redis(_) => {
            Shop::new(connection.client(), WithoutTransactions, progress).stay_open().await
        }
    };
    ended.map_err(failure)
}

fn failure(error: BoxError) -> Failure {
    match error.downcast::<windlass::Error>() {
        Ok(error) => (*error).into(),
        Err(error) => Failure::failed(with_sources(&*error)),
    }
}

async fn take_orders(
    connection: &Connection,
    config: &StoreConfig,
    demo: &Demo,
    progress: &Arc<Progress>,
) -> Result<summary::Summary> {
    let namespace = config.namespace.clone().unwrap_or_default();
    let (orders, progress) = (demo.orders, Arc::clone(progress));
    let done = match &connection.store {
        AnyStore::Sqlite(client) => {
            Shop::new(client.clone(), WithTransactions { table: format!("{namespace}_orders") }, progress)
                .run(orders)
                .await
        }
        AnyStore::Postgres(client) => {
            Shop::new(client.clone(), WithTransactions { table: format!("{namespace}.orders") }, progress)
                .run(orders)
                .await
        }
        AnyStore::Memory(_) | AnyStore::File(_) | AnyStore::Redis(_) => {
            Shop::new(connection.client(), WithoutTransactions, progress).run(orders).await
        }
    };
    done.map_err(failure)
}
