//! The workloads end, and say what they should; a job costs no more instructions than it may.

use std::path::Path;

use windlass::{Client, MemoryStore};
use windlass_bench::instructions::{Cost, is_countable};
use windlass_bench::suite::{self, Plan};
use windlass_bench::{Unit, bare};

/// What a job may cost in these tests, which are built with fewer optimizations than `cargo xtask bench`: that
/// holds the promise, this notices what creeps in.
const CEILING: f64 = 11.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_workload_gives_a_figure_for_each_round() {
    let plan = Plan { rounds: 2, starts: (100, 16), batched: (1_500, 1_000), drained: 1_100, single: 5 };
    let figures = suite::run(plan, async || Ok(Client::new(MemoryStore::new()))).await.unwrap();
    let names: Vec<&str> = figures.iter().map(|figure| figure.workload.as_str()).collect();
    let expected = [
        "start, 16 producers",
        "start, batches of 1000",
        "drain, 10 slots",
        "drain, 64 slots",
        "drain, 100 slots",
        "latency to the handler, p50",
        "latency to the handler, p99",
        "round trip, p50",
        "round trip, p99",
    ];
    assert_eq!(names, expected);
    for figure in figures {
        assert_eq!(figure.rounds.len(), 2, "{}", figure.workload);
        assert!(figure.rounds.iter().all(|value| *value > 0.0), "{figure:?}");
        let is_time = figure.workload.ends_with("p50") || figure.workload.ends_with("p99");
        assert_eq!(figure.unit == Unit::Microseconds, is_time, "{}", figure.workload);
    }
}

#[tokio::test]
async fn the_bare_version_works_off_everything() {
    bare::start_and_drain(1_000, 64).await.unwrap();
}

#[test]
fn a_job_costs_few_instructions() {
    if !is_countable() {
        println!("not counted: there is no valgrind");
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_windlass-bench"));
    let cost = Cost::count(program, &(500..2_500)).unwrap();
    print!("{}", cost.table());
    assert!(cost.ratio() <= CEILING, "{cost:?} is {:.1} times the bare version", cost.ratio());
}
