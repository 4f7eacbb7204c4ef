use std::sync::Arc;

use windlass_core::command::*;
use windlass_core::{BoxFuture, Capabilities, Counters, Finding, Result, Store, for_each_command};

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

macro_rules! store {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for AnyStore {
            fn capabilities(&self) -> Capabilities {
                self.0.capabilities()
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                self.0.$method(request)
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                self.0.erase()
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                self.0.health()
            }

            fn counters(&self) -> Counters {
                self.0.counters()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                self.0.close()
            }
        }
    };
}
for_each_command!(store);
