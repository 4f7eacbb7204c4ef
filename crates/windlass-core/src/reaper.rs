//! A reaper that works on no jobs itself.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::clock::answered;
use crate::command::{LeaderLock, LockAction, LockState, NextDue, Reap, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::id::RequestId;
use crate::name::{ErrorText, LockName, TypeName};
use crate::observer::Event;
use crate::queue::content_id;
use crate::store::{Capability, Store};
use crate::time::Millis;
use crate::worker::{REAP_MAX, RECOVERY, expire, reap};

/// How often leases are looked at, at least.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long a reaper leads that is not heard of.
const LOCK_TTL: Duration = Duration::from_secs(30);
/// How often owners renew their leases, as far as is known: half the usual lease.
const RENEWAL: Duration = Duration::from_secs(30);
/// How often what is kept no longer is removed.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// How long the giving back of the lock may take.
const RELEASE: Duration = Duration::from_secs(5);

/// Puts jobs back whose worker died or hangs, of all types or of some, also of those that no worker is there
/// for; and removes what is kept no longer.
///
/// Every worker does that for its own types, so that a reaper of its own is seldom needed. Where several run,
/// one leads: it holds a lock of the store, renews it, and another takes over within the lock's TTL after it was
/// last heard of. Two that lead for a moment do no harm.
///
/// ```
/// use windlass_core::{Client, MemoryStore, Reaper};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass_core::Result<()> {
/// let client = Client::new(MemoryStore::new());
/// let reaper = Reaper::new(&client).start().await?;
/// reaper.leadership().wait_for(|leads| *leads).await.expect("it runs");
/// reaper.stop().await;
/// # Ok(()) }
/// ```
#[must_use = "a reaper does nothing until it is started"]
pub struct Reaper<S: ?Sized> {
    client: Client<S>,
    types: Types,
    interval: Duration,
    renewal: Duration,
    elects: bool,
    lock: Option<String>,
    lock_ttl: Duration,
}

impl<S: Store + ?Sized> Reaper<S> {
    /// A reaper of all types, one of which leads.
    pub fn new(client: &Client<S>) -> Self {
        Self {
            client: client.clone(),
            types: Types::All,
            interval: INTERVAL,
            renewal: RENEWAL,
            elects: true,
            lock: None,
            lock_ttl: LOCK_TTL,
        }
    }

    /// Puts back jobs of these types, or queues, only. What is kept no longer is removed of all types: a store
    /// knows that by its time alone. Those who reap the same types elect their leader among themselves.
    pub fn types(mut self, types: impl IntoIterator<Item = TypeName>) -> Self {
        self.types = Types::Only(types.into_iter().collect());
        self
    }

    /// How often leases are looked at, at least; 5 s unless said otherwise.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// How often owners renew; 30 s unless said otherwise. Where one writer stops all, a reaper that had to wait
    /// leaves them so long.
    pub fn renewal(mut self, renewal: Duration) -> Self {
        self.renewal = renewal;
        self
    }

    /// The lock that the leader holds, and for how long without being heard of; 30 s unless said otherwise.
    pub fn lock(mut self, name: impl Into<String>, ttl: Duration) -> Self {
        (self.lock, self.lock_ttl) = (Some(name.into()), ttl);
        self
    }

    /// Reaps without asking who leads.
    pub fn without_election(mut self) -> Self {
        self.elects = false;
        self
    }

    /// Checks everything and starts. Must be called inside a tokio runtime.
    pub async fn start(self) -> Result<RunningReaper> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
        if self.interval.is_zero() {
            return invalid("a reaper that never rests: give it an interval of a millisecond at least");
        }
        if self.lock_ttl < Duration::from_millis(10) {
            return invalid("a lock that nobody can renew in time: give it 10 ms at least");
        }
        if self.elects && !self.client.store().capabilities().has(Capability::LeaderLock) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this store has no leader locks: reap `without_election`, or let the workers do it",
            ));
        }
        let lock = Lock {
            name: LockName::new(self.lock.clone().map_or_else(|| lock_name(&self.types), Ok)?)?,
            token: RequestId::new(),
            ttl: Millis::try_from(self.lock_ttl)?,
        };
        let renewal_interval = Millis::try_from(self.renewal)?;
        let reap = Reap { types: self.types, max: REAP_MAX, except: Vec::new(), renewal_interval };
        reap.check()?;
        let (leads, leadership) = watch::channel(false);
        let stopping = CancellationToken::new();
        let id = lock.token;
        let turns = Turns {
            client: self.client,
            reap,
            interval: self.interval,
            lock: self.elects.then_some(lock),
            leads,
            expire_at: Instant::now(),
        };
        let task = tokio::spawn(turns.run(stopping.clone()));
        Ok(RunningReaper { id, leadership, stopping, task })
    }
}

