//! The store: where jobs live.
//!
//! Each method's doc is its contract, and each sentence of it has a case in `windlass-conformance`.

mod any;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

pub(crate) use any::AnyStore;

use crate::command::{
    Acquire, AcquireReply, Beat, BeatReply, Cancel, CancelReply, Command, CompleteFromOutside,
    CompleteFromOutsideReply, Count, CountReply, Create, CreateReply, Delete, DeleteReply, Exchange,
    ExchangeReply, Expire, ExpireReply, GetChains, GetChainsReply, GetJobs, GetJobsReply, LeaderLock,
    LeaderLockReply, ListAttempts, ListAttemptsReply, ListChains, ListChainsReply, ListDependents,
    ListDependentsReply, ListJobs, ListJobsReply, ListWorkers, ListWorkersReply, NextDue, NextDueReply,
    Pause, PauseReply, Reap, ReapReply, Renew, RenewLease, RenewReply, Reply, Request, Retire, RetireReply,
    Retry, RetryReply, SetRetention, SetRetentionReply, Settle, SettleReply, Trigger, TriggerReply,
};
use crate::error::{Error, Result};
use crate::for_each_command;

/// What the methods of a seam return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where jobs live: commands, not conversations.
///
/// # What holds for every command
///
/// - **Atomic.** A command happens whole or not at all, and commands behave as if they came one after the
///   other.
/// - **Batch-first.** It takes many items, costs a fixed number of round trips whatever their number, and
///   answers for each in the order given. Items that concern the same chain, job or key act in that order, so
///   that a later one sees what an earlier one did; what follows from them (see
///   [`Ripple`](crate::command::Ripple)) comes last. An empty command gives an empty reply. One above a limit
///   of [`limit`](crate::limit) is an error of kind `Invalid`, and writes nothing.
/// - **Items are independent.** One that is refused writes nothing, says why, and harms no other.
/// - **The store's clock decides.** Each command happens at one time on it; nobody else's clock is compared
///   with it.
/// - **Safe to repeat.** After a lost reply the same command may be sent again: creation is recognized by its
///   id (one that met an existing chain wrote nothing, and repeated is judged anew), acquisition and
///   completion from outside by their request id, a settlement by its fence, a retry by its version; the rest
///   come to the same by nature (a trigger may find its job taken, and a delete its chain gone: that is its
///   success), if a chain is named by its id and not by a key, which may point at another by then. It holds
///   for [`REPEAT_WINDOW_MS`](crate::limit::REPEAT_WINDOW_MS) after the end of a chain.
/// - **A stale attempt changes nothing.** A write for an attempt carries `(job, fence)` and is carried out
///   only while the job runs under that fence.
/// - **Bytes stay exact.** Payloads, keys and names come back as they were given.
/// - **Bounded.** The work of a command depends on the jobs that it touches, not on what else is stored.
///
/// A command that a store lacks gives an error of kind `Unsupported`, and
/// [`capabilities`](Self::capabilities) says so.
///
/// # Cancel safety
///
/// A future dropped before it is done may or may not have carried its command out; repeat it to know.
pub trait Store: Send + Sync + fmt::Debug + 'static {
    /// What this store can do.
    fn capabilities(&self) -> Capabilities;

    /// Starts chains, each with its first job.
    ///
    /// For each chain, in this order:
    ///
    /// - It is *refused* if it breaks a limit.
    /// - If a chain with its id and type is stored, nothing is written and the reply is that of a *repeated*
    ///   creation: `New` with the chain's latest job as it stands. If its id belongs to a chain of another
    ///   type or to another job, it is *refused*.
    /// - If another chain of its type holds its key, nothing is written, and the reply is that *existing*
    ///   chain with its status and output; input, schedule and blockers are ignored. A key is held while its
    ///   chain is open, and afterwards if its outcome is one of those that hold it; in both cases only within
    ///   the key's window, counted from the chain's creation, and in the second only until the chain's
    ///   retention ends. A key whose holder is the chain named in `replaces` is taken over. Whoever is stored
    ///   with a key has it alone: it no longer points at the former chain, open or not. This is so under any
    ///   concurrency.
    /// - It is *refused* if a blocker chain is not stored, or is the chain itself.
    /// - Otherwise it is stored. Its first job is `blocked` while a blocker chain has not completed, else
    ///   `pending`. A blocker that failed or was cancelled keeps a job waiting, fails it at once, or counts
    ///   as resolved, as the job's policy says. The job is due at the time asked for, or now if that is past.
    fn create(&self, request: Create) -> BoxFuture<'_, Result<CreateReply>>;

    /// Takes due jobs and leases them to a worker.
    ///
    /// Gives `max` jobs at most, and of each type at most its quota; of those that are pending, due, and of a
    /// type that is asked for and not paused, the first by priority (higher first), then due time, then order
    /// of creation, across all types. Two acquires never get the same job. Each job is `running` with its
    /// attempt counted, its fence grown and its lease written in the same step, and comes with the outputs of
    /// its blockers in the order in which they were declared.
    ///
    /// Repeated with the same request id it gives the jobs that the request took and that are still held
    /// under it, and takes no others; if there are none, it acquires anew.
    ///
    /// A row that somebody else holds is skipped, never waited for. It also goes on with unblocking that an
    /// earlier command had to leave off; what that frees is taken by this acquire or a later one.
    fn acquire(&self, request: Acquire) -> BoxFuture<'_, Result<AcquireReply>>;

    /// Renews leases: each then lasts for its length from now.
    ///
    /// A lease that has expired but was not reaped is held, and renewed. The reply says for each whether it
    /// is held, and then whether the job was asked to stop; or *busy*; or why it is lost. A job's version
    /// does not change. In a transaction it keeps the job until the end of that: nobody else reaps or settles
    /// it in between.
    fn renew(&self, request: Renew) -> BoxFuture<'_, Result<RenewReply>>;

    /// Ends attempts.
    ///
    /// An attempt whose job no longer runs under its fence is *lost*, and nothing is written; but if it was
    /// settled with the same kind of outcome before, or cancelled in its place, the reply is *already
    /// applied* (for the last [`HISTORY_MAX`](crate::limit::HISTORY_MAX) attempts). An expired lease that was
    /// not reaped may still be settled. A row locked by somebody's open transaction is *busy* and delays no
    /// other.
    ///
    /// - `Complete` stores the output, clears the error and closes the chain as completed.
    /// - `Continue` completes the job without an output and adds the next job to the chain, blocked or
    ///   pending as in [`create`](Self::create). It is *refused* if the next job's id is taken, if a blocker
    ///   is not stored, or if the chain would wait for itself, as far as a search of
    ///   [`CYCLE_SEARCH_MAX`](crate::limit::CYCLE_SEARCH_MAX) chains shows.
    /// - `Retry` puts the job back to `pending` with the error, due at the time asked for, or now if that is
    ///   past; after the last attempt of its maximum it fails instead.
    /// - `Reschedule` does the same without counting the attempt and whatever the maximum; without an error
    ///   it keeps the one before.
    /// - `Fail` stores the error and closes the chain as failed.
    /// - `Release` puts the job back as it was before it was acquired: attempt not counted, due time kept.
    ///
    /// `Complete` and `Continue` carry chains to create, with the replies of `create`. They are created
    /// first: the settled job's chain still holds its key, which a successor takes over by `replaces`, and
    /// the next job's blockers may name them. If one of them is refused the whole settlement is, and nothing
    /// of it is written.
    ///
    /// A job that was asked to stop and would go on (`Continue`, `Retry`, `Reschedule`, `Release`) is
    /// cancelled instead, and its carried chains are not created. `Complete` and `Fail` stand, but a carried
    /// chain that `replaces` the job's own is not created: a recurring chain ends there.
    ///
    /// When a chain closes it stays until its retention for that outcome ends; `Complete` and `Fail` may
    /// bring another. Jobs that waited for it are resolved in their order of creation: a completed chain
    /// resolves the wait; one that failed or was cancelled does what each job's policy says. A job without
    /// any wait left is `pending`, due at its time or now if that is past. However many blockers end at once
    /// and in whatever order, none is left blocked. The reply tells what was unblocked and closed. Above
    /// [`RIPPLE_MAX`](crate::limit::RIPPLE_MAX) dependents, and where somebody else holds the row of one, the
    /// rest is left, with a stored mark, to later acquires and reaps.
    fn settle(&self, request: Settle) -> BoxFuture<'_, Result<SettleReply>>;

    /// [`settle`](Self::settle), then [`acquire`](Self::acquire), as one command in one round trip.
    fn exchange(&self, request: Exchange) -> BoxFuture<'_, Result<ExchangeReply>> {
        let _ = request;
        unsupported("exchange")
    }

    /// Puts jobs back whose lease expired.
    ///
    /// Gives `max` jobs at most, longest expired first, of the types asked for, and none of those named in
    /// `except`. The attempt counts. The job is `pending` and due now, or `failed` after the last attempt of
    /// its maximum, or `cancelled` if it was asked to stop; its error says that its lease expired. The reply
    /// names the worker that had held it. A row that somebody else holds is skipped. Like an acquire, it goes
    /// on with unblocking that was left off. Where one writer stops all, a reap after a time in which nobody
    /// could renew leaves owners one renewal interval.
    fn reap(&self, request: Reap) -> BoxFuture<'_, Result<ReapReply>>;

    /// When the earliest pending job of these types is due, and when the earliest lease of theirs expires.
    /// Paused types count for leases only.
    fn next_due(&self, request: NextDue) -> BoxFuture<'_, Result<NextDueReply>> {
        let _ = request;
        unsupported("next_due")
    }

    /// Removes what is kept no longer.
    ///
    /// A closed chain leaves with all its jobs when its retention is over, unless a job that is open, or that
    /// failed and may be retried, waits or waited for it. Of an open chain the completed jobs leave when the
    /// chain's retention for completed ones is over since they ended, except the first and the latest.
    /// Nothing leaves before [`REPEAT_WINDOW_MS`](crate::limit::REPEAT_WINDOW_MS) after its end. At most
    /// `max` jobs leave; a chain with more leaves over several calls, its first and latest job last. The
    /// reply says whether to call again.
    fn expire(&self, request: Expire) -> BoxFuture<'_, Result<ExpireReply>>;

    /// Ends a job without a worker: an approval, a webhook.
    ///
    /// The job must be its chain's latest and its version the one given, else the reply is *changed* and
    /// nothing is written. It may be pending, blocked or running; if it runs, the reply names the worker that
    /// is displaced. The steps are carried out one after the other, as settlements of the same name would be,
    /// also if the job was asked to stop; each but the last continues the chain. If one is refused, none is
    /// written. The latest call repeated with its request id is *already applied*. The job's `closed_by`
    /// stays empty.
    fn complete_from_outside(
        &self,
        request: CompleteFromOutside,
    ) -> BoxFuture<'_, Result<CompleteFromOutsideReply>> {
        let _ = request;
        unsupported("complete_from_outside")
    }

    /// Calls chains off.
    ///
    /// A chain whose latest job is pending or blocked is cancelled. If that job runs, the chain is left
    /// alone, or asked to stop: the job's `cancel_requested` is set, its worker learns it at the next
    /// renewal, and the chain stays open until the attempt is settled or reaped. A closed chain is not
    /// changed.
    fn cancel(&self, request: Cancel) -> BoxFuture<'_, Result<CancelReply>> {
        let _ = request;
        unsupported("cancel")
    }

    /// Makes pending jobs due at once, all or none.
    ///
    /// Each gets the present time as its due time and keeps the rest. If one is not stored or not pending,
    /// none is changed, and the reply says for each what stood in the way. A target named twice is triggered
    /// once.
    fn trigger(&self, request: Trigger) -> BoxFuture<'_, Result<TriggerReply>> {
        let _ = request;
        unsupported("trigger")
    }

    /// Reopens chains that failed or were cancelled.
    ///
    /// The closed job is `pending` and due now, or `blocked` if it waits; its attempts are counted from 0
    /// again, its error and history stay. Refused if another chain holds the key, if a blocker is no longer
    /// stored, or if one has failed or was cancelled and the job would fail again at once. An end that was
    /// retried since the version given is *already retried*. The chain holds its key again.
    fn retry(&self, request: Retry) -> BoxFuture<'_, Result<RetryReply>> {
        let _ = request;
        unsupported("retry")
    }

    /// Removes chains with all their jobs, all or none.
    ///
    /// Targets that are not stored are skipped. With `cascade` the chains that any of their jobs waits or
    /// waited for go too, and so on, each once. Refused, with the references, if an open job outside the set
    /// depends on a chain in it; and above [`DELETE_MAX_CHAINS`](crate::limit::DELETE_MAX_CHAINS). A chain
    /// that runs is removed too, and named with its worker. Its key is free. A delete forgets: a creation
    /// repeated after it creates anew.
    fn delete(&self, request: Delete) -> BoxFuture<'_, Result<DeleteReply>> {
        let _ = request;
        unsupported("delete")
    }

    /// Lets closed chains stay for so long from now. Open ones are not changed.
    fn set_retention(&self, request: SetRetention) -> BoxFuture<'_, Result<SetRetentionReply>> {
        let _ = request;
        unsupported("set_retention")
    }

    /// Stops or resumes the acquiring of types. Jobs that run go on.
    fn pause(&self, request: Pause) -> BoxFuture<'_, Result<PauseReply>> {
        let _ = request;
        unsupported("pause")
    }

    /// Looks chains up, by id, by one of their jobs, or by the key that points at them. A key points at the
    /// latest chain that was stored with it or retried, whether or not that still holds it, until that chain
    /// is closed and its retention over.
    fn get_chains(&self, request: GetChains) -> BoxFuture<'_, Result<GetChainsReply>>;

    /// Looks jobs up.
    fn get_jobs(&self, request: GetJobs) -> BoxFuture<'_, Result<GetJobsReply>>;

    /// Lists chains in their order of creation, newest first or oldest first. A page may be short, even
    /// empty, before the end: the work of a call is bounded. Going on from each cursor until there is none
    /// gives every chain that was there all the time once.
    fn list_chains(&self, request: ListChains) -> BoxFuture<'_, Result<ListChainsReply>> {
        let _ = request;
        unsupported("list_chains")
    }

    /// Lists jobs in their order of creation; otherwise like [`list_chains`](Self::list_chains).
    fn list_jobs(&self, request: ListJobs) -> BoxFuture<'_, Result<ListJobsReply>> {
        let _ = request;
        unsupported("list_jobs")
    }

    /// Lists the jobs that wait or waited for a chain; otherwise like [`list_chains`](Self::list_chains).
    fn list_dependents(&self, request: ListDependents) -> BoxFuture<'_, Result<ListDependentsReply>> {
        let _ = request;
        unsupported("list_dependents")
    }

    /// The latest attempts of a job, oldest first, at most [`HISTORY_MAX`](crate::limit::HISTORY_MAX) ended
    /// ones and the one that runs or closed it.
    fn list_attempts(&self, request: ListAttempts) -> BoxFuture<'_, Result<ListAttemptsReply>> {
        let _ = request;
        unsupported("list_attempts")
    }

    /// Counts jobs by type and status, and says for each type since when its longest ready job has been due,
    /// how many leases have expired, and whether it is paused.
    fn count(&self, request: Count) -> BoxFuture<'_, Result<CountReply>> {
        let _ = request;
        unsupported("count")
    }

    /// Announces a worker, or that it still lives. It is listed until its time runs out or it retires.
    fn beat(&self, request: Beat) -> BoxFuture<'_, Result<BeatReply>> {
        let _ = request;
        unsupported("beat")
    }

    /// Takes a worker off the list. Its jobs are not touched.
    fn retire(&self, request: Retire) -> BoxFuture<'_, Result<RetireReply>> {
        let _ = request;
        unsupported("retire")
    }

    /// The workers that were heard of within their time.
    fn list_workers(&self, request: ListWorkers) -> BoxFuture<'_, Result<ListWorkersReply>> {
        let _ = request;
        unsupported("list_workers")
    }

    /// Takes, renews or gives back a lock. One token holds it at a time; only that token renews or releases
    /// it; when its time is over, anyone takes it.
    fn leader_lock(&self, request: LeaderLock) -> BoxFuture<'_, Result<LeaderLockReply>> {
        let _ = request;
        unsupported("leader_lock")
    }

    /// Removes everything in this store's namespace.
    fn erase(&self) -> BoxFuture<'_, Result<()>>;

    /// Findings about the store's state, each with its cure; empty when all is well.
    fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Round trips and commits so far.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Closes the store. Later commands give an error of kind `Closed`. Closing again does nothing.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

