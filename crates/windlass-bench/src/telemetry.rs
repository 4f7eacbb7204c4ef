//! What telemetry costs.
//!
//! [`ObserverCost`] compares the instructions of a job without an observer with those of a program whose observers are
//! removed at compile time. [`TelemetryCost`] is the processor time of metrics and traces, and [`GaugeCost`] what one
//! query of the state gauges takes.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use windlass::otel::{AttemptIds, ChainSampler, Prometheus, Telemetry};
use windlass::{BoxError, Client, Store};

use crate::figure::median;
use crate::instructions::per_job;
use crate::{Subject, meter, workload};

/// The maximum share of instructions that a job may cost more without an observer than with observers that are removed
/// at compile time.
pub const OBSERVER_MAX: f64 = 0.02;

/// The maximum processor time of metrics and [`SAMPLED`] traces per job on PostgreSQL and Redis, in microseconds.
pub const TELEMETRY_MAX_US: f64 = 2.0;

/// The share of chains whose spans are recorded.
pub const SAMPLED: f64 = 0.01;

/// Jobs per call to the store when they are started.
const BATCH: u64 = 1_000;

/// The slots that drain the jobs.
const SLOTS: u32 = 100;

/// Instructions per job of a drain in memory.
#[derive(Clone, Copy, Debug)]
pub struct ObserverCost {
    /// In a program whose observers are removed at compile time.
    pub removed: f64,
    /// Without an observer.
    pub without: f64,
    /// With metrics and [`SAMPLED`] traces.
    pub with: f64,
}

impl ObserverCost {
    /// Counts the instructions with two runs of `jobs.start` and `jobs.end` jobs each. `program` is the `windlass-bench`
    /// executable, and `removed` the one that was built with `--cfg windlass_unobserved`.
    ///
    /// # Errors
    /// If valgrind cannot be started, fails or reports no count.
    pub fn count(program: &Path, removed: &Path, jobs: &Range<u32>) -> Result<Self, BoxError> {
        Ok(Self {
            removed: per_job(removed, "windlass", jobs)?,
            without: per_job(program, "windlass", jobs)?,
            with: per_job(program, "observed", jobs)?,
        })
    }

    /// Returns the share of instructions that a job costs more without an observer.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.without / self.removed - 1.0
    }
}

impl fmt::Display for ObserverCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { removed, without, with } = self;
        writeln!(f, "instructions per job in memory, started and drained on one thread")?;
        writeln!(f, "{:<44}{removed:>10.0}", "observers removed at compile time")?;
        let (share, max) = (100.0 * self.share(), 100.0 * OBSERVER_MAX);
        writeln!(f, "{:<44}{without:>10.0}  {share:+.2} % of less than {max:.0} %", "without an observer")?;
        writeln!(f, "{:<44}{with:>10.0}", "with metrics and 1 % of traces")
    }
}

/// Processor time of this process per job, in microseconds, in alternating rounds.
#[derive(Clone, Debug)]
pub struct TelemetryCost {
    /// The name of the store.
    pub store: &'static str,
    /// With metrics and [`SAMPLED`] traces.
    pub with: Vec<f64>,
    /// Without an observer.
    pub without: Vec<f64>,
}

impl TelemetryCost {
    /// Starts and drains this number of jobs in each round, with telemetry and without.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn measure<T: Subject>(
        subject: &mut T,
        store: &'static str,
        rounds: u32,
        jobs: u64,
    ) -> Result<Self, BoxError> {
        let mut measured = Self { store, with: Vec::new(), without: Vec::new() };
        run(&subject.open().await?, jobs).await?; // to warm up
        for round in 0..rounds {
            // The second run of a pair may be slower or faster than the first for unrelated reasons.
            for observed in [round % 2 == 0, round % 2 != 0] {
                let builder = subject.builder().await?;
                if observed {
                    let providers = Providers::new()?;
                    let client = builder.observer(providers.telemetry()).build();
                    measured.with.push(run(&client, jobs).await?);
                    providers.check(jobs)?;
                } else {
                    measured.without.push(run(&builder.build(), jobs).await?);
                }
            }
        }
        Ok(measured)
    }

    /// Returns the processor time of telemetry: the median of the rounds' differences.
    #[must_use]
    pub fn cost(&self) -> f64 {
        median(&self.differences())
    }

    fn differences(&self) -> Vec<f64> {
        self.with.iter().zip(&self.without).map(|(with, without)| with - without).collect()
    }
}

impl fmt::Display for TelemetryCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, greatest) = quartiles(&self.differences());
        let (with, without, cost) = (median(&self.with), median(&self.without), self.cost());
        let store = self.store;
        write!(
            f,
            "{store:<12}{without:>10.2}{with:>16.2}{cost:>12.2}   {least:.2} – {greatest:.2}   µs per job"
        )
    }
}

/// Returns the header of a table of costs.
#[must_use]
pub fn header() -> String {
    format!("{:<12}{:>10}{:>16}{:>12}   quartiles", "", "without", "with telemetry", "difference")
}

