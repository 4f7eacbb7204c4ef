use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Client;
use super::commands::{given, stored};
use crate::chain::{Chain, ChainRef};
use crate::clock::far;
use crate::error::{Error, ErrorKind, Result};
use crate::id::ChainId;
use crate::job::Entry;
use crate::notifier::{Subscription, Topic};
use crate::record::{ChainRecord, JobRecord, Status};
use crate::store::{BoxFuture, Store};

/// How often a wait looks at the store beside notifications.
const POLL: Duration = Duration::from_secs(15);

/// How long a wait lasts unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long the look at the end of a wait may take.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// How long a look that is shared with others may take.
const SHARED_LOOK: Duration = Duration::from_secs(1);

/// After so long a look that failed is repeated.
const AGAIN: Duration = Duration::from_millis(500);

/// A wait for what a chain gives; await it. See [`Client::wait`].
#[must_use = "a wait does nothing until it is awaited"]
pub struct Wait<'a, J, S: ?Sized> {
    ending: Ending<'a, S>,
    job: PhantomData<fn() -> J>,
}

impl<'a, J: Entry, S: Store + ?Sized> Wait<'a, J, S> {
    pub(super) fn new(client: &'a Client<S>, chain: Chain<J>) -> Self {
        let ending = Ending::new(client, chain.id(), chain.into(), Patience::default());
        Self { ending, job: PhantomData }
    }

    /// Gives up after so long with an error of kind `TimedOut`; the chain goes on. 30 s unless said
    /// otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.ending.patience.timeout = timeout;
        self
    }

    /// Looks at the store so often beside notifications. 15 s unless said otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.ending.patience.poll = poll;
        self
    }

    /// Gives up when this token is cancelled, with an error of kind `TimedOut`; the chain goes on.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.ending.patience.token = Some(token);
        self
    }
}

/// How long somebody waits, and how.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) timeout: Duration,
    pub(crate) poll: Duration,
    pub(crate) token: Option<CancellationToken>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { timeout: TIMEOUT, poll: POLL, token: None }
    }
}

impl Patience {
    /// Ends when it has, counted from then, and says why.
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
            () = cancelled => "and the wait was called off".to_owned(),
            () = sleep_until(far(left)) => format!("after {:?}", self.timeout),
        }
    }
}

/// A wait for the end of a chain of whatever type.
pub(crate) struct Ending<'a, S: ?Sized> {
    client: &'a Client<S>,
    id: ChainId,
    chain: ChainRef,
    patience: Patience,
}

impl<'a, S: Store + ?Sized> Ending<'a, S> {
    pub(crate) const fn new(client: &'a Client<S>, id: ChainId, chain: ChainRef, patience: Patience) -> Self {
        Self { client, id, chain, patience }
    }

    /// The chain, once it is closed.
    pub(crate) async fn run(self) -> Result<ChainRecord> {
        self.run_since(Instant::now(), None).await
    }

    /// The same for somebody who has waited since then. Who has subscribed before the chain was created gives
    /// that subscription, and spares the first look.
    pub(crate) async fn run_since(
        self,
        began: Instant,
        subscription: Option<Subscription>,
    ) -> Result<ChainRecord> {
        let why = tokio::select! {
            biased;
            found = self.look(subscription) => return found,
            why = self.patience.ended(began) => why,
        };
        // One more look: the end may have come with the deadline.
        let stands = match timeout(LAST_LOOK, stored(self.client, &self.chain)).await {
            Ok(Ok(record)) if record.closed.is_some() => return Ok(record),
            Ok(Ok(record)) => where_it_stands(record),
            Ok(Err(error)) if !is_passing(&error) => return Err(error),
            _ => String::new(),
        };
        let text = format!("chain {} is still open {why}{stands}; it goes on", self.id);
        Err(Error::new(ErrorKind::TimedOut, text))
    }

    /// Looks again and again. Subscribed before the first look, so that no end falls between the two; without
    /// notifications it still polls.
    async fn look(&self, subscription: Option<Subscription>) -> Result<ChainRecord> {
        let mut looks = subscription.is_none();
        let mut subscription = match subscription {
            Some(subscription) => Some(subscription),
            None => self.client.shared.teller.subscribe(vec![Topic::ChainClosed(self.id)]).await,
        };
        loop {
            if std::mem::replace(&mut looks, true) {
                match self.found().await {
                    Ok(record) if record.closed.is_some() => return Ok(record),
                    Ok(_) => {}
                    // What passes is waited for too.
                    Err(error) if is_passing(&error) => {
                        sleep(AGAIN).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let next_look = far(self.patience.poll);
            let _ = timeout_at(next_look, signal(&mut subscription, next_look)).await;
        }
    }

    /// The chain as it is stored. Those who are told at once share a read; where that brings nothing or takes long,
    /// which may be another's fault, each reads for itself.
    async fn found(&self) -> Result<ChainRecord> {
        match timeout(SHARED_LOOK, self.client.shared.looks.add(self.id)).await {
            Ok(Ok(Some(record))) => {
                self.chain.check(record.id, &record.chain_type)?;
                Ok(record)
            }
            _ => stored(self.client, &self.chain).await,
        }
    }
}

/// What the chain is at, for somebody who wonders why it takes so long.
fn where_it_stands(record: ChainRecord) -> String {
    let JobRecord { job_type, status, attempt, error, due_at, .. } = record.latest;
    let stands = match status {
        Status::Pending if attempt == 0 => {
            format!("is pending since no worker has taken it, due at {due_at}")
        }
        Status::Pending => format!("is pending again after attempt {attempt}, due at {due_at}"),
        Status::Running => format!("is running, attempt {attempt}"),
        status => format!("is {status}"),
    };
    let error = error.map(|error| format!(", with the error: {error}")).unwrap_or_default();
    format!(": its job `{job_type}` {stands}{error}")
}

/// Whether trying again may help.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy)
}

/// Waits for a signal, or until then without a subscription.
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
        Box::pin(async move { given::<J>(&self.ending.run().await?) })
    }
}

impl<J, S: ?Sized> fmt::Debug for Wait<'_, J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("chain", &self.ending.id)
            .field("timeout", &self.ending.patience.timeout)
            .finish_non_exhaustive()
    }
}
