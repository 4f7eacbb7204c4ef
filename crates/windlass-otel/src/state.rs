//! Gauges of the store's state. Only one process reports them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use windlass_core::command::{Count, LeaderLock, LockAction, LockState, NextDue, TypeCount, Types as Which};
use windlass_core::{Capability, Client, LockName, Millis, RequestId, Result, Store, Timestamp};

use crate::attributes::{DESTINATION, STATUS};
use crate::blocked::BlockedByFailed;
use crate::types::{Types, value};

/// How often the leader queries the store, and the other processes try to become the leader.
const INTERVAL: Duration = Duration::from_secs(15);

/// How long a leader that has stopped renewing keeps the lock.
const LOCK_TTL: Millis = Millis::from_secs(30);

/// The name of the leader lock.
const LOCK: &str = "windlass-telemetry";

/// The maximum time for a query of the store, and for releasing the lock.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reports the state of the store until it is dropped. See
/// [`Telemetry::watch_state`](crate::Telemetry::watch_state).
#[must_use = "the gauges are no longer reported when this is dropped"]
pub struct StateGauges {
    stopping: CancellationToken,
    task: Option<JoinHandle<()>>,
    state: Shown,
    /// Whether this process leads. Unknown until the store has answered.
    leads: watch::Receiver<Option<bool>>,
}

/// The state of the store that the leader found.
#[derive(Debug)]
struct State {
    types: Vec<TypeCount>,
    blocked_by_failed: BTreeMap<String, u64>,
    /// The time of the store.
    now: Timestamp,
    /// When it was queried. After [`LOCK_TTL`], another process may lead: this one was suspended.
    queried_at: Instant,
}

impl State {
    fn is_current(&self) -> bool {
        self.queried_at.elapsed() < LOCK_TTL.into()
    }
}

impl StateGauges {
    pub(crate) fn start<S: Store + ?Sized>(
        meter: Option<&Meter>,
        types: &Arc<Types>,
        client: Client<S>,
    ) -> Self {
        let (stopping, state) = (CancellationToken::new(), Arc::default());
        let (sender, leads) = watch::channel(None);
        let mut task = None;
        match meter {
            Some(meter) => {
                register(meter, types, &state);
                let watch = Watch {
                    client,
                    token: RequestId::new(),
                    state: Arc::clone(&state),
                    leads: sender,
                    blocked: BlockedByFailed::default(),
                };
                task = Some(tokio::spawn(watch.run(stopping.clone())));
            }
            None => _ = sender.send_replace(Some(false)),
        }
        Self { stopping, task, state, leads }
    }

    /// Waits for the first election. Returns whether this process is the leader and reports the gauges.
    pub async fn decided(&self) -> bool {
        let mut leads = self.leads.clone();
        leads.wait_for(Option::is_some).await.is_ok_and(|leads| *leads == Some(true))
    }

    /// Stops reporting, and waits until the lock is released, so that another process can take over. Dropping the guard does
    /// the same without waiting.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        // Before the lock is released: no two processes may report.
        *lock(&self.state) = None;
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }

    /// Whether this process reports the gauges.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        lock(&self.state).as_ref().is_some_and(State::is_current)
    }
}

impl Drop for StateGauges {
    fn drop(&mut self) {
        self.stopping.cancel();
        // The instruments stay registered with the meter, and report nothing from now on.
        *lock(&self.state) = None;
    }
}

struct Watch<S: ?Sized> {
    client: Client<S>,
    token: RequestId,
    state: Shown,
    leads: watch::Sender<Option<bool>>,
    blocked: BlockedByFailed,
}

