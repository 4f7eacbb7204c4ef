use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

use windlass_core::command::{
    Acquire, Acquired, Applied, Command, Create, CreateReply, Created, Expire, ExpireReply, GetChains,
    GetJobs, JobSummary, NewChain, Outcome, Quota, Reap, ReapReply, Renew, RenewLease, Renewed, Request,
    Settle, SettleReply, Settled, Settlement, Target, Types,
};
use windlass_core::{
    ChainId, ChainRecord, Error, ErrorKind, JobId, JobRecord, Millis, RequestId, Status, Store, Timestamp,
    WorkerId, WorkerName,
};

use crate::fixture::TestClock;
use crate::outcome::{complete, type_name};
use crate::start::Start;
use crate::transaction::{ErasedTransactional, ErasedTx};

/// Duration of the leases that [`Subject::acquire`] takes.
pub const LEASE: Millis = Millis::from_secs(60);

/// Converts a number of milliseconds.
#[must_use]
pub fn millis(ms: u64) -> Millis {
    Millis::new(ms).expect("a case does not wait a hundred years")
}

/// The name of the worker that acquires jobs in the cases.
#[must_use]
pub(crate) fn worker_name() -> WorkerName {
    WorkerName::new("host-7").expect("a valid name")
}

/// A fresh store under test, with shorthands for the commands that cases use. The methods send their commands to
/// `store`, and the case fails if a command returns an error.
#[derive(Clone)]
pub struct Subject {
    /// The store.
    pub store: Arc<dyn Store>,
    /// A second handle to the same data, opened independently, as in another process.
    pub other: Arc<dyn Store>,
    /// The clock of both handles.
    pub clock: Arc<dyn TestClock>,
    /// The transactions of `store`, if it has them.
    pub transactions: Option<Arc<dyn ErasedTransactional>>,
    /// A resource that lives as long as the subject, such as a server or a directory.
    pub keep: Arc<dyn Any + Send + Sync>,
    /// The default worker for acquires.
    pub worker: WorkerId,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("store", &self.store)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

impl Subject {
    /// Creates a subject without transactions and without a resource to keep.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, other: Arc<dyn Store>, clock: Arc<dyn TestClock>) -> Self {
        Self { store, other, clock, transactions: None, keep: Arc::new(()), worker: WorkerId::new() }
    }

    /// Adds the transactions of `store`; see [`Erased`](crate::Erased).
    #[must_use]
    pub fn with_transactions(mut self, transactions: Arc<dyn ErasedTransactional>) -> Self {
        self.transactions = Some(transactions);
        self
    }

    /// Attaches a resource that lives as long as the subject.
    #[must_use]
    pub fn keeping(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Arc::new(keep);
        self
    }

    /// Returns a subject for the same data that uses the other handle and another worker id.
    #[must_use]
    pub fn through_other(&self) -> Self {
        let (store, other) = (Arc::clone(&self.other), Arc::clone(&self.store));
        Self { store, other, worker: WorkerId::new(), ..self.clone() }
    }

    /// Returns the subject with its handles alternating by `turn`, for parts of a case that run concurrently.
    #[must_use]
    pub fn turn(&self, turn: usize) -> Self {
        if turn.is_multiple_of(2) { self.clone() } else { self.through_other() }
    }

    /// Returns the store's current time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the clock by this many milliseconds.
    pub fn advance(&self, ms: u64) {
        self.clock.advance(millis(ms));
    }

    /// Runs a command. The case fails if the store returns an error.
    #[track_caller]
    pub fn run<R: Request>(&self, request: R) -> impl Future<Output = R::Reply> + Send {
        let (at, command): (_, Command) = (Location::caller(), request.into());
        async move {
            let name = command.name();
            let reply = self.store.execute(command).await;
            reply
                .and_then(TryInto::try_into)
                .unwrap_or_else(|error| panic!("{at}: `{name}` returned an error: {error:?}"))
        }
    }

    /// Runs a command that must fail, and returns the kind of the error.
    #[track_caller]
    pub fn error(&self, request: impl Into<Command>) -> impl Future<Output = ErrorKind> + Send {
        error_kind(Location::caller(), self, request.into())
    }

