//! How the cost of commands on PostgreSQL depends on what is stored, who else works, and what happened before.
//!
//! The cost of a command is the processor time of the server process that runs it. It depends little on what else the
//! machine does. The other measurements need an idle machine.

mod chart;
mod command;
mod load;
mod page;

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::BoxError;

pub use command::Point;
pub use load::{AfterBacklog, Minute, SharedQueue};

use crate::subject::Postgres;

/// The largest ratio of a cost to its cost at the beginning of a curve, and of a latency to that of a fresh namespace.
pub const FLAT_MAX: f64 = 1.3;

/// The smallest ratio of the rate of many workers to that of one.
pub const WORKERS_MIN: f64 = 0.8;

/// The largest ratio of the last minute of an open snapshot to the first.
pub const SNAPSHOT_MAX: f64 = 2.0;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The numbers of completed jobs that are stored, in ascending order.
    pub stored: Vec<u64>,
    /// The numbers of pending jobs that are due.
    pub backlog: Vec<u64>,
    /// The numbers of jobs that are due much later.
    pub later: Vec<u64>,
    /// The numbers of job types, each with 100 pending jobs.
    pub types: Vec<u64>,
    /// How often each command is measured. Each time, it handles 100 jobs.
    pub batches: usize,
    /// How long the store takes at most to sum up the changes of its counts.
    pub pause: Duration,
    /// The number of workers that share a queue.
    pub workers: u32,
    /// The number of jobs that they drain.
    pub drained: u64,
    /// How many minutes a snapshot stays open, and how long a minute is.
    pub snapshot: (u32, Duration),
    /// The number of jobs per second while the snapshot is open.
    pub rate: u64,
    /// The number of jobs that pass through a namespace before its latency is measured again.
    pub passed: u64,
    /// The number of single jobs of such a measurement.
    pub single: u64,
    /// How many times to compare workers and latencies.
    pub rounds: u32,
    /// Runs only the parts whose names contain this text.
    pub only: Option<String>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            stored: vec![10_000, 100_000, 1_000_000, 10_000_000],
            backlog: vec![10_000, 100_000, 1_000_000],
            later: vec![10_000, 100_000, 1_000_000],
            types: vec![1, 10, 100, 1_000],
            batches: 100,
            pause: Duration::from_millis(1_500),
            workers: 50,
            drained: 100_000,
            snapshot: (10, Duration::from_secs(60)),
            rate: 5_000,
            passed: 1_000_000,
            single: 500,
            rounds: 3,
            only: None,
        }
    }
}

impl Plan {
    /// Returns a smaller plan, for a first impression.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            stored: vec![1_000, 10_000],
            backlog: vec![1_000, 10_000],
            later: vec![1_000, 10_000],
            types: vec![1, 10],
            batches: 10,
            pause: Duration::from_millis(1_500),
            workers: 5,
            drained: 2_000,
            snapshot: (2, Duration::from_secs(2)),
            rate: 500,
            passed: 5_000,
            single: 100,
            rounds: 1,
            only: None,
        }
    }

    fn has(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| part.contains(only))
    }
}

/// The results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PostgresScale {
    /// The server with its version and settings.
    pub server: String,
    /// The cost of commands by what is stored.
    pub curves: Vec<Curve>,
    /// Many workers compared with one.
    pub workers: Option<SharedQueue>,
    /// The cost of a job by minute while a snapshot is open.
    pub snapshot: Vec<Minute>,
    /// The latency of single jobs before and after a backlog.
    pub latencies: Vec<AfterBacklog>,
}

/// The cost of commands by what is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Curve {
    /// What the number of each point counts.
    pub name: String,
    /// The points, in ascending order.
    pub points: Vec<Point>,
    /// Whether the cost of `count` must not depend on the number. It returns a row for each type.
    pub includes_count: bool,
}

impl Curve {
    /// Returns the cost of each command at the last point, divided by its cost at the first.
    #[must_use]
    pub fn growth(&self) -> Vec<(&'static str, f64)> {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return Vec::new() };
        let pairs = first.costs().into_iter().zip(last.costs());
        pairs.map(|((name, first), (_, last))| (name, last / first)).collect()
    }

    /// Whether no command became too expensive.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        let required = |name: &str| name != "count" || self.includes_count;
        self.growth().into_iter().all(|(name, growth)| !required(name) || growth <= FLAT_MAX)
    }
}

/// Runs all parts of a plan.
///
/// # Errors
/// If the server fails.
pub async fn run(plan: &Plan, durable: bool) -> Result<PostgresScale, BoxError> {
    let mut server = Postgres::start(durable).await?;
    let mut scale = PostgresScale { server: server.version().await?, ..PostgresScale::default() };
    for (name, counts, kind) in [
        ("completed jobs stored", &plan.stored, command::Fill::Completed),
        ("pending jobs", &plan.backlog, command::Fill::Pending),
        ("jobs due later", &plan.later, command::Fill::Later),
        ("job types", &plan.types, command::Fill::Types),
    ] {
        if plan.has(name) {
            let points = command::curve(&mut server, kind, counts, plan).await?;
            let includes_count = kind != command::Fill::Types;
            scale.curves.push(Curve { name: name.to_owned(), points, includes_count });
        }
    }
    if plan.has("workers") {
        scale.workers = Some(load::share_queue(&mut server, plan).await?);
    }
    if plan.has("latency") {
        for role in [load::Role::Owner, load::Role::Worker] {
            scale.latencies.push(load::after_backlog(&mut server, plan, role).await?);
        }
    }
    if plan.has("snapshot") {
        scale.snapshot = load::with_snapshot(&mut server, plan).await?;
    }
    Ok(scale)
}

