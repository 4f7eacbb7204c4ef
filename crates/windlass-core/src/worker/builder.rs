use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::BoxError;
use super::abort::AbortReason;
use super::any_attempt::AnyAttempt;
use super::engine::Engine;
use super::handler::Handler;
use super::handlers::{Handlers, Kind};
use super::health::Unhealthy;
use super::hooks::Hooks;
use super::keeper::{beat, keep};
use super::main_loop::Loop;
use super::middleware::Middleware;
use super::settle::Settling;
use crate::client::{Client, EventKind, EventMessage};
use crate::clock::far;
use crate::command::{Outcome, Retire, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::job::{Job, JobOptions};
use crate::limit::REAP_EXCEPT_MAX;
use crate::name::TypeName;
use crate::observer::Event;
use crate::store::{Capability, Store, Transactional};

/// A worker that has not been started: its state, handlers and limits.
#[must_use = "a worker does nothing until it is started"]
pub struct Worker<S: ?Sized, A = ()> {
    client: Client<S>,
    app: A,
    name: Option<String>,
    concurrency: u32,
    poll: Option<Duration>,
    handlers: Handlers<S, A>,
    required: Vec<Kind>,
}

impl<S: Store + ?Sized> Worker<S> {
    /// Creates a worker for the client's store, with one slot and no handlers.
    pub fn new(client: &Client<S>) -> Self {
        let (handlers, required) = (Handlers::new(), Vec::new());
        Self { client: client.clone(), app: (), name: None, concurrency: 1, poll: None, handlers, required }
    }

    /// Sets the state that is passed to handlers. Call this before `handle`.
    pub fn state<A: Clone + Send + Sync + 'static>(self, app: A) -> Worker<S, A> {
        let Self { client, name, concurrency, poll, handlers, required, .. } = self;
        Worker { client, app, name, concurrency, poll, handlers: handlers.with_state(()), required }
    }
}

impl<S: Store + ?Sized, A: Clone + Send + Sync + 'static> Worker<S, A> {
    /// Sets how many attempts run at the same time. Default: 1.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.concurrency = slots;
        self
    }

    /// Sets how often the worker polls for jobs if it is not notified of any. Default: 5 s while notifications
    /// arrive from all processes, 1.5 s otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = Some(poll);
        self
    }

    /// Sets a name for display. It need not be unique; the worker's id is.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Runs jobs of one type with this handler. Jobs of types without a handler are left to other workers.
    pub fn handle<J: Job, M>(mut self, handler: impl Handler<J, S, A, M>) -> Self {
        self.handlers = self.handlers.handle(handler);
        self
    }

    /// Runs jobs of one type with this handler, with at most `slots` attempts of the type at the same time.
    ///
    /// An acquire applies the limit to each name of the type separately. If jobs are stored under a former
    /// name as well, more than `slots` attempts may run.
    pub fn handle_at_most<J: Job, M>(mut self, slots: u32, handler: impl Handler<J, S, A, M>) -> Self {
        self.handlers = self.handlers.handle_at_most(slots, handler);
        self
    }

    /// Runs jobs of a type that is named at run time. See [`Handlers::handle_any`].
    pub fn handle_any<F, Fut, E>(mut self, job_type: &TypeName, options: JobOptions, handler: F) -> Self
    where
        F: Fn(AnyAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.handlers = self.handlers.handle_any(job_type, options, handler);
        self
    }

    /// Adds a set of handlers, with its middleware and hooks.
    pub fn handlers(mut self, handlers: Handlers<S, A>) -> Self {
        self.handlers = self.handlers.merge(handlers);
        self
    }

    /// Wraps every attempt in this middleware. The first one added is the outermost. All of them are outside
    /// the middleware of handler sets.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.handlers = self.handlers.middleware(middleware);
        self
    }

    /// Adds hooks to the transactions of all attempts. They come before the hooks of handler sets in the
    /// order that [`Hooks`] describes.
    pub fn hooks(mut self, hooks: impl Hooks<S::Tx>) -> Self
    where
        S: Transactional,
    {
        self.handlers = self.handlers.hooks(hooks);
        self
    }

    /// Makes [`start`](Self::start) fail unless every handler is wrapped in middleware of this type. If
    /// several types are required, they must wrap the handler in the order of these calls, outermost first.
    ///
    /// This does not add the middleware.
    pub fn require<M: Middleware>(mut self, _like: &M) -> Self {
        self.required.push(Kind::of::<M>());
        self
    }

    /// Checks the configuration and starts the worker. Must be called inside a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the worker has no handler or no slot, if it has too many slots, if the poll
    /// interval is shorter than 1 ms, if the name is invalid, if a job type has two handlers or unusable
    /// options, or if a required middleware is missing.
    pub async fn start(self) -> Result<Running<S>> {
        let handlers = self.handlers.build(&self.app, &self.required)?;
        if handlers.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the worker has no handlers: add one with `.handle(…)`",
            ));
        }
        if self.concurrency == 0 {
            return Err(Error::new(ErrorKind::Invalid, "concurrency must be at least 1, got 0"));
        }
        if self.concurrency as usize > REAP_EXCEPT_MAX {
            let text = format!("concurrency must be at most {REAP_EXCEPT_MAX}, got {}", self.concurrency);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if let Some(poll) = self.poll
            && poll < Duration::from_millis(1)
        {
            let text = format!("poll interval must be at least 1 ms, got {poll:?}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let engine = Engine::new(self.client, self.name, self.concurrency, self.poll, handlers)?;
        engine.dispatcher().observe(&Event::WorkerStarted(engine.id));
        engine.publish_consumer_event(EventKind::ConsumerStarted);
        let keepers = [tokio::spawn(keep(Arc::clone(&engine))), tokio::spawn(beat(Arc::clone(&engine)))];
        let main = tokio::spawn(Loop::run(Arc::clone(&engine)));
        Ok(Running { engine, main: Some(main), keepers })
    }
}

/// A running worker.
///
/// If it is dropped, it acquires no more jobs and renews no leases. Running handlers are asked to stop. They
/// can still complete their jobs as long as no other worker has taken the jobs over. Prefer
/// [`stop`](Self::stop).
pub struct Running<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    main: Option<JoinHandle<()>>,
    keepers: [JoinHandle<()>; 2],
}

