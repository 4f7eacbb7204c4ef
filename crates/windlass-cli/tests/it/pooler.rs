//! The program behind PgBouncer in transaction mode, as users run it: with the URL and nothing else.

use windlass_testkit::{PgBouncer, shared_postgres};

use crate::program::{Program, ended, terminate};

async fn pooler() -> PgBouncer {
    PgBouncer::start(shared_postgres().await.server()).await
}

#[tokio::test]
async fn the_demo_runs_behind_a_pooler() {
    let pooler = pooler().await;
    let summary = &Program::behind(&pooler).await.json(&["demo", "--orders", "8"]).await[0];
    assert_eq!((&summary["ok"], summary["checks"].as_array().unwrap().len()), (&true.into(), 8), "{summary}");
}

/// Hints of the same process arrive without `LISTEN`. Workers would otherwise find each job by polling, every 1.5 s.
#[tokio::test]
async fn the_bench_runs_behind_a_pooler_without_polling() {
    let pooler = pooler().await;
    let figures = &Program::behind(&pooler).await.json(&["bench", "--jobs", "50"]).await[0];
    assert!(figures["drain_tx_per_s"].as_f64() > Some(0.0), "{figures}");
    for name in ["latency_p50_us", "round_trip_p50_us"] {
        let time = figures[name].as_f64().unwrap();
        assert!(time > 0.0 && time < 750_000.0, "{name}: {figures}");
    }
}

/// Several processes share the pooler's server connections. Each of them would find statements there that another one has
/// prepared.
#[tokio::test]
async fn a_worker_and_other_processes_run_behind_a_pooler() {
    let pooler = pooler().await;
    let program = Program::behind(&pooler).await;
    program.ok(&["migrate"]).await;
    let worker = program.command(&["work", "greet", "--exec", "cat", "--concurrency", "4"]).spawn().unwrap();
    let call = async |input: &str| {
        for _ in 0..3 {
            let chain = program.ok(&["start", "greet", input]).await;
            assert_eq!(program.ok(&["wait", &chain]).await, input);
        }
    };
    tokio::join!(call("1"), call("2"), call("3"), call("4"));
    terminate(&worker).await;
    let ran = ended(worker).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.stderr.contains("prepared statement"), "{ran:?}");
}
