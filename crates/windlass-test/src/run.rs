use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Notify;
use windlass_core::command::{
    Acquire, Create, Created, DueTime, NewChain, NewJob, NewKey, Outcome, Pause, Quota, Settle, Settlement,
};
use windlass_core::{
    AnyAttempt, Blockers, BoxError, BoxFuture, ChainId, Client, Ended, Error, ErrorKind, ErrorText, Event,
    Handler, Inner, Job, Key, ManualClock, MemoryStore, Middleware, Millis, NeedsBlockedBy, Observer,
    Payload, Ready, RequestId, Result, Store, TypeName, Worker, WorkerId,
};

use crate::blockers::{completed_chains, payloads};
use crate::ran::Ran;

/// Default time limit of a handler.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs one attempt of a job with this handler. Await the returned [`Run`]; its methods set options first.
///
/// The job is stored in its own memory store and run by a real worker. Input and output are encoded and decoded as in
/// production, and the attempt ends by the same rules. Any job type is accepted, including one that may not start a
/// chain.
///
/// The handler takes `Ctx<J>` or `Attempt<J, MemoryStore>`. To test a handler that takes an `Attempt` of another store,
/// use [`run_on`].
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use windlass::{BoxError, Ctx, Job};
/// # #[derive(Serialize, Deserialize, Job)]
/// # #[job(output = usize)]
/// # struct CountLetters { text: String }
/// # async fn count_letters(job: Ctx<CountLetters>) -> Result<usize, BoxError> {
/// #     Ok(job.input().text.len())
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let ran = windlass_test::run(count_letters, CountLetters { text: "chain".into() }).await?;
/// assert_eq!(*ran.output(), 5);
/// # Ok(())
/// # }
/// ```
pub fn run<H, J: Job, M>(
    handler: H,
    input: J,
) -> Run<MemoryStore, H, J, M, <J::Blockers as Blockers>::Initial>
where
    H: Handler<J, MemoryStore, M>,
{
    run_on(MemoryStore::with_clock(Arc::new(ManualClock::default())), handler, input)
}

/// Like [`run`], but on a store that the test provides. For handlers that take an `Attempt` of that store and write
/// rows in its database.
///
/// Use a separate database, schema or file for each test. Otherwise, another worker could run the job, or another job
/// of the same type could run instead. To control the time, open the store with a [`ManualClock`] (option `clock`).
///
/// ```no_run
/// # use windlass::{Attempt, BoxError, Done, Entry, Job, Transactional};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Reserve { item: u32 }
/// # impl Job for Reserve { const NAME: &'static str = "reserve"; type Output = u32; type Next = (); type Blockers = (); }
/// # impl Entry for Reserve {}
/// # async fn reserve<S: Transactional>(a: Attempt<Reserve, S>) -> Result<Done<Reserve, S>, BoxError> {
/// #     Ok(a.begin().await?.done(1)?)
/// # }
/// # async fn test<S: Transactional>(store: S) -> Result<(), BoxError> {
/// let ran = windlass_test::run_on(store, reserve, Reserve { item: 7 }).await?;
/// assert_eq!(*ran.output(), 1);
/// # Ok(()) }
/// ```
pub fn run_on<S: Store, H, J: Job, M>(
    store: impl Into<Arc<S>>,
    handler: H,
    input: J,
) -> Run<S, H, J, M, <J::Blockers as Blockers>::Initial>
where
    H: Handler<J, S, M>,
{
    let ended = Arc::new(End { chain: ChainId::new(), notify: Notify::new() });
    let client = Client::builder(store).observer(Watch(Arc::clone(&ended))).build();
    let worker = Worker::new(&client).without_jitter();
    Run {
        client,
        ended,
        handler,
        input,
        worker,
        blockers: Ok(Vec::new()),
        attempt: 1,
        key: None,
        timeout: TIMEOUT,
        types: PhantomData,
    }
}

/// Builder for one attempt; await it to run the attempt. See [`run`].
#[must_use = "nothing runs until it is awaited"]
pub struct Run<S, H, J, M, State> {
    client: Client<S>,
    ended: Arc<End>,
    handler: H,
    input: J,
    worker: Worker<S>,
    blockers: Result<Vec<(TypeName, Payload)>>,
    attempt: u32,
    key: Option<String>,
    timeout: Duration,
    types: PhantomData<fn() -> (M, State)>,
}

impl<S: Store, H, J: Job, M> Run<S, H, J, M, NeedsBlockedBy> {
    /// Sets the outputs of the blocker chains, as the handler receives them from `blockers()`.
    pub fn blockers(self, outputs: <J::Blockers as Blockers>::Outputs) -> Run<S, H, J, M, Ready>
    where
        <J::Blockers as Blockers>::Outputs: Serialize,
    {
        let blockers = payloads::<J::Blockers>(&outputs);
        let Self { client, ended, handler, input, worker, attempt, key, timeout, .. } = self;
        Run { client, ended, handler, input, worker, blockers, attempt, key, timeout, types: PhantomData }
    }
}

