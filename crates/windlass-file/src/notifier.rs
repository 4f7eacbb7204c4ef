//! Notifies processes that share a folder.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};

use windlass_core::{
    BoxFuture, ChainId, EventFiles, Hint, InProcessNotifier, Notifier, Reach, Result, Subscription,
    Timestamp, Topic, TypeName,
};

use crate::hint::Hints;
use crate::shared::Shared;
use crate::store::FileStore;
use crate::watch;

/// A notifier for this process that also detects changes that other processes make to the same folder.
///
/// While there are subscriptions, a thread waits until the system reports that the file `head` has changed. It then
/// replays what was committed, and derives hints from it: jobs that became pending, chains that closed, and jobs that a
/// worker of this process has lost or was asked to stop. If the system cannot report changes, the thread checks the
/// file every 10 ms.
///
/// Events reach other processes through files in the folder `<folder>-events`, which exists while there are subscribers to
/// events.
///
/// Clients of a [`FileStore`] use it by default. Clones share everything.
#[derive(Clone)]
pub struct FileNotifier {
    listener: Arc<Listener>,
    events: EventFiles,
    shared: Weak<Shared>,
}

/// The part of a notifier that the store calls.
pub(crate) struct Listener {
    inside: InProcessNotifier,
    awaited: Mutex<Awaited>,
}

/// The topics to publish after a gap.
#[derive(Default)]
struct Awaited {
    /// All types ever subscribed to. They are few, and the same ones are subscribed to again.
    types: BTreeSet<TypeName>,
    chains: HashSet<ChainId>,
    /// The number of chains above which those without a subscriber are removed.
    chains_max: usize,
}

const CHAINS_MIN: usize = 1_024;

impl FileNotifier {
    /// Creates a notifier for the store's folder, on top of an in-process notifier that other parts of this process may
    /// also use.
    #[must_use]
    pub fn over(inside: InProcessNotifier, store: &FileStore) -> Self {
        Self::new(inside, store.shared())
    }

    pub(crate) fn new(inside: InProcessNotifier, shared: &Arc<Shared>) -> Self {
        // The path may be relative, or end with a slash.
        let folder = shared.folder.path();
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let mut events = folder.clone().into_os_string();
        events.push("-events");
        let events = EventFiles::new(inside.clone(), events.into(), folder);
        let listener = Arc::new(Listener { inside, awaited: Mutex::default() });
        shared.watch.add(&listener);
        Self { listener, events, shared: Arc::downgrade(shared) }
    }
}

impl Notifier for FileNotifier {
    fn publish(&self, hint: Hint) -> BoxFuture<'_, Result<()>> {
        let sent = if let Hint::Event(event) = &hint { self.events.send(event) } else { Ok(()) };
        Box::pin(async {
            self.listener.inside.publish(hint).await?;
            sent
        })
    }

    fn subscribe(&self, topics: Vec<Topic>) -> BoxFuture<'_, Result<Subscription>> {
        Box::pin(async move {
            let subscription = self.listener.inside.subscribe(topics.clone()).await?;
            if topics.contains(&Topic::Events) {
                self.events.receive();
            }
            self.listener.add(topics);
            if let Some(shared) = self.shared.upgrade() {
                watch::start(&shared);
            }
            Ok(subscription)
        })
    }

    fn reach(&self) -> Reach {
        match self.shared.upgrade() {
            Some(shared) if shared.watch.is_needed() => Reach::Everywhere,
            _ => Reach::Process,
        }
    }

    fn claim_wake(&self, job_type: TypeName) -> BoxFuture<'_, Result<bool>> {
        self.listener.inside.claim_wake(job_type)
    }

    fn is_awaited(&self, chain: ChainId) -> bool {
        self.listener.inside.is_awaited(chain)
    }

    fn is_watched(&self) -> Option<bool> {
        Some(self.events.is_watched())
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.events.close();
        self.listener.inside.close()
    }
}

impl Listener {
    fn add(&self, topics: Vec<Topic>) {
        let mut awaited = self.awaited();
        for topic in topics {
            match topic {
                Topic::Scheduled(job_type) => drop(awaited.types.insert(job_type)),
                Topic::ChainClosed(chain) => drop(awaited.chains.insert(chain)),
                _ => {}
            }
        }
        if awaited.chains.len() > awaited.chains_max {
            awaited.chains.retain(|chain| self.inside.is_awaited(*chain));
            awaited.chains_max = CHAINS_MIN.max(2 * awaited.chains.len());
        }
    }

    /// Publishes hints in this process.
    pub(crate) fn publish(&self, hints: &Hints) {
        let mut all = hints.list();
        if hints.has_gap {
            // Any of the awaited changes may have been missed, so wake all subscribers.
            let awaited = self.awaited();
            let due_at = Timestamp::default();
            all.extend(awaited.types.iter().map(|job_type| Hint::Scheduled {
                job_type: job_type.clone(),
                count: u32::MAX,
                due_at,
            }));
            all.extend(awaited.chains.iter().copied().map(Hint::ChainClosed));
        }
        for hint in all {
            // The in-process notifier never waits, so the future is ready on its first poll. It fails only if the
            // notifier is closed.
            let mut publishing = self.inside.publish(hint);
            let _ = publishing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl fmt::Debug for FileNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileNotifier").finish_non_exhaustive()
    }
}
