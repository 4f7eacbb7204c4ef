use std::process::Stdio;
use std::time::Duration;

use tokio::process::Child;
use windlass_testkit::wait_until;

use crate::program::Program;

/// How many jobs there are, and how often a worker is killed.
const JOBS: usize = 150;
const KILLS: usize = 8;

#[tokio::test]
async fn workers_that_are_killed_lose_nothing_on_sqlite() {
    check(&Program::on_sqlite()).await;
}

#[tokio::test]
async fn workers_that_are_killed_lose_nothing_on_postgres() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    check(&program).await;
}

#[tokio::test]
async fn workers_that_are_killed_lose_nothing_on_redis() {
    check(&Program::on_redis().await).await;
}

async fn check(program: &Program) {
    let lines: String = (0..JOBS).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    assert_eq!(program.run_with(&["start", "echo", "--batch"], &lines).await.code, 0);
    let mut workers: Vec<Child> = (0..2).map(|_| worker(program)).collect();
    for kill in 1..=KILLS {
        // The next blow falls when some more are done, and never at the same place.
        let enough = (kill * JOBS / (KILLS + 4)).saturating_sub(fastrand::usize(0..8));
        wait_until("more jobs are done", Duration::from_secs(60), async || {
            completed(program).await >= enough
        })
        .await;
        let victim = fastrand::usize(..workers.len());
        workers[victim].kill().await.unwrap();
        workers[victim] = worker(program);
    }
    wait_until("all jobs are done", Duration::from_secs(60), async || completed(program).await == JOBS).await;
    let chains = program.json(&["chains", "--limit", "0"]).await;
    let mut outputs: Vec<_> = chains.iter().map(|chain| chain["output"].as_u64().unwrap()).collect();
    outputs.sort_unstable();
    assert_eq!(outputs, (0..JOBS as u64).collect::<Vec<_>>(), "each job gave what it took, once");
    let jobs = program.json(&["jobs", "--limit", "0"]).await;
    let repeated = jobs.iter().filter(|job| job["attempt"].as_u64() > Some(1)).count();
    assert!(repeated > 0, "a kill hit a running job");
}

/// A worker that notices soon that another died.
fn worker(program: &Program) -> Child {
    let options = ["--concurrency", "8", "--lease", "600ms", "--poll", "200ms"];
    let arguments = [&["work", "echo", "--exec", "sleep 0.05; cat"], &options[..]].concat();
    program.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

async fn completed(program: &Program) -> usize {
    let count = &program.json(&["queues", "echo"]).await[0]["completed"];
    usize::try_from(count.as_u64().unwrap()).unwrap()
}
