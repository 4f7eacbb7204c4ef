use std::sync::atomic::{AtomicBool, Ordering};

/// Marks the listening connection of a notifier as open until it is dropped, even if the listening task is aborted. For
/// implementations of [`Notifier::reach`](super::Notifier::reach).
#[derive(Debug)]
#[must_use = "the connection counts as closed when this is dropped"]
pub struct Connected<'a>(&'a AtomicBool);

impl<'a> Connected<'a> {
    /// Sets the flag, and clears it when the result is dropped.
    pub fn new(is_connected: &'a AtomicBool) -> Self {
        is_connected.store(true, Ordering::Release);
        Self(is_connected)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
