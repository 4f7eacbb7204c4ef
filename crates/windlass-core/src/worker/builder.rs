use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::BoxError;
use super::abort::AbortReason;
use super::any_attempt::AnyAttempt;
use super::handler::Handler;
use super::handlers::{Handlers, Kind};
use super::hooks::Hooks;
use super::keeper::{beat, keep};
use super::middleware::Middleware;
use super::run::Loop;
use super::settle::Settling;
use super::slot::Engine;
use crate::client::{Client, News, What};
use crate::clock::far;
use crate::command::{Outcome, Retire, Settled, Settlement};
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::job::{Job, JobOptions};
use crate::limit::REAP_EXCEPT_MAX;
use crate::name::TypeName;
use crate::observer::Event;
use crate::store::{Capability, Store, Transactional};

/// How long a worker looks for jobs without being told of any.
const POLL: Duration = Duration::from_secs(60);

/// A worker to be started: its state, its handlers and its limits.
#[must_use = "a worker does nothing until it is started"]
pub struct Worker<S: ?Sized, A = ()> {
    client: Client<S>,
    app: A,
    name: Option<String>,
    concurrency: u32,
    poll: Duration,
    handlers: Handlers<S, A>,
    required: Vec<Kind>,
}

impl<S: Store + ?Sized> Worker<S> {
    /// A worker for this client's store, with one slot and no handlers.
    pub fn new(client: &Client<S>) -> Self {
        let (handlers, required) = (Handlers::new(), Vec::new());
        Self { client: client.clone(), app: (), name: None, concurrency: 1, poll: POLL, handlers, required }
    }

    /// Gives handlers this state. Call it before `handle`.
    pub fn state<A: Clone + Send + Sync + 'static>(self, app: A) -> Worker<S, A> {
        let Self { client, name, concurrency, poll, handlers, required, .. } = self;
        Worker { client, app, name, concurrency, poll, handlers: handlers.with_state(()), required }
    }
}

impl<S: Store + ?Sized, A: Clone + Send + Sync + 'static> Worker<S, A> {
    /// How many attempts run at once; 1 unless said otherwise.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.concurrency = slots;
        self
    }

    /// How often it looks for jobs without being told of any; 60 s unless said otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// A name for people. The worker's id is unique all the same.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Runs jobs of one type with this handler. Types without a handler here are left for other workers.
    pub fn handle<J: Job, M>(mut self, handler: impl Handler<J, S, A, M>) -> Self {
        self.handlers = self.handlers.handle(handler);
        self
    }

    /// The same, with at most so many attempts of this type at once; jobs stored under a former name count
    /// for themselves.
    pub fn handle_at_most<J: Job, M>(mut self, slots: u32, handler: impl Handler<J, S, A, M>) -> Self {
        self.handlers = self.handlers.handle_at_most(slots, handler);
        self
    }

    /// Runs jobs of a type that is named at run time; see [`Handlers::handle_any`].
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

    /// Wraps this around every attempt. The first that is added is the outermost, and all of them are outside
    /// those of sets.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.handlers = self.handlers.middleware(middleware);
        self
    }

    /// Lets these take part in the transactions of all attempts, before the hooks of sets.
    pub fn hooks(mut self, hooks: impl Hooks<S::Tx>) -> Self
    where
        S: Transactional,
    {
        self.handlers = self.handlers.hooks(hooks);
        self
    }

    /// Refuses to start unless every handler is wrapped in middleware of this one's type; of several, in the
    /// order of these calls. This does not wrap it.
    pub fn require<M: Middleware>(mut self, _like: &M) -> Self {
        self.required.push(Kind::of::<M>());
        self
    }

    /// Checks everything and starts. Must be called inside a tokio runtime.
    pub async fn start(self) -> Result<Running<S>> {
        let handlers = self.handlers.build(&self.app, &self.required)?;
        if handlers.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the worker has no handler: give it at least one"));
        }
        if self.concurrency == 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the worker has no slot: give it a concurrency of at least 1",
            ));
        }
        if self.concurrency as usize > REAP_EXCEPT_MAX {
            let text = format!("{} slots in one worker: at most {REAP_EXCEPT_MAX}", self.concurrency);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if self.poll < Duration::from_millis(1) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a poll interval of no time: give it a millisecond at least",
            ));
        }
        let engine = Engine::new(self.client, self.name, self.concurrency, self.poll, handlers)?;
        engine.teller().observe(&Event::WorkerStarted(engine.id));
        engine.tell_consumers(What::ConsumerStarted);
        let keepers = [tokio::spawn(keep(Arc::clone(&engine))), tokio::spawn(beat(Arc::clone(&engine)))];
        let main = tokio::spawn(Loop::run(Arc::clone(&engine)));
        Ok(Running { engine, main: Some(main), keepers })
    }
}

