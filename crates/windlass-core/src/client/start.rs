//! Creates chains in the store: one at a time in batches with other callers, or many with one command.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::batch::{Batcher, batches};
use super::create_and_acquire::PendingAcquire;
use super::executor::Executor;
use super::idle_workers::Scheduled;
use super::plan::{Destination, Plan, Start};
use super::send::{BusyRetries, after_lost, answered, once_sent, send};
use super::trace::{Why, not_created};
use super::{Announcements, Client, Dispatcher};
use crate::chain::Chain;
use crate::command::{
    Acquire, Create, CreateAndAcquire, CreateAndAcquireReply, CreateReply, Created, NewChain, Request,
};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::job::Entry;
use crate::observer::{Activity, NotWritten};
use crate::record::Status;
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
    /// separate batches, so that it does not delay the other callers.
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
    let (mut request, mut lost) = (Create { chains }, None);
    let items = request.chains.len();
    dispatcher.measure(|| Activity::Flushed { batch: "start", items });
    if store.capabilities().is_joining()
        && let Some((acquire, pending)) = dispatcher.join(&request.chains)
    {
        match create_and_acquire(store, dispatcher, request, acquire, pending).await {
            Ok(created) => return Ok(created),
            Err((create, error)) => {
                dispatcher.join_failed(&error);
                request = create;
                lost = Some(error).filter(|error| error.kind() == ErrorKind::Unavailable);
            }
        }
    }
    let (is_ordered, mut expectation) = (store.capabilities().is_ordered(), None);
    let call = dispatcher.measured(Create::NAME, |_| items, send(store, &request));
    let reply = once_sent(call, || {
        // An acquire that is sent now finds the jobs.
        if is_ordered {
            expectation = dispatcher.expect(&request.chains);
        }
    });
    let created = match reply.await {
        Ok(reply) => reply.chains,
        // An open transaction has locked a row of one chain, and the store does not know which one. Each caller tries again
        // in a separate batch, so that only that chain fails.
        Err(error) if error.kind() == ErrorKind::Busy && request.chains.len() > 1 => {
            vec![Created::Busy; request.chains.len()]
        }
        // The lost try may still take effect. If the chain is busy, the transaction of that try may have locked it.
        Err(error) => {
            return Err(match &lost {
                Some(lost) => after_lost(error, lost),
                None => error,
            });
        }
    };
    let withheld = |chain| expectation.as_ref().is_some_and(|expectation| expectation.withholds(chain));
    let withheld = announce(dispatcher, &request.chains, &created, withheld);
    if let Some(expectation) = expectation {
        expectation.created(withheld);
    }
    Ok(created)
}

/// How long a creation reserves slots of a worker. If the store is slower, only the creation waits for the reply, and the
/// worker repeats the acquire.
const RESERVED_MAX: Duration = Duration::from_secs(3);

/// Creates chains, and acquires for a worker that waits for their jobs, with one command. Announces the chains, then starts
/// the attempts. If the command fails, returns the request with the error: the command has created all of the chains or none,
/// so they can be created alone.
///
/// A slow command is not repeated early: a second creation of the same chains would wait for the transaction of the first
/// one, and fail as busy although the chains are about to be committed.
async fn create_and_acquire<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    create: Create,
    acquire: Acquire,
    pending: Box<dyn PendingAcquire>,
) -> Result<Vec<Created>, (Create, Error)> {
    let joined = CreateAndAcquire { create, acquire };
    let items = joined.create.chains.len();
    let call = answered(store.create_and_acquire(joined.clone()));
    let mut call = pin!(dispatcher.measured(CreateAndAcquire::NAME, |_| items, call));
    let mut pending = Some(pending);
    let reply = match timeout(RESERVED_MAX, &mut call).await {
        Ok(reply) => reply,
        Err(_) => {
            pending = None;
            call.await
        }
    };
    let CreateAndAcquireReply { create: CreateReply { chains: created, .. }, acquire } = match reply {
        Ok(reply) => reply,
        Err(error) => return Err((joined.create, error)),
    };
    if created.contains(&Created::Busy) {
        dispatcher.pause_joins();
    }
    let Create { chains } = joined.create;
    let is_acquired = |chain| acquire.jobs.iter().any(|acquired| acquired.job.chain == chain);
    // A job that the worker has acquired needs no hint.
    announce(dispatcher, &chains, &created, is_acquired);
    if let Some(pending) = pending {
        pending.answered(acquire);
    }
    Ok(created)
}