/// The lock of those who reap these types.
fn lock_name(types: &Types) -> Result<String> {
    let Types::Only(types) = types else { return Ok("windlass-reaper".to_owned()) };
    let mut names: Vec<_> = types.iter().map(TypeName::as_str).collect();
    names.sort_unstable();
    Ok(format!("windlass-reaper-{}", content_id(&names)?))
}

/// A reaper that runs. Dropped, it stops, and its lock is free when its time is over; better to
/// [`stop`](Self::stop) it.
#[derive(Debug)]
pub struct RunningReaper {
    id: RequestId,
    leadership: watch::Receiver<bool>,
    stopping: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningReaper {
    /// Its id: the token with which it leads.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// Whether it leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        *self.leadership.borrow()
    }

    /// Tells when it begins to lead, and when it ceases to.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leadership.clone()
    }

    /// Stops, and gives the lock back, so that another leads at once.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for RunningReaper {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

struct Lock {
    name: LockName,
    token: RequestId,
    ttl: Millis,
}

/// The turns of a reaper that runs.
struct Turns<S: ?Sized> {
    client: Client<S>,
    reap: Reap,
    interval: Duration,
    lock: Option<Lock>,
    leads: watch::Sender<bool>,
    expire_at: Instant,
}

impl<S: Store + ?Sized> Turns<S> {
    async fn run(mut self, stopping: CancellationToken) {
        let mut failures = 0;
        while !stopping.is_cancelled() {
            let wait = match self.turn().await {
                Ok(wait) => {
                    failures = 0;
                    wait
                }
                Err(error) => {
                    failures += 1;
                    self.leads.send_replace(false);
                    let event = Event::StoreFailed("reap", ErrorText::new(error.to_string()));
                    self.client.shared.teller.observe(&event);
                    RECOVERY.delay(failures, fastrand::f64())
                }
            };
            let _ = timeout(wait, stopping.cancelled()).await;
        }
        // If this fails the lock is free when its time is over.
        let _ = timeout(RELEASE, self.lock(LockAction::Release)).await;
        self.leads.send_replace(false);
    }

    /// Does what there is to do, and says how long to wait.
    async fn turn(&mut self) -> Result<Duration> {
        let leads = match &self.lock {
            Some(lock) => matches!(self.lock(LockAction::Hold(lock.ttl)).await?, Some(LockState::Held(_))),
            None => true,
        };
        self.leads.send_if_modified(|led| std::mem::replace(led, leads) != leads);
        // A leader is heard of three times within the time of its lock, and whoever waits looks as often.
        let beat = self.lock.as_ref().map_or(self.interval, |lock| Duration::from(lock.ttl) / 3);
        if !leads {
            return Ok(beat);
        }
        let reaped = reap(&self.client, self.reap.clone()).await?;
        let more = Instant::now() >= self.expire_at && expire(&self.client).await?;
        if !more && Instant::now() >= self.expire_at {
            self.expire_at = Instant::now() + EXPIRE_EVERY;
        }
        if more || reaped >= REAP_MAX as usize {
            return Ok(Duration::ZERO);
        }
        Ok(self.until_next_lease().await?.min(beat))
    }

    /// How long no lease will expire, as far as is known.
    async fn until_next_lease(&self) -> Result<Duration> {
        if !self.client.store().capabilities().has(Capability::NextDue) {
            return Ok(self.interval);
        }
        let next_due = NextDue { types: self.reap.types.clone() };
        let reply = answered(self.client.store().next_due(next_due)).await?;
        // One that has expired is in somebody's transaction: there is no hurry.
        let left = reply.lease_until.map(|until| until.since(reply.now)).filter(|left| !left.is_zero());
        Ok(left.unwrap_or(self.interval).min(self.interval))
    }

    async fn lock(&self, action: LockAction) -> Result<Option<LockState>> {
        let Some(Lock { name, token, .. }) = &self.lock else { return Ok(None) };
        let request = LeaderLock { name: name.clone(), token: *token, action };
        Ok(Some(answered(self.client.store().leader_lock(request)).await?.state))
    }
}

impl<S: Store + ?Sized> fmt::Debug for Reaper<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("types", &self.types).finish_non_exhaustive()
    }
}
