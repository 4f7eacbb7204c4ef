//! Waits until a chain has closed.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::commands::{output_of, stored};
use super::local_output::{Completed, LocalOutput};
use super::send::send;
use super::{Batcher, Client, Dispatcher};
use crate::chain::{Chain, ChainRef};
use crate::clock::far;
use crate::command::{GetChains, Request, Size, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::job::{Entry, decode_output};
use crate::limit::BATCH_MAX_BYTES;
use crate::notifier::{Subscription, Topic};
use crate::observer::Activity;
use crate::record::{ChainRecord, JobRecord, Status};
use crate::store::{BoxFuture, Store};
use crate::time::Timestamp;

/// The default timeout of a wait.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The timeout of the last query of a wait.
const LAST_QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of the first try of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// The delay before a failed query is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A wait for a chain to close. Returns the chain's output when awaited. See [`Client::wait`].
#[must_use = "a wait does nothing until it is awaited"]
pub struct Wait<'a, J, S: ?Sized> {
    wait: ChainWait<'a, S>,
    job: PhantomData<fn() -> J>,
}

impl<'a, J: Entry, S: Store + ?Sized> Wait<'a, J, S> {
    pub(super) fn new(client: &'a Client<S>, chain: Chain<J>) -> Self {
        let wait = ChainWait::new(client, chain.id(), chain.into(), WaitOptions::default());
        Self { wait, job: PhantomData }
    }

    wait_options!(wait.options);
}

/// The options of every wait: for a chain, or for the result of a queue's job.
macro_rules! wait_options {
    ($($options:ident).+) => {
        /// Sets the timeout. Default: 30 s.
        ///
        /// After the timeout the wait returns an error of kind `TimedOut`. The chain or job continues.
        pub fn timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$($options).+.timeout = timeout;
            self
        }

        /// Sets the interval at which the store is polled in addition to notifications. Default: 5 s while
        /// notifications arrive from all processes, 1.5 s otherwise.
        pub fn poll(mut self, poll: std::time::Duration) -> Self {
            self.$($options).+.poll = Some(poll);
            self
        }

        /// Ends the wait when this token is cancelled, with an error of kind `TimedOut`. The chain or job
        /// continues.
        pub fn cancelled_by(mut self, token: tokio_util::sync::CancellationToken) -> Self {
            self.$($options).+.token = Some(token);
            self
        }
    };
}
pub(crate) use wait_options;

/// The options of a wait.
#[derive(Debug)]
pub(crate) struct WaitOptions {
    pub(crate) timeout: Duration,
    pub(crate) poll: Option<Duration>,
    pub(crate) token: Option<CancellationToken>,
}

impl Default for WaitOptions {
    fn default() -> Self {
        Self { timeout: TIMEOUT, poll: None, token: None }
    }
}

impl WaitOptions {
    /// Completes when the token is cancelled, or when the timeout has passed since `began`. Returns the
    /// reason as a part of the error message.
    pub(crate) async fn ended(&self, began: Instant) -> String {
        let cancelled = async {
            match &self.token {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let left = self.timeout.saturating_sub(began.elapsed());
        tokio::select! {
            biased;
            () = cancelled => "and the wait was cancelled".to_owned(),
            () = sleep_until(far(left)) => format!("after {:?}", self.timeout),
        }
    }
}

/// A wait for a chain of any type to close.
pub(crate) struct ChainWait<'a, S: ?Sized> {
    client: &'a Client<S>,
    id: ChainId,
    chain: ChainRef,
    options: WaitOptions,
    /// The name of the queue job for error messages, if the chain is one.
    queue_job: Option<String>,
    /// Whether the caller needs the record of the chain, and not only its output.
    needs_record: bool,
}

impl<'a, S: Store + ?Sized> ChainWait<'a, S> {
    pub(crate) const fn new(
        client: &'a Client<S>,
        id: ChainId,
        chain: ChainRef,
        options: WaitOptions,
    ) -> Self {
        Self { client, id, chain, options, queue_job: None, needs_record: false }
    }

