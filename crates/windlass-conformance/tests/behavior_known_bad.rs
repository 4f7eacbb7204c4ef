//! The behavior cases detect faults: each store or notifier here has one fault that some cases must notice.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "these are tests")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_conformance::{BehaviorFixture, MuteNotifier, Scene, Verdict, run_behaviors};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, ChainId, Decorator, ErrorText, InProcessNotifier, MemoryStore, MemoryTx, Millis,
    Notifier, Occurrence, Payload, RequestId, Result, Store, Timestamp, TransactionDecorator, Transactional,
    TypeName,
};

/// A fault of the store or the notifier.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Reports leases as renewed without renewing them.
    RenewalsSwallowed,
    /// Reports attempts as settled but leaves their jobs running.
    SettlementsDropped,
    /// Drops blockers, so that jobs do not wait.
    BlockersDropped,
    /// Leaves a job blocked after its blockers have completed.
    UnblockingLost,
    /// Does not recognize a repeated acquire.
    RequestForgotten,
    /// Counts a released attempt.
    ReleaseCounted,
    /// Reaps jobs that the caller is running.
    ExceptionsIgnored,
    /// Commits instead of rolling back.
    RollbackCommits,
    /// Reports a transaction as committed but discards it.
    CommitsDropped,
    /// Retries immediately, whatever the delay.
    DelayIgnored,
    /// Hands out one job at a time.
    OneAtATime,
    /// Loses every hint although the fixture says that hints arrive.
    HintsLost,
    /// Applies a repeated change of a schedule again, and starts its occurrence again.
    OccurrenceRepeated,
    /// Returns a due schedule to one worker only, even if that worker never starts its occurrence.
    OccurrenceClaimed,
    /// Compares schedules with the clock of a worker, which is an hour fast.
    WorkersClock,
}

/// A memory store with a fault.
#[derive(Clone, Debug)]
struct Bad {
    inner: MemoryStore,
    fault: Fault,
    /// Revisions of schedules that were returned as due.
    claimed: Arc<Mutex<HashSet<RequestId>>>,
}

impl Bad {
    async fn run(&self, command: Command) -> Result<Reply> {
        match (self.fault, self.tamper(command)) {
            (Fault::RenewalsSwallowed, Command::Renew(renew)) => {
                Ok(Reply::Renew(self.pretend_renewal(&renew)))
            }
            (Fault::SettlementsDropped, Command::Settle(settle)) => {
                Ok(Reply::Settle(self.drop_all(settle).await?))
            }
            (Fault::SettlementsDropped, Command::Exchange(exchange)) => {
                let settle = self.drop_all(exchange.settle).await?;
                let acquire = self.inner.acquire(exchange.acquire).await?;
                Ok(Reply::Exchange(ExchangeReply { settle, acquire }))
            }
            (Fault::OneAtATime, Command::Acquire(acquire)) => {
                Ok(Reply::Acquire(self.acquire_one(acquire).await?))
            }
            (Fault::OneAtATime, Command::Exchange(exchange)) => {
                let settle = self.inner.settle(exchange.settle).await?;
                let acquire = self.acquire_one(exchange.acquire).await?;
                Ok(Reply::Exchange(ExchangeReply { settle, acquire }))
            }
            (Fault::UnblockingLost, Command::Create(mut create)) => {
                for chain in create.chains.iter_mut().filter(|chain| !chain.job.blockers.is_empty()) {
                    chain.job.blockers.push(self.start_for_ever().await?.into());
                }
                self.forward(create.into()).await
            }
            (Fault::OccurrenceRepeated, Command::ChangeSchedules(mut request)) => {
                self.repeat_occurrences(&mut request.changes).await?;
                self.forward(request.into()).await
            }
            (Fault::OccurrenceClaimed, Command::DueSchedules(request)) => {
                let mut reply = self.inner.due_schedules(request).await?;
                let mut claimed = self.claimed.lock().unwrap();
                reply.schedules.retain(|row| claimed.insert(row.revision));
                Ok(Reply::DueSchedules(reply))
            }
            (Fault::OccurrenceClaimed, Command::ListSchedules(request)) => {
                let mut reply = self.inner.list_schedules(request).await?;
                let claimed = self.claimed.lock().unwrap();
                reply.schedules.retain(|row| !claimed.contains(&row.revision));
                Ok(Reply::ListSchedules(reply))
            }
            (Fault::WorkersClock, Command::DueSchedules(request)) => {
                Ok(Reply::DueSchedules(self.due_on_a_fast_clock(request).await?))
            }
            (_, command) => self.forward(command).await,
        }
    }

