//! `windlass bench`: runs the core workloads on a store. A measurement ends when the last completion is stored.

mod workload;

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use windlass::observer::NoObserver;
use windlass::{BoxError, Client, Store, Transactional, shutdown_signal};

use super::Context;
use crate::arguments::Bench;
use crate::exit::{Code, Failure, Result, with_sources};
use crate::output::{Output, stderr_is_terminal};
use crate::store::{AnyStore, Connection, OpenMode, StoreUrl};
use workload::Jobs;

/// The maximum number of jobs for the latency measurements, which run one job at a time.
const SINGLE_MAX: u64 = 500;

pub(crate) async fn run(context: &Context, bench: &Bench) -> Result {
    // Without a named store, use a temporary directory inside the current one, to measure the same disk.
    let directory = match context.is_store_named {
        true => None,
        false => Some(
            tempfile::tempdir_in(".")
                .map_err(|error| Failure::failed(format!("cannot create a temporary directory: {error}")))?,
        ),
    };
    let mut config = context.config.clone().with_unique_namespace("bench");
    if let Some(directory) = &directory {
        config.store = StoreUrl::Sqlite(directory.path().join("bench.db"));
    }
    let new_file = match &config.store {
        StoreUrl::Sqlite(path) => Some(path.clone()).filter(|path| !path.exists()),
        _ => None,
    };
    let connection = config.open_with(OpenMode::Migrate, NoObserver).await?;
    let progress = progress();
    let measured = tokio::select! {
        measured = measure_any(&connection, &config.store, bench, &progress) => measured,
        () = shutdown_signal() => Err(Failure::new(Code::Interrupted, "interrupted; the benchmark's data was removed")),
    };
    progress.finish_and_clear();
    // Always remove what the benchmark created. An earlier error takes precedence over an error of the removal.
    let removed = connection.remove(&config).await;
    if let Some(path) = new_file {
        // Closing the store removes the write-ahead log.
        let _ = connection.client().store().close().await;
        let _ = std::fs::remove_file(path);
    }
    measured?.print(context.output)?;
    removed
}

async fn measure_any(
    connection: &Connection,
    store: &StoreUrl,
    bench: &Bench,
    progress: &ProgressBar,
) -> Result<Figures> {
    let store = match store {
        StoreUrl::Memory => "memory",
        StoreUrl::Sqlite(_) => "sqlite",
        StoreUrl::File(_) => "file",
        StoreUrl::Postgres(_) => "postgres",
        StoreUrl::Redis(_) => "redis",
    };
    // Use the type-erased client where possible: a worker that is generic over the store is compiled once per store.
    let measured = async {
        let mut figures = measure(&connection.client(), store, bench, progress).await?;
        figures.drain_tx_per_s = match &connection.store {
            AnyStore::Memory(client) => Some(measure_transactions(client, bench, progress).await?),
            AnyStore::Sqlite(client) => Some(measure_transactions(client, bench, progress).await?),
            AnyStore::File(client) => Some(measure_transactions(client, bench, progress).await?),
            AnyStore::Postgres(client) => Some(measure_transactions(client, bench, progress).await?),
            AnyStore::Redis(_) => None,
        };
        figures.peak_rss_mib = peak_memory_mib();
        Ok(figures)
    };
    let measured: Result<_, BoxError> = measured.await;
    measured.map_err(|error| match error.downcast::<windlass::Error>() {
        Ok(error) => (*error).into(),
        Err(error) => Failure::failed(with_sources(&*error)),
    })
}

/// The measured values. Rates are in jobs per second.
#[derive(Debug, Serialize)]
struct Figures {
    store: &'static str,
    jobs: u64,
    concurrency: u32,
    start_per_s: f64,
    start_batch_per_s: f64,
    drain_per_s: f64,
    drain_tx_per_s: Option<f64>,
    latency_p50_us: f64,
    latency_p99_us: f64,
    round_trip_p50_us: f64,
    round_trip_p99_us: f64,
    round_trips_per_job: f64,
    commits_per_job: f64,
    peak_rss_mib: Option<f64>,
}

/// Runs the workload that needs transactions and returns its rate in jobs per second.
async fn measure_transactions<S: Transactional>(
    client: &Client<S>,
    bench: &Bench,
    progress: &ProgressBar,
) -> Result<f64, BoxError> {
    let jobs = Jobs::new(client, bench);
    progress.set_message("drain, one transaction per job");
    jobs.start_batches().await?;
    let began = Instant::now();
    jobs.drain_in_transactions().await?;
    Ok(rate(bench.jobs, began.elapsed()))
}