impl<S: Store, H, J: Job, M, State> Run<S, H, J, M, State> {
    /// Passes a value to the handler, if it takes a [`Data`](windlass_core::Data) of this type.
    pub fn data<T: Clone + Send + Sync + 'static>(self, value: T) -> Self {
        self.data_with(|_| value)
    }

    /// Like [`data`](Self::data), with a value that is built from the client. [`Ran::started`] sees the chains that the
    /// handler starts with this client.
    pub fn data_with<T: Clone + Send + Sync + 'static>(
        mut self,
        value: impl FnOnce(&Client<S>) -> T,
    ) -> Self {
        let value = value(&self.client);
        self.worker = self.worker.data(value);
        self
    }

    /// Sets the attempt number (default: 1). The earlier attempts are recorded as failed.
    pub fn attempt(mut self, number: u32) -> Self {
        self.attempt = number;
        self
    }

    /// Sets the key of the job's chain.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the timeout of the handler (default: 10 s). The run returns an error if the handler takes longer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl<S, H, J, M> Run<S, H, J, M, Ready>
where
    S: Store,
    J: Job,
    H: Handler<J, S, M>,
{
    async fn run(self) -> Result<Ran<J, S>> {
        let store = self.client.store();
        let blockers = completed_chains(store, self.blockers?).await?;
        create(store, self.ended.chain, &self.input, blockers, self.key).await?;
        for _ in 1..self.attempt {
            fail_one_attempt(store, J::NAME).await?;
        }
        let only_once = OnlyOnce(self.client.clone());
        let worker = self.worker.middleware(only_once).handle(self.handler);
        let worker = worker.start().await?;
        let ended = tokio::time::timeout(self.timeout, self.ended.notify.notified()).await;
        worker.stop_now(Duration::ZERO).await;
        store.pause(Pause { types: vec![TypeName::new(J::NAME)?], paused: false }).await?;
        if ended.is_err() {
            let text = format!(
                "the handler of `{}` has not returned after {:?}: check what it waits for, or increase `timeout`",
                J::NAME,
                self.timeout
            );
            return Err(Error::new(ErrorKind::TimedOut, text));
        }
        Ran::read(self.client, self.ended.chain).await
    }
}

impl<S, H, J, M> IntoFuture for Run<S, H, J, M, Ready>
where
    S: Store,
    J: Job,
    H: Handler<J, S, M>,
    M: 'static,
{
    type Output = Result<Ran<J, S>>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Stores the job as the first job of a chain. The type need not be an entry: that rule applies to applications only.
async fn create<J: Job>(
    store: &impl Store,
    id: ChainId,
    input: &J,
    blockers: Vec<ChainId>,
    key: Option<String>,
) -> Result<()> {
    let options = J::options();
    let job = NewJob {
        priority: options.priority,
        max_attempts: options.max_attempts,
        on_blocker_failure: J::Blockers::policy().unwrap_or(options.on_blocker_failure),
        blockers: blockers.into_iter().map(Into::into).collect(),
        ..NewJob::new(TypeName::new(J::NAME)?, Payload::encode(input)?)
    };
    let key = key.map(Key::new).transpose()?.map(NewKey::new);
    let chain = NewChain { key, retention: options.retention, ..NewChain::new(id, job) };
    match store.create(Create { chains: vec![chain] }).await?.chains.pop() {
        Some(Created::Refused(refusal)) => Err(refusal.into()),
        _ => Ok(()),
    }
}

/// Acquires the job and fails the attempt, to simulate an earlier attempt.
async fn fail_one_attempt(store: &impl Store, job_type: &str) -> Result<()> {
    let quota = Quota { job_type: TypeName::new(job_type)?, max: 1, lease: Millis::from_secs(60) };
    let acquire = Acquire {
        request: RequestId::new(),
        worker: WorkerId::new(),
        worker_name: None,
        types: vec![quota],
        max: 1,
    };
    let Some(acquired) = store.acquire(acquire).await?.jobs.pop() else {
        let text = format!("`{job_type}` allows fewer attempts than requested: increase its `max_attempts`");
        return Err(Error::new(ErrorKind::Invalid, text));
    };
    let error = ErrorText::new("an earlier attempt failed");
    let outcome = Outcome::Retry { schedule: DueTime::Now, error };
    let settlement = Settlement { job: acquired.job.id, fence: acquired.job.fence, outcome };
    store.settle(Settle { settlements: vec![settlement] }).await?;
    Ok(())
}

/// Pauses the job type once its attempt has begun. Without this, the worker could acquire an immediate retry, or a
/// continuation of the same type, before it is stopped.
struct OnlyOnce<S>(Client<S>);

impl<S: Store> Middleware for OnlyOnce<S> {
    fn around<'a>(&'a self, attempt: AnyAttempt, inner: Inner) -> BoxFuture<'a, Result<Ended, BoxError>> {
        Box::pin(async move {
            let types = vec![attempt.job().job_type.clone()];
            self.0.store().pause(Pause { types, paused: true }).await?;
            Ok(inner.run(attempt).await)
        })
    }
}

/// Signals the end of the attempt at the chain's first job.
struct End {
    chain: ChainId,
    notify: Notify,
}

/// Observer that triggers [`End`].
struct Watch(Arc<End>);

impl Observer for Watch {
    fn observe(&self, event: &Event) {
        let (Event::JobCompleted(about, _)
        | Event::JobFailed(about, _)
        | Event::JobCancelled(about)
        | Event::AttemptFailed(about, ..)
        | Event::AttemptRescheduled(about, _)
        | Event::AttemptReleased(about)
        | Event::AttemptLost(about)) = event
        else {
            return;
        };
        if about.job == self.0.chain.first_job() {
            self.0.notify.notify_one();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("chain", &self.0.chain).finish_non_exhaustive()
    }
}

impl<S, H, J: Job, M, State> fmt::Debug for Run<S, H, J, M, State> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("job_type", &J::NAME)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
