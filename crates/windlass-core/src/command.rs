//! The commands of the store contract as plain data: requests and replies.
//!
//! A command that names items, such as chains or jobs, takes many of them, and its reply has one entry per item in the
//! order of the request. A command that searches, such as [`Acquire`] or [`ListJobs`], returns what it finds. [`NextDue`],
//! [`Count`], [`Beat`] and [`LeaderLock`] take no items. The contract of a command is documented on the method of
//! [`Store`](crate::Store) that executes it.
//!
//! [`Command`], [`Reply`], the requests and the replies are deliberately not `#[non_exhaustive]`: stores match and construct
//! them, and the compiler should report each place that does not handle a new command or field.

mod create;
mod manage;
mod outside;
mod query;
mod registry;
mod schedule;
mod work;

pub use create::{
    Create, CreateReply, Created, DueTime, Durability, Existing, JobSummary, NewBlocker, NewChain, NewJob,
    NewKey,
};
pub use manage::{
    Cancel, CancelMode, CancelReply, Cancelled, Delete, DeleteReply, Deleted, DeletedChain, Expire,
    ExpireReply, Expired, Pause, PauseReply, RetentionSet, Retried, Retry, RetryReply, RetryTarget, SeenJob,
    SetRetention, SetRetentionReply, Target, Trigger, TriggerReply, Triggered, Untriggerable,
};
pub use outside::{CompleteFromOutside, CompleteFromOutsideReply, OutsideApplied, Step};
pub use query::{
    ChainFacts, ChainFilter, Count, CountReply, Cursor, EndedJobs, GetChains, GetChainsReply, GetJobs,
    GetJobsReply, JobFacts, JobFilter, ListAttempts, ListAttemptsReply, ListChains, ListChainsReply,
    ListDependents, ListDependentsReply, ListJobs, ListJobsReply, NextDue, NextDueReply, Order, Page,
    TypeCount, Types,
};
pub use registry::{
    Beat, BeatReply, LeaderLock, LeaderLockReply, ListWorkers, ListWorkersReply, LockAction, LockState,
    Retire, RetireReply, WorkerInfo,
};
pub(crate) use schedule::check_text;
pub use schedule::{
    ChangeSchedules, ChangeSchedulesReply, DueSchedules, DueSchedulesReply, GetSchedules, GetSchedulesReply,
    ListSchedules, ListSchedulesReply, PutSchedule, ScheduleAction, ScheduleChange, ScheduleChanged,
    ScheduleRecord, ScheduleTarget,
};
pub use work::{
    Acquire, AcquireReply, Acquired, Applied, BlockerOutput, ClosedChain, CreateAndAcquire,
    CreateAndAcquireReply, Exchange, ExchangeReply, Lost, NextJob, Outcome, Quota, Reap, ReapReply, Reaped,
    Renew, RenewLease, RenewReply, Renewed, Ripple, Settle, SettleReply, Settled, Settlement, Unblocked,
};

use crate::error::{Error, ErrorKind, Result};
use crate::limit::{BATCH_MAX_BLOCKERS, BATCH_MAX_BYTES, BATCH_MAX_ITEMS};

/// Calls `$with!` with one line per command: its method name, request type and reply type.
#[macro_export]
macro_rules! for_each_command {
    ($with:ident) => {
        $with! {
            create: Create => CreateReply,
            acquire: Acquire => AcquireReply,
            renew: Renew => RenewReply,
            settle: Settle => SettleReply,
            exchange: Exchange => ExchangeReply,
            create_and_acquire: CreateAndAcquire => CreateAndAcquireReply,
            reap: Reap => ReapReply,
            next_due: NextDue => NextDueReply,
            expire: Expire => ExpireReply,
            complete_from_outside: CompleteFromOutside => CompleteFromOutsideReply,
            cancel: Cancel => CancelReply,
            trigger: Trigger => TriggerReply,
            retry: Retry => RetryReply,
            delete: Delete => DeleteReply,
            set_retention: SetRetention => SetRetentionReply,
            pause: Pause => PauseReply,
            get_chains: GetChains => GetChainsReply,
            get_jobs: GetJobs => GetJobsReply,
            list_chains: ListChains => ListChainsReply,
            list_jobs: ListJobs => ListJobsReply,
            list_dependents: ListDependents => ListDependentsReply,
            list_attempts: ListAttempts => ListAttemptsReply,
            count: Count => CountReply,
            beat: Beat => BeatReply,
            retire: Retire => RetireReply,
            list_workers: ListWorkers => ListWorkersReply,
            leader_lock: LeaderLock => LeaderLockReply,
            change_schedules: ChangeSchedules => ChangeSchedulesReply,
            get_schedules: GetSchedules => GetSchedulesReply,
            list_schedules: ListSchedules => ListSchedulesReply,
            due_schedules: DueSchedules => DueSchedulesReply,
        }
    };
}

