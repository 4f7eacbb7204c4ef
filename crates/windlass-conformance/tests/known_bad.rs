//! The cases detect faulty stores: each store here has one fault that the contract forbids.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use windlass_conformance::{Erased, Fixture, Subject, Verdict, run_cases};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, ChainId, ChainRecord, Clock, Decorator, Fence, JobId, JobRecord, ManualClock,
    MemoryStore, MemoryTx, Payload, RequestId, Result, ScheduleName, Store, TransactionDecorator,
    Transactional,
};

/// A violation of the contract.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Ignores the fence of a settlement.
    FenceDropped,
    /// Loses the last chain of a batch but reports it as created.
    LostInBatch,
    /// Reports leases as renewed without renewing them.
    LeaseNotRenewed,
    /// Does not recognize a repeated acquire.
    RequestForgotten,
    /// Checks a key before it creates the chain, without a lock in between.
    KeyCheckedFirst,
    /// Drops keys.
    KeyDropped,
    /// Finds a closed chain by its key only if the chain still holds the key.
    ClosedKeyForgotten,
    /// Treats every settlement of a closed job as a repetition.
    RepeatsGuessed,
    /// Shortens a page that is too long instead of refusing it.
    PageCut,
    /// Drops blockers, so that jobs do not wait.
    BlockersDropped,
    /// Ignores priorities.
    PriorityIgnored,
    /// Reaps jobs that the caller is running.
    ExceptionsIgnored,
    /// Never removes expired chains.
    NeverExpires,
    /// Forgets ended jobs when they are removed or retried.
    TotalsFall,
    /// Stores payloads as text.
    PayloadAsText,
    /// Returns results in another order than requested.
    RepliesReordered,
    /// Creates a settlement's carried chains in a separate write before the settlement.
    CarriedApart,
    /// Counts a released attempt.
    ReleaseCounted,
    /// Ignores the maximum number of attempts.
    MaximumIgnored,
    /// Loses the creations of a command that also acquires.
    CreationLost,
    /// Loses the settlements of an exchange.
    SettlementLost,
    /// Runs the commands of a transaction outside it.
    Autocommits,
    /// Commits instead of rolling back.
    RollbackCommits,
    /// Keeps what was written since a savepoint when rolling back to it.
    SavepointIgnored,
    /// Applies a change to any revision of a schedule.
    RevisionIgnored,
    /// Applies a change of a schedule at any time, as if a worker had compared the time with its own clock.
    TimesIgnored,
    /// Writes a schedule and creates its chain in separate steps.
    FiredApart,
}

/// A memory store with a fault.
#[derive(Clone, Debug)]
struct Bad {
    inner: MemoryStore,
    fault: Fault,
    /// Executes the commands of transactions, outside them.
    autocommits_to: Option<MemoryStore>,
    /// The number of callers that found a key free.
    found_free: watch::Sender<usize>,
    /// Held by a caller that writes after it found a key free.
    turn: Arc<Mutex<()>>,
}

/// How long a caller waits for another one that finds the same key free.
const PATIENCE: Duration = Duration::from_secs(5);

impl Bad {
    async fn run(&self, command: Command) -> Result<Reply> {
        let command = self.tamper(command).await?;
        let reply = match (self.fault, &command) {
            (Fault::LeaseNotRenewed, Command::Renew(renew)) => self.pretend_renewal(renew).await?,
            (Fault::LostInBatch, Command::Create(create)) if create.chains.len() > 1 => {
                self.lose_last(create).await?
            }
            (Fault::KeyCheckedFirst, Command::Create(create)) => {
                self.check_key_first(create.chains[0].clone()).await?
            }
            (Fault::ClosedKeyForgotten, Command::GetChains(get)) => self.forget_closed(get).await?,
            (Fault::RepeatsGuessed, Command::Settle(settle)) => self.guess_repeats(settle).await?,
            (Fault::NeverExpires, Command::Expire(_)) => {
                Reply::Expire(ExpireReply { chains: Vec::new(), jobs: 0, more: false })
            }
            _ => self.forward(command).await?,
        };
        Ok(self.distort(reply))
    }

