//! `windlass work`: runs a shell command for each job.

mod child;
mod outcome;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use windlass::command::{NextDue, Types};
use windlass::name::TypeName;
use windlass::otel::{Prometheus, Telemetry};
use windlass::{Backoff, Client, HandlerOptions, Running, Store, Worker, shutdown_signal};

use super::Context;
use super::list::check_stored;
use crate::arguments::Work;
use crate::exit::{Failure, Result};
use crate::output::note;
use crate::store::OpenMode;
use crate::trace::Propagation;
use child::Runner;

/// How often `--drain` checks whether any job is left.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// Extra time to store the results of the last commands, and to release the lock of the state gauges.
const LAST_WRITES: Duration = Duration::from_secs(2);

pub(crate) async fn run(context: &Context, work: Work) -> Result {
    let metrics = work.metrics.map(Metrics::new).transpose()?;
    let telemetry = metrics.as_ref().map_or_else(Telemetry::new, Metrics::telemetry);
    let observer = Propagation::of_worker(telemetry.clone());
    let connection = context.open_observed(OpenMode::CreateFile, observer).await?;
    let client = connection.client();
    if let Some(metrics) = metrics {
        metrics.serve().await?;
    }
    let gauges = telemetry.watch_state(&client);
    let directory = tempfile::tempdir();
    let directory = directory
        .map_err(|error| Failure::failed(format!("cannot create a temporary directory: {error}")))?;
    let stop_now = CancellationToken::new();
    let runner = Arc::new(Runner {
        command: work.exec.clone(),
        directory: directory.path().to_owned(),
        grace: work.grace,
        stop_now: stop_now.clone(),
        environment: context.config.environment(),
    });
    let types: BTreeSet<TypeName> = work.types.iter().cloned().collect();
    let mut worker = Worker::new(&client).concurrency(work.concurrency);
    if let Some(poll) = work.poll {
        worker = worker.poll(poll);
    }
    if let Some(name) = &work.name {
        worker = worker.name(name);
    }
    for job_type in &types {
        let runner = Arc::clone(&runner);
        worker = worker.handle_any(job_type, options(&work), move |attempt| {
            let runner = Arc::clone(&runner);
            async move { runner.run(&attempt).await }
        });
    }
    // Install the signal handlers before the worker is visible: a signal sent in between would kill the process.
    let shutdown_requested = shutdown_signal();
    let running = worker.start().await?;
    let is_drained = tokio::select! {
        () = shutdown_requested => false,
        drained = drained(&client, types.clone(), work.drain) => drained.map(|()| true)?,
    };
    stop(running, &work, &stop_now).await;
    // Before the client is closed. If the lock were not released, no process would report the state until it expires.
    tokio::select! {
        _ = timeout(LAST_WRITES, gauges.stop()) => {}
        () = shutdown_signal() => {}
    }
    if is_drained {
        note_unknown(&client, types).await;
    }
    Ok(())
}

/// Prints a note for each type without a stored job: its name may be misspelled. The check follows the work, because the
/// first job of a type may be a continuation.
async fn note_unknown(client: &Client<dyn Store>, types: BTreeSet<TypeName>) {
    let types: Vec<_> = types.into_iter().collect();
    // A note is not worth an error: the work is done.
    let Ok(reply) = client.count(Types::Only(types.clone())).await else { return };
    for job_type in types {
        if let Err(unknown) = check_stored(&[job_type], &reply.types) {
            note(&unknown.line().unwrap_or_default());
        }
    }
}

/// The endpoint of `--metrics`.
struct Metrics {
    prometheus: Prometheus,
    address: SocketAddr,
}

impl Metrics {
    fn new(address: SocketAddr) -> Result<Self> {
        let prometheus = Prometheus::new();
        let prometheus = prometheus.map_err(|error| Failure::failed(format!("--metrics: {error}")))?;
        Ok(Self { prometheus, address })
    }

    fn telemetry(&self) -> Telemetry {
        Telemetry::new().metrics(self.prometheus.meter_provider())
    }

    /// Serves the metrics until the process ends, and prints the address.
    async fn serve(self) -> Result {
        let address = self.address;
        let bound = self.prometheus.listen(address, std::future::pending()).await;
        let bound = bound.map_err(|error| {
            Failure::failed(format!("--metrics: cannot listen at {address}: {error}; choose another address"))
        })?;
        note(&format!("metrics at http://{bound}/metrics"));
        Ok(())
    }
}

fn options(work: &Work) -> HandlerOptions {
    let backoff =
        Backoff { initial: work.backoff, max: work.max_backoff.max(work.backoff), ..Backoff::default() };
    let options = HandlerOptions::new().lease(work.lease).backoff(backoff);
    match work.timeout {
        Some(timeout) => options.timeout(timeout),
        None => options,
    }
}

/// Stops the worker. It acquires no more jobs, and running commands may finish. After `--stop-timeout` or a second
/// signal, commands that still run are terminated.
async fn stop(running: Running<dyn Store>, work: &Work, stop_now: &CancellationToken) {
    // The runner decides itself when a command must end.
    let mut stopping = std::pin::pin!(running.stop_now(work.stop_timeout + work.grace + LAST_WRITES));
    tokio::select! {
        () = &mut stopping => return,
        () = tokio::time::sleep(work.stop_timeout) => {}
        () = shutdown_signal() => {}
    }
    stop_now.cancel();
    stopping.await;
}

/// Returns when no job of these types is due or running. Never returns if `wanted` is false.
async fn drained(client: &Client<dyn Store>, types: BTreeSet<TypeName>, wanted: bool) -> Result {
    if !wanted {
        return std::future::pending().await;
    }
    let types = Types::Only(types.into_iter().collect());
    let mut ticks = interval(DRAIN_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let next = client.store().next_due(NextDue { types: types.clone() }).await?;
        if next.lease_until.is_none() && next.due_at.is_none_or(|at| at > next.now) {
            return Ok(());
        }
    }
}
