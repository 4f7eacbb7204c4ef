use std::fs;

use crate::program::{Program, run};

const RATES: [&str; 3] = ["start_per_s", "start_batch_per_s", "drain_per_s"];
const TIMES: [&str; 4] = ["latency_p50_us", "latency_p99_us", "round_trip_p50_us", "round_trip_p99_us"];

#[tokio::test]
async fn it_measures_sqlite_and_cleans_up() {
    let program = Program::on_sqlite();
    let ran = run(program.bare(&["bench", "--jobs", "100"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "its directory is removed");
    let ran = run(program.bare(&["bench", "--store", "sqlite:new.db", "--jobs", "100"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "the file that it made is removed");
    program.ok(&["start", "mine"]).await;
    check(&program, true).await;
    assert_eq!(program.json(&["queues"]).await.len(), 1, "only what was there before");
}

#[tokio::test]
async fn it_measures_postgres() {
    check(&Program::on_postgres().await, true).await;
}

#[tokio::test]
async fn it_measures_redis_without_transactions() {
    check(&Program::on_redis().await, false).await;
}

#[tokio::test]
async fn it_prints_a_table() {
    let program = Program::on_sqlite();
    let ran = run(program.bare(&["bench", "--store", "memory:", "--jobs", "100", "--payload", "10"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.starts_with("METRIC") && ran.stdout.contains("jobs/s"), "{ran:?}");
}

async fn check(program: &Program, transactions: bool) {
    let figures =
        &program.json(&["bench", "--jobs", "100", "--concurrency", "10", "--producers", "4"]).await[0];
    for name in RATES.iter().chain(&TIMES) {
        assert!(figures[name].as_f64() > Some(0.0), "{name}: {figures}");
    }
    assert_eq!(figures["drain_tx_per_s"].as_f64() > Some(0.0), transactions, "{figures}");
    assert!(
        figures["round_trips_per_job"].is_number() && figures["commits_per_job"].is_number(),
        "{figures}"
    );
    assert_eq!((&figures["jobs"], &figures["concurrency"]), (&100.into(), &10.into()));
}
