//! Samples of the whole store: one sampler per server, however many clients watch.
//!
//! The sampler runs while someone watches, and for [`IDLE`] afterwards, so that a page that is opened again has its
//! history.

mod totals;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, interval};
use windlass_core::Timestamp;
use windlass_core::command::{CountReply, Types, WorkerInfo};

use crate::api::Problem;
use crate::api::wire::{Count, Time};
use crate::client::BoxedClient;
use crate::events::frame;
use totals::Totals;

pub(crate) use totals::Ended;

/// The number of samples between two queries of the workers.
const WORKERS_EVERY: u64 = 5;

/// How long the sampler runs after the last client has stopped watching.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// The number of samples in the history. Samples older than this many intervals are dropped too.
const HISTORY_MAX: usize = 450;

/// The number of types in a sample. The sums contain all types.
const TYPES_MAX: usize = 100;

/// The number of samples that a slow client can fall behind.
const BUFFERED: usize = 16;

/// The state of the whole store at one time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Sample {
    pub(crate) at: Time,
    pub(crate) sums: Point,
    /// The types with the most open jobs: at most 100.
    pub(crate) types: Vec<TypeSample>,
    /// Whether types were left out.
    pub(crate) truncated: bool,
    pub(crate) workers: WorkerSums,
    /// Whether the counts of closed jobs are estimates.
    pub(crate) closed_estimated: bool,
}

/// The state of one type.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TypeSample {
    #[serde(flatten)]
    pub(crate) count: Count,
    /// Jobs of this type that have ever ended. These numbers only grow.
    pub(crate) ended: Ended,
    /// How long the oldest due job has been waiting, in milliseconds.
    pub(crate) oldest_ready_ms: Option<u64>,
}

/// Sums of all types at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Point {
    pub(crate) at: Time,
    pub(crate) blocked: u64,
    pub(crate) pending: u64,
    pub(crate) running: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) expired_leases: u64,
    pub(crate) paused_types: u64,
    /// Jobs that have ended since the sampler was started. These numbers only grow: their differences are the throughput.
    pub(crate) ended: Ended,
    /// How long the oldest due job has been waiting, in milliseconds.
    pub(crate) oldest_ready_ms: Option<u64>,
}

/// The live workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct WorkerSums {
    pub(crate) count: u64,
    /// The number of their slots.
    pub(crate) slots: u64,
    /// The number of busy slots at their latest report.
    pub(crate) busy: u64,
}

/// The load that the sampler puts on the store.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct Cost {
    /// The time between two samples, in milliseconds.
    pub(crate) interval_ms: u64,
    /// The calls to the store since the server was started.
    pub(crate) calls: u64,
    /// The calls per second while someone watches.
    pub(crate) calls_per_second: f64,
    /// The number of open event streams with samples.
    pub(crate) streams: usize,
}

/// Takes samples, and keeps a short history.
#[derive(Debug)]
pub(crate) struct Sampler {
    client: BoxedClient,
    interval: Duration,
    samples: broadcast::Sender<Bytes>,
    calls: AtomicU64,
    state: Mutex<State>,
    /// Held while a sample is taken, so that concurrent callers share it.
    sampling: tokio::sync::Mutex<()>,
    this: Weak<Self>,
}

#[derive(Debug)]
struct State {
    latest: Option<(Instant, Arc<Sample>)>,
    history: VecDeque<(Instant, Point)>,
    totals: Totals,
    workers: WorkerSums,
    taken: u64,
    wanted_at: Instant,
    is_running: bool,
}