    /// Returns the command to run instead of the given one.
    async fn tamper(&self, mut command: Command) -> Result<Command> {
        match (self.fault, &mut command) {
            (Fault::FenceDropped, Command::Settle(settle)) => {
                for item in &mut settle.settlements {
                    item.fence = self.present_fence(item.job).await?.unwrap_or(item.fence);
                }
            }
            (Fault::CarriedApart, Command::Settle(settle)) => {
                for item in &mut settle.settlements {
                    if let Outcome::Complete { create, .. } | Outcome::Continue { create, .. } =
                        &mut item.outcome
                    {
                        self.inner.create(Create { chains: std::mem::take(create) }).await?;
                    }
                }
            }
            (Fault::ReleaseCounted, Command::Settle(settle)) => {
                for item in &mut settle.settlements {
                    if item.outcome == Outcome::Release {
                        item.outcome = windlass_conformance::retry("released");
                    }
                }
            }
            (Fault::CreationLost, Command::CreateAndAcquire(joined)) => joined.create.chains.clear(),
            (Fault::SettlementLost, Command::Exchange(exchange)) => exchange.settle.settlements.clear(),
            (Fault::RequestForgotten, Command::Acquire(acquire)) => acquire.request = RequestId::new(),
            (Fault::ExceptionsIgnored, Command::Reap(reap)) => reap.except.clear(),
            (Fault::PageCut, Command::ListJobs(list)) => list.page.max = list.page.max.min(1_000),
            (Fault::RevisionIgnored, Command::ChangeSchedules(request)) => {
                for change in &mut request.changes {
                    let stored = self.schedule(&change.name).await?;
                    change.expected = stored.map(|row| row.revision);
                    change.revision = RequestId::new();
                }
            }
            (Fault::TimesIgnored, Command::ChangeSchedules(request)) => {
                for change in &mut request.changes {
                    (change.not_before, change.not_after) = (None, None);
                }
            }
            (Fault::FiredApart, Command::ChangeSchedules(request)) => {
                for change in &mut request.changes {
                    if let ScheduleAction::Put(put) = &mut change.action {
                        self.inner.create(Create { chains: put.chain.take().into_iter().collect() }).await?;
                    }
                }
            }
            (_, Command::Create(create)) => {
                for chain in &mut create.chains {
                    self.tamper_chain(chain);
                }
            }
            _ => {}
        }
        Ok(command)
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<Option<ScheduleRecord>> {
        let schedules = vec![ScheduleTarget::Name(name.clone())];
        Ok(self.inner.get_schedules(GetSchedules { schedules }).await?.schedules.remove(0))
    }

    fn tamper_chain(&self, chain: &mut NewChain) {
        match self.fault {
            Fault::KeyDropped => chain.key = None,
            Fault::BlockersDropped => chain.job.blockers.clear(),
            Fault::PriorityIgnored => chain.job.priority = 0,
            Fault::MaximumIgnored => chain.job.max_attempts = None,
            Fault::PayloadAsText => {
                let text = String::from_utf8_lossy(chain.job.input.bytes()).into_owned();
                chain.job.input = Payload::new(chain.job.input.codec().clone(), text).unwrap();
            }
            _ => {}
        }
    }

    fn distort(&self, reply: Reply) -> Reply {
        match (self.fault, reply) {
            (Fault::RepliesReordered, Reply::GetJobs(mut reply)) => {
                reply.jobs.reverse();
                Reply::GetJobs(reply)
            }
            (Fault::TotalsFall, Reply::Count(mut reply)) => {
                for TypeCount { completed, failed, cancelled, ended, .. } in &mut reply.types {
                    *ended = EndedJobs { completed: *completed, failed: *failed, cancelled: *cancelled };
                }
                Reply::Count(reply)
            }
            (_, reply) => reply,
        }
    }

    async fn present_fence(&self, job: JobId) -> Result<Option<Fence>> {
        let reply = self.inner.get_jobs(GetJobs { jobs: vec![job] }).await?;
        Ok(reply.jobs[0].as_ref().map(|job| job.fence))
    }

    async fn pretend_renewal(&self, renew: &Renew) -> Result<Reply> {
        let now = self.inner.acquire(no_jobs()).await?.now;
        let held = |renew: &RenewLease| Renewed::Held { until: now + renew.lease, cancel_requested: false };
        Ok(Reply::Renew(RenewReply { leases: renew.leases.iter().map(held).collect(), now }))
    }

    async fn forget_closed(&self, get: &GetChains) -> Result<Reply> {
        let mut reply = self.inner.get_chains(get.clone()).await?;
        for (target, found) in get.chains.iter().zip(&mut reply.chains) {
            let holds = |chain: &ChainRecord| {
                let hold = chain.key.as_ref().map(|key| key.hold).unwrap_or_default();
                chain.closed.is_none_or(|closed| hold.holds(closed.closed_as))
            };
            if matches!(target, Target::Key(..)) && !found.as_ref().is_some_and(holds) {
                *found = None;
            }
        }
        Ok(Reply::GetChains(reply))
    }

    async fn guess_repeats(&self, settle: &Settle) -> Result<Reply> {
        let mut reply = self.inner.settle(settle.clone()).await?;
        for (item, settled) in settle.settlements.iter().zip(&mut reply.settled) {
            if matches!(settled, Settled::Lost(Lost::Closed(_))) {
                let jobs = self.inner.get_jobs(GetJobs { jobs: vec![item.job] }).await?.jobs;
                let JobRecord { id: job, chain, status, due_at, .. } = jobs[0].clone().unwrap();
                *settled = Settled::AlreadyApplied(JobSummary { job, chain, status, due_at });
            }
        }
        Ok(Reply::Settle(reply))
    }

    async fn check_key_first(&self, mut new: NewChain) -> Result<Reply> {
        let found_free = self.holder(&new).await?.is_none();
        if found_free {
            // Wait for a second caller, so that both find the key free whatever the scheduling.
            self.found_free.send_modify(|callers| *callers += 1);
            let mut callers = self.found_free.subscribe();
            let _ = tokio::time::timeout(PATIENCE, callers.wait_for(|callers| *callers > 1)).await;
        }
        // Callers write in turn: the second one that found the key free takes it from the first one.
        let _turn = self.turn.lock().await;
        let holder = self.holder(&new).await?;
        if let (true, Some(key)) = (found_free, &mut new.key) {
            key.replaces = holder;
        }
        Ok(Reply::Create(self.inner.create(Create { chains: vec![new] }).await?))
    }

    /// Returns the chain that holds the new chain's key.
    async fn holder(&self, new: &NewChain) -> Result<Option<ChainId>> {
        let Some(key) = &new.key else { return Ok(None) };
        let target = Target::Key(new.job.job_type.clone(), key.key.clone());
        let reply = self.inner.get_chains(GetChains { chains: vec![target] }).await?;
        Ok(reply.chains[0].as_ref().map(|chain| chain.id))
    }

    async fn lose_last(&self, create: &Create) -> Result<Reply> {
        let (last, kept) = create.chains.split_last().unwrap();
        let mut reply = self.inner.create(Create { chains: kept.to_vec() }).await?;
        let (job, chain) = (last.id.first_job(), last.id);
        let due_at = self.inner.acquire(no_jobs()).await?.now;
        let job = JobSummary { job, chain, status: windlass_core::Status::Pending, due_at };
        reply.chains.push(Created::New { job, repeated: false });
        Ok(Reply::Create(reply))
    }
}

fn no_jobs() -> Acquire {
    let (request, worker) = (RequestId::new(), windlass_core::WorkerId::new());
    Acquire { request, worker, worker_name: None, types: Vec::new(), max: 0 }
}

impl Decorator for Bad {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.inner
    }

