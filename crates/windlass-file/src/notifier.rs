//! Notifies processes that share a folder.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Waker};

use windlass_core::{
    BoxFuture, ChainId, EventFiles, Hint, InProcessNotifier, Notifier, Reach, Result, Subscription, Topic,
    TypeName,
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

/// The topics to which hints may have been missed after a gap.
#[derive(Default)]
struct Awaited {
    topics: HashSet<Topic>,
    /// The number of topics above which those without a subscriber are removed.
    max: usize,
}

const TOPICS_MIN: usize = 1_024;

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
        // Events do not come from the journal.
        let is_from_journal = |topic: &Topic| !matches!(topic, Topic::Events | Topic::EventSubscribers);
        awaited.topics.extend(topics.into_iter().filter(is_from_journal));
        if awaited.topics.len() > awaited.max {
            awaited.topics.retain(|topic| self.inside.is_subscribed(topic));
            awaited.max = TOPICS_MIN.max(2 * awaited.topics.len());
        }
    }

    /// Publishes hints in this process.
    pub(crate) fn publish(&self, hints: &Hints) {
        if hints.has_gap {
            // Any of the awaited changes may have been missed.
            self.awaited().topics.iter().for_each(|topic| self.inside.gap(topic));
        }
        for hint in hints.list() {
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
