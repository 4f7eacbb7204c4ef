//! Keeps a separate value for each runtime that shares a client.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime::Id;

/// One value for each runtime.
///
/// Several runtimes may share a client, and one of them may not be driven: a `current_thread` runtime runs its tasks
/// only inside `block_on`. A background task there may stand still for any time. So each runtime has its own tasks, and
/// a caller never waits for the task of another runtime.
pub(crate) struct PerRuntime<T>(Mutex<Vec<(Id, T)>>);

impl<T> PerRuntime<T> {
    /// Changes the value of a runtime. Creates it if there is none.
    pub(crate) fn with<R>(&self, runtime: Id, change: impl FnOnce(&mut T) -> R) -> R
    where
        T: Default,
    {
        let mut values = self.lock();
        // A program has few runtimes.
        let known = values.iter().position(|(id, _)| *id == runtime);
        let index = known.unwrap_or_else(|| {
            values.push((runtime, T::default()));
            values.len() - 1
        });
        let (_, value) = values.get_mut(index).expect("the index was just found or pushed");
        change(value)
    }

    /// Removes the value of a runtime.
    pub(crate) fn remove(&self, runtime: Id) -> Option<T> {
        let mut values = self.lock();
        let index = values.iter().position(|(id, _)| *id == runtime)?;
        Some(values.swap_remove(index).1)
    }

    /// Removes the values that are no longer needed.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        self.lock().retain(|(_, value)| keep(value));
    }

    /// Returns a value computed from each value.
    pub(crate) fn map<R>(&self, map: impl FnMut(&T) -> R) -> Vec<R> {
        self.lock().iter().map(|(_, value)| value).map(map).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Id, T)>> {
        // No code panics in the middle of a change under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for PerRuntime<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for PerRuntime<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerRuntime").field("count", &self.lock().len()).finish()
    }
}
