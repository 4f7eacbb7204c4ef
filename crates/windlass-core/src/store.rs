//! The [`Store`] trait, which every store implements.
//!
//! The documentation of each method is its contract. Every sentence of it is covered by a case in
//! `windlass-conformance`.

mod any;
mod capability;
mod decorator;
mod mount;
mod stall;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub(crate) use any::AnyStore;
pub use capability::{Capabilities, Capability};
pub use decorator::{Decorator, TransactionDecorator};
pub use mount::shared_file_system;
pub use stall::Stalls;

use crate::command::{
    Acquire, AcquireReply, Beat, BeatReply, Cancel, CancelReply, ChangeSchedules, ChangeSchedulesReply,
    Command, CompleteFromOutside, CompleteFromOutsideReply, Count, CountReply, Create, CreateAndAcquire,
    CreateAndAcquireReply, CreateReply, Delete, DeleteReply, DueSchedules, DueSchedulesReply, Exchange,
    ExchangeReply, Expire, ExpireReply, GetChains, GetChainsReply, GetJobs, GetJobsReply, GetSchedules,
    GetSchedulesReply, LeaderLock, LeaderLockReply, ListAttempts, ListAttemptsReply, ListChains,
    ListChainsReply, ListDependents, ListDependentsReply, ListJobs, ListJobsReply, ListSchedules,
    ListSchedulesReply, ListWorkers, ListWorkersReply, NextDue, NextDueReply, Pause, PauseReply, Reap,
    ReapReply, Renew, RenewLease, RenewReply, Reply, Request, Retire, RetireReply, Retry, RetryReply,
    SetRetention, SetRetentionReply, Settle, SettleReply, Trigger, TriggerReply,
};
use crate::error::{Error, Result};
use crate::for_each_command;
use crate::notifier::{InProcessNotifier, Notifier};