/// Announces the chains that were created. Returns the pending jobs whose hints are withheld.
fn announce(
    dispatcher: &Dispatcher,
    chains: &[NewChain],
    created: &[Created],
    withholds: impl Fn(ChainId) -> bool,
) -> Vec<Scheduled> {
    let mut announcements = Announcements::committed(dispatcher);
    let mut withheld = Vec::new();
    for (new, created) in chains.iter().zip(created) {
        announcements.created(new, created);
        // A job that is not pending has no hint.
        if matches!(created, Created::New { job, .. } if job.status == Status::Pending) && withholds(new.id) {
            withheld.extend(announcements.withhold().map(|(job_type, due_at)| (new.id, job_type, due_at)));
        }
    }
    announcements.send(dispatcher);
    withheld
}

pub(super) async fn start_many<J: Entry>(
    mut on: impl Executor,
    plans: impl Iterator<Item = Plan<J>>,
) -> Result<Vec<Chain<J>>> {
    // Collecting into a `Result` would not reserve the space.
    let mut chains = Vec::with_capacity(plans.size_hint().0);
    for plan in plans {
        chains.push(plan.build()?);
    }
    let count = chains.len();
    let mut started = Vec::with_capacity(count);
    let mut refused = None;
    for batch in batches(chains) {
        for created in create(&mut on, batch).await? {
            match handle(created) {
                Ok(chain) => started.push(chain),
                Err(error) => _ = refused.get_or_insert((started.len(), error)),
            }
        }
    }
    match refused {
        None => Ok(started),
        Some((index, error)) => {
            let text = format!("start {} of {count} was refused: {error}", index + 1);
            Err(Error::new(error.kind(), text).with_inner(error))
        }
    }
}

/// Creates chains, and retries busy ones up to 20 times, every 50 ms. The chains created by each try are announced
/// immediately, and remain even if a later try fails.
pub(super) async fn create(mut on: impl Executor, mut chains: Vec<NewChain>) -> Result<Vec<Created>> {
    // Ask once, not once per try: an observer may begin a span for each request.
    let traces = on.dispatcher().request_traces(&mut chains);
    let batch = on.dispatcher().batch(&chains);
    let request = Create { chains };
    let mut created = vec![Created::Busy; request.chains.len()];
    let ended = create_until_unlocked(&mut on, &request, &mut created).await;
    batch.end(ended.as_ref().err().map(Error::kind));
    let mut missing = not_created(&request.chains, &created);
    if let Err(error) = &ended {
        // Those that are still busy were part of the command that failed, or were never sent.
        let busy = Why::NotWritten(NotWritten::Failed(ErrorKind::Busy));
        missing
            .iter_mut()
            .filter(|(_, why)| *why == busy)
            .for_each(|(_, why)| *why = Why::failed(error.kind()));
    }
    let traces = on.dispatcher().retain_written(traces, &missing);
    on.announce(|announcements| announcements.traced(traces));
    ended.map(|()| created)
}

async fn create_until_unlocked(
    on: &mut impl Executor,
    first: &Create,
    created: &mut [Created],
) -> Result<()> {
    if first.chains.is_empty() {
        return Ok(());
    }
    create_busy(on, first, created).await?;
    let mut retries = BusyRetries::new();
    while created.contains(&Created::Busy) && retries.wait().await {
        let request = Create { chains: still_busy(&first.chains, created) };
        create_busy(on, &request, created).await?;
    }
    Ok(())
}

/// Creates the chains that are still busy, and announces those that were created.
async fn create_busy(on: &mut impl Executor, request: &Create, created: &mut [Created]) -> Result<()> {
    let replies = on.execute(request).await?.chains;
    on.announce(|announcements| {
        let replies = request.chains.iter().zip(&replies);
        replies.for_each(|(new, created)| announcements.created(new, created));
    });
    let tried = created.iter_mut().filter(|created| matches!(created, Created::Busy));
    tried.zip(replies).for_each(|(created, reply)| *created = reply);
    Ok(())
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