    fn call(&self, command: Command) -> BoxFuture<'_, Result<Reply>> {
        Box::pin(self.run(command))
    }
}

impl TransactionDecorator for Bad {
    fn call_in<'a>(&'a self, tx: &'a mut MemoryTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        match &self.autocommits_to {
            Some(store) => Box::pin(async move { (store as &dyn Store).execute(command).await }),
            None => self.inner.execute_in(tx, command),
        }
    }

    fn call_rollback_to<'a>(&'a self, tx: &'a mut MemoryTx) -> BoxFuture<'a, Result<()>> {
        match self.fault {
            Fault::SavepointIgnored => self.inner.release(tx),
            _ => self.inner.rollback_to(tx),
        }
    }

    fn call_rollback(&self, tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        match self.fault {
            Fault::RollbackCommits => self.inner.commit(tx),
            _ => self.inner.rollback(tx),
        }
    }
}

struct BadFixture(Fault);

impl Fixture for BadFixture {
    fn name(&self) -> &str {
        "bad"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        let clock = Arc::new(ManualClock::default());
        let memory = || MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let bad = Bad {
            inner: memory(),
            fault: self.0,
            autocommits_to: None,
            found_free: watch::Sender::new(0),
            turn: Arc::default(),
        };
        let mut transactions = bad.clone();
        if matches!(self.0, Fault::Autocommits) {
            // A memory store has one writer. A command that commits by itself must not wait for the
            // surrounding transaction, so that transaction belongs to another store.
            transactions.autocommits_to = Some(std::mem::replace(&mut transactions.inner, memory()));
        }
        let subject = Subject::new(Arc::new(bad.clone()), Arc::new(bad), clock)
            .with_transactions(Arc::new(Erased::new(Arc::new(transactions))));
        Box::pin(async { subject })
    }
}