impl<S: Store + ?Sized> Watch<S> {
    async fn run(mut self, stopping: CancellationToken) {
        let mut has_warned = false;
        while !stopping.is_cancelled() {
            // From the start of one reading to the start of the next. Otherwise a slow store would add the duration of two
            // readings to the interval, and what is shown would expire before it is replaced.
            let next = Instant::now() + INTERVAL;
            let error = match timeout(TIMEOUT, self.query()).await {
                Ok(Ok(state)) => {
                    let leads = state.is_some();
                    self.show(state, &stopping);
                    self.leads.send_replace(Some(leads));
                    None
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("the store did not answer in time".to_owned()),
            };
            if let Some(error) = &error {
                // A stale value is worse than none.
                self.show(None, &stopping);
                // Another process may be able to query the store.
                let _ = timeout(TIMEOUT, self.lock(LockAction::Release)).await;
                if !has_warned {
                    tracing::warn!(target: "windlass", %error, "the state of the store cannot be queried, will retry; further failures are not logged");
                }
            }
            has_warned = error.is_some();
            let _ = timeout_at(next, stopping.cancelled()).await;
        }
        let _ = timeout(TIMEOUT, self.lock(LockAction::Release)).await;
    }

    fn show(&self, state: Option<State>, stopping: &CancellationToken) {
        let mut shown = lock(&self.state);
        // Checked under the lock: the guard cancels first, and then clears the state.
        if !stopping.is_cancelled() {
            *shown = state;
        }
    }

    /// Queries the state, if this process leads.
    async fn query(&mut self) -> Result<Option<State>> {
        // Before the lock is renewed: what is shown must not outlive it.
        let queried_at = Instant::now();
        if !self.leads().await? {
            self.blocked = BlockedByFailed::default();
            return Ok(None);
        }
        let store = self.client.store();
        let types = store.count(Count { types: Which::All }).await?.types;
        let now = store.next_due(NextDue { types: Which::Only(Vec::new()) }).await?.now;
        let blocked_by_failed = if types.iter().any(|count| count.blocked > 0) {
            self.blocked.read(store).await?
        } else {
            self.blocked = BlockedByFailed::default();
            BTreeMap::new()
        };
        Ok(Some(State { types, blocked_by_failed, now, queried_at }))
    }

    async fn leads(&self) -> Result<bool> {
        // A store without locks belongs to one process.
        if !self.client.store().capabilities().has(Capability::LeaderLock) {
            return Ok(true);
        }
        Ok(matches!(self.lock(LockAction::Hold(LOCK_TTL)).await?, Some(LockState::Held(_))))
    }

    async fn lock(&self, action: LockAction) -> Result<Option<LockState>> {
        let Ok(name) = LockName::new(LOCK) else { return Ok(None) };
        let reply = self.client.store().leader_lock(LeaderLock { name, token: self.token, action }).await?;
        Ok(Some(reply.state))
    }
}

type Shown = Arc<Mutex<Option<State>>>;

/// The job type of a value, and its status if there is one for each.
type Series = (Arc<str>, Option<&'static str>);

/// Registers the gauges. They report the state of the last query, if this process leads.
fn register(meter: &Meter, types: &Arc<Types>, state: &Shown) {
    gauge(meter, types, state, "windlass.state.jobs", |_, count, report| {
        let statuses = [
            ("blocked", count.blocked),
            ("pending", count.pending),
            ("running", count.running),
            ("completed", count.completed),
            ("failed", count.failed),
            ("cancelled", count.cancelled),
        ];
        for (status, jobs) in statuses {
            report(jobs, Some(status));
        }
    });
    gauge(meter, types, state, "windlass.state.expired_leases", |_, count, report| {
        report(count.expired_leases, None);
    });
    gauge(meter, types, state, "windlass.state.paused", |_, count, report| {
        report(u64::from(count.paused), None);
    });
    gauge(meter, types, state, "windlass.state.blocked_by_failed", |state, count, report| {
        report(state.blocked_by_failed.get(count.job_type.as_str()).copied().unwrap_or_default(), None);
    });
    let (types, shown) = (Arc::clone(types), Arc::clone(state));
    let age = meter.f64_observable_gauge("windlass.state.oldest_ready.age");
    age.with_unit("s")
        .with_description(described("windlass.state.oldest_ready.age").1)
        .with_callback(move |instrument| {
            let shown = lock(&shown);
            let Some(state) = shown.as_ref().filter(|state| state.is_current()) else { return };
            let ages = state.types.iter().map(|count| {
                let age = count.oldest_ready.map(|since| state.now.since(since)).unwrap_or_default();
                ((types.name(&count.job_type), None), age)
            });
            // The oldest job of all types that cannot be distinguished.
            for (series, age) in combine(ages, Duration::max) {
                instrument.observe(age.as_secs_f64(), &attributes(series));
            }
        })
        .build();
    let shown = Arc::clone(state);
    describe(meter.u64_observable_gauge("windlass.state.reporter"))
        .with_callback(move |instrument| {
            if lock(&shown).as_ref().is_some_and(State::is_current) {
                instrument.observe(1, &[]);
            }
        })
        .build();
}

type Builder<'m> =
    opentelemetry::metrics::AsyncInstrumentBuilder<'m, opentelemetry::metrics::ObservableGauge<u64>, u64>;

fn describe(builder: Builder<'_>) -> Builder<'_> {
    let (unit, description) = described(&builder.name);
    builder.with_unit(unit).with_description(description)
}

/// Returns the unit and the description of a gauge.
fn described(name: &str) -> (&'static str, &'static str) {
    let mut instruments = crate::catalogue::INSTRUMENTS.iter();
    let found = instruments.find(|instrument| instrument.name == name);
    found.map_or(("", ""), |instrument| (instrument.unit, instrument.description))
}

/// Registers a gauge with values of each type. Types that cannot be distinguished are added up.
fn gauge(
    meter: &Meter,
    types: &Arc<Types>,
    state: &Shown,
    name: &'static str,
    values: impl Fn(&State, &TypeCount, &mut dyn FnMut(u64, Option<&'static str>)) + Send + Sync + 'static,
) {
    let (types, shown) = (Arc::clone(types), Arc::clone(state));
    describe(meter.u64_observable_gauge(name))
        .with_callback(move |instrument: &dyn AsyncInstrument<u64>| {
            let shown = lock(&shown);
            let Some(state) = shown.as_ref().filter(|state| state.is_current()) else { return };
            let mut all = Vec::new();
            for count in &state.types {
                let name = types.name(&count.job_type);
                values(state, count, &mut |value, status| all.push(((Arc::clone(&name), status), value)));
            }
            for (series, value) in combine(all, u64::saturating_add) {
                instrument.observe(value, &attributes(series));
            }
        })
        .build();
}

/// Combines the values of equal series.
fn combine<V: Copy>(
    values: impl IntoIterator<Item = (Series, V)>,
    combine: impl Fn(V, V) -> V,
) -> BTreeMap<Series, V> {
    let mut combined = BTreeMap::new();
    for (series, value) in values {
        combined.entry(series).and_modify(|known| *known = combine(*known, value)).or_insert(value);
    }
    combined
}

fn attributes((job_type, status): Series) -> Vec<KeyValue> {
    let mut attributes = vec![KeyValue::new(DESTINATION, value(job_type))];
    attributes.extend(status.map(|status| KeyValue::new(STATUS, status)));
    attributes
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for StateGauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateGauges").field("is_leader", &self.is_leader()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_types_that_cannot_be_distinguished_are_combined() {
        let series = |name: &str| -> Series { (name.into(), None) };
        let values = [(series("_other"), 3), (series("a"), 1), (series("_other"), 2)];
        let combined =
            |how: fn(u64, u64) -> u64| -> Vec<u64> { combine(values.clone(), how).into_values().collect() };
        assert_eq!(combined(u64::saturating_add), [5, 1]);
        assert_eq!(combined(u64::max), [3, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_expires_with_the_lock() {
        let queried_at = Instant::now();
        let now = Timestamp::default();
        let state = State { types: Vec::new(), blocked_by_failed: BTreeMap::new(), now, queried_at };
        assert!(state.is_current());
        tokio::time::advance(LOCK_TTL.into()).await;
        assert!(!state.is_current());
    }
}
