//! Creates chains in the store: one at a time in batches with other callers, or many with one command.

use std::sync::Arc;

use super::batch::{Batcher, batches};
use super::executor::Executor;
use super::plan::{Destination, Plan, Start};
use super::send::{BusyRetries, send};
use super::{Announcements, Client, Dispatcher};
use crate::chain::Chain;
use crate::command::{Create, Created, NewChain};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::job::Entry;
use crate::store::{BoxFuture, Store};

impl<'c, J: Entry> IntoFuture for Start<'c, J> {
    type Output = Result<Chain<J>>;
    type IntoFuture = BoxFuture<'c, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let (Destination(mut executor), new) = self.into_parts();
        Box::pin(async move { handle(executor.create_one(new?).await?) })
    }
}

impl<S: ?Sized> Client<S> {
    /// Creates a chain in a batch with the chains of other callers. If the chain is busy, retries it in
    /// batches of its own, so that it does not delay the other callers.
    pub(super) async fn create_shared(&self, new: NewChain) -> Result<Created> {
        let (mut batcher, mut retries) = (self.shared.starts.clone(), BusyRetries::new());
        loop {
            let created = batcher.add(new.clone()).await?;
            if !matches!(created, Created::Busy) || !retries.wait().await {
                return Ok(created);
            }
            batcher = self.shared.starts.separate();
        }
    }
}

/// Returns a batcher for the chains that concurrent callers start.
pub(super) fn start_batcher<S: Store + ?Sized>(
    store: &Arc<S>,
    dispatcher: &Arc<Dispatcher>,
) -> Batcher<NewChain, Created> {
    let (store, dispatcher) = (Arc::clone(store), Arc::clone(dispatcher));
    Batcher::new(
        |new: &NewChain| new.job.size(),
        move |chains| -> BoxFuture<'static, _> {
            let (store, dispatcher) = (Arc::clone(&store), Arc::clone(&dispatcher));
            Box::pin(async move { create_batch(&*store, &dispatcher, chains).await })
        },
    )
}

/// Creates chains with one command and announces them.
///
/// Runs on the task of the batcher. The callers of the batch do not announce their chains, because a caller
/// may have stopped waiting. Also, one pass merges the hints for jobs of the same type.
async fn create_batch<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    chains: Vec<NewChain>,
) -> Result<Vec<Created>> {
    let request = Create { chains };
    let created = send(store, &request).await?.chains;
    let mut announcements = Announcements::new(dispatcher);
    for (new, created) in request.chains.iter().zip(&created) {
        announcements.created(new, created);
    }
    announcements.send(dispatcher);
    Ok(created)
}

pub(super) async fn start_many<J: Entry>(
    mut on: impl Executor,
    plans: impl Iterator<Item = Plan<J>>,
) -> Result<Vec<Chain<J>>> {
    let chains: Vec<_> = plans.map(Plan::build).collect::<Result<_>>()?;
    let count = chains.len();
    let mut created: Vec<Created> = Vec::with_capacity(count);
    for batch in batches(chains) {
        created.extend(create(&mut on, batch).await?);
    }
    let started = created.into_iter().enumerate().map(|(index, created)| {
        handle(created).map_err(|error| {
            let text = format!("start {} of {count} was refused: {error}", index + 1);
            Error::new(error.kind(), text).with_inner(error)
        })
    });
    started.collect()
}

/// Creates chains, and retries busy ones for about a second. The chains created by each try are announced
/// immediately, and remain even if a later try fails.
pub(super) async fn create(mut on: impl Executor, mut chains: Vec<NewChain>) -> Result<Vec<Created>> {
    // Ask once, not once per try: an observer may begin a span for each request.
    let traces = on.dispatcher().request_traces(&mut chains);
    let mut created = vec![Created::Busy; chains.len()];
    let ended = create_until_unlocked(&mut on, &chains, &mut created).await;
    let missing: Vec<_> = not_created(&chains, &created).collect();
    let traces = on.dispatcher().retain_written(traces, &missing);
    on.announce(|announcements| announcements.traced(traces));
    ended.map(|()| created)
}

async fn create_until_unlocked(
    on: &mut impl Executor,
    chains: &[NewChain],
    created: &mut [Created],
) -> Result<()> {
    let mut retries = BusyRetries::new();
    loop {
        let request = Create { chains: still_busy(chains, created) };
        if request.chains.is_empty() {
            return Ok(());
        }
        let replies = on.execute(&request).await?.chains;
        on.announce(|announcements| {
            request
                .chains
                .iter()
                .zip(&replies)
                .for_each(|(new, created)| announcements.created(new, created));
        });
        let tried = created.iter_mut().filter(|created| matches!(created, Created::Busy));
        tried.zip(replies).for_each(|(created, reply)| *created = reply);
        if !created.contains(&Created::Busy) || !retries.wait().await {
            return Ok(());
        }
    }
}

/// Returns the chains that are still to be created.
///
/// A chain's blocker may be another chain of the same command that was not created because an existing chain
/// holds its key. The blocker is then replaced with the existing chain: the retry does not include the other
/// chain, so the store could not resolve its id.
fn still_busy(chains: &[NewChain], created: &[Created]) -> Vec<NewChain> {
    let pairs = || chains.iter().zip(created);
    let busy = pairs().filter(|(_, created)| matches!(created, Created::Busy));
    let mut busy: Vec<_> = busy.map(|(new, _)| new.clone()).collect();
    for blocker in busy.iter_mut().flat_map(|new| &mut new.job.blockers) {
        let meant = pairs().find_map(|(new, created)| match created {
            Created::Existing(existing) if new.id == blocker.chain => Some(existing.chain),
            _ => None,
        });
        blocker.chain = meant.unwrap_or(blocker.chain);
    }
    busy
}

/// Returns the ids of the chains that were not created.
pub(super) fn not_created(chains: &[NewChain], created: &[Created]) -> impl Iterator<Item = ChainId> {
    let pairs = chains.iter().zip(created);
    pairs.filter(|(_, created)| !matches!(created, Created::New { .. })).map(|(new, _)| new.id)
}

/// Returns the handle of the stored chain, new or existing, or an error if there is none.
fn handle<J>(created: Created) -> Result<Chain<J>> {
    match created {
        Created::New { job, .. } => Ok(Chain::started(job.chain, true)),
        Created::Existing(existing) => Ok(Chain::started(existing.chain, false)),
        created => Err(refused(created)),
    }
}

/// Returns the error for a chain that was refused or busy.
pub(crate) fn refused(created: Created) -> Error {
    match created {
        Created::Refused(refusal) => refusal.into(),
        _ => Error::new(
            ErrorKind::Busy,
            "the key or a blocker is locked by another open transaction: retry after it ends",
        ),
    }
}
