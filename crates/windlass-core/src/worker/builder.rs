//! Configures, starts and stops a worker.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

use super::BoxError;
use super::abort::AbortReason;
use super::any_attempt::AnyAttempt;
use super::engine::Engine;
use super::handler::Handler;
use super::handlers::{Handlers, Kind};
use super::health::{Health, Probe, Unhealthy};
use super::hooks::Hooks;
use super::keeper::{beat, keep};
use super::main_loop::{Loop, RECOVERY, hear_losses};
use super::middleware::Middleware;
use super::options::HandlerOptions;
use super::schedule::{self, Declaration, Declarations, Program, program_name};
use crate::client::{Client, EventKind, EventMessage, IntoPlan, send_repeatedly};
use crate::clock::far;
use crate::command::{Outcome, Retire, Settled};
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::job::{Backoff, Job};
use crate::limit::REAP_EXCEPT_MAX;
use crate::name::{ScheduleName, TypeName};
use crate::observer::Event;
use crate::schedule::{EncodedChain, ScheduleSpec};
use crate::store::{Capability, Store, Transactional};

/// The default number of attempts that run at the same time.
const CONCURRENCY: u32 = 10;

/// A worker that has not been started, with its handlers, their values and its settings.
///
/// A worker runs on the tokio runtime that starts it. Keep that runtime running: a `current_thread` runtime makes
/// progress only inside `block_on`. Between two calls, the worker neither runs the jobs that it has acquired nor renews
/// their leases.
#[must_use = "a worker does nothing until it is started"]
pub struct Worker<S: ?Sized> {
    client: Client<S>,
    handlers: Handlers<S>,
    defaults: HandlerOptions,
    required: Vec<Kind>,
    settings: Settings,
    health: Arc<Health>,
    program: Option<String>,
    schedules: Declarations,
}

impl<S: Store + ?Sized> Worker<S> {
    /// Creates a worker for the client's store, without handlers.
    pub fn new(client: &Client<S>) -> Self {
        Self {
            client: client.clone(),
            handlers: Handlers::new(),
            defaults: HandlerOptions::new(),
            required: Vec::new(),
            settings: Settings {
                name: None,
                concurrency: CONCURRENCY,
                prefetch: 0,
                poll: None,
                recovery: RECOVERY,
                jitters: true,
            },
            health: Arc::default(),
            program: None,
            schedules: Ok(Vec::new()),
        }
    }