    /// Makes each change that was applied before apply again, and start its occurrence under another id.
    async fn repeat_occurrences(&self, changes: &mut [ScheduleChange]) -> Result<()> {
        for change in changes {
            let schedules = vec![ScheduleTarget::Name(change.name.clone())];
            let stored = self.inner.get_schedules(GetSchedules { schedules }).await?.schedules.remove(0);
            if stored.is_none_or(|stored| stored.revision != change.revision) {
                continue;
            }
            (change.expected, change.revision) = (Some(change.revision), RequestId::new());
            if let ScheduleAction::Put(PutSchedule { chain: Some(chain), .. }) = &mut change.action {
                let occurrence = chain.id.occurrence().unwrap();
                chain.id = Occurrence { is_manual: true, ..occurrence }.chain();
            }
        }
        Ok(())
    }

    async fn due_on_a_fast_clock(&self, request: DueSchedules) -> Result<DueSchedulesReply> {
        let reply = self.inner.list_schedules(ListSchedules { after: None, max: 100 }).await?;
        let now = reply.now + Duration::from_secs(60 * 60);
        let is_due = |row: &ScheduleRecord| row.due_at.is_some_and(|due_at| due_at <= now);
        let (due, later): (Vec<_>, Vec<_>) = reply.schedules.into_iter().partition(is_due);
        let schedules = due.into_iter().skip(request.skip as usize).collect();
        let next_due = later.iter().filter_map(|row| row.due_at).min();
        Ok(DueSchedulesReply { now, schedules, next_due })
    }

    /// Returns the command to run instead of the given one.
    fn tamper(&self, mut command: Command) -> Command {
        match (self.fault, &mut command) {
            (Fault::RequestForgotten, Command::Acquire(acquire)) => acquire.request = RequestId::new(),
            (Fault::RequestForgotten, Command::Exchange(exchange)) => {
                exchange.acquire.request = RequestId::new();
            }
            (Fault::ExceptionsIgnored, Command::Reap(reap)) => reap.except.clear(),
            (Fault::WorkersClock, Command::ChangeSchedules(request)) => {
                request.changes.iter_mut().for_each(|change| change.not_before = None);
            }
            (Fault::BlockersDropped, Command::Create(create)) => {
                create.chains.iter_mut().for_each(|chain| chain.job.blockers.clear());
            }
            (_, Command::Settle(settle) | Command::Exchange(Exchange { settle, .. })) => {
                settle.settlements.iter_mut().for_each(|settlement| self.tamper_end(settlement));
            }
            _ => {}
        }
        command
    }

    fn tamper_end(&self, settlement: &mut Settlement) {
        match (self.fault, &mut settlement.outcome) {
            (Fault::ReleaseCounted, outcome @ Outcome::Release) => {
                let error = ErrorText::new("released");
                *outcome = Outcome::Retry { schedule: DueTime::After(Millis::ZERO), error };
            }
            (Fault::DelayIgnored, Outcome::Retry { schedule, .. }) => {
                *schedule = DueTime::After(Millis::ZERO)
            }
            _ => {}
        }
    }

    fn pretend_renewal(&self, renew: &Renew) -> RenewReply {
        let now = Timestamp::now();
        let held = |lease: &RenewLease| Renewed::Held { until: now + lease.lease, cancel_requested: false };
        RenewReply { leases: renew.leases.iter().map(held).collect(), now }
    }

    /// Acquires one job if none is running.
    async fn acquire_one(&self, mut acquire: Acquire) -> Result<AcquireReply> {
        let counts = self.inner.count(Count { types: Types::All }).await?;
        let is_idle = counts.types.iter().all(|count| count.running == 0);
        acquire.max = acquire.max.min(u32::from(is_idle));
        self.inner.acquire(acquire).await
    }

