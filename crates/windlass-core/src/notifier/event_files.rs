use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::mailbox::Mailboxes;
use super::{Hint, InProcessNotifier, Notifier as _, Topic};
use crate::error::{Error, ErrorKind, Result};

/// How often the mailbox is read while there are subscribers.
const READ_INTERVAL: Duration = Duration::from_millis(10);

/// Delay before the next attempt to create a mailbox.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Carries events between processes, for the notifier of a store in a file or folder. Clones share everything.
///
/// Events are exchanged through files in a folder, which exists while there are subscribers to events. Nothing is
/// synced: events are lossy.
#[derive(Clone)]
pub struct EventFiles {
    shared: Arc<Shared>,
}

struct Shared {
    inside: InProcessNotifier,
    mailboxes: Mailboxes,
    /// Reads the mailbox.
    task: Mutex<Option<JoinHandle<()>>>,
}

impl EventFiles {
    /// Prepares the exchange of events through files in `folder`, for the subscribers of `inside`. The files get the
    /// permissions and the group of `store`. Does not access files yet.
    #[must_use]
    pub fn new(inside: InProcessNotifier, folder: PathBuf, store: PathBuf) -> Self {
        let mailboxes = Mailboxes::new(folder, store, inside.id());
        Self { shared: Arc::new(Shared { inside, mailboxes, task: Mutex::default() }) }
    }

    /// Whether there is a subscriber to events, in any process.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.shared.inside.is_watched() == Some(true) || self.shared.mailboxes.has_others()
    }

    /// Sends an event to the other processes: one small write to the page cache for each process with subscribers.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if a process with subscribers does not read its events, or the disk is full.
    pub fn send(&self, event: &[u8]) -> Result<()> {
        self.shared.mailboxes.send(event).map_err(|error| {
            let text = format!("an event did not reach another process: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// Delivers the events of other processes while there are subscribers. Call this after a subscription to
    /// [`Topic::Events`], within a runtime. If that runtime ends, subscribers in other runtimes receive a gap, and no
    /// further events from other processes until the next subscription.
    pub fn receive(&self) {
        let mut task = self.shared.task();
        self.shared.open();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(read(Arc::downgrade(&self.shared))));
        }
    }

    /// Stops receiving events.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl fmt::Debug for EventFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFiles").field("folder", &self.shared.mailboxes.folder()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Creates the mailbox, unless it exists. Returns whether it does.
    fn open(&self) -> bool {
        let opened = self.mailboxes.open();
        if let Err(error) = &opened {
            let folder = self.mailboxes.folder().display();
            tracing::warn!(
                target: "windlass",
                %error,
                "events of other processes do not arrive: allow this process to create `{folder}`"
            );
        }
        opened.is_ok()
    }

    async fn deliver(&self) {
        let received = self.mailboxes.receive();
        for event in received.events {
            let _ = self.inside.publish(Hint::Event(event)).await;
        }
        if received.has_gap {
            self.inside.gap(&Topic::Events);
        }
    }

    /// Removes the mailbox if there are no subscribers left. Returns whether the task that reads it must end.
    ///
    /// The lock keeps a new subscriber from relying on a task that ends: it either subscribes before this check, or
    /// finds no task and starts another.
    fn is_over(&self) -> bool {
        let mut task = self.task();
        let is_over = !self.inside.is_subscribed(&Topic::Events);
        if is_over {
            *task = None;
            self.mailboxes.close();
        }
        is_over
    }

    fn close(&self) {
        let mut task = self.task();
        task.take().iter().for_each(JoinHandle::abort);
        self.mailboxes.close();
    }

    fn task(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// Closes the mailbox if the task ends with its runtime, because no task reads it anymore.
struct Reading {
    shared: Weak<Shared>,
    is_over: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade().filter(|_| !self.is_over) {
            shared.mailboxes.close();
            shared.inside.gap(&Topic::Events);
        }
    }
}

/// Delivers the events of other processes until there are no subscribers left.
async fn read(shared: Weak<Shared>) {
    let mut reading = Reading { shared, is_over: false };
    let mut retry_at = Instant::now();
    loop {
        sleep(READ_INTERVAL).await;
        let Some(shared) = reading.shared.upgrade() else { return };
        if shared.is_over() {
            // A new subscriber may have opened the mailbox again: it stays open.
            reading.is_over = true;
            return;
        }
        if Instant::now() >= retry_at && !shared.open() {
            retry_at = Instant::now() + RETRY_DELAY;
        }
        shared.deliver().await;
    }
}
