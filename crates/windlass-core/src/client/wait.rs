use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Client;
use crate::chain::Chain;
use crate::error::{Error, ErrorKind, Result};
use crate::job::Entry;
use crate::notifier::{Subscription, Topic};
use crate::store::{BoxFuture, Store};

/// How often a wait looks at the store beside notifications.
const POLL: Duration = Duration::from_secs(15);

/// How long a wait lasts unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

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
        let deadline = Instant::now() + self.timeout;
        // Subscribed before the first look, so that no end falls between the two. Without notifications it still polls.
        let topic = Topic::ChainClosed(self.chain.id());
        let mut subscription = self.client.shared.notifier.subscribe(vec![topic]).await.ok();
        loop {
            if let Some(output) = self.client.output(self.chain).await? {
                return Ok(output);
            }
            if Instant::now() >= deadline {
                let (chain, waited) = (self.chain.id(), self.timeout);
                let text = format!("chain {chain} is still open after {waited:?}; it goes on");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            let next_look = deadline.min(Instant::now() + self.poll);
            let _ = timeout_at(next_look, signal(&mut subscription, next_look)).await;
        }
    }
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
