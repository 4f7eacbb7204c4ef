//! Maintenance of the store, for workers, clients and the standalone reaper.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::sleep;

use crate::client::{Announcements, Client, PerRuntime, answered, visit_due_page};
use crate::command::{Expire, ExpireReply, Reap, ReapReply, Request, Types};
use crate::error::Result;
use crate::name::ErrorText;
use crate::observer::{Activity, Event};
use crate::store::{Capability, Store};
use crate::time::Millis;

/// The maximum number of expired leases to reap with one command.
pub(crate) const REAP_MAX: u32 = 100;

/// The maximum number of expired jobs to remove with one command.
const EXPIRE_MAX: u32 = 1_000;

/// The number of tries to resolve waits whose rows another transaction has locked.
const RESOLVE_TRIES: u32 = 5;
/// The delay between these tries.
const RESOLVE_DELAY: Duration = Duration::from_millis(40);

/// Requeues jobs whose lease expired, and announces them. Returns how many.
pub(crate) async fn reap<S: Store + ?Sized>(client: &Client<S>, reap: Reap) -> Result<usize> {
    Ok(reap_and_announce(client, reap).await?.reaped.len())
}

/// Returns a function to call after the commit of a transaction that deferred waits to a later command. It
/// starts a task that resolves the waits and announces the unblocked jobs. If the task fails, the next
/// acquire or reap of any worker resolves them.
pub(crate) fn resolve_waits<S: Store + ?Sized>(client: &Client<S>) -> impl FnOnce() + Send + 'static {
    let client = client.clone();
    move || {
        let runtime = Handle::current();
        // One task serves all transactions of this runtime that commit while it runs.
        let is_first = client.shared.resolving.with(runtime.id(), |requests| {
            *requests += 1;
            *requests == 1
        });
        if is_first {
            // The guard exists before the task runs: a runtime that stops drops tasks that it has never polled.
            let ends = ResolvingEnds(Some((Arc::clone(&client.shared.resolving), runtime.id())));
            runtime.spawn(resolve_requested(client, ends));
        }
    }
}

/// Resolves waits until no further transaction has requested it.
async fn resolve_requested<S: Store + ?Sized>(client: Client<S>, mut ends: ResolvingEnds) {
    while let Some((resolving, runtime)) = &ends.0 {
        let requests = resolving.with(*runtime, |requests| *requests);
        resolve_now(&client).await;
        // A transaction that committed during this round has raised the counter instead of starting a task.
        // The round may have missed its waits, so there must be another one.
        let is_over = resolving.with(*runtime, |current| {
            let is_over = *current == requests;
            if is_over {
                *current = 0;
            }
            is_over
        });
        if is_over {
            // From here on the counter is the next task's.
            ends.0 = None;
        }
    }
}

async fn resolve_now<S: Store + ?Sized>(client: &Client<S>) {
    let mut tries = 0;
    while tries < RESOLVE_TRIES {
        // A reap of no types only resolves waits.
        let types = Types::Only(Vec::new());
        let reap = Reap { types, max: 0, except: Vec::new(), renewal_interval: Millis::ZERO };
        match reap_and_announce(client, reap).await {
            Ok(reply) if !reply.ripple.deferred => return,
            // There were more waits than one command resolves.
            Ok(reply) if !reply.ripple.unblocked.is_empty() => {}
            // Another transaction has locked the row of a dependent, often because it resolves waits for
            // another chain.
            Ok(_) => {
                tries += 1;
                sleep(RESOLVE_DELAY).await;
            }
            Err(error) => {
                let event = Event::StoreFailed("reap", ErrorText::new(error.to_string()));
                client.shared.dispatcher.observe(&event);
                return;
            }
        }
    }
}

/// Resets the counter when the task ends, also by a panic or with its runtime. The next transaction can then
/// start a task.
struct ResolvingEnds(Option<(Arc<PerRuntime<u32>>, Id)>);

impl Drop for ResolvingEnds {
    fn drop(&mut self) {
        if let Some((resolving, runtime)) = &self.0 {
            resolving.remove(*runtime);
        }
    }
}

async fn reap_and_announce<S: Store + ?Sized>(client: &Client<S>, reap: Reap) -> Result<ReapReply> {
    let dispatcher = &client.shared.dispatcher;
    let call = answered(client.store().reap(reap));
    let reply = dispatcher.measured(Reap::NAME, |reply: &ReapReply| reply.reaped.len(), call).await?;
    if !reply.reaped.is_empty() {
        dispatcher.measure(|| Activity::Reaped { jobs: reply.reaped.len() });
    }
    let mut announcements = Announcements::committed(dispatcher);
    reply.reaped.iter().for_each(|reaped| announcements.reaped(reaped));
    announcements.ripple(&reply.ripple);
    announcements.send(dispatcher);
    Ok(reply)
}

/// Removes chains and jobs whose retention has ended. Returns whether there may be more.
pub(crate) async fn expire<S: Store + ?Sized>(client: &Client<S>) -> Result<bool> {
    // First record the outcomes of the runs whose chains may be removed. One page, because the caller acquires jobs in the
    // same loop: workers visit the rest in a separate task. Even after an error, old chains must be removed.
    let dispatcher = &client.shared.dispatcher;
    if client.store().capabilities().has(Capability::Schedules)
        && let Err(error) = visit_due_page(client.store(), dispatcher).await
    {
        dispatcher.observe(&Event::StoreFailed("due_schedules", ErrorText::new(error.to_string())));
    }
    let call = answered(client.store().expire(Expire { max: EXPIRE_MAX }));
    let reply = dispatcher.measured(Expire::NAME, |reply: &ExpireReply| reply.chains.len(), call).await?;
    for expired in reply.chains {
        client.shared.dispatcher.observe(&Event::ChainExpired(expired.chain, expired.chain_type));
    }
    Ok(reply.more)
}
