use std::sync::Mutex;
use std::sync::PoisonError;

use windlass_core::{
    BoxFuture, Capabilities, Capability, Hint, Notifier, Publisher, Result, Store, Subscription, Topic,
    TypeName,
};

use super::scene::Scene;

/// Opens scenes on one pair of a store and a notifier.
pub trait BehaviourFixture: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The pair, for reports: `memory+in-process`.
    fn name(&self) -> &str;

    /// What the store can do. Cases that need more are skipped.
    fn capabilities(&self) -> Capabilities;

    /// Whether hints arrive. Without them the cases about hints are skipped, and polling does the work.
    fn has_hints(&self) -> bool {
        true
    }

    /// Whether its scenes come with an outage: see [`Scene::with_outage`].
    fn has_outage(&self) -> bool {
        false
    }

    /// Opens a fresh, empty namespace that nobody else uses, through two independent handles.
    fn open(&self) -> BoxFuture<'_, Scene<Self::Store>>;
}

/// What a case needs of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The store can do this.
    Store(Capability),
    /// Hints arrive.
    Hints,
    /// Connections can be broken.
    Outage,
}

impl Need {
    /// What the pair lacks, if it cannot do this.
    pub(super) fn missing(self, fixture: &impl BehaviourFixture) -> Option<String> {
        match self {
            Self::Store(capability) if !fixture.capabilities().has(capability) => {
                Some(format!("lacks {capability:?}"))
            }
            Self::Hints if !fixture.has_hints() => Some("hints do not arrive".to_owned()),
            Self::Outage if !fixture.has_outage() => Some("has no outage".to_owned()),
            _ => None,
        }
    }
}

/// A notifier that loses every hint: with it, polling alone must do the work.
#[derive(Debug, Default)]
pub struct MuteNotifier {
    /// Kept, so that subscriptions stay open.
    publishers: Mutex<Vec<Publisher>>,
}

impl Notifier for MuteNotifier {
    fn publish(&self, _: Hint) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn subscribe(&self, _: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        let (publisher, subscription) = Subscription::new(|| {});
        self.publishers.lock().unwrap_or_else(PoisonError::into_inner).push(publisher);
        Box::pin(async { Ok(subscription) })
    }

    fn claim_wake(&self, _: TypeName) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async { Ok(true) })
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
