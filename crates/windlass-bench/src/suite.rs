//! Runs all workloads for several rounds, alternating with the bare work.

use std::time::{Duration, Instant};

use windlass::client::Target;
use windlass::store::Capability;
use windlass::{BoxError, Client, Store};

use crate::figure::median;
use crate::round_trip::{self, RoundTrips, SCENARIOS};
use crate::subject::Bare;
use crate::workload as work;
use crate::{Cost, Figure, Ratio, Report, Subject, Unit, meter};

/// The size of a run. Use the default to compare figures.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many times to run each workload, each time on an empty store.
    pub rounds: u32,
    /// Runs only workloads whose name contains this text.
    pub only: Option<String>,
    /// Number of jobs to start one by one, and number of producers.
    pub starts: (u64, u64),
    /// Number of jobs to start in batches, and size of a batch.
    pub batched: (u64, u64),
    /// Number of jobs to drain.
    pub drained: u64,
    /// Numbers of slots to drain with.
    pub slots: Vec<u32>,
    /// Number of jobs for the latency measurements, one at a time.
    pub single: u64,
    /// Number of chains, and steps per chain.
    pub chains: (u64, u64),
    /// Number of blocked jobs, and blockers per job.
    pub fan_in: (u64, u64),
    /// How long to start and drain jobs at the same time.
    pub sustained: Duration,
    /// The jobs to store in addition to those that are drained, one measurement each.
    pub depths: Vec<Depth>,
}

/// Jobs that are stored in addition to those that are drained.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Jobs of another type.
    pub others: u64,
    /// Jobs of the same type that are due later.
    pub later: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            rounds: 3,
            only: None,
            starts: (20_000, 16),
            batched: (100_000, 1_000),
            drained: 50_000,
            slots: vec![10, 100],
            single: 1_000,
            chains: (10_000, 5),
            fan_in: (1_000, 8),
            sustained: Duration::from_secs(30),
            depths: depths(&[(0, 0), (100_000, 0), (1_000_000, 0), (0, 1_000_000)]),
        }
    }
}

impl Plan {
    /// Returns a smaller plan, for a first impression.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            starts: (10_000, 16),
            batched: (20_000, 1_000),
            drained: 10_000,
            single: 100,
            chains: (1_000, 5),
            fan_in: (100, 8),
            sustained: Duration::from_secs(3),
            depths: depths(&[(0, 0), (20_000, 0), (0, 20_000)]),
            ..Self::default()
        }
    }

    fn has(&self, workload: &str) -> bool {
        self.only.as_deref().is_none_or(|only| workload.contains(only))
    }
}

/// Creates depths from pairs of other jobs and later jobs.
#[must_use]
pub fn depths(counts: &[(u64, u64)]) -> Vec<Depth> {
    counts.iter().map(|&(others, later)| Depth { others, later }).collect()
}

/// Slots for workloads that do not vary them.
const SLOTS: u32 = 100;

/// Jobs per batch when jobs are started before a drain.
const BATCH: u64 = 1_000;

/// Jobs to acquire when counting pages.
const ACQUIRED: u32 = 100;

/// Runs the suite. Each round runs all workloads and the bare work one after the other.
///
/// # Errors
/// If the store fails, or a workload does not complete its jobs.
pub async fn run<T: Subject>(subject: &mut T, plan: &Plan) -> Result<Report, BoxError> {
    let mut suite = Suite { subject, plan, figures: Vec::new(), costs: Vec::new() };
    for _ in 0..plan.rounds {
        suite.run_starts().await?;
        suite.run_drains().await?;
        suite.run_bare().await?;
        suite.run_single().await?;
        suite.run_sustained().await?;
    }
    suite.run_depths().await?;
    let round_trips = suite.run_queue().await?;
    let (figures, costs) = (suite.figures, suite.costs);
    let ratios = ratios(subject, &figures);
    Ok(Report { costs: medians(&costs), figures, ratios, round_trips })
}

struct Suite<'a, T> {
    subject: &'a mut T,
    plan: &'a Plan,
    figures: Vec<Figure>,
    costs: Vec<Cost>,
}

