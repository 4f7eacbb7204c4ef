//! Watches the folder for commits by other processes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use windlass_core::WorkerId;
use windlass_core::command::Command;

use crate::folder::HEAD;
use crate::hint::Hints;
use crate::notifier::Listener;
use crate::shared::Shared;

/// How often the folder is checked even if the system reports changes, because it may drop reports if there are many.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How often the folder is checked if the system cannot report changes. A check is one system call.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The notifiers of a store, and the thread that watches for them.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    listeners: Mutex<Vec<Weak<Listener>>>,
    /// The workers that acquire jobs through this store. Only these are notified of lost jobs: workers of other stores in
    /// this process may have settled the jobs themselves.
    workers: Mutex<HashSet<WorkerId>>,
    /// Whether the thread runs.
    is_running: AtomicBool,
    /// Wakes the thread.
    wake: Mutex<Option<SyncSender<()>>>,
}

impl Watch {
    /// Adds a notifier.
    pub(crate) fn add(&self, listener: &Arc<Listener>) {
        let mut listeners = self.listeners();
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    /// Whether hints have a receiver.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// Records which workers use this store.
    pub(crate) fn note(&self, command: &Command) {
        match command {
            Command::Acquire(acquire) => drop(self.workers().insert(acquire.worker)),
            Command::Exchange(exchange) => drop(self.workers().insert(exchange.acquire.worker)),
            Command::CreateAndAcquire(joined) => drop(self.workers().insert(joined.acquire.worker)),
            Command::Retire(retire) => drop(self.workers().remove(&retire.worker)),
            _ => {}
        }
    }

    /// Passes hints to all notifiers.
    pub(crate) fn publish(&self, mut hints: Hints) {
        hints.retain_lost(&self.workers());
        let hints = &hints;
        let listeners: Vec<_> = self.listeners().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.publish(hints));
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        if let Some(wake) = self.wake().take() {
            let _ = wake.try_send(());
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, HashSet<WorkerId>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) -> MutexGuard<'_, Option<SyncSender<()>>> {
        self.wake.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread, unless it runs already.
pub(crate) fn start(shared: &Arc<Shared>) {
    if shared.is_closed() || shared.watch.is_running.swap(true, Ordering::AcqRel) {
        return;
    }
    // One report is enough, no matter how many changes there were.
    let (sender, reports) = mpsc::sync_channel(1);
    *shared.watch.wake() = Some(sender.clone());
    let watcher = watcher(shared, sender);
    let interval = if watcher.is_some() { CHECK_INTERVAL } else { POLL_INTERVAL };
    let weak = Arc::downgrade(shared);
    let work = move || {
        // Reports end when this is dropped.
        let _watcher = watcher;
        // Check immediately: another process may have written before the watch began.
        while follow(&weak) {
            let _ = reports.recv_timeout(interval);
        }
    };
    if std::thread::Builder::new().name("windlass-watch".to_owned()).spawn(work).is_err() {
        shared.watch.is_running.store(false, Ordering::Release);
    }
}

/// Asks the system to report changes. Returns `None` if it cannot.
fn watcher(shared: &Shared, sender: SyncSender<()>) -> Option<RecommendedWatcher> {
    let watch = || {
        let mut watcher = notify::recommended_watcher(move |_| {
            let _ = sender.try_send(());
        })?;
        watcher.watch(&shared.folder.path().join(HEAD), RecursiveMode::NonRecursive)?;
        Ok::<_, notify::Error>(watcher)
    };
    match watch() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let folder = shared.folder.path().display();
            tracing::warn!(
                %folder, %error,
                "the system cannot report changes of the folder: it is checked every {POLL_INTERVAL:?} instead"
            );
            None
        }
    }
}

/// Replays what other processes have committed. Returns `false` if the store is closed.
fn follow(shared: &Weak<Shared>) -> bool {
    let Some(shared) = shared.upgrade() else { return false };
    if shared.is_closed() {
        shared.watch.is_running.store(false, Ordering::Release);
        return false;
    }
    // The system also reports what this store has written. Do not wait for the writer then.
    if shared.is_own_head() {
        return true;
    }
    // An error only delays hints: the next command reports it.
    let _ = shared.state().and_then(|mut state| shared.follow(&mut state));
    true
}