/// A worker that runs. Dropped, it takes no more jobs and renews no lease; handlers that run are told, and may
/// still end if nobody has taken their jobs over. Better to [`stop`](Self::stop) it.
pub struct Running<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    main: Option<JoinHandle<()>>,
    keepers: [JoinHandle<()>; 2],
}

impl<S: Store + ?Sized> Running<S> {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.engine.id
    }

    /// Takes no more jobs, tells handlers to stop, waits for them until the deadline, and gives what is left
    /// back, uncounted.
    pub async fn stop(mut self, deadline: Duration) {
        let engine = Arc::clone(&self.engine);
        let until = far(deadline);
        engine.teller().observe(&Event::WorkerStopping(engine.id));
        engine.stopping.cancel();
        engine.abort_all();
        if let Some(mut main) = self.main.take()
            && timeout_at(until.max(Instant::now() + MOMENT), &mut main).await.is_err()
        {
            // It hangs in the store. What it may still take goes back when its lease ends.
            main.abort();
            let _ = main.await;
        }
        let _ = timeout_at(until.max(Instant::now() + MOMENT), engine.take_back()).await;
        engine.abort_all();
        engine.emptied(until).await;
        engine.release().await;
        self.keepers.iter().for_each(JoinHandle::abort);
        if engine.client.store().capabilities().has(Capability::Workers) {
            let _ = timeout_at(last_call(), engine.client.store().retire(Retire { worker: engine.id })).await;
        }
        engine.teller().observe(&Event::WorkerStopped(engine.id));
        engine.tell_consumers(What::ConsumerStopped);
    }
}

/// The least time for what is nearly done.
pub(super) const MOMENT: Duration = Duration::from_millis(100);

/// With the store unreachable, leases end by themselves: stopping does not wait for it.
fn last_call() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

impl<S: Store + ?Sized> Engine<S> {
    /// Tells those who watch a queue that this worker handles.
    fn tell_consumers(&self, what: What) {
        for job_type in self.types() {
            self.teller().tell(|| Some(News::consumer(what, &job_type, self.id)));
        }
    }

    /// Tells all handlers that the worker stops.
    fn abort_all(&self) {
        let slots = self.slots();
        slots.running.values().for_each(|slot| slot.abort.abort(AbortReason::WorkerStopping));
    }

    /// Waits until no slot is taken.
    async fn emptied(&self, until: Instant) {
        loop {
            let freed = self.freed.notified();
            if self.slots().running.is_empty() || timeout_at(until, freed).await.is_err() {
                return;
            }
        }
    }

    /// Gives back what still runs. What has ended and is being written is waited for.
    async fn release(self: &Arc<Self>) {
        let until = last_call();
        let mut releases = JoinSet::new();
        for ((job, fence), slot) in self.slots().running.iter().filter(|(_, slot)| !slot.settling) {
            slot.abort.end();
            let (engine, about) = (Arc::clone(self), Arc::clone(&slot.about));
            let settlement = Settlement { job: *job, fence: *fence, outcome: Outcome::Release };
            let settling = Arc::new(Settling { settlement, about });
            releases.spawn(async move {
                // Busy while the handler's transaction is still being rolled back.
                // An error may pass as well.
                while let Ok(Settled::Busy) | Err(_) = engine.settles.add(Arc::clone(&settling)).await {
                    tokio::time::sleep(MOMENT).await;
                }
            });
        }
        let released = async { while releases.join_next().await.is_some() {} };
        let _ = timeout_at(until, released).await;
        self.emptied(until).await;
        // What hangs while its end is written keeps no transaction open behind the stop.
        self.slots().running.values().for_each(|slot| slot.abort.end());
    }
}

impl<S: Store + ?Sized> Drop for Running<S> {
    fn drop(&mut self) {
        self.engine.stopping.cancel();
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