/// Runs all other workloads.
async fn measure(
    client: &Client<dyn Store>,
    store: &'static str,
    bench: &Bench,
    progress: &ProgressBar,
) -> Result<Figures, BoxError> {
    let jobs = Jobs::new(client, bench);
    progress.set_message("start, one by one");
    let began = Instant::now();
    jobs.start_singly().await?;
    let start_per_s = rate(bench.jobs, began.elapsed());
    // Drain these jobs before the next measurement, which they would distort.
    jobs.drain().await?;

    progress.set_message("start in batches");
    let (before, began) = (client.store().counters(), Instant::now());
    jobs.start_batches().await?;
    let start_batch_per_s = rate(bench.jobs, began.elapsed());

    progress.set_message("drain");
    let began = Instant::now();
    jobs.drain().await?;
    let drain_per_s = rate(bench.jobs, began.elapsed());
    let after = client.store().counters();

    let single = bench.jobs.min(SINGLE_MAX);
    progress.set_message("latency to the handler, one job at a time");
    let latencies = jobs.latencies(single).await?;
    progress.set_message("round trip, one job at a time");
    let round_trips = jobs.round_trips(single).await?;
    Ok(Figures {
        store,
        jobs: bench.jobs,
        concurrency: bench.concurrency,
        start_per_s,
        start_batch_per_s,
        drain_per_s,
        drain_tx_per_s: None,
        latency_p50_us: percentile(&latencies, 50),
        latency_p99_us: percentile(&latencies, 99),
        round_trip_p50_us: percentile(&round_trips, 50),
        round_trip_p99_us: percentile(&round_trips, 99),
        round_trips_per_job: per_job(after.round_trips - before.round_trips, bench.jobs),
        commits_per_job: per_job(after.commits - before.commits, bench.jobs),
        peak_rss_mib: None,
    })
}

impl Figures {
    fn print(&self, output: Output) -> Result {
        if output.is_json() {
            return output.object(self);
        }
        let row = |what: &str, value: f64, unit: &str| {
            [what.to_owned(), format!("{value:.*}", digits(value)), unit.to_owned()]
        };
        let mut rows = vec![
            row("start, one by one", self.start_per_s, "jobs/s"),
            row("start in batches", self.start_batch_per_s, "jobs/s"),
            row("drain", self.drain_per_s, "jobs/s"),
        ];
        rows.extend(self.drain_tx_per_s.map(|rate| row("drain, one transaction per job", rate, "jobs/s")));
        rows.extend([
            row("latency to the handler, p50", self.latency_p50_us, "µs"),
            row("latency to the handler, p99", self.latency_p99_us, "µs"),
            row("round trip, p50", self.round_trip_p50_us, "µs"),
            row("round trip, p99", self.round_trip_p99_us, "µs"),
            row("round trips (start in batches, drain)", self.round_trips_per_job, "per job"),
            row("commits (start in batches, drain)", self.commits_per_job, "per job"),
        ]);
        rows.extend(self.peak_rss_mib.map(|mebibytes| row("peak memory", mebibytes, "MiB")));
        output.table(["METRIC", "VALUE", "UNIT"], &rows)
    }
}

/// Returns the number of decimal places to print: small values get more.
const fn digits(value: f64) -> usize {
    if value < 10.0 { 3 } else { 0 }
}

#[expect(clippy::cast_precision_loss, reason = "the value is only displayed")]
fn rate(jobs: u64, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "the value is only displayed")]
fn per_job(count: u64, jobs: u64) -> f64 {
    count as f64 / jobs as f64
}

/// Returns the given percentile in microseconds, or 0 if there are no times.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or_default().as_secs_f64() * 1e6
}

/// Returns the peak memory of this process, or `None` if the system does not report it.
fn peak_memory_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes / 1_024.0)
}

fn progress() -> ProgressBar {
    if !stderr_is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
    let bar =
        ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        let near = |percent, expected: f64| assert!((percentile(&times, percent) - expected).abs() < 1e-6);
        near(50, 100.0);
        near(99, 198.0);
        assert!(percentile(&[], 50).abs() < 1e-6);
    }
}
