use std::sync::Arc;

use super::{BoxFuture, Capabilities, Counters, Finding, Store};
use crate::command::*;
use crate::error::Result;
use crate::for_each_command;

/// A store of any kind, by value. A `dyn Store` has a lifetime that futures with a reference to it take along,
/// so that the compiler does not see that they can be sent to another thread; this has none.
#[derive(Debug)]
pub(crate) struct AnyStore(pub(crate) Arc<dyn Store>);

macro_rules! forward {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for AnyStore {
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
for_each_command!(forward);
