//! Counts stored trace contexts that cannot be parsed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::metrics::Counter;
use windlass_core::TraceContext;

/// Counts stored contexts that cannot be parsed, once there is a counter. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InvalidContexts(Arc<Invalid>);

#[derive(Debug, Default)]
struct Invalid {
    counter: Mutex<Option<Counter<u64>>>,
    has_warned: AtomicBool,
}

impl InvalidContexts {
    /// Sets the counter.
    pub(crate) fn count_with(&self, counter: Counter<u64>) {
        *self.0.lock() = Some(counter);
    }

    /// Counts a malformed context. Warns the first time: another program wrote it.
    pub(crate) fn found(&self, context: &TraceContext) {
        // Cloned, because a counter may run code of the application, which must not find a lock held.
        let counter = self.0.lock().clone();
        if let Some(counter) = counter {
            counter.add(1, &[]);
        }
        if !self.0.has_warned.swap(true, Ordering::Relaxed) {
            let context = context.as_str();
            tracing::warn!(target: "windlass", context, "a stored trace context is malformed and is ignored; further ones are not logged");
        }
    }
}

impl Invalid {
    fn lock(&self) -> MutexGuard<'_, Option<Counter<u64>>> {
        self.counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