    /// Passes a value to the handlers that take a [`Data`](crate::Data) of this type. A later value of the same type
    /// replaces an earlier one.
    pub fn data<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.handlers = self.handlers.data(value);
        self
    }

    /// Sets how many attempts run concurrently. Default: 10.
    pub fn concurrency(mut self, slots: u32) -> Self {
        self.settings.concurrency = slots;
        self
    }

    /// Sets how many jobs the worker acquires in advance, besides those that run. Default: 0.
    ///
    /// With a prefetch, the next job starts as soon as a handler ends, and each call to the store carries more jobs. This
    /// raises the throughput of short jobs. The worker holds leases on the waiting jobs and renews them, so no other worker
    /// runs them meanwhile, and a job with a higher priority that arrives later waits behind them. They are released when
    /// the worker stops. If the process crashes, their attempts count like those of running jobs. A handler with a
    /// [concurrency](HandlerOptions::concurrency) of its own holds no more jobs than that.
    pub fn prefetch(mut self, jobs: u32) -> Self {
        self.settings.prefetch = jobs;
        self
    }

    /// Sets options for the handlers whose job types do not set them. See [`HandlerOptions`].
    pub fn defaults(mut self, options: HandlerOptions) -> Self {
        self.defaults = options;
        self
    }

    /// Sets the backoff after a store error. The first success resets it. Default: 100 ms, doubled up to 30 s, with 20
    /// % jitter.
    pub fn recovery(mut self, backoff: Backoff) -> Self {
        self.settings.recovery = backoff;
        self
    }

    /// Turns off the jitter of the jobs' backoff, so that tests can predict the delays.
    #[doc(hidden)]
    pub fn without_jitter(mut self) -> Self {
        self.settings.jitters = false;
        self
    }

    /// Sets how often the worker polls for jobs if it is not notified of any. Default: 5 s while notifications
    /// arrive from all processes, 1.5 s otherwise.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.settings.poll = Some(poll);
        self
    }

    /// Declares a schedule: this job starts by itself, at these times. The schedule is stored when the worker starts, and
    /// any worker on the store may start its occurrences.
    ///
    /// ```
    /// # use windlass::{Client, Ctx, Entry, Job, MemoryStore, Result, Worker};
    /// # use windlass::schedule::Cron;
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Report { of: String }
    /// # impl Job for Report { const NAME: &'static str = "report"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Report {}
    /// # async fn report(_: Ctx<Report>) -> Result<()> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// # let client = Client::new(MemoryStore::new());
    /// let weekdays = Cron::new("0 9 * * MON-FRI")?.in_zone("Europe/Berlin");
    /// let worker = Worker::new(&client)
    ///     .handle(report)
    ///     .schedule("daily-report", weekdays, Report { of: "sales".into() })
    ///     .start()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// - A declaration that has not changed since it was stored changes nothing: it neither resumes a paused schedule nor
    ///   overwrites the changes of an operator.
    /// - A declaration with new content replaces the stored one. A declaration that was already replaced is not applied, so
    ///   that two versions of a program can run side by side. It logs a warning, and `windlass schedules accept` applies it.
    ///   With [`version`](ScheduleSpec::version), the highest version wins.
    /// - A single time that passed more than the grace time ago is not stored again after its schedule was removed.
    /// - A schedule that is no longer declared stays, and `windlass doctor` reports it. Delete it with
    ///   [`Schedules::delete`](crate::schedule::Schedules::delete).
    ///
    /// An invalid name, specification or job makes [`start`](Self::start) fail.
    pub fn schedule(
        mut self,
        name: impl AsRef<str>,
        spec: impl Into<ScheduleSpec>,
        job: impl IntoPlan,
    ) -> Self {
        let declaration = declaration(name.as_ref(), spec.into(), job);
        self.schedules = self.schedules.and_then(|mut schedules| {
            schedules.push(declaration?);
            Ok(schedules)
        });
        self
    }

    /// Sets the name of the program, which is stored with the schedules that it declares. Default: the name of its
    /// executable.
    pub fn program(mut self, name: impl Into<String>) -> Self {
        self.program = Some(name.into());
        self
    }

    /// Sets a name for display. It need not be unique; the worker's id is.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Returns a handle for health and readiness checks of the worker, before and after it is started.
    #[must_use]
    pub fn probe(&self) -> Probe {
        Probe::new(&self.health, &self.client.shared.dispatcher)
    }

    /// Runs jobs of one type with this handler. A worker acquires only jobs of types that it has handlers for.
    pub fn handle<J: Job, M>(self, handler: impl Handler<J, S, M>) -> Self {
        self.handle_with(HandlerOptions::new(), handler)
    }

    /// Runs jobs of one type with this handler. Its options take precedence over those of the job type and of
    /// [`defaults`](Self::defaults).
    pub fn handle_with<J: Job, M>(mut self, options: HandlerOptions, handler: impl Handler<J, S, M>) -> Self {
        self.handlers = self.handlers.handle_with(options, handler);
        self
    }

    /// Runs jobs of a type that is named at run time. See [`Handlers::handle_any`].
    pub fn handle_any<F, Fut, E>(mut self, job_type: &TypeName, options: HandlerOptions, handler: F) -> Self
    where
        F: Fn(AnyAttempt) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.handlers = self.handlers.handle_any(job_type, options, handler);
        self
    }

    /// Adds a set of handlers, with its values, middleware and hooks.
    pub fn handlers(mut self, handlers: Handlers<S>) -> Self {
        self.handlers = self.handlers.merge(handlers);
        self
    }

    /// Wraps every attempt in this middleware. The first one added is the outermost. The middleware of the worker wraps
    /// that of handler sets.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.handlers = self.handlers.middleware(middleware);
        self
    }

    /// Adds hooks to the transactions of all attempts. In the order that [`Hooks`] describes, they come before the
    /// hooks of handler sets.
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
    /// [`ErrorKind::Invalid`] if the worker has no handler, if the concurrency or the prefetch is out of range, if the poll interval or
    /// the recovery delay is shorter than 1 ms, if the name is invalid, if a job type has two handlers or invalid
    /// options, if a handler takes a value that was not passed to the worker, if a required middleware is missing, or if
    /// a schedule is invalid.
    pub async fn start(self) -> Result<Running<S>> {
        let Self { client, handlers, defaults, required, settings, health, program, schedules } = self;
        let name = program.unwrap_or_else(program_name);
        let program = Program { name, declarations: schedules? };
        program.check()?;
        let handlers = handlers.build(defaults, &required)?;
        if handlers.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the worker has no handlers: add one with `.handle(…)`",
            ));
        }
        settings.check()?;
        let engine = Engine::new(client, settings, handlers, health)?;
        engine.dispatcher().observe(&Event::WorkerStarted(engine.about()));
        engine.report_capacity(true);
        engine.publish_consumer_event(EventKind::ConsumerStarted);
        let declaring = schedule::declare_first(&engine, &program).await;
        let keepers = [
            tokio::spawn(keep(Arc::clone(&engine))),
            tokio::spawn(beat(Arc::clone(&engine))),
            tokio::spawn(schedule::run(Arc::clone(&engine), program, declaring)),
        ];
        let main = tokio::spawn(Loop::run(Arc::clone(&engine)));
        Ok(Running { engine, main: Some(main), keepers })
    }

    /// Starts the worker, runs it until `signal` completes, and [stops](Running::stop) it with this deadline. To use a
    /// [`Probe`], call [`probe`](Self::probe) first.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use windlass::{Client, Ctx, Entry, Job, MemoryStore, Result, Worker, shutdown_signal};
    /// # #[derive(serde::Serialize, serde::Deserialize)] struct Mail;
    /// # impl Job for Mail { const NAME: &'static str = "mail"; type Output = (); type Next = (); type Blockers = (); }
    /// # impl Entry for Mail {}
    /// # async fn send(_: Ctx<Mail>) -> Result<()> { Ok(()) }
    /// # async fn run(client: Client<MemoryStore>) -> windlass::Result<()> {
    /// Worker::new(&client).handle(send).run_until(shutdown_signal(), Duration::from_secs(15)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`start`](Self::start), and [`ErrorKind::Invalid`] if the deadline is zero. In that case the
    /// worker does not start.
    pub async fn run_until(self, signal: impl Future, deadline: Duration) -> Result<()> {
        if deadline.is_zero() {
            return Err(Error::new(ErrorKind::Invalid, ZERO_DEADLINE));
        }
        let running = self.start().await?;
        signal.await;
        running.stop(deadline).await;
        Ok(())
    }
}

