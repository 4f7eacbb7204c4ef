use std::sync::Arc;

use windlass_core::{Decorator, Store};

/// A store of any type. Cases that do not depend on the type run on it, so that they are compiled once and not once for
/// each store.
///
/// It is not `dyn Store` itself: a future that borrows a `dyn Store` captures the lifetime of the trait object, and the
/// compiler then cannot prove that the future is `Send`.
#[derive(Clone, Debug)]
pub struct AnyStore(Arc<dyn Store>);

impl AnyStore {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

impl Decorator for AnyStore {
    type Inner = dyn Store;

    fn inner(&self) -> &dyn Store {
        &*self.0
    }
}