macro_rules! execute {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl dyn Store {
            /// Carries any command out.
            pub async fn execute(&self, command: Command) -> Result<Reply> {
                match command { $(Command::$request(request) => self.$method(request).await.map(Reply::$request),)* }
            }
        }
    };
}
for_each_command!(execute);

/// A store whose commands can be part of a transaction that the application owns.
///
/// A transaction sees its own writes. Nobody else sees them before the commit, and a rollback leaves no trace
/// of them. Time inside is the clock at each command, not at the transaction's start. A transaction that is
/// dropped is rolled back.
///
/// # Snapshots
///
/// A transaction may read from a snapshot (`repeatable read`, `serializable`), which hides jobs that came to
/// wait for a chain since it was taken. In such a transaction:
///
/// - A command that closes a chain, or attaches a job to one, stores a mark, resolves no wait, and says so in
///   its reply ([`Ripple::deferred`](crate::command::Ripple::deferred)). After the commit the next acquire or
///   reap resolves the waits; a client sends a reap at once.
/// - A decision that a concurrent change could have made wrong fails with
///   [`ErrorKind::Conflict`](crate::ErrorKind::Conflict).
/// - `delete` is refused with an error of kind `Invalid`, and the transaction goes on.
pub trait Transactional: Store {
    /// The transaction that this store begins, by the application's own driver.
    type Tx: Send + 'static;