/// Returns the values below which a quarter and three quarters of the differences are. A single round may differ by more
/// than telemetry costs.
fn quartiles(differences: &[f64]) -> (f64, f64) {
    let mut sorted = differences.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    (at(sorted.len() / 4), at(sorted.len().saturating_sub(1) * 3 / 4))
}

/// Starts and drains jobs. Returns the processor time of this process per job, in microseconds.
async fn run<S: Store>(client: &Client<S>, jobs: u64) -> Result<f64, BoxError> {
    let before = meter::precise_cpu_time();
    let chains = workload::start_all(client, jobs, BATCH).await?;
    workload::drain_all(client, jobs, SLOTS).await?;
    let took = meter::precise_cpu_time().saturating_sub(before);
    workload::check_completed(client, &chains).await?;
    client.close().await?;
    #[expect(clippy::cast_precision_loss, reason = "a number of jobs is far below 2^52")]
    let jobs = jobs as f64;
    Ok(took.as_secs_f64() * 1e6 / jobs)
}

/// Providers as a service has them: the Prometheus endpoint, and a batch span processor. The spans are discarded, because
/// what an export costs depends on the exporter.
#[derive(Debug)]
pub struct Providers {
    prometheus: Prometheus,
    traces: SdkTracerProvider,
    sampler: ChainSampler,
}

impl Providers {
    /// Creates the providers.
    ///
    /// # Errors
    /// An error of the SDK.
    pub fn new() -> Result<Self, BoxError> {
        let sampler = ChainSampler::ratio(SAMPLED);
        let traces = SdkTracerProvider::builder()
            .with_sampler(sampler.clone())
            .with_id_generator(AttemptIds::new())
            .with_batch_exporter(Discard);
        Ok(Self { prometheus: Prometheus::new()?, traces: traces.build(), sampler })
    }

    /// Returns an observer that uses the providers.
    #[must_use]
    pub fn telemetry(&self) -> Telemetry {
        let telemetry = Telemetry::new().metrics(self.prometheus.meter_provider());
        telemetry.traces(&self.traces).sampler(self.sampler.clone())
    }

    /// Checks that the metrics have counted every job.
    ///
    /// # Errors
    /// If they have not.
    pub fn check(&self, jobs: u64) -> Result<(), BoxError> {
        let text = self.prometheus.text()?;
        let mut lines = text.lines().filter(|line| line.starts_with("windlass_job_completed_total{"));
        let counted = lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        if counted == Some(jobs) {
            return Ok(());
        }
        Err(format!("the metrics have counted {counted:?} of {jobs} jobs").into())
    }
}

/// Discards spans.
#[derive(Debug)]
struct Discard;

impl SpanExporter for Discard {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

/// What one query of the state gauges takes.
#[derive(Clone, Debug)]
pub struct GaugeCost {
    /// The name of the store.
    pub store: &'static str,
    /// The number of stored jobs.
    pub jobs: u64,
    /// The times of the queries.
    pub took: Vec<Duration>,
    /// The processor time of the server for all queries, if there is one.
    pub server_cpu: Option<Duration>,
}

impl GaugeCost {
    /// Stores jobs and queries the gauges this number of times. One job of a hundred waits for another: with 1,000,000
    /// jobs, as many as a query considers.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn measure<T: Subject>(
        subject: &mut T,
        store: &'static str,
        queries: u32,
        jobs: u64,
    ) -> Result<Self, BoxError> {
        let client = subject.open().await?;
        let waiting = jobs / 100;
        workload::start_fan_in(&client, waiting, 1).await?;
        workload::start_all(&client, jobs - 2 * waiting, BATCH).await?;
        let before = subject.usage().await?.server_cpu;
        let mut took = Vec::new();
        for _ in 0..queries {
            let providers = Providers::new()?;
            let began = Instant::now();
            let gauges = providers.telemetry().watch_state(&client);
            if !gauges.decided().await {
                return Err("another process reports the gauges".into());
            }
            took.push(began.elapsed());
            let text = providers.prometheus.text()?;
            let pending = format!("windlass_status=\"pending\"}} {}", jobs - waiting);
            if !text.contains(&pending) {
                return Err(format!("the gauges do not have `{pending}`:\n{text}").into());
            }
            gauges.stop().await;
        }
        let server_cpu = before.zip(subject.usage().await?.server_cpu).map(|(before, after)| after - before);
        client.close().await?;
        Ok(Self { store, jobs, took, server_cpu })
    }
}

impl fmt::Display for GaugeCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut took = self.took.clone();
        took.sort_unstable();
        let queries = u32::try_from(took.len()).unwrap_or(u32::MAX).max(1);
        let middle = took.get(took.len() / 2).copied().unwrap_or_default();
        write!(f, "{}: one query of the gauges with {} stored jobs: {middle:.1?}", self.store, self.jobs)?;
        match self.server_cpu {
            Some(cpu) => write!(f, ", {:.1?} of the server's processor time", cpu / queries),
            None => Ok(()),
        }
    }
}
