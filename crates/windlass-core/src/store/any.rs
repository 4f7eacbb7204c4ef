use std::fmt;
use std::sync::Arc;

use super::{BoxFuture, Capabilities, Counters, Finding, Store};
use crate::command::*;
use crate::error::Result;
use crate::for_each_command;

/// A store of any kind, by value. A `dyn Store` has a lifetime that futures with a reference to it take along,
/// so that the compiler does not see that they can be sent to another thread; this has none.
#[derive(Debug)]
pub(crate) struct AnyStore(Arc<dyn Store>);

impl AnyStore {
    pub(crate) fn new<S: Store + ?Sized>(store: Arc<S>) -> Self {
        Self(Arc::new(Shared(store)))
    }
}

/// A store that may be a `dyn Store`, as one that is not.
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