    /// Sets the name of the queue job, which error messages contain instead of the chain's id.
    pub(crate) fn of_queue_job(mut self, name: String) -> Self {
        self.queue_job = Some(name);
        self
    }

    /// Waits for the chain to close and returns its record.
    pub(crate) async fn run_for_record(mut self) -> Result<ChainRecord> {
        self.needs_record = true;
        let (client, chain) = (self.client, self.chain.clone());
        match self.run(Instant::now(), Prepared::default()).await? {
            FoundChain::Stored(record) => Ok(*record),
            FoundChain::Locally(_) => stored(client, &chain).await,
        }
    }

    /// Waits for the chain to close. The timeout is counted from `began`.
    ///
    /// A caller that prepared the wait before it created the chain passes what it has prepared.
    pub(crate) async fn run(self, began: Instant, prepared: Prepared<'_>) -> Result<FoundChain> {
        // Biased: if the chain is found closed at the moment of the deadline, return it.
        let why = tokio::select! {
            biased;
            found = self.until_closed(prepared) => return found,
            why = self.options.ended(began) => why,
        };
        // Query once more. The chain may have closed just before the deadline, with its notification or a
        // query still on the way. If the chain is open, its state goes into the error message.
        let until = Instant::now() + LAST_QUERY_TIMEOUT;
        let latest = match timeout_at(until, stored(self.client, &self.chain)).await {
            Ok(Ok(record)) if record.closed.is_some() => return Ok(record.into()),
            Ok(Ok(record)) => Some(record.latest),
            Ok(Err(error)) if !is_transient(&error) => return Err(error),
            _ => None,
        };
        let blocker = match &latest {
            Some(job) if job.status == Status::Blocked => {
                timeout_at(until, failed_blocker(self.client, job)).await.ok().flatten()
            }
            _ => None,
        };
        Err(self.timed_out(&why, latest, blocker))
    }

    /// Returns the error for a chain that is still open. Its job waits for the failed `blocker`, if there is one.
    fn timed_out(&self, why: &str, latest: Option<JobRecord>, blocker: Option<ChainRecord>) -> Error {
        let (awaited, job, noun) = match (&self.queue_job, &latest) {
            (Some(name), _) => (name.clone(), "it".to_owned(), "job"),
            (None, Some(job)) => {
                (format!("chain {}", self.id), format!("its job `{}`", job.job_type), "chain")
            }
            (None, None) => (format!("chain {}", self.id), String::new(), "chain"),
        };
        let what = format!("{awaited} is still open {why}");
        if let Some(blocker) = blocker {
            let ended = if blocker.status() == Status::Cancelled { "was cancelled" } else { "failed" };
            let error = blocker.latest.error;
            let cause = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            let text = format!(
                "{what}: {job} waits for chain {}, which {ended}{cause}; retry that chain",
                blocker.id
            );
            return Error::timed_out(text, error, None);
        }
        let now = self.client.shared.dispatcher.now();
        let state = latest.as_ref().map(|latest| format!(": {job} {}", describe(latest, now)));
        let state = state.unwrap_or_default();
        let next = latest.as_ref().filter(|job| job.status == Status::Pending).map(|job| job.due_at);
        let text = format!("{what}{state}; the {noun} continues");
        Error::timed_out(text, latest.and_then(|job| job.error), next)
    }