impl Sampler {
    pub(crate) fn new(client: BoxedClient, interval: Duration) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            client,
            interval,
            samples: broadcast::channel(BUFFERED).0,
            calls: AtomicU64::new(0),
            state: Mutex::new(State {
                latest: None,
                history: VecDeque::new(),
                totals: Totals::default(),
                workers: WorkerSums::default(),
                taken: 0,
                wanted_at: Instant::now(),
                is_running: false,
            }),
            sampling: tokio::sync::Mutex::default(),
            this: this.clone(),
        })
    }

    /// Returns the samples from now on, as encoded events.
    pub(crate) fn watch(&self) -> broadcast::Receiver<Bytes> {
        let samples = self.samples.subscribe();
        self.want();
        samples
    }

    /// Returns the latest sample. Takes one if there is none, or if it is old.
    pub(crate) async fn latest(&self) -> Result<Arc<Sample>, Problem> {
        self.want();
        let recent = || {
            let state = self.state();
            let latest = state.latest.as_ref().filter(|(at, _)| at.elapsed() < 2 * self.interval);
            latest.map(|(_, sample)| Arc::clone(sample))
        };
        if let Some(sample) = recent() {
            return Ok(sample);
        }
        let sampling = self.sampling.lock().await;
        match recent() {
            Some(sample) => Ok(sample),
            None => self.take(&sampling).await,
        }
    }

    pub(crate) fn history(&self) -> Vec<Point> {
        self.state().history.iter().map(|(_, point)| point.clone()).collect()
    }

    pub(crate) fn cost(&self) -> Cost {
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let calls = 1.0 + 1.0 / WORKERS_EVERY as f64;
        Cost {
            interval_ms: u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX),
            calls: self.calls.load(Ordering::Relaxed),
            calls_per_second: calls / self.interval.as_secs_f64(),
            streams: self.samples.receiver_count(),
        }
    }

    /// Returns the number of samples so far.
    pub(crate) fn taken(&self) -> u64 {
        self.state().taken
    }

    /// Notes that someone watches, and starts the task unless it runs.
    fn want(&self) {
        let mut state = self.state();
        state.wanted_at = Instant::now();
        if !state.is_running
            && let Some(this) = self.this.upgrade()
        {
            state.is_running = true;
            tokio::spawn(run(Arc::downgrade(&this), self.interval));
        }
    }

    /// Whether the task should go on. If not, the next call of [`want`](Self::want) starts another one.
    fn goes_on(&self) -> bool {
        let mut state = self.state();
        if self.samples.receiver_count() > 0 {
            state.wanted_at = Instant::now();
        }
        state.is_running = state.wanted_at.elapsed() < IDLE;
        state.is_running
    }

    /// Queries the store. The guard shows that no other sample is being taken.
    async fn take(&self, _: &tokio::sync::MutexGuard<'_, ()>) -> Result<Arc<Sample>, Problem> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let counts = self.client.count(Types::All).await?;
        let needs_workers = self.state().taken.is_multiple_of(WORKERS_EVERY);
        let workers = if needs_workers {
            self.calls.fetch_add(1, Ordering::Relaxed);
            Some(self.client.workers().await?)
        } else {
            None
        };
        let history_max = self.interval.saturating_mul(HISTORY_MAX as u32);
        let sample = Arc::new(self.state().add(&counts, workers.as_deref(), history_max));
        if self.samples.receiver_count() > 0 {
            // Sending fails only if the last client has just left.
            let _ = self.samples.send(frame("sample", &*sample));
        }
        Ok(sample)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes samples until no client watches. Holds the sampler only for one sample at a time, so that it can be dropped.
async fn run(sampler: Weak<Sampler>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(sampler) = sampler.upgrade() else { return };
        if !sampler.goes_on() {
            return;
        }
        let sampling = sampler.sampling.lock().await;
        if let Err(problem) = sampler.take(&sampling).await {
            tracing::debug!("no sample was taken: {}", problem.detail());
        }
    }
}

impl State {
    fn add(&mut self, counts: &CountReply, workers: Option<&[WorkerInfo]>, history_max: Duration) -> Sample {
        let now = Timestamp::now();
        let age = |at: Timestamp| u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
        self.totals.add(counts);
        if let Some(workers) = workers {
            self.workers = WorkerSums::of(workers);
        }
        let mut types: Vec<_> = counts
            .types
            .iter()
            .map(|count| TypeSample {
                ended: count.ended.into(),
                oldest_ready_ms: count.oldest_ready.map(age),
                count: Count::from(count),
            })
            .collect();
        let open = |sample: &TypeSample| sample.count.blocked + sample.count.pending + sample.count.running;
        types.sort_by(|a, b| open(b).cmp(&open(a)).then_with(|| a.count.job_type.cmp(&b.count.job_type)));
        let truncated = types.len() > TYPES_MAX;
        types.truncate(TYPES_MAX);
        let sum = |of: fn(&windlass_core::command::TypeCount) -> u64| counts.types.iter().map(of).sum();
        let sums = Point {
            at: now.into(),
            blocked: sum(|count| count.blocked),
            pending: sum(|count| count.pending),
            running: sum(|count| count.running),
            completed: sum(|count| count.completed),
            failed: sum(|count| count.failed),
            cancelled: sum(|count| count.cancelled),
            expired_leases: sum(|count| count.expired_leases),
            paused_types: sum(|count| u64::from(count.paused)),
            ended: self.totals.sums(),
            oldest_ready_ms: counts.types.iter().filter_map(|count| count.oldest_ready).min().map(age),
        };
        self.history.push_back((Instant::now(), sums.clone()));
        while self.history.len() > HISTORY_MAX
            || self.history.front().is_some_and(|(at, _)| at.elapsed() > history_max)
        {
            self.history.pop_front();
        }
        let (workers, closed_estimated) = (self.workers, counts.closed_estimated);
        let sample = Sample { at: now.into(), sums, types, truncated, workers, closed_estimated };
        self.taken += 1;
        self.latest = Some((Instant::now(), Arc::new(sample.clone())));
        sample
    }
}

impl WorkerSums {
    fn of(workers: &[WorkerInfo]) -> Self {
        let sum = |of: fn(&WorkerInfo) -> u32| workers.iter().map(|worker| u64::from(of(worker))).sum();
        Self {
            count: workers.len() as u64,
            slots: sum(|worker| worker.concurrency),
            busy: sum(|worker| worker.running),
        }
    }
}
