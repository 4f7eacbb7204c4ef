use std::sync::Mutex;
use std::sync::PoisonError;

use windlass_core::{
    BoxFuture, Capabilities, Capability, Hint, Notifier, Publisher, Result, Store, Subscription, Topic,
    TypeName,
};

use super::scene::Scene;

/// Opens scenes for one pair of a store and a notifier.
pub trait BehaviorFixture: Send + Sync + 'static {
    /// The type of the store.
    type Store: Store;

    /// Returns the name of the pair for reports, such as `memory+in-process`.
    fn name(&self) -> &str;

    /// Returns the capabilities of the store. Cases that need others are skipped.
    fn capabilities(&self) -> Capabilities;

    /// Whether hints arrive. If not, the cases about hints are skipped, and workers depend on polling.
    fn has_hints(&self) -> bool {
        true
    }

    /// Whether the scenes can break connections: see [`Scene::with_outage`].
    fn has_outage(&self) -> bool {
        false
    }

    /// Opens a fresh, empty namespace that nothing else uses, through two independent handles.
    fn open(&self) -> BoxFuture<'_, Scene<Self::Store>>;
}

/// A requirement of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The store has this capability.
    Store(Capability),
    /// Hints arrive.
    Hints,
    /// Connections can be broken.
    Outage,
}

impl Need {
    /// Returns what the pair lacks, or `None` if it meets this need.
    pub(super) fn missing(self, fixture: &impl BehaviorFixture) -> Option<String> {
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

/// A notifier that loses every hint, so that clients and workers depend on polling.
#[derive(Debug, Default)]
pub struct MuteNotifier {
    /// Kept, because dropping a publisher ends its subscription.
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
