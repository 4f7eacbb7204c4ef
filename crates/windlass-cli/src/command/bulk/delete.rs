//! Deletes chains only as they were listed.

use std::collections::HashSet;

use windlass::command::{Delete, DeleteReply, SeenJob};
use windlass::record::{ChainRecord, Refusal};
use windlass::{ChainId, Client, ErrorKind, Status, Store};

use super::super::manage::{BUSY, Outcome};
use crate::exit::Result;
use crate::store::Connection;

/// Message for a running chain.
pub(super) const NOT_DELETED: &str = "not deleted: it is running; use --running to delete it anyway";

/// Message for a chain that is no longer as it was listed.
const CHANGED: &str = "not deleted: it has changed in the meantime";

/// Deletes the chains that have not changed since they were listed, all or none. Returns `None` if there are several
/// and one of them cannot be deleted for another reason. The caller then deletes them one by one.
pub(super) async fn delete(
    connection: &Connection,
    listed: &[ChainRecord],
    running: bool,
) -> Result<Option<Vec<Outcome>>> {
    let is_kept = |chain: &ChainRecord| chain.status() == Status::Running && !running;
    let mut changed = HashSet::new();
    let deleted = loop {
        let rest = listed.iter().filter(|chain| !is_kept(chain) && !changed.contains(&chain.id));
        let rest: Vec<_> = rest.collect();
        match delete_listed(&connection.client(), &rest).await? {
            Deletion::Done(deleted) => break Ok(deleted),
            // Each round has fewer chains than the one before.
            Deletion::Changed(chains) => changed.extend(chains),
            Deletion::Refused(_) if rest.len() > 1 => return Ok(None),
            Deletion::Refused(why) => break Err(why),
        }
    };
    let outcome = |chain: &ChainRecord| match &deleted {
        _ if is_kept(chain) => Err(NOT_DELETED.to_owned()),
        _ if changed.contains(&chain.id) => Err(CHANGED.to_owned()),
        Err(why) => Err(why.clone()),
        Ok(deleted) if deleted.contains(&chain.id) => Ok("deleted".to_owned()),
        Ok(_) => Ok("already deleted".to_owned()),
    };
    Ok(Some(listed.iter().map(outcome).collect()))
}

/// The result of deleting chains together.
#[derive(Debug, PartialEq, Eq)]
enum Deletion {
    /// These chains were deleted. The others were not stored any more.
    Done(HashSet<ChainId>),
    /// Nothing was deleted, because these chains have changed since they were listed.
    Changed(Vec<ChainId>),
    /// Nothing was deleted, for this reason.
    Refused(String),
}

/// Deletes chains as they were listed, all or none.
async fn delete_listed(client: &Client<dyn Store>, listed: &[&ChainRecord]) -> Result<Deletion> {
    let chains = listed.iter().map(|chain| chain.id.into()).collect();
    let seen = Some(listed.iter().map(|chain| SeenJob::from(*chain)).collect());
    let reply = match client.delete_with(Delete { chains, cascade: false, seen }).await {
        // The database ended the command in favor of another transaction, e.g. because of a deadlock.
        Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Conflict) => DeleteReply::Busy,
        reply => reply?,
    };
    Ok(match reply {
        DeleteReply::Deleted(deleted) => {
            Deletion::Done(deleted.chains.iter().map(|deleted| deleted.chain).collect())
        }
        DeleteReply::Refused(refusals) => refused(&refusals),
        DeleteReply::Busy => Deletion::Refused(BUSY.to_owned()),
    })
}

fn refused(refusals: &[Refusal]) -> Deletion {
    let changed = refusals.iter().filter_map(|refusal| match refusal {
        Refusal::Changed(chain) => Some(*chain),
        _ => None,
    });
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() {
        let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
        return Deletion::Refused(format!("not deleted: {}", reasons.join("; ")));
    }
    Deletion::Changed(changed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use windlass::MemoryStore;
    use windlass::command::{CancelMode, NewChain, NewJob};
    use windlass::name::TypeName;
    use windlass::record::Payload;

    use super::*;
    use crate::store::AnyStore;

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

    /// Jobs that workers acquire, or that others cancel, between the list and the delete are kept.
    #[tokio::test]
    async fn chains_are_deleted_only_as_they_were_listed() {
        let connection = connection();
        let listed = start(&connection).await;
        let client = connection.client();
        client.cancel(listed[0].id, CancelMode::UnlessRunning).await.unwrap();
        let together: Vec<_> = listed.iter().collect();
        let changed = Deletion::Changed(vec![listed[0].id]);
        assert_eq!(delete_listed(&client, &together).await.unwrap(), changed);
        assert_eq!(stored(&connection, &listed).await, [true; CHAINS]);
        let others = HashSet::from([listed[1].id, listed[2].id]);
        assert_eq!(delete_listed(&client, &together[1..]).await.unwrap(), Deletion::Done(others));
        assert_eq!(stored(&connection, &listed).await, [true, false, false]);
    }
}
