use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Client;
use crate::chain::Chain;
use crate::clock::far;
use crate::error::{Error, ErrorKind, Result};
use crate::job::Entry;
use crate::notifier::{Subscription, Topic};
use crate::record::{JobRecord, Status};
use crate::store::{BoxFuture, Store};

/// How often a wait looks at the store beside notifications.
const POLL: Duration = Duration::from_secs(15);

/// How long a wait lasts unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long the look at the end of a wait may take.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// After so long a look that failed is repeated.
const AGAIN: Duration = Duration::from_millis(500);

/// A wait for what a chain gives; await it. See [`Client::wait`].
#[must_use = "a wait does nothing until it is awaited"]
pub struct Wait<'a, J, S: ?Sized> {
    client: &'a Client<S>,
    chain: Chain<J>,
    timeout: Duration,
    poll: Duration,
    token: Option<CancellationToken>,
}

impl<'a, J: Entry, S: Store + ?Sized> Wait<'a, J, S> {
    pub(super) fn new(client: &'a Client<S>, chain: Chain<J>) -> Self {
        Self { client, chain, timeout: TIMEOUT, poll: POLL, token: None }
    }

    /// Gives up after so long with an error of kind `TimedOut`; the chain goes on. 30 s unless said
    /// otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Looks at the store so often beside notifications. 15 s unless said otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Gives up when this token is cancelled, with an error of kind `TimedOut`; the chain goes on.
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.token = Some(token);
        self
    }

    async fn run(self) -> Result<J::Output> {
        let why = tokio::select! {
            biased;
            found = self.look() => return found,
            () = self.cancelled() => "and the wait was called off".to_owned(),
            () = sleep_until(far(self.timeout)) => format!("after {:?}", self.timeout),
        };
        // One more look: the end may have come with the deadline.
        match timeout(LAST_LOOK, self.client.output(self.chain)).await {
            Ok(Ok(Some(output))) => Ok(output),
            Ok(Err(error)) if !is_passing(&error) => Err(error),
            _ => {
                let stands = self.where_it_stands().await;
                let text = format!("chain {} is still open {why}{stands}; it goes on", self.chain.id());
                Err(Error::new(ErrorKind::TimedOut, text))
            }
        }
    }

    /// What the chain is at, for somebody who wonders why it takes so long.
    async fn where_it_stands(&self) -> String {
        let Ok(Ok(Some(record))) = timeout(LAST_LOOK, self.client.chain(self.chain)).await else {
            return String::new();
        };
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

    /// Ends when the token is cancelled; never without one.
    async fn cancelled(&self) {
        match &self.token {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Looks again and again. Subscribed before the first look, so that no end falls between the two; without
    /// notifications it still polls.
    async fn look(&self) -> Result<J::Output> {
        let topic = Topic::ChainClosed(self.chain.id());
        let mut subscription = self.client.shared.teller.subscribe(vec![topic]).await;
        loop {
            match self.client.output(self.chain).await {
                Ok(Some(output)) => return Ok(output),
                Ok(None) => {}
                // What passes is waited for too.
                Err(error) if is_passing(&error) => {
                    sleep(AGAIN).await;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let next_look = far(self.poll);
            let _ = timeout_at(next_look, signal(&mut subscription, next_look)).await;
        }
    }
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
        Box::pin(self.run())
    }
}

impl<J, S: ?Sized> fmt::Debug for Wait<'_, J, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("chain", &self.chain)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