/// The boxed future that the methods of stores and notifiers return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Stores jobs. Each method executes one command.
///
/// # Contract of every command
///
/// - **Atomic.** A command takes effect completely or not at all. Concurrent commands behave as if they ran
///   one after the other.
/// - **Batched.** A command that names items takes many of them in a fixed number of round trips, regardless of their
///   number. The reply has one entry per item, in the order of the request. Items that concern the same chain, job or
///   key take effect in that order: a later item sees the result of an earlier one. Consequences of the items (see
///   [`Ripple`](crate::command::Ripple)) are processed last. An empty command returns an empty reply. Commands that
///   search return what they find. `NextDue`, `Count`, `Beat` and `LeaderLock` take no items.
/// - **Independent items.** An item that is refused writes nothing, reports the reason, and does not affect
///   the other items.
/// - **The store's clock decides.** A command takes effect at one point in time on the store's clock. No
///   other clock is ever compared with it.
/// - **Idempotent.** If a reply is lost, the same command can be sent again. This holds for
///   [`REPEAT_WINDOW_MS`](crate::limit::REPEAT_WINDOW_MS) after a chain has closed:
///   - A creation is recognized by its chain id. A creation that returned an existing chain wrote nothing, so
///     a repeat is evaluated again.
///   - An acquire and a completion from outside are recognized by their request id, a settlement by its
///     fence, and a retry by its version.
///   - All other commands have the same effect when repeated, provided that chains are named by id: a key may
///     point at another chain by then. A repeated trigger may find its job already acquired, and a repeated
///     delete may find its chain gone. Both mean that the first call succeeded.
/// - **Fenced.** A write for an attempt carries `(job, fence)`. It takes effect only while the job runs under
///   that fence, so a stale attempt changes nothing.
/// - **Byte-exact.** Payloads, keys and names are returned exactly as they were stored.
/// - **Bounded.** The cost of a command depends on the jobs that it touches, not on how many others are
///   stored.
///
/// # Errors
///
/// A command above a limit of [`limit`](crate::limit) returns an error of kind `Invalid` and writes nothing.
/// A command that the store does not support returns an error of kind `Unsupported`;
/// [`capabilities`](Self::capabilities) lists what is supported.
///
/// # Cancel safety
///
/// If a future is dropped before it completes, its command may or may not have taken effect. Repeat the
/// command to find out.
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// Returns the optional features that this store supports.
    fn capabilities(&self) -> Capabilities;

    /// Starts chains, each with its first job.
    ///
    /// Evaluates each chain in this order:
    ///
    /// - A chain that exceeds a limit, or that names itself as a blocker, is *refused*.
    /// - If a chain with the same id and type is stored, the creation is *repeated*: nothing is written, and
    ///   the reply is `New` with the current state of the chain's latest job. If the id belongs to a chain of
    ///   another type or to another job, the chain is *refused*.
    /// - If another chain of the same type holds the key, nothing is written, and the reply is that *existing* chain
    ///   with its status and output. Input, schedule and blockers are ignored. An open chain holds its key. A closed
    ///   chain holds its key until its retention ends, if its outcome is one of those that hold the key. In both cases
    ///   the hold ends with the key's window, counted from the chain's creation. If the holder is the chain named in
    ///   `replaces`, the new chain takes over the key. A key points at one chain only: storing a chain with a key
    ///   detaches the key from its previous chain, open or not. This holds under any concurrency.
    /// - If a blocker chain is not stored, the chain is *refused*.
    /// - Otherwise the chain is stored. Its first job is `blocked` while a blocker chain has not completed,
    ///   else `pending`. If a blocker failed or was cancelled, the job's policy decides: the job keeps
    ///   waiting, fails immediately, or treats the blocker as resolved. The job is due at the requested time,
    ///   or now if that time has passed.
    fn create(&self, request: Create) -> BoxFuture<'_, Result<CreateReply>>;

    /// Acquires due jobs and leases them to a worker.
    ///
    /// Returns at most `max` jobs in total, and at most its quota of each type. Selects from the pending, due
    /// jobs of the requested types, except paused types. Orders them across all types by priority (higher
    /// first), due time and creation. No two acquires lease the same job at the same time. In one atomic
    /// step, sets each job to `running`, counts the attempt, increases the fence and writes the lease. Each
    /// job includes the outputs of its blockers, in the order in which they were declared.
    ///
    /// Returns fewer jobs if their inputs, and the outputs of their blockers, would be larger than
    /// [`ACQUIRE_MAX_BYTES`](crate::limit::ACQUIRE_MAX_BYTES) in total, but at least one. A later acquire returns the others.
    ///
    /// A repeat with the same request id returns the jobs that the request acquired and still holds, and
    /// acquires no others. If it holds none, it acquires new ones.
    ///
    /// Skips rows that another transaction has locked; never waits for them. Also resumes unblocking that an
    /// earlier command deferred. Jobs unblocked this way are returned by this acquire or a later one.
    fn acquire(&self, request: Acquire) -> BoxFuture<'_, Result<AcquireReply>>;

    /// Renews leases: each lease then expires its full length from now.
    ///
    /// A lease that has expired but has not been reaped is still held, and is renewed. The reply reports for
    /// each lease whether it is held, and if so whether the job was asked to stop; or that it is *busy*; or
    /// why it is lost. A renewal does not change a job's version.
    ///
    /// Inside a transaction, a renewal also keeps the job until the transaction ends: no other caller can
    /// reap or settle it in between.
    fn renew(&self, request: Renew) -> BoxFuture<'_, Result<RenewReply>>;

    /// Ends attempts.
    ///
    /// If a job no longer runs under the fence of the attempt, the attempt is *lost* and nothing is written.
    /// However, if the attempt was already settled with the same kind of outcome, or was cancelled instead,
    /// the reply is *already applied*. The store remembers this for the last
    /// [`HISTORY_MAX`](crate::limit::HISTORY_MAX) attempts. An attempt whose lease has expired but has not
    /// been reaped can still be settled. If another open transaction has locked a row that a settlement
    /// needs, that settlement is *busy*; it does not delay the others.
    ///
    /// - `Complete` stores the output, clears the error and closes the chain as completed.
    /// - `Continue` completes the job without an output and adds the next job to the chain, blocked or
    ///   pending as in [`create`](Self::create). It is *refused* if the next job's id is taken, if a blocker
    ///   is not stored, or if the chain would wait for itself. The cycle search visits at most
    ///   [`CYCLE_SEARCH_MAX`](crate::limit::CYCLE_SEARCH_MAX) chains.
    /// - `Retry` returns the job to `pending` with the error, due at the requested time, or now if that time
    ///   has passed. After the last allowed attempt, the job fails instead.
    /// - `Reschedule` does the same, but the attempt does not count and the maximum is ignored. Without an
    ///   error it keeps the previous one.
    /// - `Fail` stores the error and closes the chain as failed.
    /// - `Release` returns the job to its state before the acquire: the attempt does not count, and the due
    ///   time is kept.
    ///
    /// `Complete` and `Continue` can carry chains to create, with the same results as `create`. The carried chains are
    /// created first. At that point the settled job's chain still holds its key, so a successor takes over the key with
    /// `replaces`. The blockers of the next job may name carried chains. If a carried chain is refused, the whole
    /// settlement is refused and nothing of it is written.
    ///
    /// If a job was asked to stop, an outcome that would keep its chain open (`Continue`, `Retry`,
    /// `Reschedule`, `Release`) cancels it instead, and the carried chains are not created. `Complete` and
    /// `Fail` apply as usual, except that a carried chain that `replaces` the job's own chain is not created:
    /// a recurring chain ends there.
    ///
    /// A closed chain is kept until its retention for that outcome ends. `Complete` and `Fail` can override the
    /// retention. The dependents of the chain are resolved in their order of creation. A completed chain resolves the
    /// wait. For a failed or cancelled chain, the policy of each dependent decides. A job without unresolved blockers
    /// becomes `pending`, due at its time, or now if that time has passed. No job stays blocked, no matter how many of
    /// its blockers close at the same time, or in which order.
    ///
    /// The reply lists the unblocked jobs and the closed chains. Dependents above
    /// [`RIPPLE_MAX`](crate::limit::RIPPLE_MAX), and dependents whose row another transaction has locked, are
    /// deferred: a stored mark lets later acquires and reaps resolve them.
    fn settle(&self, request: Settle) -> BoxFuture<'_, Result<SettleReply>>;

    /// Performs [`settle`](Self::settle), then [`acquire`](Self::acquire), as one command in one round trip.
    fn exchange(&self, request: Exchange) -> BoxFuture<'_, Result<ExchangeReply>> {
        let _ = request;
        unsupported("exchange")
    }

    /// Performs [`create`](Self::create), then [`acquire`](Self::acquire), as one command in one round trip. The acquire
    /// can return jobs of the new chains.
    ///
    /// A chain that is refused or busy does not prevent the acquire. If one part of the request is invalid, nothing is
    /// written. If the command fails, both parts have taken effect as a whole or not at all, so each can be repeated
    /// alone: the chains by their ids, and the acquire by its request id.
    fn create_and_acquire(&self, request: CreateAndAcquire) -> BoxFuture<'_, Result<CreateAndAcquireReply>> {
        let _ = request;
        unsupported("create_and_acquire")
    }

    /// Requeues jobs whose lease has expired.
    ///
    /// Returns at most `max` jobs of the requested types, longest expired first, and none of the jobs in
    /// `except`. The attempt counts. The job becomes `pending` and due now; or `failed` after its last
    /// allowed attempt; or `cancelled` if it was asked to stop. Its error says that the lease expired. The
    /// reply names the worker that held the lease. Skips rows that another transaction has locked. Like an
    /// acquire, resumes unblocking that was deferred.
    ///
    /// In a store with a single writer, a long transaction keeps all workers from renewing their leases.
    /// After such a stall, reaps leave the owners one renewal interval to renew before they requeue jobs.
    fn reap(&self, request: Reap) -> BoxFuture<'_, Result<ReapReply>>;

    /// Returns when the earliest pending job of these types is due, and when their earliest lease expires.
    /// Paused types count only for leases.
    fn next_due(&self, request: NextDue) -> BoxFuture<'_, Result<NextDueReply>> {
        let _ = request;
        unsupported("next_due")
    }

    /// Removes chains and jobs whose retention has ended.
    ///
    /// - A closed chain is removed with all its jobs when its retention ends, unless a dependent (a job that
    ///   waits or waited for it) is open, or has failed and can be retried.
    /// - Completed jobs of an open chain, except the first and the latest, are removed when the chain's
    ///   retention for completed chains has passed since they ended.
    /// - Nothing is removed within [`REPEAT_WINDOW_MS`](crate::limit::REPEAT_WINDOW_MS) of its end.
    ///
    /// Removes at most `max` jobs. A chain with more jobs is removed over several calls, its first and latest
    /// job last. The reply says whether to call again.
    fn expire(&self, request: Expire) -> BoxFuture<'_, Result<ExpireReply>>;

    /// Ends a job without a worker, for example after an approval or a webhook.
    ///
    /// The job must be the latest of its chain and have the given version. Otherwise the reply is *changed*
    /// and nothing is written. The job may be pending, blocked or running. If it is running, the reply names
    /// the displaced worker. The steps are applied in order, with the rules of the settlements of the same
    /// name, including those for a job that was asked to stop. Each step but the last continues the chain. If
    /// one step is refused, none is written. Repeating the latest call with the same request id returns
    /// *already applied*. The job's `closed_by` stays empty.
    fn complete_from_outside(
        &self,
        request: CompleteFromOutside,
    ) -> BoxFuture<'_, Result<CompleteFromOutsideReply>> {
        let _ = request;
        unsupported("complete_from_outside")
    }

    /// Cancels chains.
    ///
    /// A chain whose latest job is pending or blocked is cancelled. If that job is running, the mode decides:
    /// the chain is left alone, or it is asked to stop. In the latter case the job's `cancel_requested` is
    /// set, the worker learns about it at the next renewal, and the chain stays open until the attempt is
    /// settled or reaped. A closed chain is not changed.
    fn cancel(&self, request: Cancel) -> BoxFuture<'_, Result<CancelReply>> {
        let _ = request;
        unsupported("cancel")
    }

    /// Makes pending jobs due now, all or none.
    ///
    /// Sets each job's due time to now and keeps everything else. If one of the jobs is not stored or not
    /// pending, none is changed, and the reply states the reason for each such target. A target named twice
    /// is triggered once.
    fn trigger(&self, request: Trigger) -> BoxFuture<'_, Result<TriggerReply>> {
        let _ = request;
        unsupported("trigger")
    }

    /// Reopens chains that failed or were cancelled.
    ///
    /// The closed job becomes `pending` and due now, or `blocked` if it waits for a blocker. Its attempts are
    /// counted from 0 again; its error and history are kept. The chain holds its key again.
    ///
    /// A retry is *refused* if another chain holds the key, if a blocker is no longer stored, or if a blocker
    /// failed or was cancelled and would make the job fail again immediately. If the job was retried since
    /// the given version, the reply is *already retried*.
    fn retry(&self, request: Retry) -> BoxFuture<'_, Result<RetryReply>> {
        let _ = request;
        unsupported("retry")
    }

    /// Removes chains with all their jobs, all or none.
    ///
    /// Targets that are not stored are skipped. With `cascade`, also removes the chains that any of the
    /// removed jobs waits or waited for, recursively, each once. A running chain is removed too, and the
    /// reply names its job and worker. The keys of removed chains become free. Deleting also erases the
    /// record of the creation: repeating the creation afterwards creates the chain again.
    ///
    /// The command is refused, with the references, if an open job outside the set depends on a chain in it.
    /// It is also refused for more than [`DELETE_MAX_CHAINS`](crate::limit::DELETE_MAX_CHAINS) chains. With `seen`, it is
    /// refused if the latest job of a chain in the set is not in that list with its current version: the chain has changed
    /// since the caller read it, or the caller has not read it.
    fn delete(&self, request: Delete) -> BoxFuture<'_, Result<DeleteReply>> {
        let _ = request;
        unsupported("delete")
    }

    /// Sets how long closed chains are kept, counted from now. Open chains are not changed.
    fn set_retention(&self, request: SetRetention) -> BoxFuture<'_, Result<SetRetentionReply>> {
        let _ = request;
        unsupported("set_retention")
    }

    /// Pauses or resumes job types. Jobs of a paused type are not acquired; running jobs continue.
    fn pause(&self, request: Pause) -> BoxFuture<'_, Result<PauseReply>> {
        let _ = request;
        unsupported("pause")
    }

    /// Returns chains by id, by one of their jobs, or by the key that points at them. A key points at the
    /// latest chain that was stored or retried with it, whether or not that chain still holds the key, until
    /// the chain is closed and its retention has ended.
    fn get_chains(&self, request: GetChains) -> BoxFuture<'_, Result<GetChainsReply>>;

    /// Returns jobs by id.
    fn get_jobs(&self, request: GetJobs) -> BoxFuture<'_, Result<GetJobsReply>>;

    /// Lists chains in order of creation, newest or oldest first.
    ///
    /// The work of a call is bounded, so a page before the last may be short or even empty. Following the
    /// cursors until there is none returns every chain that was stored throughout exactly once.
    fn list_chains(&self, request: ListChains) -> BoxFuture<'_, Result<ListChainsReply>> {
        let _ = request;
        unsupported("list_chains")
    }

    /// Lists jobs in order of creation. Pages work as in [`list_chains`](Self::list_chains).
    fn list_jobs(&self, request: ListJobs) -> BoxFuture<'_, Result<ListJobsReply>> {
        let _ = request;
        unsupported("list_jobs")
    }

    /// Lists the jobs that wait or waited for a chain. Pages work as in [`list_chains`](Self::list_chains).
    fn list_dependents(&self, request: ListDependents) -> BoxFuture<'_, Result<ListDependentsReply>> {
        let _ = request;
        unsupported("list_dependents")
    }

    /// Returns the latest attempts of a job, oldest first: at most [`HISTORY_MAX`](crate::limit::HISTORY_MAX)
    /// ended attempts, and the attempt that is running or that closed the job.
    fn list_attempts(&self, request: ListAttempts) -> BoxFuture<'_, Result<ListAttemptsReply>> {
        let _ = request;
        unsupported("list_attempts")
    }

    /// Counts jobs by type and status. Also returns for each type the due time of its oldest ready job, the
    /// number of expired leases, and whether it is paused.
    ///
    /// Also returns how many jobs of the type have ever completed, failed and been cancelled. These totals are exact and
    /// only grow: they include jobs that were removed or retried since. They are kept while a type has no jobs, until the
    /// store is erased.
    fn count(&self, request: Count) -> BoxFuture<'_, Result<CountReply>> {
        let _ = request;
        unsupported("count")
    }

    /// Registers a worker or renews its registration. The worker is listed until its TTL passes or it
    /// retires.
    fn beat(&self, request: Beat) -> BoxFuture<'_, Result<BeatReply>> {
        let _ = request;
        unsupported("beat")
    }

    /// Removes a worker from the list. Its jobs are not affected.
    fn retire(&self, request: Retire) -> BoxFuture<'_, Result<RetireReply>> {
        let _ = request;
        unsupported("retire")
    }

    /// Lists the workers whose TTL has not passed since their latest beat.
    fn list_workers(&self, request: ListWorkers) -> BoxFuture<'_, Result<ListWorkersReply>> {
        let _ = request;
        unsupported("list_workers")
    }

    /// Acquires, renews or releases a lock. One token holds the lock at a time, and only that token can renew
    /// or release it. Once the lock has expired, any token can acquire it.
    fn leader_lock(&self, request: LeaderLock) -> BoxFuture<'_, Result<LeaderLockReply>> {
        let _ = request;
        unsupported("leader_lock")
    }

    /// Creates, changes, fires or deletes schedules.
    ///
    /// Evaluates each change in this order:
    ///
    /// - If the stored schedule has the revision that the change writes, or if the change deletes a schedule that is not
    ///   stored, the change is *repeated*: nothing is written.
    /// - If the stored schedule does not have the given id and the expected revision, the reply is *conflict* and nothing
    ///   is written. The same holds if no revision is expected, but the name or the id is stored. Of concurrent changes
    ///   that expect the same revision, one is applied.
    /// - Before `not_before`, the reply is *not due* and nothing is written.
    /// - After `not_after`, the reply is *too late* and nothing is written.
    /// - If the last handled occurrence would decrease, the reply is *conflict* and nothing is written.
    /// - Otherwise the schedule is written or deleted. If the change has a chain, it is created as in
    ///   [`create`](Self::create), in the same commit. If another chain holds the key or the chain is refused, the
    ///   schedule is written with [`state_if_not_created`](crate::command::PutSchedule::state_if_not_created).
    ///
    /// If another open transaction has locked a row that a change needs, that change is *busy*; it does not delay the
    /// others. The chains of a deleted schedule are kept.
    fn change_schedules(&self, request: ChangeSchedules) -> BoxFuture<'_, Result<ChangeSchedulesReply>> {
        let _ = request;
        unsupported("change_schedules")
    }

    /// Returns schedules by name or id.
    fn get_schedules(&self, request: GetSchedules) -> BoxFuture<'_, Result<GetSchedulesReply>> {
        let _ = request;
        unsupported("get_schedules")
    }

    /// Lists schedules by name, in the order of its bytes.
    fn list_schedules(&self, request: ListSchedules) -> BoxFuture<'_, Result<ListSchedulesReply>> {
        let _ = request;
        unsupported("list_schedules")
    }

    /// Returns the schedules that are due, by due time and name, without the first `skip`. Also returns when the next
    /// schedule after these is due. Schedules without a due time are not considered.
    fn due_schedules(&self, request: DueSchedules) -> BoxFuture<'_, Result<DueSchedulesReply>> {
        let _ = request;
        unsupported("due_schedules")
    }

    /// Removes everything in this store's namespace.
    fn erase(&self) -> BoxFuture<'_, Result<()>>;

    /// Returns problems with the state of the store, each with its remedy. Empty if the store is healthy.
    fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Returns the number of round trips and commits since the store was opened.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Returns a notifier that reaches every process that uses this store. Clients use it by default. This method may
    /// be called outside a runtime, so the notifier should connect when it is first used.
    ///
    /// Default: an [`InProcessNotifier`], which reaches no other process.
    fn notifier(&self) -> Arc<dyn Notifier> {
        Arc::new(InProcessNotifier::new())
    }

    /// Closes the store. Later commands return an error of kind `Closed`. Closing again does nothing.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// Identifies a transaction. Stores decide what it means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub u64);

