//! Deletes chains only if they have not changed since they were listed.

use std::slice;

use windlass::client::{DeleteReply, Tx};
use windlass::command::DeletedChain;
use windlass::record::ChainRecord;
use windlass::{Client, ErrorKind, Status, Store, Transactional};

use super::super::manage::{BUSY, Outcome};
use crate::exit::{Failure, Result};
use crate::store::{AnyStore, Connection};

/// Message for a running chain.
pub(super) const NOT_DELETED: &str = "not deleted: it is running; use --running to delete it anyway";

/// Message for a chain that is no longer as it was listed.
const CHANGED: &str = "not deleted: it has changed meanwhile";

/// Deletes these chains, except those that have changed since they were listed.
///
/// A store deletes a chain in any state, so the chains are queried again first. A worker may still acquire a job between
/// that query and the delete. If the store has transactions, the delete is then rolled back: its reply contains the
/// status in which each chain was deleted. Without transactions, the outcome reports it.
pub(super) async fn delete(
    connection: &Connection,
    listed: &[ChainRecord],
    running: bool,
) -> Result<Vec<Outcome>> {
    if let Some(outcomes) = delete_together(connection, listed, running).await? {
        return Ok(outcomes);
    }
    // At least one chain cannot be deleted. Delete them one by one, to delete the others.
    let mut outcomes = Vec::with_capacity(listed.len());
    for chain in listed {
        outcomes
            .extend(delete_together(connection, slice::from_ref(chain), running).await?.unwrap_or_default());
    }
    Ok(outcomes)
}

/// Deletes the chains that have not changed, all or none. Returns `None` if there are several and they could not be
/// deleted together.
async fn delete_together(
    connection: &Connection,
    listed: &[ChainRecord],
    running: bool,
) -> Result<Option<Vec<Outcome>>> {
    let checks = check(&connection.client(), listed, running).await?;
    let unchanged = listed.iter().zip(&checks).filter(|(_, check)| check.is_none());
    let unchanged: Vec<_> = unchanged.map(|(chain, _)| chain).collect();
    let deleted = match delete_unchanged(connection, &unchanged).await? {
        Err(_) if unchanged.len() > 1 => return Ok(None),
        deleted => deleted,
    };
    let outcome = |chain: &ChainRecord| match &deleted {
        Ok(deleted) => {
            let found = deleted.iter().find(|deleted| deleted.chain == chain.id);
            Ok(match found.map(|deleted| deleted.status) {
                None => "already deleted".to_owned(),
                Some(status) if status == chain.status() => "deleted".to_owned(),
                Some(status) => format!("deleted; it became {status} immediately before"),
            })
        }
        Err(why) => Err(why.clone()),
    };
    let outcomes = listed.iter().zip(checks);
    Ok(Some(outcomes.map(|(chain, check)| check.unwrap_or_else(|| outcome(chain))).collect()))
}

/// Returns for each chain why it is not to be deleted, or `None` if it has not changed since it was listed.
async fn check(
    client: &Client<dyn Store>,
    listed: &[ChainRecord],
    running: bool,
) -> Result<Vec<Option<Outcome>>> {
    let stored = client.chains(listed.iter().map(|chain| chain.id.into()).collect()).await?;
    let state = |chain: &ChainRecord| (chain.latest.id, chain.latest.version);
    let check = |(listed, stored): (&ChainRecord, Option<ChainRecord>)| match stored {
        None => Some(Ok("already deleted".to_owned())),
        Some(stored) if state(&stored) != state(listed) => Some(Err(CHANGED.to_owned())),
        Some(stored) if stored.status() == Status::Running && !running => Some(Err(NOT_DELETED.to_owned())),
        Some(_) => None,
    };
    Ok(listed.iter().zip(stored).map(check).collect())
}

/// Deletes chains, all or none. The inner error says why they cannot be deleted together.
async fn delete_unchanged(
    connection: &Connection,
    chains: &[&ChainRecord],
) -> Result<Result<Vec<DeletedChain>, String>> {
    match &connection.store {
        _ if chains.is_empty() => Ok(Ok(Vec::new())),
        AnyStore::Memory(client) => delete_in_tx(client.begin().await?, chains).await,
        AnyStore::Sqlite(client) => delete_in_tx(client.begin().await?, chains).await,
        AnyStore::Postgres(client) => {
            let mut tx = client.begin().await?;
            // The server's default may be a level at which the store refuses to delete.
            let level = sqlx::raw_sql("set transaction isolation level read committed");
            let set = level.execute(&mut *tx.tx()).await;
            set.map_err(|error| Failure::store(format!("cannot set the isolation level: {error}")))?;
            delete_in_tx(tx, chains).await
        }
        AnyStore::Redis(client) => {
            let targets = chains.iter().map(|chain| chain.id.into()).collect();
            Ok(deleted(client.delete(targets, false).await?))
        }
    }
}

/// Deletes chains in a transaction, which is rolled back if one of them has another status than listed.
async fn delete_in_tx<S: Transactional>(
    mut tx: Tx<S>,
    chains: &[&ChainRecord],
) -> Result<Result<Vec<DeletedChain>, String>> {
    let targets = chains.iter().map(|chain| chain.id.into()).collect();
    let reply = match tx.delete(targets, false).await {
        // The database ended the transaction in favor of another, e.g. because of a deadlock.
        Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Conflict) => DeleteReply::Busy,
        reply => reply?,
    };
    let is_listed = |deleted: &DeletedChain| {
        chains.iter().any(|chain| chain.id == deleted.chain && chain.status() == deleted.status)
    };
    let deleted = match deleted(reply) {
        Ok(deleted) if !deleted.iter().all(is_listed) => Err(CHANGED.to_owned()),
        deleted => deleted,
    };
    match deleted {
        Ok(_) => tx.commit().await?,
        Err(_) => tx.rollback().await?,
    }
    Ok(deleted)
}

fn deleted(reply: DeleteReply) -> Result<Vec<DeletedChain>, String> {
    match reply {
        DeleteReply::Deleted(deleted) => Ok(deleted.chains),
        DeleteReply::Refused(refusals) => {
            let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(format!("not deleted: {}", reasons.join("; ")))
        }
        DeleteReply::Busy => Err(BUSY.to_owned()),
    }
}