impl<T: Subject> Suite<'_, T> {
    /// Runs each queue scenario on an empty store.
    async fn run_queue(&mut self) -> Result<Vec<RoundTrips>, BoxError> {
        let mut measured = Vec::new();
        for scenario in SCENARIOS.into_iter().filter(|_| self.plan.has("queue")) {
            measured.push(round_trip::run(&self.subject.open().await?, scenario).await?);
        }
        Ok(measured)
    }

    async fn run_starts(&mut self) -> Result<(), BoxError> {
        let nothing = async |_: &Client<T::Store>| Ok(Vec::new());
        let (jobs, producers) = self.plan.starts;
        let start = async |_: &T, client: &Client<T::Store>| work::start(client, jobs, producers).await;
        self.rate(format!("start, {producers} producers"), jobs, nothing, start).await?;
        let (jobs, batch) = self.plan.batched;
        let start =
            async |_: &T, client: &Client<T::Store>| work::start_all(client, jobs, batch).await.map(drop);
        self.rate(format!("start, batches of {batch}"), jobs, nothing, start).await
    }

    async fn run_drains(&mut self) -> Result<(), BoxError> {
        let jobs = self.plan.drained;
        let start = async |client: &Client<T::Store>| work::start_all(client, jobs, BATCH).await;
        for slots in self.plan.slots.clone() {
            let drain = async |_: &T, client: &Client<T::Store>| work::drain_all(client, jobs, slots).await;
            self.rate(format!("drain, {slots} slots"), jobs, start, drain).await?;
        }
        if self.subject.open().await?.store().capabilities().has(Capability::Transactions) {
            let drain = async |subject: &T, client: &Client<T::Store>| {
                subject.drain_in_transactions(client, jobs, SLOTS).await
            };
            self.rate(format!("drain in transactions, {SLOTS} slots"), jobs, start, drain).await?;
        }
        let (chains, steps) = self.plan.chains;
        let (jobs, slots) = (chains * steps, SLOTS);
        let start = async |client: &Client<T::Store>| work::start_chains(client, chains, steps).await;
        let drain = async |_: &T, client: &Client<T::Store>| work::drain_steps(client, jobs, slots).await;
        self.rate(format!("chains of {steps} steps"), jobs, start, drain).await?;
        let (waiting, blockers) = self.plan.fan_in;
        let jobs = waiting * (blockers + 1);
        let start = async |client: &Client<T::Store>| work::start_fan_in(client, waiting, blockers).await;
        let drain = async |_: &T, client: &Client<T::Store>| work::drain_fan_in(client, jobs, slots).await;
        self.rate(format!("fan-in of {blockers}"), jobs, start, drain).await
    }

    async fn run_bare(&mut self) -> Result<(), BoxError> {
        for (bare, name) in self.subject.bare() {
            if self.plan.has(name) {
                let jobs = match bare {
                    Bare::InsertOne => self.plan.starts.0,
                    Bare::InsertMany => self.plan.batched.0,
                    Bare::ClaimMany => self.plan.drained,
                    Bare::ClaimOne => self.plan.drained / 5,
                };
                let took = self.subject.run_bare(bare, jobs).await?;
                self.add(name.to_owned(), Unit::JobsPerSecond, rate(jobs, took));
            }
        }
        Ok(())
    }

    async fn run_single(&mut self) -> Result<(), BoxError> {
        if self.plan.has("latency") {
            let client = self.subject.open().await?;
            let times = work::latency(&client, self.plan.single).await?;
            self.add_percentiles("latency to the handler", &times);
            close(&client).await?;
        }
        if self.plan.has("round trip") {
            let client = self.subject.open().await?;
            let times = work::round_trip(&client, self.plan.single).await?;
            self.add_percentiles("round trip", &times);
            close(&client).await?;
        }
        Ok(())
    }

    async fn run_sustained(&mut self) -> Result<(), BoxError> {
        if !self.plan.has("sustained") {
            return Ok(());
        }
        let client = self.subject.open().await?;
        let time = self.plan.sustained;
        let reached = work::sustained(&client, self.plan.starts.1, SLOTS, time).await?;
        self.add("sustained".to_owned(), Unit::JobsPerSecond, rate(reached.jobs, reached.took));
        self.add("sustained, backlog grows by".to_owned(), Unit::JobsPerSecond, rate(reached.backlog, time));
        self.add_percentiles("sustained, start to handler", &reached.delays);
        close(&client).await
    }

    /// Drains once per depth, with more and more other jobs stored.
    async fn run_depths(&mut self) -> Result<(), BoxError> {
        if !self.plan.has("depth") {
            return Ok(());
        }
        for Depth { others, later } in self.plan.depths.clone() {
            let name = format!("depth, {others} others and {later} for later");
            let client = self.subject.open().await?;
            work::start_others(&client, others).await?;
            work::start_for_later(&client, later).await?;
            work::start_all(&client, ACQUIRED.into(), ACQUIRED.into()).await?;
            if let Some(buffers) = self.subject.buffers_per_acquire(&client, ACQUIRED).await {
                self.add(format!("{name}: acquire"), Unit::Buffers, buffers?);
            }
            work::drain_all(&client, ACQUIRED.into(), SLOTS).await?;
            let jobs = self.plan.drained / 5;
            work::start_all(&client, jobs, BATCH).await?;
            let began = Instant::now();
            work::drain_all(&client, jobs, SLOTS).await?;
            self.add(name, Unit::JobsPerSecond, rate(jobs, began.elapsed()));
            close(&client).await?;
        }
        Ok(())
    }

    /// Prepares an empty store, runs a workload on it and records its rate and cost. Afterwards, checks that the
    /// prepared chains are completed.
    async fn rate(
        &mut self,
        workload: String,
        jobs: u64,
        prepare: impl AsyncFn(&Client<T::Store>) -> Result<Vec<Target>, BoxError>,
        run: impl AsyncFn(&T, &Client<T::Store>) -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        if !self.plan.has(&workload) {
            return Ok(());
        }
        let client = self.subject.open().await?;
        let chains = prepare(&client).await?;
        meter::reset_peak_memory("self");
        let (usage_before, cpu_before) = (self.subject.usage().await?, meter::cpu_time("self"));
        let (counted_before, began) = (client.store().counters(), Instant::now());
        run(self.subject, &client).await?;
        let (took, counted) = (began.elapsed(), client.store().counters());
        let (usage, cpu) = (self.subject.usage().await?, meter::cpu_time("self"));
        work::check_completed(&client, &chains).await?;
        let per_job = |count: u64| per_job(count, jobs);
        self.costs.push(Cost {
            workload: workload.clone(),
            round_trips: per_job(counted.round_trips - counted_before.round_trips),
            commits: per_job(counted.commits - counted_before.commits),
            log_bytes: grown(usage_before.log_bytes, usage.log_bytes).map(per_job),
            own_cpu_us: per_job(micros(cpu.saturating_sub(cpu_before))),
            server_cpu_us: grown(usage_before.server_cpu.map(micros), usage.server_cpu.map(micros))
                .map(per_job),
            peak_memory_bytes: meter::peak_memory("self"),
        });
        self.add(workload, Unit::JobsPerSecond, rate(jobs, took));
        close(&client).await
    }

    fn add_percentiles(&mut self, workload: &str, times: &[Duration]) {
        for percent in [50, 99] {
            let value = percentile(times, percent);
            self.add(format!("{workload}, p{percent}"), Unit::Microseconds, value);
        }
    }

    fn add(&mut self, workload: String, unit: Unit, value: f64) {
        // A run takes minutes: print each figure to show progress.
        eprintln!("{workload}: {value:.0} {unit}");
        match self.figures.iter_mut().find(|figure| figure.workload == workload) {
            Some(figure) => figure.rounds.push(value),
            None => self.figures.push(Figure { workload, unit, rounds: vec![value] }),
        }
    }
}

