use std::fmt;
use std::sync::Arc;

use super::{BoxFuture, Capabilities, Counters, Finding, Store};
use crate::command::*;
use crate::error::Result;
use crate::for_each_command;
use crate::notifier::Notifier;

/// An owned, type-erased store.
///
/// A future that borrows a `dyn Store` captures the lifetime of the trait object, and the compiler then
/// cannot prove that the future is `Send`. This type has no lifetime.
#[derive(Debug, Clone)]
pub(crate) struct AnyStore(Arc<dyn Store>);

impl AnyStore {
    pub(crate) fn new<S: Store + ?Sized>(store: Arc<S>) -> Self {
        Self(Arc::new(Shared(store)))
    }
}

/// Wraps a store that may be unsized. `Arc<S>` converts to `Arc<dyn Store>` only for a sized `S`.
struct Shared<S: ?Sized>(Arc<S>);

impl<S: Store + ?Sized> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! forward {
    ([$($generics:tt)*] $store:ty, $($method:ident: $request:ident => $reply:ident,)*) => {
        impl<$($generics)*> Store for $store {
            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                self.0.$method(request)
            })*

            fn capabilities(&self) -> Capabilities {
                self.0.capabilities()
            }

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                self.0.erase()
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                self.0.health()
            }

            fn counters(&self) -> Counters {
                self.0.counters()
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                self.0.notifier()
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                self.0.close()
            }
        }
    };
}

macro_rules! forward_both {
    ($($commands:tt)*) => {
        forward!([] AnyStore, $($commands)*);
        forward!([S: Store + ?Sized] Shared<S>, $($commands)*);
    };
}
for_each_command!(forward_both);
