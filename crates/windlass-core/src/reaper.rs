//! A standalone reaper, which runs without a worker.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::client::answered;
use crate::command::{LeaderLock, LockAction, LockState, NextDue, Reap, Request, Types};
use crate::error::{Error, ErrorKind, Result};
use crate::id::RequestId;
use crate::maintenance::{REAP_MAX, expire, reap};
use crate::name::{ErrorText, LockName, TypeName};
use crate::observer::{Activity, Event};
use crate::queue::content_id;
use crate::store::{Capability, Store};
use crate::time::Millis;
use crate::worker::RECOVERY;

/// Default maximum time between two checks for expired leases.
const INTERVAL: Duration = Duration::from_secs(5);
/// Default TTL of the leader lock.
const LOCK_TTL: Duration = Duration::from_secs(30);
/// The default assumption of how often owners renew their leases: half the default lease.
const RENEWAL: Duration = Duration::from_secs(30);
/// How often expired chains are removed.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// The timeout for releasing the lock on shutdown.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Requeues jobs whose worker crashed or hangs, including jobs of types that no running worker handles. Also removes
/// chains whose retention has ended.
///
/// Every worker does this for its own types, so a separate reaper is rarely needed. If several reapers run, one of them
/// leads: it holds a lock in the store and renews it. If the leader stops renewing, the lock expires after its TTL and
/// another reaper takes over. It does no harm if two reapers briefly lead at the same time.
///
/// ```
/// use windlass::reaper::Reaper;
/// use windlass::{Client, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
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
    /// Creates a reaper for all job types, with leader election.
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

    /// Requeues only jobs of these types or queues. Chains of all types are still removed when their
    /// retention ends, because a store expires chains regardless of type. Reapers of the same types elect one
    /// leader among themselves.
    pub fn types(mut self, types: impl IntoIterator<Item = TypeName>) -> Self {
        self.types = Types::Only(types.into_iter().collect());
        self
    }

    /// Sets the maximum time between two checks for expired leases. Default: 5 s.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how often workers are assumed to renew their leases. Default: 30 s. On a store with a single writer, the
    /// reaper allows workers this much time to renew after a stall.
    pub fn renewal(mut self, renewal: Duration) -> Self {
        self.renewal = renewal;
        self
    }

    /// Sets the name and TTL of the leader lock. Default: a name derived from the types, and 30 s.
    pub fn lock(mut self, name: impl Into<String>, ttl: Duration) -> Self {
        (self.lock, self.lock_ttl) = (Some(name.into()), ttl);
        self
    }

    /// Disables leader election: this reaper always reaps.
    pub fn without_election(mut self) -> Self {
        self.elects = false;
        self
    }

    /// Validates the settings and starts the reaper. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a setting is invalid. [`ErrorKind::Unsupported`] if the store has no leader
    /// locks and election is enabled.
    pub async fn start(self) -> Result<RunningReaper> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if self.interval.is_zero() {
            return invalid("reap interval must be at least 1 ms, got 0".to_owned());
        }
        if self.lock_ttl < Duration::from_millis(10) {
            return invalid(format!("lock TTL must be at least 10 ms, got {:?}", self.lock_ttl));
        }
        if self.elects && !self.client.store().capabilities().has(Capability::LeaderLock) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this store has no leader locks: call `.without_election()`, or let the workers reap",
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

/// Returns the default lock name for reapers of these types.
fn lock_name(types: &Types) -> Result<String> {
    let Types::Only(types) = types else { return Ok("windlass-reaper".to_owned()) };
    let mut names: Vec<_> = types.iter().map(TypeName::as_str).collect();
    names.sort_unstable();
    Ok(format!("windlass-reaper-{}", content_id(&names)?))
}

/// A running reaper. Dropping it stops the reaper in the background. Use [`stop`](Self::stop) to wait until
/// it has stopped and released its lock.
#[derive(Debug)]
pub struct RunningReaper {
    id: RequestId,
    leadership: watch::Receiver<bool>,
    stopping: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningReaper {
    /// Returns the reaper's id, which is also its token for the leader lock.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// Whether this reaper currently leads.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        *self.leadership.borrow()
    }

    /// Returns a channel that reports when this reaper starts and stops leading.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<bool> {
        self.leadership.clone()
    }

    /// Stops the reaper and releases the lock, so that another reaper can lead immediately.
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

/// The loop of a running reaper.
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
                    self.lead(false);
                    let event = Event::StoreFailed("reap", ErrorText::new(error.to_string()));
                    self.client.shared.dispatcher.observe(&event);
                    RECOVERY.delay(failures, fastrand::f64())
                }
            };
            let _ = timeout(wait, stopping.cancelled()).await;
        }
        // If the release fails, the lock expires after its TTL.
        let _ = timeout(RELEASE_TIMEOUT, self.lock(LockAction::Release)).await;
        self.lead(false);
    }

    /// Reaps and expires if this reaper leads. Returns how long to wait until the next turn.
    async fn turn(&mut self) -> Result<Duration> {
        let leads = match &self.lock {
            Some(lock) => matches!(self.lock(LockAction::Hold(lock.ttl)).await?, Some(LockState::Held(_))),
            None => true,
        };
        self.lead(leads);
        // The leader renews the lock three times per TTL, and the others try to acquire it as often.
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

    /// Notes whether this reaper leads, and reports a change.
    fn lead(&self, leads: bool) {
        let has_changed = self.leads.send_if_modified(|led| std::mem::replace(led, leads) != leads);
        if let (true, Some(lock)) = (has_changed, &self.lock) {
            let activity = || Activity::Leadership { reaper: lock.token, leads };
            self.client.shared.dispatcher.measure(activity);
        }
    }

    /// Returns the time until the next lease may expire, at most the interval.
    async fn until_next_lease(&self) -> Result<Duration> {
        if !self.client.store().capabilities().has(Capability::NextDue) {
            return Ok(self.interval);
        }
        let next_due = NextDue { types: self.reap.types.clone() };
        let call = answered(self.client.store().next_due(next_due));
        let reply = self.client.shared.dispatcher.measured(NextDue::NAME, |_| 1, call).await?;
        // A lease that has already expired was most likely skipped because a transaction has locked its row.
        // Polling faster would not help.
        let left = reply.lease_until.map(|until| until.since(reply.now)).filter(|left| !left.is_zero());
        Ok(left.unwrap_or(self.interval).min(self.interval))
    }

    async fn lock(&self, action: LockAction) -> Result<Option<LockState>> {
        let Some(Lock { name, token, .. }) = &self.lock else { return Ok(None) };
        let request = LeaderLock { name: name.clone(), token: *token, action };
        let call = answered(self.client.store().leader_lock(request));
        let reply = self.client.shared.dispatcher.measured(LeaderLock::NAME, |_| 1, call).await?;
        Ok(Some(reply.state))
    }
}

impl<S: Store + ?Sized> fmt::Debug for Reaper<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").field("types", &self.types).finish_non_exhaustive()
    }
}