    /// A transaction as its owner lends it: one that this store began, or any that the application began with
    /// its driver and that becomes one of these.
    type Lent<'t>: Send;

    /// Lends a transaction that this store began.
    fn lend(tx: &mut Self::Tx) -> Self::Lent<'_>;

    /// Lends on what was lent.
    fn lend_on<'t>(tx: &'t mut Self::Lent<'_>) -> Self::Lent<'t>;

    /// Begins a transaction.
    fn begin(&self) -> BoxFuture<'_, Result<Self::Tx>>;

    /// Begins a transaction in which an attempt will settle its job or renew its lease.
    ///
    /// Where transactions read from a snapshot, this locks the job first: a renewal that commits after the
    /// snapshot was taken would make the settlement conflict. An attempt that has lost its job gets an error of
    /// kind `LeaseLost`.
    fn begin_attempt(&self, attempt: RenewLease) -> BoxFuture<'_, Result<Self::Tx>> {
        let _ = attempt;
        self.begin()
    }

    /// Makes its writes durable and seen by all, or none of them.
    fn commit(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Forgets its writes.
    fn rollback(&self, tx: Self::Tx) -> BoxFuture<'_, Result<()>>;

    /// Refuses, by an error of kind `Invalid`, what is not in a transaction: there a command would commit by
    /// itself. A store where each command finds that out by itself needs none of this.
    fn check_open<'a>(&'a self, tx: Self::Lent<'a>) -> BoxFuture<'a, Result<()>> {
        drop(tx);
        Box::pin(async { Ok(()) })
    }

    /// Marks a place in the transaction that can be returned to. Places nest.
    fn savepoint<'a>(&'a self, tx: Self::Lent<'a>) -> BoxFuture<'a, Result<()>>;

    /// Keeps what was written since the latest savepoint, and forgets the place.
    fn release<'a>(&'a self, tx: Self::Lent<'a>) -> BoxFuture<'a, Result<()>>;

    /// Forgets what was written since the latest savepoint, and the place. The transaction goes on.
    fn rollback_to<'a>(&'a self, tx: Self::Lent<'a>) -> BoxFuture<'a, Result<()>>;

    /// Carries a command out inside the transaction, with the contract of the [`Store`] method of its name.
    /// Commands that only workers give are refused with an error of kind `Invalid` (see
    /// [`Command::is_transactional`]).
    fn execute_in<'a>(&'a self, tx: Self::Lent<'a>, command: Command) -> BoxFuture<'a, Result<Reply>>;

    /// [`execute_in`](Self::execute_in) with the reply's type.
    fn run_in<'a, R: Request>(
        &'a self,
        tx: Self::Lent<'a>,
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

/// One thing that a store can do beyond create, acquire, renew, settle, reap, expire and the look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Capability {
    /// [`Store::exchange`].
    Exchange,
    /// [`Store::next_due`].
    NextDue,
    /// [`Store::complete_from_outside`].
    Outside,
    /// [`Store::cancel`].
    Cancel,
    /// [`Store::trigger`].
    Trigger,
    /// [`Store::retry`].
    Retry,
    /// [`Store::delete`].
    Delete,
    /// [`Store::set_retention`].
    SetRetention,
    /// [`Store::pause`].
    Pause,
    /// [`Store::list_chains`], [`Store::list_jobs`] and [`Store::list_dependents`].
    Lists,
    /// [`Store::list_attempts`].
    Attempts,
    /// [`Store::count`].
    Count,
    /// [`Store::beat`], [`Store::retire`] and [`Store::list_workers`].
    Workers,
    /// [`Store::leader_lock`].
    LeaderLock,
    /// [`Transactional`].
    Transactions,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Exchange,
        Self::NextDue,
        Self::Outside,
        Self::Cancel,
        Self::Trigger,
        Self::Retry,
        Self::Delete,
        Self::SetRetention,
        Self::Pause,
        Self::Lists,
        Self::Attempts,
        Self::Count,
        Self::Workers,
        Self::LeaderLock,
        Self::Transactions,
    ];
}

/// What a store can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(u32);

impl Capabilities {
    /// Nothing beyond what every store can.
    pub const CORE: Self = Self(0);

    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Capability::ALL.into_iter().fold(Self::CORE, Self::with)
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self(self.0 | 1 << capability as u8)
    }

    /// Whether it is among them.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }
}

/// Round trips and commits of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests sent and answered.
    pub round_trips: u64,
    /// Writes made durable.
    pub commits: u64,
}

/// Something about a store that someone should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was found.
    pub what: String,
    /// What to do about it.
    pub cure: String,
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
