use crate::id::{RequestId, WorkerId};
use crate::name::{LockName, TypeName, WorkerName};
use crate::time::{Millis, Timestamp};

/// Announces a worker, and that it still lives. See [`Store::beat`](crate::Store::beat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Who.
    pub worker: WorkerId,
    /// The name it was given.
    pub name: Option<WorkerName>,
    /// The types it works on.
    pub types: Vec<TypeName>,
    /// How many slots it has.
    pub concurrency: u32,
    /// How many of them are busy.
    pub running: u32,
    /// It counts as gone when it has not been heard of for so long.
    pub ttl: Millis,
}

/// The reply to [`Beat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeatReply {
    /// The store's time.
    pub now: Timestamp,
}

/// Takes a worker off the list. See [`Store::retire`](crate::Store::retire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retire {
    /// Who.
    pub worker: WorkerId,
}

/// The reply to [`Retire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetireReply {
    /// Whether it was on the list.
    pub was_known: bool,
}

/// Asks who works. See [`Store::list_workers`](crate::Store::list_workers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListWorkers;

/// The reply to [`ListWorkers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListWorkersReply {
    /// The workers heard of within their time, by id.
    pub workers: Vec<WorkerInfo>,
}

/// A worker that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Who.
    pub worker: WorkerId,
    /// The name it was given.
    pub name: Option<WorkerName>,
    /// The types it works on.
    pub types: Vec<TypeName>,
    /// How many slots it has.
    pub concurrency: u32,
    /// How many of them were busy.
    pub running: u32,
    /// When it was first heard of.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub seen_at: Timestamp,
    /// It counts as gone after this time.
    pub gone_at: Timestamp,
}

/// Takes, renews or gives back a lock that one holder has at a time. See
/// [`Store::leader_lock`](crate::Store::leader_lock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderLock {
    /// Which lock.
    pub name: LockName,
    /// The holder's token.
    pub token: RequestId,
    /// What to do.
    pub action: LockAction,
}

/// What to do with a leader lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Take it or hold it for so long from now.
    Hold(Millis),
    /// Give it back.
    Release,
}

/// The reply to [`LeaderLock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderLockReply {
    /// Who has it now.
    pub state: LockState,
}

/// Who has a leader lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// The caller, until this time.
    Held(Timestamp),
    /// Another, until this time.
    HeldByAnother(Timestamp),
    /// Nobody.
    Free,
}
