use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::Client;
use crate::chain::Chain;
use crate::clock::far;
use crate::error::{Error, ErrorKind, Result};
use crate::job::Entry;
use crate::notifier::{Subscription, Topic};
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
}

impl<'a, J: Entry, S: Store + ?Sized> Wait<'a, J, S> {
    pub(super) fn new(client: &'a Client<S>, chain: Chain<J>) -> Self {
        Self { client, chain, timeout: TIMEOUT, poll: POLL }
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

    async fn run(self) -> Result<J::Output> {
        let deadline = far(self.timeout);
        let looking = self.look();
        match timeout_at(deadline, looking).await {
            Ok(found) => found,
            // One more look: the end may have come with the deadline.
            Err(_) => match timeout(LAST_LOOK, self.client.output(self.chain)).await {
                Ok(Ok(Some(output))) => Ok(output),
                Ok(Err(error)) if !is_passing(&error) => Err(error),
                _ => {
                    let (chain, waited) = (self.chain.id(), self.timeout);
                    let text = format!("chain {chain} is still open after {waited:?}; it goes on");
                    Err(Error::new(ErrorKind::TimedOut, text))
                }
            },
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
                Err(error) if is_passing(&error) => sleep(AGAIN).await,
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
