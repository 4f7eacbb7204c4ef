//! What keeps a store in order, whoever does it.

use crate::client::{Announcements, Client};
use crate::clock::answered;
use crate::command::{Expire, Reap};
use crate::error::Result;
use crate::observer::Event;
use crate::store::Store;

/// How many expired leases are reaped at once.
pub(crate) const REAP_MAX: u32 = 100;

/// How much is removed at once that is kept no longer.
const EXPIRE_MAX: u32 = 1_000;

/// Puts jobs back whose lease expired, and tells. Gives their number.
pub(crate) async fn reap<S: Store + ?Sized>(client: &Client<S>, reap: Reap) -> Result<usize> {
    let reply = answered(client.store().reap(reap)).await?;
    let teller = &client.shared.teller;
    let mut announcements = Announcements::by(teller);
    reply.reaped.iter().for_each(|reaped| announcements.reaped(reaped));
    announcements.ripple(&reply.ripple);
    announcements.send(teller);
    Ok(reply.reaped.len())
}

/// Removes what is kept no longer. Gives whether there may be more.
pub(crate) async fn expire<S: Store + ?Sized>(client: &Client<S>) -> Result<bool> {
    let reply = answered(client.store().expire(Expire { max: EXPIRE_MAX })).await?;
    for expired in reply.chains {
        client.shared.teller.observe(&Event::ChainExpired(expired.chain, expired.chain_type));
    }
    Ok(reply.more)
}