    /// Returns a builder for a chain of this type.
    pub fn start(&self, job_type: &str) -> Start<'_> {
        Start::new(self, job_type)
    }

    /// Creates chains with one command.
    pub async fn create(&self, chains: Vec<NewChain>) -> Vec<Created> {
        let CreateReply { chains, .. } = self.run(Create { chains }).await;
        chains
    }

    /// Acquires up to `max` jobs of a type.
    pub async fn acquire(&self, job_type: &str, max: u32) -> Vec<Acquired> {
        self.run(self.acquire_request(&[job_type], max)).await.jobs
    }

    /// Acquires the next job of a type. The case fails if there is none.
    pub async fn acquire_one(&self, job_type: &str) -> Acquired {
        let mut jobs = self.acquire(job_type, 1).await;
        assert_eq!(jobs.len(), 1, "expected one due job of type {job_type:?}, got {jobs:?}");
        jobs.remove(0)
    }

    /// Fails the case if a job of this type can be acquired.
    pub async fn expect_none_due(&self, job_type: &str) {
        let jobs = self.acquire(job_type, 1).await;
        assert!(jobs.is_empty(), "expected no due job of type {job_type:?}, got {jobs:?}");
    }

    /// Returns an acquire of up to `max` jobs of each type, and `max` in total, with a fresh request id.
    #[must_use]
    pub fn acquire_request(&self, types: &[&str], max: u32) -> Acquire {
        let quota = |name: &&str| Quota { job_type: type_name(name), max, lease: LEASE };
        Acquire {
            request: RequestId::new(),
            worker: self.worker,
            worker_name: Some(worker_name()),
            types: types.iter().map(quota).collect(),
            max,
        }
    }

    /// Renews a lease for [`LEASE`].
    pub async fn renew(&self, attempt: &Acquired) -> Renewed {
        let lease = RenewLease { job: attempt.job.id, fence: attempt.job.fence, lease: LEASE };
        let mut reply = self.run(Renew { leases: vec![lease] }).await;
        assert_eq!(reply.leases.len(), 1, "one lease to renew, so one reply");
        reply.leases.remove(0)
    }

    /// Settles an attempt and returns the whole reply.
    pub async fn settle_reply(&self, attempt: &Acquired, outcome: Outcome) -> SettleReply {
        let reply = self.run(Settle { settlements: vec![settlement(attempt, outcome)] }).await;
        assert_eq!(reply.settled.len(), 1, "one settlement, so one reply");
        reply
    }

    /// Settles an attempt and returns the result of that settlement.
    pub async fn settle(&self, attempt: &Acquired, outcome: Outcome) -> Settled {
        self.settle_reply(attempt, outcome).await.settled.remove(0)
    }

    /// Settles an attempt. The case fails unless the settlement is applied.
    pub async fn apply(&self, attempt: &Acquired, outcome: Outcome) -> Applied {
        match self.settle(attempt, outcome).await {
            Settled::Applied(applied) => applied,
            other => panic!("expected the settlement to be applied, got {other:?}"),
        }
    }

    /// Repeats an earlier settlement of an attempt and returns the job's current state. The case fails unless the store
    /// recognizes the repetition.
    pub async fn repeat(&self, attempt: &Acquired, outcome: Outcome) -> JobSummary {
        match self.settle(attempt, outcome).await {
            Settled::AlreadyApplied(job) => job,
            other => panic!("expected the settlement to be already applied, got {other:?}"),
        }
    }

    /// Completes an attempt. The case fails unless the completion is applied.
    pub async fn complete(&self, attempt: &Acquired, output: &str) -> Applied {
        self.apply(attempt, complete(output)).await
    }

    /// Acquires the next job of a type and settles it with this outcome.
    pub async fn work(&self, job_type: &str, outcome: Outcome) -> Acquired {
        let attempt = self.acquire_one(job_type).await;
        self.apply(&attempt, outcome).await;
        attempt
    }

    /// Requeues the jobs of all types whose lease has expired.
    pub async fn reap(&self) -> ReapReply {
        self.run(reap_request(Types::All)).await
    }

    /// Removes chains whose retention has ended.
    pub async fn expire(&self) -> ExpireReply {
        self.run(Expire { max: 1_000 }).await
    }

    /// Returns a chain, or `None` if it is not stored.
    pub async fn find_chain(&self, target: impl Into<Target>) -> Option<ChainRecord> {
        let mut reply = self.run(GetChains { chains: vec![target.into()] }).await;
        assert_eq!(reply.chains.len(), 1, "one chain to look up, so one reply");
        reply.chains.remove(0)
    }

    /// Returns a chain. The case fails if it is not stored.
    pub async fn chain(&self, id: ChainId) -> ChainRecord {
        self.find_chain(id).await.unwrap_or_else(|| panic!("expected chain {id} to be stored"))
    }

    /// Returns the chain that a key points at.
    pub async fn by_key(&self, job_type: &str, key: &str) -> Option<ChainId> {
        let target = Target::Key(type_name(job_type), crate::outcome::key(key));
        self.find_chain(target).await.map(|chain| chain.id)
    }

    /// Returns a job, or `None` if it is not stored.
    pub async fn find_job(&self, id: JobId) -> Option<JobRecord> {
        let mut reply = self.run(GetJobs { jobs: vec![id] }).await;
        assert_eq!(reply.jobs.len(), 1, "one job to look up, so one reply");
        reply.jobs.remove(0)
    }

    /// Returns a job. The case fails if it is not stored.
    pub async fn job(&self, id: JobId) -> JobRecord {
        self.find_job(id).await.unwrap_or_else(|| panic!("expected job {id} to be stored"))
    }

    /// Fails the case unless the chain has this status.
    #[track_caller]
    pub fn expect_status(&self, chain: ChainId, expected: Status) -> impl Future<Output = ()> + Send {
        let at = Location::caller();
        async move {
            let status = self.chain(chain).await.status();
            assert!(status == expected, "{at}: expected chain {chain} to be {expected:?}, it is {status:?}");
        }
    }

    /// Begins a transaction.
    pub async fn begin(&self) -> Box<dyn ErasedTx> {
        let transactions =
            self.transactions.as_ref().expect("the runner has checked that the subject has transactions");
        transactions.begin().await.expect("a transaction begins")
    }
}

/// Builds the settlement of an attempt, for a [`Settle`].
pub(crate) fn settlement(attempt: &Acquired, outcome: Outcome) -> Settlement {
    Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome }
}

/// Builds a reap of these types that spares no jobs.
pub(crate) const fn reap_request(types: Types) -> Reap {
    Reap { types, max: 1_000, except: Vec::new(), renewal_interval: Millis::ZERO }
}

async fn error_kind(at: &Location<'_>, subject: &Subject, command: Command) -> ErrorKind {
    let name = command.name();
    match subject.store.execute(command).await {
        Err(error) => Error::kind(&error),
        Ok(reply) => panic!("{at}: expected `{name}` to return an error, got {reply:?}"),
    }
}