/// The faults, with cases that detect them.
const CAUGHT: &[(Fault, &[&str])] = &[
    (Fault::FenceDropped, &["stale.taken_over", "stale.same_worker", "stale.future_fence"]),
    (Fault::LostInBatch, &["create.batch", "race.keys"]),
    (Fault::LeaseNotRenewed, &["renew.until", "reap.settled"]),
    (Fault::RequestForgotten, &["acquire.repeated", "acquire.repeated.settled", "race.acquire_repeated"]),
    (Fault::KeyCheckedFirst, &["race.key"]),
    (Fault::KeyDropped, &["key.existing", "key.look_up", "race.key", "bytes.keys"]),
    (Fault::ClosedKeyForgotten, &["key.points.closed", "key.points.continued", "key.window.look_up"]),
    (
        Fault::RepeatsGuessed,
        &["repeat.settle.other_kinds", "repeat.settle.last_attempt.other_kinds", "stale.closed"],
    ),
    (Fault::PageCut, &["limit.page"]),
    (Fault::BlockersDropped, &["blocker.open", "blocker.missing", "blocker.outputs"]),
    (Fault::PriorityIgnored, &["acquire.order.priority", "create.fields"]),
    (Fault::ExceptionsIgnored, &["reap.except"]),
    (Fault::NeverExpires, &["expire.retention", "expire.per_chain", "expire.looping"]),
    (
        Fault::TotalsFall,
        &[
            "count.ended.expired",
            "count.ended.trimmed",
            "count.ended.deleted",
            "count.ended.delete_repeated",
            "count.ended.retried",
            "count.ended.vanished",
            "count.ended.rolled_back",
            "count.ended.savepoint",
        ],
    ),
    (Fault::PayloadAsText, &["bytes.payloads"]),
    (Fault::RepliesReordered, &["chain.many"]),
    (Fault::CarriedApart, &["chain.carried.refused", "stale.taken_over"]),
    (Fault::ReleaseCounted, &["settle.release"]),
    (Fault::MaximumIgnored, &["settle.retry.last", "reap.last_attempt"]),
    (Fault::CreationLost, &["create_and_acquire.creates_first", "create_and_acquire.repeated"]),
    (Fault::SettlementLost, &["exchange.settles_first", "exchange.repeated"]),
    (Fault::Autocommits, &["tx.rollback.created", "tx.dropped", "isolation.job", "isolation.status"]),
    (Fault::RollbackCommits, &["tx.rollback.created", "tx.rollback.settled", "tx.rollback.mixed"]),
    (Fault::SavepointIgnored, &["savepoint.rollback", "savepoint.nested"]),
    (Fault::RevisionIgnored, &["schedule.revision", "schedule.repeated", "schedule.batch", "schedule.race"]),
    (Fault::TimesIgnored, &["schedule.not_due", "schedule.too_late"]),
    (Fault::FiredApart, &["schedule.fired", "schedule.handled", "schedule.key_held"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_is_caught() {
    for (fault, ids) in CAUGHT {
        let report = run_cases(&BadFixture(*fault), ids).await;
        assert_eq!(report.verdicts.len(), ids.len());
        for (case, verdict) in &report.verdicts {
            assert!(matches!(verdict, Verdict::Failed(_)), "{} passed with {fault:?}: {verdict:?}", case.id);
        }
        assert!(!report.is_conformant() && report.to_string().contains(ids[0]), "{report}");
    }
}
