use crate::id::{RequestId, WorkerId};
use crate::name::{LockName, TypeName, WorkerName};
use crate::time::{Millis, Timestamp};

/// Request to register a worker or to renew its registration. See [`Store::beat`](crate::Store::beat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The worker's id.
    pub worker: WorkerId,
    /// The worker's name, if it has one.
    pub name: Option<WorkerName>,
    /// The job types that the worker handles.
    pub types: Vec<TypeName>,
    /// The number of slots.
    pub concurrency: u32,
    /// The number of busy slots.
    pub running: u32,
    /// How long the worker is listed without another beat.
    pub ttl: Millis,
}

/// The reply to [`Beat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeatReply {
    /// The time on the store's clock.
    pub now: Timestamp,
}

/// Request to remove a worker from the list. See [`Store::retire`](crate::Store::retire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retire {
    /// The worker's id.
    pub worker: WorkerId,
}

/// The reply to [`Retire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetireReply {
    /// Whether the worker was listed before.
    pub was_known: bool,
}

/// Request to list the workers. See [`Store::list_workers`](crate::Store::list_workers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListWorkers;

/// The reply to [`ListWorkers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListWorkersReply {
    /// The workers whose TTL has not passed, sorted by id.
    pub workers: Vec<WorkerInfo>,
}

/// A registered worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The worker's id.
    pub worker: WorkerId,
    /// The worker's name, if it has one.
    pub name: Option<WorkerName>,
    /// The job types that the worker handles.
    pub types: Vec<TypeName>,
    /// The number of slots.
    pub concurrency: u32,
    /// The number of slots that were busy at the latest beat.
    pub running: u32,
    /// The time of the first beat.
    pub started_at: Timestamp,
    /// The time of the latest beat.
    pub seen_at: Timestamp,
    /// The time from which the worker is no longer listed, unless it beats again.
    pub expires_at: Timestamp,
}

/// Request to acquire, renew or release a lock that has one holder at a time. See
/// [`Store::leader_lock`](crate::Store::leader_lock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderLock {
    /// The name of the lock.
    pub name: LockName,
    /// The token that identifies the holder.
    pub token: RequestId,
    /// The action to take.
    pub action: LockAction,
}

/// An action on a leader lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Acquire the lock, or renew it, for this long from now.
    Hold(Millis),
    /// Release the lock.
    Release,
}

/// The reply to [`LeaderLock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderLockReply {
    /// The state of the lock after the action.
    pub state: LockState,
}

/// The state of a leader lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// The caller holds the lock until this time.
    Held(Timestamp),
    /// Another token holds the lock until this time.
    HeldByAnother(Timestamp),
    /// The lock is not held.
    Free,
}
