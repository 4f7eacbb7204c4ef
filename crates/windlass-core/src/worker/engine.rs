//! The state that all tasks of one worker share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::builder::Settings;
use super::handler::AnyHandler;
use super::health::Health;
use super::settle::{Settling, settlement_collector};
use super::slot::Slots;
use super::task_pool::TaskPool;
use crate::client::{Client, Collector, Dispatcher, Expected};
use crate::error::Result;
use crate::id::WorkerId;
use crate::job::Backoff;
use crate::name::{TypeName, WorkerName};
use crate::observer::{AboutWorker, Activity};
use crate::store::Store;

/// The state that all tasks of one worker share: the loop, the keeper, the heartbeat and the attempts.
pub(super) struct Engine<S: Store + ?Sized> {
    pub(super) id: WorkerId,
    pub(super) name: Option<WorkerName>,
    pub(super) concurrency: u32,
    /// The number of jobs that are acquired in advance.
    pub(super) prefetch: u32,
    /// Whether settlements and acquires are separate calls, which the store executes at the same time.
    pub(super) settles_apart: bool,
    pub(super) poll: Option<Duration>,
    /// The delay before another try after an error of the store.
    pub(super) recovery: Backoff,
    pub(super) jitters: bool,
    pub(super) handlers: Vec<Arc<AnyHandler<S>>>,
    /// Writes the settlements of attempts that end at about the same time with one command.
    pub(super) settlements: Collector<Settling<S>>,
    /// One permit for each acquire that may be in flight, alone or in an exchange: as many as the store handles best.
    pub(super) acquiring: Arc<Semaphore>,
    /// Whether the latest acquire returned as many jobs as it requested, so that more are probably due.
    pub(super) has_backlog: AtomicBool,
    pub(super) stopping: CancellationToken,
    /// Cancelled when the worker is dropped, after a stop or without one.
    pub(super) stopped: CancellationToken,
    /// Tasks that reschedule jobs without a handler.
    pub(super) put_backs: TaskTracker,
    /// Notified when a slot frees and no acquire covers it.
    pub(super) freed: Notify,
    /// Whether some handler had no room when the loop last checked. The loop then does not know when jobs of
    /// that handler are due, and must be woken when there is room.
    pub(super) full: AtomicBool,
    /// Notified when the keeper has something to do earlier than it planned.
    pub(super) keeper_wake: Notify,
    /// Notified when schedules may have changed.
    pub(super) schedules_changed: Notify,
    /// The number of jobs that the main loop found by polling, without a notification.
    pub(super) found_by_polling: AtomicU64,
    /// Whether the main loop can acquire jobs.
    pub(super) health: Arc<Health>,
    /// The jobs that the current acquire of the main loop expects.
    expected: Mutex<Option<Expected>>,
    slots: Mutex<Slots>,
    /// The tasks that wait for an attempt.
    pub(super) task_pool: TaskPool<S>,
    pub(super) client: Client<S>,
}

impl<S: Store + ?Sized> Engine<S> {
    pub(super) fn new(
        client: Client<S>,
        settings: Settings,
        handlers: Vec<Arc<AnyHandler<S>>>,
        health: Arc<Health>,
    ) -> Result<Arc<Self>> {
        let Settings { name, concurrency, prefetch, poll, recovery, jitters } = settings;
        let name = name.map(WorkerName::new).transpose()?;
        let keeper_wakes_at = Instant::now();
        let slots = Slots {
            running: HashMap::default(),
            outstanding: Vec::new(),
            keeper_wakes_at,
            active: 0,
            waiting: VecDeque::new(),
            is_starting: false,
        };
        let capabilities = client.store().capabilities();
        let exchanges = capabilities.max_exchanges();
        Ok(Arc::new_cyclic(|engine| Self {
            id: WorkerId::new(),
            name,
            concurrency,
            prefetch,
            settles_apart: prefetch > 0 && capabilities.is_parallel(),
            poll,
            recovery,
            jitters,
            handlers,
            settlements: settlement_collector(engine.clone(), exchanges),
            acquiring: Arc::new(Semaphore::new(exchanges)),
            has_backlog: AtomicBool::new(false),
            stopping: CancellationToken::new(),
            stopped: CancellationToken::new(),
            put_backs: TaskTracker::new(),
            freed: Notify::new(),
            full: AtomicBool::new(true),
            keeper_wake: Notify::new(),
            schedules_changed: Notify::new(),
            found_by_polling: AtomicU64::new(0),
            health,
            expected: Mutex::new(None),
            slots: Mutex::new(slots),
            task_pool: TaskPool::default(),
            client,
        }))
    }

    pub(super) fn about(&self) -> AboutWorker {
        AboutWorker { id: self.id, name: self.name.clone() }
    }

    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.client.shared.dispatcher
    }

    /// Reports the types and slots of the worker when it starts and after it has stopped.
    pub(super) fn report_capacity(&self, is_running: bool) {
        self.dispatcher().measure(|| Activity::WorkerCapacity {
            worker: self.about(),
            types: self.types().collect(),
            concurrency: self.concurrency,
            is_running,
        });
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        // No code panics halfway through a change while it holds this lock, so poisoning can be ignored.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn expected(&self) -> MutexGuard<'_, Option<Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns every job type that has a handler, including former names.
    pub(super) fn types(&self) -> impl Iterator<Item = TypeName> {
        self.handlers.iter().flat_map(|handler| handler.types.iter().cloned())
    }

    /// Whether the loop must be woken when there is room for more jobs.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::SeqCst)
    }
}