/// Whether and how a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxEnd {
    /// The transaction is still open.
    Open,
    /// The transaction was committed.
    Committed,
    /// The transaction was rolled back.
    RolledBack,
    /// The transaction has ended, but the store does not know how.
    Unknown,
}

macro_rules! execute {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl dyn Store {
            /// Executes any command.
            pub async fn execute(&self, command: Command) -> Result<Reply> {
                match command { $(Command::$request(request) => self.$method(request).await.map(Reply::$request),)* }
            }
        }
    };
}
for_each_command!(execute);

/// A store whose commands can take part in a transaction of the application.
///
/// A transaction sees its own writes. They are invisible outside until the commit, and a rollback leaves no
/// trace of them. Commands inside a transaction use the time at which they run, not the start of the
/// transaction. A transaction that is dropped is rolled back.
///
/// # Snapshots
///
/// A transaction may read from a snapshot (`repeatable read`, `serializable`). Jobs that began to wait for a
/// chain after the snapshot was taken are invisible to it. In such a transaction:
///
/// - A command that closes a chain, or attaches a job to one, stores a mark and resolves no wait. Its reply
///   says so ([`Ripple::deferred`](crate::command::Ripple::deferred)). After the commit, the next acquire or
///   reap resolves the waits; a client sends a reap immediately.
/// - A command fails with [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if a concurrent change may have
///   invalidated a decision it made.
/// - `delete` is refused with an error of kind `Invalid`. The transaction stays usable.
pub trait Transactional: Store {
    /// The transaction type that this store begins, from the application's own database driver.
    type Tx: Send + 'static;

