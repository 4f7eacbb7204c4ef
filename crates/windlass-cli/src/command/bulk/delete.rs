//! Deletes chains only if they have not changed since they were listed.

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
const CHANGED: &str = "not deleted: it has changed in the meantime";

/// Deletes the chains that have not changed since they were listed, all or none. Returns `None` if there are several
/// and one of them cannot be deleted. The caller then deletes them one by one.
///
/// A store deletes a chain in any state, so the chains are queried again first. A worker may still acquire a job
/// between that query and the delete. The reply contains the status in which each chain was deleted. If it has changed,
/// the delete is rolled back on a store with transactions. Otherwise the outcome reports it.
pub(super) async fn delete(
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
    let outcomes = listed.iter().zip(checks);
    Ok(Some(outcomes.map(|(chain, check)| check.unwrap_or_else(|| outcome(chain, &deleted))).collect()))
}

/// Returns the outcome for a chain that was deleted with others, or could not be.
fn outcome(listed: &ChainRecord, deleted: &Result<Vec<DeletedChain>, String>) -> Outcome {
    let found = deleted.as_ref().map_err(Clone::clone)?.iter().find(|deleted| deleted.chain == listed.id);
    match found.map(|deleted| deleted.status) {
        None => Ok("already deleted".to_owned()),
        Some(status) if status == listed.status() => Ok("deleted".to_owned()),
        Some(status) => Err(format!("deleted, although it became {status} immediately before")),
    }
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
        AnyStore::File(client) => delete_in_tx(client.begin().await?, chains).await,
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
            Ok(deleted(client.delete(targets).await?))
        }
    }
}

/// Deletes chains in a transaction, which is rolled back if one of them has another status than listed.
async fn delete_in_tx<S: Transactional>(
    mut tx: Tx<S>,
    chains: &[&ChainRecord],
) -> Result<Result<Vec<DeletedChain>, String>> {
    let targets = chains.iter().map(|chain| chain.id.into()).collect();
    let reply = match tx.delete(targets).await {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass::command::{CancelMode, NewChain, NewJob};
    use windlass::name::TypeName;
    use windlass::record::Payload;
    use windlass::{ChainId, MemoryStore};

    use super::*;

    const CHAINS: usize = 3;

    /// Starts chains and returns them as listed.
    async fn start(connection: &Connection) -> Vec<ChainRecord> {
        let client = connection.client();
        let job = NewJob::new(TypeName::new("mail").unwrap(), Payload::json("null").unwrap());
        let new: Vec<_> = (0..CHAINS).map(|_| NewChain::new(ChainId::new(), job.clone())).collect();
        let ids = new.iter().map(|chain| chain.id.into()).collect();
        client.create(new).await.unwrap();
        client.chains(ids).await.unwrap().into_iter().map(Option::unwrap).collect()
    }

    fn connection() -> Connection {
        let client = Client::new(MemoryStore::new());
        let notifier = client.store().notifier();
        Connection { store: AnyStore::Memory(client), notifier: Arc::clone(&notifier) }
    }

    async fn stored(connection: &Connection, listed: &[ChainRecord]) -> Vec<bool> {
        let chains = connection.client().chains(listed.iter().map(|chain| chain.id.into()).collect()).await;
        chains.unwrap().iter().map(Option::is_some).collect()
    }

    #[tokio::test]
    async fn a_chain_that_changed_since_it_was_listed_is_not_deleted() {
        let connection = connection();
        let listed = start(&connection).await;
        let client = connection.client();
        client.cancel(listed[0].id, CancelMode::UnlessRunning).await.unwrap();
        client.retry(listed[0].id).await.unwrap();
        client.delete(vec![listed[1].id.into()]).await.unwrap();
        let outcomes = delete(&connection, &listed, false).await.unwrap().unwrap();
        assert_eq!(outcomes, [Err(CHANGED.to_owned()), Ok("already deleted".into()), Ok("deleted".into())]);
        assert_eq!(stored(&connection, &listed).await, [true, false, false]);
    }

    /// The chain changes after it was queried again and before the delete.
    #[tokio::test]
    async fn a_delete_of_a_chain_that_just_changed_is_rolled_back() {
        let connection = connection();
        let listed = start(&connection).await;
        connection.client().cancel(listed[0].id, CancelMode::UnlessRunning).await.unwrap();
        let together: Vec<_> = listed.iter().collect();
        assert_eq!(delete_unchanged(&connection, &together).await.unwrap(), Err(CHANGED.to_owned()));
        assert_eq!(stored(&connection, &listed).await, [true; CHAINS]);
        let others = delete_unchanged(&connection, &together[1..]).await.unwrap().unwrap();
        assert_eq!(others.len(), CHAINS - 1);
        assert_eq!(stored(&connection, &listed).await, [true, false, false]);
    }

    #[tokio::test]
    async fn a_store_without_transactions_reports_a_chain_that_just_changed() {
        let connection = connection();
        let listed = start(&connection).await;
        let client = connection.client();
        client.cancel(listed[0].id, CancelMode::UnlessRunning).await.unwrap();
        let targets = listed.iter().map(|chain| chain.id.into()).collect();
        let deleted = super::deleted(client.delete(targets).await.unwrap());
        assert_eq!(
            outcome(&listed[0], &deleted),
            Err("deleted, although it became cancelled immediately before".into())
        );
        assert_eq!(outcome(&listed[1], &deleted), Ok("deleted".into()));
    }
}
