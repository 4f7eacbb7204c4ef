//! What keeps a store in order, whoever does it.

use std::time::Duration;

use tokio::time::sleep;

use crate::client::answered;
use crate::client::{Announcements, Client};
use crate::command::{Expire, Reap, ReapReply, Types};
use crate::error::Result;
use crate::name::ErrorText;
use crate::observer::Event;
use crate::store::Store;
use crate::time::Millis;

/// How many expired leases are reaped at once.
pub(crate) const REAP_MAX: u32 = 100;

/// How much is removed at once that is kept no longer.
const EXPIRE_MAX: u32 = 1_000;

/// How often, and after how long, waits are tried again whose rows another transaction holds.
const RESOLVE_TRIES: u32 = 5;
const RESOLVE_DELAY: Duration = Duration::from_millis(40);

/// Puts jobs back whose lease expired, and tells. Gives their number.
pub(crate) async fn reap<S: Store + ?Sized>(client: &Client<S>, reap: Reap) -> Result<usize> {
    Ok(reap_and_announce(client, reap).await?.reaped.len())
}

/// Returns a task to start after the commit of a transaction that left waits to a later command: it resolves
/// them and announces the unblocked jobs. If it fails, the next acquire or reap of any worker resolves them.
pub(crate) fn resolve_waits<S: Store + ?Sized>(client: &Client<S>) -> impl FnOnce() + Send + 'static {
    let client = client.clone();
    let resolve = async move {
        for _ in 0..RESOLVE_TRIES {
            // A reap of no types only resolves waits.
            let types = Types::Only(Vec::new());
            let reap = Reap { types, max: 0, except: Vec::new(), renewal_interval: Millis::ZERO };
            match reap_and_announce(&client, reap).await {
                // Another transaction, often one that does the same for another chain, holds a dependent's row.
                Ok(reply) if reply.ripple.deferred => sleep(RESOLVE_DELAY).await,
                Ok(_) => return,
                Err(error) => {
                    let event = Event::StoreFailed("reap", ErrorText::new(error.to_string()));
                    client.shared.dispatcher.observe(&event);
                    return;
                }
            }
        }
    };
    move || drop(tokio::spawn(resolve))
}

async fn reap_and_announce<S: Store + ?Sized>(client: &Client<S>, reap: Reap) -> Result<ReapReply> {
    let reply = answered(client.store().reap(reap)).await?;
    let dispatcher = &client.shared.dispatcher;
    let mut announcements = Announcements::by(dispatcher);
    reply.reaped.iter().for_each(|reaped| announcements.reaped(reaped));
    announcements.ripple(&reply.ripple);
    announcements.send(dispatcher);
    Ok(reply)
}

/// Removes what is kept no longer. Gives whether there may be more.
pub(crate) async fn expire<S: Store + ?Sized>(client: &Client<S>) -> Result<bool> {
    let reply = answered(client.store().expire(Expire { max: EXPIRE_MAX })).await?;
    for expired in reply.chains {
        client.shared.dispatcher.observe(&Event::ChainExpired(expired.chain, expired.chain_type));
    }
    Ok(reply.more)
}