    /// Starts a chain that never ends.
    async fn start_for_ever(&self) -> Result<ChainId> {
        let (id, job_type) = (ChainId::new(), TypeName::new("for-ever")?);
        let chain = NewChain::new(id, NewJob::new(job_type, Payload::json("null")?));
        self.inner.create(Create { chains: vec![chain] }).await?;
        Ok(id)
    }

    /// Returns the reply that the settlements would get, and rolls them back.
    async fn drop_all(&self, settle: Settle) -> Result<SettleReply> {
        let mut tx = self.inner.begin().await?;
        let reply = self.inner.run_in(&mut tx, settle).await?;
        self.inner.rollback(tx).await?;
        Ok(reply)
    }
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
    fn call_commit(&self, tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        if self.fault == Fault::CommitsDropped { self.inner.rollback(tx) } else { self.inner.commit(tx) }
    }

    fn call_rollback(&self, tx: MemoryTx) -> BoxFuture<'_, Result<()>> {
        if self.fault == Fault::RollbackCommits { self.inner.commit(tx) } else { self.inner.rollback(tx) }
    }

    fn call_in<'a>(&'a self, tx: &'a mut MemoryTx, command: Command) -> BoxFuture<'a, Result<Reply>> {
        self.inner.execute_in(tx, self.tamper(command))
    }
}

impl BehaviorFixture for Fault {
    type Store = Bad;

    fn name(&self) -> &str {
        "bad"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn open(&self) -> BoxFuture<'_, Scene<Bad>> {
        let store = Bad { inner: MemoryStore::new(), fault: *self, claimed: Arc::default() };
        let notifier: Arc<dyn Notifier> = match self {
            Self::HintsLost => Arc::new(MuteNotifier::default()),
            _ => Arc::new(InProcessNotifier::new()),
        };
        let stores = [Arc::new(store.clone()), Arc::new(store)];
        let scene = Scene::new(stores, [Arc::clone(&notifier), notifier]);
        // These cases are meant to fail, so wait for less time than in cases that must tolerate a slow machine.
        Box::pin(async { scene.with_patience(Duration::from_secs(2)) })
    }
}

/// Asserts that each of these cases fails with this fault.
async fn caught(fault: Fault, ids: &[&str]) {
    let verdicts = run_behaviors(&fault, ids).await;
    assert_eq!(verdicts.len(), ids.len());
    for (id, verdict) in verdicts {
        assert!(matches!(verdict, Verdict::Failed(_)), "{id} does not notice {fault:?}: {verdict:?}");
    }
}

macro_rules! caught {
    ($($test:ident: $fault:ident, [$($id:literal),*];)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            caught(Fault::$fault, &[$($id),*]).await;
        })*
    };
}

caught! {
    renewals_that_are_swallowed: RenewalsSwallowed, ["leases.renewed"];
    settlements_that_are_dropped: SettlementsDropped, ["chains.linear", "process.error_cleared"];
    blockers_that_are_dropped: BlockersDropped, ["blockers.long_chain", "failures.blocker.staged"];
    unblocking_that_is_lost: UnblockingLost, ["blockers.several", "blockers.shared"];
    commits_that_are_dropped: CommitsDropped, ["process.modes.staged.prepared", "leases.no_transaction"];
    requests_that_are_forgotten: RequestForgotten, ["repeats.acquire"];
    releases_that_are_counted: ReleaseCounted, ["stopping.deaf", "stopping.fails"];
    exceptions_that_are_ignored: ExceptionsIgnored, ["reaper.own_jobs"];
    rollbacks_that_commit: RollbackCommits, ["failures.finished.staged", "repeats.dropped"];
    delays_that_are_ignored: DelayIgnored, ["process.backoff", "queue.consume.default_backoff"];
    jobs_that_run_one_at_a_time: OneAtATime, ["worker.types"];
    occurrences_that_are_repeated: OccurrenceRepeated, ["schedules.lost_reply"];
    occurrences_that_a_suspended_worker_claims: OccurrenceClaimed, ["schedules.suspended"];
    schedules_by_the_clock_of_a_worker: WorkersClock, ["schedules.not_early"];
    hints_that_are_lost: HintsLost,
        ["notify.at_once", "notify.cancelled", "notify.reaped", "notify.completed_outside"];
}