    /// Waits until a worker of this client completes the chain, or a query finds it closed. Queries it after each
    /// notification, and at the poll interval.
    ///
    /// Subscribes before the first query. If the order were reversed, a chain that closes between the two
    /// would be noticed only at the next poll. Without a subscription, polls and tries to subscribe again.
    async fn until_closed(&self, prepared: Prepared<'_>) -> Result<FoundChain> {
        let Prepared { mut subscription, local, is_complete } = prepared;
        let register = || self.client.shared.dispatcher.register_wait(self.id);
        let mut local = (!self.needs_record).then(|| local.unwrap_or_else(register));
        let mut queries = subscription.is_none();
        // A subscription that this wait begins is active before the first query.
        let mut may_have_missed = subscription.is_some() && !is_complete;
        loop {
            if subscription.is_none() {
                subscription =
                    self.client.shared.dispatcher.subscribe(vec![Topic::ChainClosed(self.id)]).await;
            }
            if std::mem::replace(&mut queries, true) {
                match self.query().await {
                    Ok(record) if record.closed.is_some() => return Ok(record.into()),
                    Ok(_) => {}
                    // A transient error does not end the wait.
                    Err(error) if is_transient(&error) => {
                        sleep(RETRY_DELAY).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let dispatcher = &self.client.shared.dispatcher;
            let poll = self.options.poll.unwrap_or_else(|| dispatcher.poll_interval(subscription.is_some()));
            let next_poll =
                far(if std::mem::take(&mut may_have_missed) { poll.min(MISSED_DELAY) } else { poll });
            let received = async {
                match &mut local {
                    Some(local) => local.received().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                completed = received => {
                    self.chain.check(completed.chain, &completed.chain_type)?;
                    return Ok(FoundChain::Locally(completed));
                }
                _ = timeout_at(next_poll, signal(&mut subscription, next_poll)) => {}
            }
        }
    }

    /// Returns the stored chain.
    ///
    /// Waits that are notified at the same time share one query. If the shared query fails, is slow or does
    /// not find the chain, this wait sends its own: another chain in the batch may be the cause.
    async fn query(&self) -> Result<ChainRecord> {
        // A shared query is sent by another task, which is slower by two switches.
        if (1..=ALONE_MAX).contains(&self.client.shared.dispatcher.wait_count()) {
            let found = timeout(QUERY_TIMEOUT, stored(self.client, &self.chain)).await;
            return match found {
                Ok(found) => found,
                Err(_) => stored(self.client, &self.chain).await,
            };
        }
        match timeout(QUERY_TIMEOUT, self.client.shared.chain_queries.add(self.id)).await {
            Ok(Ok(Some(record))) => {
                self.chain.check(record.id, &record.chain_type)?;
                Ok(record)
            }
            _ => stored(self.client, &self.chain).await,
        }
    }
}

/// The closed chain that a wait has found.
pub(crate) enum FoundChain {
    /// A worker of this client has completed it.
    Locally(Completed),
    /// The store returned it.
    Stored(Box<ChainRecord>),
}

impl From<ChainRecord> for FoundChain {
    fn from(record: ChainRecord) -> Self {
        Self::Stored(Box::new(record))
    }
}

/// The part of a wait that begins before its chain is created.
#[derive(Default)]
pub(crate) struct Prepared<'c> {
    subscription: Option<Subscription>,
    local: Option<LocalOutput<'c>>,
    /// Whether the subscription was active before the chain was created, so that the chain cannot have closed unnoticed.
    is_complete: bool,
}

impl<S: Store + ?Sized> Client<S> {
    /// Creates a chain with `create`, and subscribes to its end.
    ///
    /// With few other waits, on a store that executes commands in order, subscribes while the chain is created. This saves a
    /// round trip. Another process may close the chain before the subscription is active, so the wait queries the chain
    /// after [`MISSED_DELAY`]. With many waits, subscribes first: the subscriptions share a round trip.
    pub(crate) async fn create_and_prepare<T>(
        &self,
        chain: ChainId,
        create: impl Future<Output = Result<T>>,
    ) -> Result<(T, Prepared<'_>)> {
        let dispatcher = &self.shared.dispatcher;
        let local = dispatcher.register_wait(chain);
        let is_ordered = self.shared.store.capabilities().is_ordered();
        let is_concurrent = is_ordered && dispatcher.wait_count() <= CONCURRENT_MAX;
        let subscribe = dispatcher.subscribe(vec![Topic::ChainClosed(chain)]);
        let (created, subscription) = if is_concurrent {
            tokio::join!(create, subscribe)
        } else {
            let subscription = subscribe.await;
            (create.await, subscription)
        };
        let is_complete = !is_concurrent && subscription.is_some();
        Ok((created?, Prepared { subscription, local: Some(local), is_complete }))
    }
}

/// The maximum number of waits whose subscriptions do not share a round trip.
const CONCURRENT_MAX: usize = 16;

/// The maximum number of waits whose queries are not shared.
const ALONE_MAX: usize = 2;

/// The delay before a chain is queried that may have closed before the subscription was active.
const MISSED_DELAY: Duration = Duration::from_millis(5);

/// Returns a batcher for the queries of callers that wait for a chain to close.
pub(super) fn query_batcher<S: Store + ?Sized>(
    store: &Arc<S>,
    dispatcher: &Arc<Dispatcher>,
) -> Batcher<ChainId, Option<ChainRecord>> {
    let (store, dispatcher) = (Arc::clone(store), Arc::clone(dispatcher));
    Batcher::new(
        |_| QUERY_SIZE,
        move |chains| -> BoxFuture<'static, _> {
            let (store, dispatcher) = (Arc::clone(&store), Arc::clone(&dispatcher));
            Box::pin(async move { query_batch(&*store, &dispatcher, chains).await })
        },
    )
}

/// The size that one chain counts in a batch of queries. The size of its record is not known in advance. This
/// value lets 64 queries share a command.
const QUERY_SIZE: Size = Size { items: 1, bytes: BATCH_MAX_BYTES / 64, blockers: 0 };

/// Queries chains with one command.
async fn query_batch<S: Store + ?Sized>(
    store: &S,
    dispatcher: &Dispatcher,
    chains: Vec<ChainId>,
) -> Result<Vec<Option<ChainRecord>>> {
    let items = chains.len();
    dispatcher.measure(|| Activity::Flushed { batch: "query", items });
    let request = GetChains { chains: chains.into_iter().map(Target::Chain).collect() };
    Ok(dispatcher.measured(GetChains::NAME, |_| items, send(store, &request)).await?.chains)
}

/// Returns the first chain that a blocked job waits for although the chain has failed or was cancelled.
async fn failed_blocker<S: Store + ?Sized>(client: &Client<S>, job: &JobRecord) -> Option<ChainRecord> {
    let unresolved = job.blockers.iter().filter(|blocker| !blocker.resolved);
    let chains = client.chains(unresolved.map(|blocker| blocker.chain.into()).collect()).await.ok()?;
    let failed = |chain: &ChainRecord| matches!(chain.status(), Status::Failed | Status::Cancelled);
    chains.into_iter().flatten().find(failed)
}

/// Describes the state of an open chain's job at a time of the store, for the error message of a wait that ended.
fn describe(job: &JobRecord, now: Timestamp) -> String {
    let JobRecord { status, attempt, error, due_at, .. } = job;
    let state = match status {
        Status::Pending if *attempt == 0 && *due_at > now => format!("is not due until {due_at}"),
        Status::Pending if *attempt == 0 => {
            format!("is pending because no worker has acquired it, due at {due_at}")
        }
        Status::Pending => format!("is pending again after attempt {attempt}, due at {due_at}"),
        Status::Running => format!("is running, attempt {attempt}"),
        status => format!("is {status}"),
    };
    let error = error.as_ref().map(|error| format!(", last error: {error}")).unwrap_or_default();
    format!("{state}{error}")
}

/// Whether the error is transient, so that a repeat may succeed.
fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
}

/// Waits for a signal. Without a subscription, or once it has ended, waits until `until`.
async fn signal(subscription: &mut Option<Subscription>, until: Instant) {
    if let Some(open) = subscription
        && open.next().await.is_some()
    {
        return;
    }
    *subscription = None;
    sleep_until(until).await;
}

impl<'a, J: Entry, S: Store + ?Sized> IntoFuture for Wait<'a, J, S> {
    type Output = Result<J::Output>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.wait.run(Instant::now(), Prepared::default()).await? {
                FoundChain::Locally(completed) => {
                    decode_output::<J>(completed.job_type.as_str(), &completed.output)
                }
                FoundChain::Stored(record) => output_of::<J>(&record),
            }
        })
    }
}

impl<J, S: ?Sized> fmt::Debug for Wait<'_, J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("chain", &self.wait.id)
            .field("timeout", &self.wait.options.timeout)
            .finish_non_exhaustive()
    }
}