fn declaration(name: &str, spec: ScheduleSpec, job: impl IntoPlan) -> Result<Declaration> {
    let named = |error: Error| {
        let text = format!("the schedule `{name}` cannot be declared: {error}");
        Error::new(error.kind(), text).with_inner(error)
    };
    let parts = || {
        spec.check()?;
        Ok((ScheduleName::new(name)?, EncodedChain::new(&job.into_plan().build()?)?))
    };
    let (name, job) = parts().map_err(named)?;
    Ok(Declaration { name, spec, job })
}

/// How a worker runs, apart from its handlers.
pub(super) struct Settings {
    pub(super) name: Option<String>,
    pub(super) concurrency: u32,
    pub(super) prefetch: u32,
    pub(super) poll: Option<Duration>,
    pub(super) recovery: Backoff,
    /// Whether the jitter of the jobs' backoff applies.
    pub(super) jitters: bool,
}

impl Settings {
    fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let Self { concurrency, prefetch, poll, recovery, .. } = self;
        if *concurrency == 0 {
            return refuse("concurrency must be at least 1, got 0".to_owned());
        }
        if *concurrency as usize > REAP_EXCEPT_MAX {
            return refuse(format!("concurrency must be at most {REAP_EXCEPT_MAX}, got {concurrency}"));
        }
        let prefetch_max = REAP_EXCEPT_MAX - *concurrency as usize;
        if *prefetch as usize > prefetch_max {
            return refuse(format!(
                "prefetch must be at most {prefetch_max} with a concurrency of {concurrency}, got {prefetch}"
            ));
        }
        let longest = recovery.delay(1, 0.0).max(recovery.delay(u32::MAX, 0.0));
        if recovery.delay(1, 1.0) < Duration::from_millis(1) || longest < Duration::from_millis(1) {
            return refuse(
                "the recovery delay must be at least 1 ms: a shorter one would busy-wait".to_owned(),
            );
        }
        match poll {
            Some(poll) if *poll < Duration::from_millis(1) => {
                refuse(format!("poll interval must be at least 1 ms, got {poll:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// A running worker.
///
/// If it is dropped, it acquires no more jobs and renews no leases. Running handlers are asked to stop. They can still
/// complete their jobs as long as no other worker has taken over the jobs. Prefer [`stop`](Self::stop).
#[must_use = "a dropped worker stops: keep it and call `stop`, or call `run_until` instead of `start`"]
pub struct Running<S: Store + ?Sized> {
    engine: Arc<Engine<S>>,
    main: Option<JoinHandle<()>>,
    keepers: [JoinHandle<()>; 3],
}

impl<S: Store + ?Sized> Running<S> {
    /// Returns the worker's id.
    #[must_use]
    pub fn id(&self) -> WorkerId {
        self.engine.id
    }

    /// Returns an error while the worker cannot acquire jobs; see [`Probe::health`].
    pub fn health(&self) -> Result<(), Unhealthy> {
        self.engine.health.get()
    }

    /// Returns a handle for health and readiness checks. It remains usable after the worker has stopped.
    #[must_use]
    pub fn probe(&self) -> Probe {
        Probe::new(&self.engine.health, &self.engine.client.shared.dispatcher)
    }

    /// Returns how many jobs the worker has found by polling, without a notification. If this number grows steadily,
    /// notifications do not arrive: see [`Client::reach`].
    #[must_use]
    pub fn found_by_polling(&self) -> u64 {
        self.engine.found_by_polling.load(Ordering::Relaxed)
    }

    /// Stops the worker: lets its handlers finish, but not beyond `deadline`.
    ///
    /// Acquires no more jobs, and waits for the handlers to end. Handlers that are still running shortly before the
    /// deadline are asked to stop: 5 s before a deadline of 25 s or more, after four fifths of a shorter one. Jobs
    /// that are still running at the deadline are requeued; their attempts do not count.
    ///
    /// If the store does not answer, the stop ends up to 15 s after the deadline. Choose the deadline so that this time
    /// is left before the process is killed. By default, Kubernetes kills it 30 s after SIGTERM.
    ///
    /// A deadline of zero drops the handlers immediately, as it does in [`stop_now`](Self::stop_now). It is probably a
    /// mistake here, so it logs a warning.
    pub async fn stop(self, deadline: Duration) {
        if deadline.is_zero() {
            let (worker, worker_name) = (self.engine.id, self.engine.about().name);
            let worker_name = worker_name.as_ref().map(tracing::field::display);
            tracing::warn!(target: "windlass", %worker, worker_name, "{ZERO_DEADLINE}");
        }
        let asks_after = deadline.mul_f64(0.8).max(deadline.saturating_sub(Duration::from_secs(5)));
        self.end(far(asks_after), far(deadline)).await;
    }

    /// Like [`stop`](Self::stop), but asks the handlers to stop immediately. They have until `deadline` to end. With a
    /// deadline of zero, they are dropped at once, and their jobs are requeued.
    pub async fn stop_now(self, deadline: Duration) {
        self.end(Instant::now(), far(deadline)).await;
    }

    async fn end(mut self, asks_at: Instant, until: Instant) {
        let engine = Arc::clone(&self.engine);
        engine.health.stopping();
        // Cancel first, then abort: `task::start` relies on this order.
        engine.stopping.cancel();
        // After the cancellation: an observer that receives this event may rely on the worker to start no more jobs.
        engine.dispatcher().observe(&Event::WorkerStopping(engine.about()));
        engine.release_waiting();
        if asks_at <= Instant::now() {
            engine.abort_all();
        }
        if let Some(mut main) = self.main.take()
            && timeout_at(asks_at.max(Instant::now() + STOP_GRACE), &mut main).await.is_err()
        {
            // The loop hangs in a store call. If that call leases jobs later, and `recover_acquires` does not get
            // them, they are requeued when their leases expire.
            main.abort();
            let _ = main.await;
        }
        let _ = timeout_at(asks_at.max(Instant::now() + STOP_GRACE), engine.recover_acquires()).await;
        // The main loop has ended, and with it the subscription by which handlers learn that they have lost their jobs.
        let hearing = tokio::spawn(hear_losses(Arc::clone(&engine)));
        engine.emptied(asks_at).await;
        hearing.abort();
        engine.abort_all();
        engine.emptied(until).await;
        engine.release().await;
        engine.put_backs.close();
        let _ = timeout_at(last_call(), engine.put_backs.wait()).await;
        // Not earlier: until here, handlers still run and need their leases.
        self.keepers.iter().for_each(JoinHandle::abort);
        if engine.client.store().capabilities().has(Capability::Workers) {
            // If it fails, the worker is listed until the TTL of its latest heartbeat has passed.
            let retire = Retire { worker: engine.id };
            let _ = timeout_at(last_call(), send_repeatedly(engine.client.store(), &retire)).await;
        }
        engine.dispatcher().observe(&Event::WorkerStopped(engine.about()));
        engine.publish_consumer_event(EventKind::ConsumerStopped);
    }
}

/// What is wrong with a stop whose deadline is zero.
const ZERO_DEADLINE: &str = "the stop deadline is 0, so running handlers are dropped without time to finish: pass how \
                             long they may take, or call `stop_now` if this is intended";

/// The minimum time that a stop waits for a call in flight.
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
        slots.running.values().for_each(|slot| slot.held.signal.abort(AbortReason::WorkerStopping));
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
        for slot in self.slots().running.values().filter(|slot| !slot.settling) {
            slot.held.signal.end();
            let (engine, held) = (Arc::clone(self), Arc::clone(&slot.held));
            releases.spawn(async move {
                // `Busy` until the transaction of the ended handler has been rolled back. An error may be
                // transient.
                while let Ok(Settled::Busy) | Err(_) = engine.try_settle(Outcome::Release, &held).await {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            });
        }
        let released = async { while releases.join_next().await.is_some() {} };
        let _ = timeout_at(until, released).await;
        self.emptied(until).await;
        // End the attempts whose settlement hangs, so that no transaction stays open after the stop.
        self.slots().running.values().for_each(|slot| slot.held.signal.end());
    }
}

impl<S: Store + ?Sized> Drop for Running<S> {
    fn drop(&mut self) {
        self.engine.health.stopping();
        self.engine.stopping.cancel();
        self.engine.stopped.cancel();
        if Handle::try_current().is_ok() {
            self.engine.release_waiting();
        }
        self.engine.abort_all();
        self.keepers.iter().for_each(JoinHandle::abort);
        // Here, and not where the worker stops: it may be dropped without a stop, or during one.
        self.engine.report_capacity(false);
    }
}

impl<S: Store + ?Sized> fmt::Debug for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("id", &self.engine.id).finish_non_exhaustive()
    }
}

impl<S: Store + ?Sized> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("concurrency", &self.settings.concurrency).finish_non_exhaustive()
    }
}