impl PostgresScale {
    /// Returns a sentence for each goal that is missed.
    #[must_use]
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for curve in self.curves.iter().filter(|curve| !curve.is_flat()) {
            missed.push(format!("the cost of a command grows with the number of {}", curve.name));
        }
        if self.workers.as_ref().is_some_and(|workers| workers.ratio() < WORKERS_MIN) {
            missed.push("many workers complete fewer jobs per second than one".to_owned());
        }
        if load::snapshot_growth(&self.snapshot).is_some_and(|growth| growth > SNAPSHOT_MAX) {
            missed.push("jobs become more expensive while a snapshot is open".to_owned());
        }
        for latency in self.latencies.iter().filter(|latency| latency.ratio() > FLAT_MAX) {
            missed.push(format!("single jobs take longer after a backlog, as the {}", latency.role));
        }
        missed
    }

    /// Writes a page, a chart and the figures as JSON into a directory. Parts that were not measured keep the figures that
    /// are there.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn write(&self, directory: &Path, command: &str) -> Result<(), BoxError> {
        std::fs::create_dir_all(directory)?;
        let file = |extension: &str| directory.join(format!("postgres-scale.{extension}"));
        let former = match std::fs::read(file("json")) {
            Ok(json) => serde_json::from_slice(&json)?,
            Err(error) if error.kind() == ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error.into()),
        };
        let all = self.clone().with_former(former);
        std::fs::write(file("json"), format!("{}\n", serde_json::to_string_pretty(&all)?))?;
        std::fs::write(file("svg"), chart::render(&all))?;
        std::fs::write(file("md"), page::render(&all, command))?;
        Ok(())
    }

    /// Adds the parts of former results that were not measured again.
    fn with_former(mut self, former: Self) -> Self {
        for (index, curve) in former.curves.into_iter().enumerate() {
            if !self.curves.iter().any(|new| new.name == curve.name) {
                self.curves.insert(index.min(self.curves.len()), curve);
            }
        }
        self.workers = self.workers.or(former.workers);
        if self.snapshot.is_empty() {
            self.snapshot = former.snapshot;
        }
        if self.latencies.is_empty() {
            self.latencies = former.latencies;
        }
        self
    }
}

impl std::fmt::Display for PostgresScale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&page::tables(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(count: u64, cost: f64) -> Point {
        Point { count, start_us: cost, acquire_us: 2.0, settle_us: 3.0, count_us: 10.0 * cost }
    }

    pub(super) fn example() -> PostgresScale {
        let curve = |name: &str, last: f64, includes_count| Curve {
            name: name.to_owned(),
            points: vec![point(10, 1.0), point(1_000, last)],
            includes_count,
        };
        let minute =
            |minute, server_us| Minute { minute, jobs: 300_000, server_us, p50_us: 900.0, p99_us: 5_000.0 };
        PostgresScale {
            server: "PostgreSQL <15>".to_owned(),
            curves: vec![curve("stored jobs", 1.2, true), curve("pending jobs", 2.0, true)],
            workers: Some(SharedQueue { workers: 50, one: vec![100.0, 120.0], many: vec![60.0, 84.0] }),
            snapshot: vec![minute(1, 20.0), minute(2, 50.0)],
            latencies: vec![AfterBacklog {
                role: "owner".to_owned(),
                passed: 1_000_000,
                fresh_us: vec![1_000.0],
                after_us: vec![1_200.0],
            }],
        }
    }

    #[test]
    fn missed_goals_are_named() {
        let missed = example().missed();
        let [pending, workers, snapshot] = missed.as_slice() else { panic!("{missed:?}") };
        assert!(pending.ends_with("number of pending jobs"), "{pending}");
        assert!(workers.starts_with("many workers"), "{workers}");
        assert!(snapshot.contains("snapshot"), "{snapshot}");
    }

    #[test]
    fn the_cost_of_a_count_may_grow_with_the_types() {
        let points = vec![point(1, 1.0), Point { count_us: 500.0, ..point(1_000, 1.0) }];
        let curve =
            |includes_count| Curve { name: "types".to_owned(), points: points.clone(), includes_count };
        assert!(curve(false).is_flat());
        assert!(!curve(true).is_flat());
    }

    #[test]
    fn the_results_are_written_as_page_chart_and_json() {
        let directory = tempfile::tempdir().unwrap();
        example().write(directory.path(), "the command").unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        let json: serde_json::Value = serde_json::from_str(&read("postgres-scale.json")).unwrap();
        assert_eq!(json["curves"][1]["points"][1]["count"], 1_000);
        assert!(read("postgres-scale.md").contains("the command"));
        assert!(read("postgres-scale.svg").starts_with("<svg"));
    }

    #[test]
    fn parts_that_were_not_measured_again_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        example().write(directory.path(), "first").unwrap();
        let mut part = PostgresScale { curves: example().curves, ..PostgresScale::default() };
        part.curves.remove(0);
        part.curves[0].points.truncate(1);
        part.write(directory.path(), "second").unwrap();
        let json = std::fs::read(directory.path().join("postgres-scale.json")).unwrap();
        let all: PostgresScale = serde_json::from_slice(&json).unwrap();
        let names: Vec<_> =
            all.curves.iter().map(|curve| (curve.name.as_str(), curve.points.len())).collect();
        assert_eq!(names, [("stored jobs", 2), ("pending jobs", 1)]);
        assert!(all.workers.is_some() && all.snapshot.len() == 2 && all.latencies.len() == 1);
    }
}