async fn close<S: Store>(client: &Client<S>) -> Result<(), BoxError> {
    Ok(client.store().close().await?)
}

/// Combines the rounds of each workload into one cost: the median of each value, and the highest peak memory.
fn medians(costs: &[Cost]) -> Vec<Cost> {
    let mut middle: Vec<Cost> = Vec::new();
    for cost in costs {
        if middle.iter().any(|known| known.workload == cost.workload) {
            continue;
        }
        let same = || costs.iter().filter(|other| other.workload == cost.workload);
        let of = |value: fn(&Cost) -> f64| median(&same().map(value).collect::<Vec<_>>());
        let maybe = |value: fn(&Cost) -> Option<f64>| {
            let values: Option<Vec<f64>> = same().map(value).collect();
            values.map(|values| median(&values))
        };
        middle.push(Cost {
            workload: cost.workload.clone(),
            round_trips: of(|cost| cost.round_trips),
            commits: of(|cost| cost.commits),
            log_bytes: maybe(|cost| cost.log_bytes),
            own_cpu_us: of(|cost| cost.own_cpu_us),
            server_cpu_us: maybe(|cost| cost.server_cpu_us),
            peak_memory_bytes: same().map(|cost| cost.peak_memory_bytes).max().unwrap_or_default(),
        });
    }
    middle
}

/// Compares workloads with bare work of the same round, where both were run.
fn ratios(subject: &impl Subject, figures: &[Figure]) -> Vec<Ratio> {
    let names = subject.bare();
    let rounds =
        |name: &str| figures.iter().find(|figure| figure.workload == name).map(|figure| &figure.rounds);
    let ratio = |goal: crate::subject::Goal| {
        let (_, bare) = names.iter().find(|(bare, _)| *bare == goal.bare)?;
        let pairs = rounds(goal.workload)?.iter().zip(rounds(bare)?);
        let rounds = pairs.map(|(reached, bare)| reached / bare).collect();
        let (workload, bare) = (goal.workload.to_owned(), (*bare).to_owned());
        Some(Ratio { workload, bare, rounds, at_least: goal.at_least })
    };
    subject.goals().into_iter().filter_map(ratio).collect()
}

fn grown(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
fn per_job(count: u64, jobs: u64) -> f64 {
    count as f64 / jobs as f64
}

#[expect(clippy::cast_precision_loss, reason = "rounded for display")]
fn rate(jobs: u64, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64()
}

/// Returns the given percentile in microseconds, or 0 if there are no times.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(at).copied().unwrap_or_default().as_secs_f64() * 1e6
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
        near(100, 200.0);
        assert!(percentile(&[], 50).abs() < 1e-6);
    }
}