macro_rules! command_enums {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        /// Any command.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is named after its request")]
        pub enum Command { $($request($request),)* }

        /// The reply to any command.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is named after its request")]
        pub enum Reply { $($request($reply),)* }

        impl Command {
            /// Returns the command's name: that of the [`Store`](crate::Store) method that executes it.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$request(_) => stringify!($method),)* }
            }
        }

        $(
            impl Request for $request {
                const NAME: &'static str = stringify!($method);

                type Reply = $reply;
            }

            impl From<$request> for Command {
                fn from(request: $request) -> Self {
                    Self::$request(request)
                }
            }

            impl TryFrom<Reply> for $reply {
                type Error = Error;

                fn try_from(reply: Reply) -> Result<Self> {
                    match reply {
                        Reply::$request(reply) => Ok(reply),
                        _ => Err(Error::new(
                            ErrorKind::Corrupt,
                            concat!("the store answered `", stringify!($method), "` with an unrelated reply"),
                        )),
                    }
                }
            }
        )*
    };
}
for_each_command!(command_enums);

/// A request with its reply type.
pub trait Request: Into<Command> {
    /// The name of the command: that of the [`Store`](crate::Store) method that executes it.
    const NAME: &'static str;

    /// The reply to this request.
    type Reply: TryFrom<Reply, Error = Error>;
}

impl Reply {
    /// Whether some waits were left for a later command to resolve. See [`Ripple::deferred`].
    #[must_use]
    pub const fn is_deferred(&self) -> bool {
        match self {
            Self::Create(reply) => reply.deferred,
            Self::CreateAndAcquire(reply) => reply.create.deferred,
            Self::Settle(reply) => reply.ripple.deferred,
            Self::CompleteFromOutside(CompleteFromOutsideReply::Applied(applied)) => applied.ripple.deferred,
            Self::Cancel(reply) => reply.ripple.deferred,
            Self::Retry(reply) => reply.deferred,
            _ => false,
        }
    }
}

impl Command {
    /// Returns the number of items in the request, or 1 for a command that has no list of items.
    #[must_use]
    pub fn items(&self) -> usize {
        match self {
            Self::Create(create) => create.chains.len(),
            Self::CreateAndAcquire(joined) => joined.create.chains.len(),
            Self::Acquire(acquire) => acquire.max as usize,
            Self::Renew(renew) => renew.leases.len(),
            Self::Settle(settle) => settle.settlements.len(),
            Self::Exchange(exchange) => exchange.settle.settlements.len(),
            Self::Reap(reap) => reap.max as usize,
            Self::Expire(expire) => expire.max as usize,
            Self::Cancel(cancel) => cancel.chains.len(),
            Self::Trigger(trigger) => trigger.jobs.len(),
            Self::Retry(retry) => retry.chains.len(),
            Self::Delete(delete) => delete.chains.len(),
            Self::SetRetention(set) => set.chains.len(),
            Self::Pause(pause) => pause.types.len(),
            Self::GetChains(get) => get.chains.len(),
            Self::GetJobs(get) => get.jobs.len(),
            _ => 1,
        }
    }

    /// Whether the command only reads.
    #[must_use]
    pub const fn is_query(&self) -> bool {
        matches!(
            self,
            Self::NextDue(_)
                | Self::GetChains(_)
                | Self::GetJobs(_)
                | Self::ListChains(_)
                | Self::ListJobs(_)
                | Self::ListDependents(_)
                | Self::ListAttempts(_)
                | Self::Count(_)
                | Self::ListWorkers(_)
                | Self::GetSchedules(_)
                | Self::ListSchedules(_)
                | Self::DueSchedules(_)
        )
    }

    /// Whether an application may execute the command inside its own transaction. All other commands belong
    /// to workers, and their effects must be visible immediately.
    ///
    /// A renewal is allowed: it prevents a stale attempt from committing what it wrote in the transaction.
    #[must_use]
    pub const fn is_transactional(&self) -> bool {
        !matches!(
            self,
            Self::Acquire(_)
                | Self::Exchange(_)
                | Self::CreateAndAcquire(_)
                | Self::Reap(_)
                | Self::Expire(_)
                | Self::Beat(_)
                | Self::Retire(_)
                | Self::LeaderLock(_)
                | Self::DueSchedules(_)
        )
    }
}

/// The size of a command, compared with the limits of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
    pub(crate) blockers: usize,
}

impl Size {
    pub(crate) const fn of_items(items: usize) -> Self {
        Self { items, bytes: 0, blockers: 0 }
    }

    /// Returns the sum of both sizes.
    pub(crate) const fn and(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { items: self.items + other.items, bytes, blockers: self.blockers + other.blockers }
    }

    /// Returns an error if the command exceeds a limit.
    pub(crate) fn check(self, what: &str) -> Result<()> {
        let over = |count: usize, of: &str, max: usize| {
            let text = format!("{count} {of} exceed the limit of {max} per command: split the command");
            Err(Error::new(ErrorKind::Invalid, text))
        };
        if self.items > BATCH_MAX_ITEMS {
            return over(self.items, what, BATCH_MAX_ITEMS);
        }
        if self.blockers > BATCH_MAX_BLOCKERS {
            return over(self.blockers, "blockers", BATCH_MAX_BLOCKERS);
        }
        if self.bytes > BATCH_MAX_BYTES {
            return over(self.bytes, "bytes of payload", BATCH_MAX_BYTES);
        }
        Ok(())
    }
}

/// Returns an error if a command has too many items.
pub(crate) fn check_items(what: &str, items: usize) -> Result<()> {
    Size::of_items(items).check(what)
}