    /// A borrowed transaction: one that this store began, or any transaction of the application's driver that
    /// converts into this type.
    type TxRef<'t>: Send + From<Self::Connection<'t>>;

    /// The connection of a transaction, on which the application runs its own statements.
    type Connection<'t>: Send;

    /// Borrows a transaction that this store began.
    fn tx_ref(tx: &mut Self::Tx) -> Self::TxRef<'_>;

    /// Returns the connection of a borrowed transaction.
    fn connection<'t>(tx: Self::TxRef<'t>) -> Self::Connection<'t>;

    /// Reborrows a borrowed transaction.
    fn reborrow<'t>(tx: &'t mut Self::TxRef<'_>) -> Self::TxRef<'t>;

    /// Begins a transaction.
    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Begins a transaction in which an attempt will settle its job or renew its lease.
    ///
    /// If transactions read from a snapshot, this locks the job first. Otherwise a renewal that commits after
    /// the snapshot was taken would make the settlement fail with a conflict.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LeaseLost`](crate::ErrorKind::LeaseLost) if the attempt no longer holds its job.
    fn begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<Self::Tx>> {
        let _ = attempt;
        self.begin()
    }

    /// Commits a transaction: makes all its writes durable and visible outside, or none of them.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Rolls a transaction back and discards its writes.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Checks that `tx` is inside an open transaction, and identifies it for [`ends`](Self::ends). Outside a
    /// transaction, each command would commit immediately.
    ///
    /// The default does nothing. It suits stores with a single writer whose commands detect this themselves.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if no transaction is open.
    fn identify<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<TxId>> {
        drop(tx);
        Box::pin(async { Ok(TxId::default()) })
    }

    /// For each transaction, returns whether and how it has ended. May wait for them to end.
    ///
    /// The default sends an empty write. It suits stores with a single writer, where the write succeeds only when no
    /// transaction is open.
    fn ends(&self, transactions: Vec<TxId>) -> BoxFuture<'_, Result<Vec<TxEnd>>> {
        let write = self.create(Create { chains: Vec::new() });
        Box::pin(async move { write.await.map(|_| vec![TxEnd::Unknown; transactions.len()]) })
    }

    /// Sets a savepoint. Savepoints nest.
    fn savepoint<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<()>>;

    /// Removes the latest savepoint and keeps the writes made since.
    fn release<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<()>>;

    /// Discards the writes made since the latest savepoint and removes the savepoint. The transaction stays
    /// open.
    fn rollback_to<'a>(&'a self, tx: Self::TxRef<'a>) -> BoxFuture<'a, Result<()>>;

    /// Executes a command inside the transaction, with the contract of the [`Store`] method of the same name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the command is reserved for workers (see
    /// [`Command::is_transactional`]).
    fn execute_in<'a>(&'a self, tx: Self::TxRef<'a>, command: Command) -> BoxFuture<'a, Result<Reply>>;

    /// Calls [`execute_in`](Self::execute_in) and returns the reply with its own type.
    fn run_in<'a, R: Request>(
        &'a self,
        tx: Self::TxRef<'a>,
        request: R,
    ) -> impl Future<Output = Result<R::Reply>> + Send + 'a
    where
        Self: Sized,
    {
        let reply = self.execute_in(tx, request.into());
        async move { reply.await?.try_into() }
    }
}

fn unsupported<'a, T>(command: &'static str) -> BoxFuture<'a, Result<T>> {
    Box::pin(async move { Err(Error::unsupported(command)) })
}

/// The number of round trips and commits since a store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests sent and answered.
    pub round_trips: u64,
    /// Durable commits.
    pub commits: u64,
}

/// A problem with a store that needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_usable_as_dyn() {
        fn _takes(_: &dyn Store) {}
        assert!(Capabilities::all().has(Capability::Transactions));
        assert!(!Capabilities::CORE.has(Capability::Exchange));
    }
}