impl<S: Store + ?Sized> Running<S> {
    /// Returns the worker's id.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.engine.id
    }

    /// Returns an error while the worker cannot acquire jobs, because its latest command to the store failed.
    /// The worker retries with backoff, and recovers on its own. Suitable for a health check: the worker counts
    /// as healthy until its first command has failed, which takes up to 30 s if the store does not answer.
    pub fn health(&self) -> Result<(), Unhealthy> {
        self.engine.health.get()
    }

    /// Returns how many jobs the worker has found by polling, without having been notified of them. If this grows
    /// steadily, notifications do not arrive: see [`Client::reach`].
    #[must_use]
    pub fn found_by_polling(&self) -> u64 {
        self.engine.found_by_polling.load(Ordering::Relaxed)
    }

    /// Stops the worker.
    ///
    /// Acquires no more jobs, asks handlers to stop, and waits up to `deadline` for them to end. Then
    /// releases the jobs that still run; their attempts do not count.
    pub async fn stop(mut self, deadline: Duration) {
        let engine = Arc::clone(&self.engine);
        let until = far(deadline);
        engine.dispatcher().observe(&Event::WorkerStopping(engine.id));
        // Cancel first, then abort: `task::start` relies on this order.
        engine.stopping.cancel();
        engine.abort_all();
        if let Some(mut main) = self.main.take()
            && timeout_at(until.max(Instant::now() + STOP_GRACE), &mut main).await.is_err()
        {
            // The loop hangs in a store call. If that call leases jobs later, and `recover_acquire` does not get
            // them, they are requeued when their leases expire.
            main.abort();
            let _ = main.await;
        }
        let _ = timeout_at(until.max(Instant::now() + STOP_GRACE), engine.recover_acquire()).await;
        engine.abort_all();
        engine.emptied(until).await;
        engine.release().await;
        engine.put_backs.close();
        let _ = timeout_at(last_call(), engine.put_backs.wait()).await;
        // Not earlier: until here, handlers still run and need their leases.
        self.keepers.iter().for_each(JoinHandle::abort);
        if engine.client.store().capabilities().has(Capability::Workers) {
            let _ = timeout_at(last_call(), engine.client.store().retire(Retire { worker: engine.id })).await;
        }
        engine.dispatcher().observe(&Event::WorkerStopped(engine.id));
        engine.publish_consumer_event(EventKind::ConsumerStopped);
    }
}

/// The time that calls in flight get after the deadline of a stop.
const STOP_GRACE: Duration = Duration::from_millis(100);

/// The delay before another try of a call to the store that failed or found a row locked.
pub(super) const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Returns the time limit for the last calls of a stop to the store. If the store is unreachable, leases
/// expire on their own, so a stop need not wait for it.
fn last_call() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

impl<S: Store + ?Sized> Engine<S> {
    /// Publishes an event to the watchers of each job type that this worker handles.
    fn publish_consumer_event(&self, what: EventKind) {
        for job_type in self.types() {
            self.dispatcher().publish_event(|| Some(EventMessage::consumer(what, &job_type, self.id)));
        }
    }

    /// Asks all handlers to stop.
    fn abort_all(&self) {
        let slots = self.slots();
        slots.running.values().for_each(|slot| slot.abort.abort(AbortReason::WorkerStopping));
    }

    /// Waits until all slots are free, at most until `until`.
    async fn emptied(&self, until: Instant) {
        loop {
            let freed = self.freed.notified();
            if self.slots().running.is_empty() || timeout_at(until, freed).await.is_err() {
                return;
            }
        }
    }

    /// Ends the attempts whose handlers still run and releases their jobs. Waits for attempts that are being
    /// settled.
    async fn release(self: &Arc<Self>) {
        let until = last_call();
        let mut releases = JoinSet::new();
        for ((job, fence), slot) in self.slots().running.iter().filter(|(_, slot)| !slot.settling) {
            slot.abort.end();
            let (engine, about) = (Arc::clone(self), Arc::clone(&slot.about));
            let settlement = Settlement { job: *job, fence: *fence, outcome: Outcome::Release };
            let settling = Arc::new(Settling { settlement, about });
            releases.spawn(async move {
                // `Busy` until the transaction of the ended handler has been rolled back. An error may be
                // transient.
                while let Ok(Settled::Busy) | Err(_) = engine.settlements.add(Arc::clone(&settling)).await {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            });
        }
        let released = async { while releases.join_next().await.is_some() {} };
        let _ = timeout_at(until, released).await;
        self.emptied(until).await;
        // End the attempts whose settlement hangs, so that no transaction stays open after the stop.
        self.slots().running.values().for_each(|slot| slot.abort.end());
    }
}

impl<S: Store + ?Sized> Drop for Running<S> {
    fn drop(&mut self) {
        self.engine.stopping.cancel();
        self.engine.stopped.cancel();
        self.engine.abort_all();
        self.keepers.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Store + ?Sized> fmt::Debug for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("id", &self.engine.id).finish_non_exhaustive()
    }
}

impl<S: Store + ?Sized, A> fmt::Debug for Worker<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("concurrency", &self.concurrency).finish_non_exhaustive()
    }
}
