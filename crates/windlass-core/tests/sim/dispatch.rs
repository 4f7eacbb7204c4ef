//! The notifier and the observer of a node.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use windlass_core::{
    BoxFuture, Event, Hint, InProcessNotifier, Notifier, Observer, Publisher, Result, Signal, Subscription,
    Topic, TypeName,
};

use super::fact::Fact;
use super::invariant::Invariant;
use super::store::down;
use super::world::{NodeId, World, pass, short};

/// Compares announced events with what was committed.
#[derive(Debug)]
pub(crate) struct SimObserver {
    pub(crate) world: Arc<World>,
    pub(crate) node: NodeId,
}

impl Observer for SimObserver {
    fn observe(&self, event: &Event) {
        if !self.world.is_alive(self.node) {
            return;
        }
        let text = format!("{event:?}");
        let name = text.split('(').next().unwrap_or_default();
        self.world.count(format!("event {name}"));
        let Some(fact) = Fact::claimed(event) else { return };
        let committed = self.world.state().journal.take(&fact);
        if !committed {
            let what = format!("{event:?} is announced but was not committed, or was announced before");
            self.world.violate(Invariant::OnlyCommitsAreAnnounced, what);
        }
    }
}

/// A notifier whose hints get lost, arrive late or arrive twice.
#[derive(Debug)]
pub(crate) struct SimNotifier {
    pub(crate) world: Arc<World>,
    pub(crate) node: NodeId,
    pub(crate) inner: InProcessNotifier,
}

impl SimNotifier {
    /// Checks that a closed chain that a hint announces was committed as closed.
    fn check(&self, hint: &Hint) {
        if let Hint::ChainClosed(chain) = hint
            && !self.world.state().journal.is_or_was_closed(*chain)
        {
            let what = format!("chain {} is announced as closed", short(chain.as_uuid()));
            self.world.violate(Invariant::OnlyCommitsAreAnnounced, what);
        }
    }
}

impl Notifier for SimNotifier {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.world.alive(self.node).await;
            self.check(&hint);
            if self.world.hint_fails() {
                self.world.count("hint not published");
                return match self.world.below(3) {
                    0 => Ok(()),
                    1 => Err(down()),
                    _ => std::future::pending().await,
                };
            }
            self.inner.publish(hint).await
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            self.world.alive(self.node).await;
            if self.world.hint_fails() && self.world.percent(50) {
                self.world.count("subscription refused");
                return Err(down());
            }
            let heard = self.inner.subscribe(topics).await?;
            let ended = CancellationToken::new();
            let end = ended.clone();
            let (publisher, subscription) = Subscription::new(move || end.cancel());
            tokio::spawn(forward(Arc::clone(&self.world), self.node, heard, publisher, ended));
            Ok(subscription)
        })
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            if self.world.hint_fails() { Ok(false) } else { self.inner.claim_wake(job_type).await }
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

/// Forwards hints to one subscriber, with faults.
async fn forward(
    world: Arc<World>,
    node: NodeId,
    mut heard: Subscription,
    publisher: Publisher,
    ended: CancellationToken,
) {
    while let Some(Some(signal)) = ended.run_until_cancelled(heard.next()).await {
        let Signal::Hint(hint) = signal else {
            publisher.gap();
            continue;
        };
        if !world.is_alive(node) {
            return;
        }
        if !world.hint_fails() {
            world.count("hint delivered");
            publisher.send(hint);
            continue;
        }
        match world.below(4) {
            0 => world.count("hint lost"),
            1 => {
                world.count("hint doubled");
                publisher.send(hint.clone());
                publisher.send(hint);
            }
            2 => {
                world.count("hint gap");
                publisher.gap();
            }
            _ => {
                world.count("hint late");
                let (publisher, late) = (publisher.clone(), world.between(Duration::ZERO, 5 * SECOND));
                tokio::spawn(async move {
                    pass(late).await;
                    publisher.send(hint);
                });
            }
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
