use std::fs;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Child;
use windlass_testkit::wait_until;

use crate::program::Program;

/// The number of jobs, and how many times a worker is killed.
const JOBS: usize = 150;
const KILLS: usize = 8;
/// How many jobs a worker runs at the same time.
const SLOTS: usize = 8;
/// Timeout for each wait. It covers the leases of killed workers, which must expire first.
const TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn killed_workers_lose_no_job_on_sqlite() {
    check(&Program::on_sqlite()).await;
}

#[tokio::test]
async fn killed_workers_lose_no_job_on_postgres() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    check(&program).await;
}

#[tokio::test]
async fn killed_workers_lose_no_job_on_redis() {
    check(&Program::on_redis().await).await;
}

async fn check(program: &Program) {
    let lines: String = (0..JOBS).map(|n| format!("{{\"input\": {n}}}\n")).collect();
    assert_eq!(program.run_with(&["start", "echo", "--batch"], &lines).await.code, 0);
    // No job ends while this file exists, so the first kill is certain to hit running jobs.
    let hold = program.directory().join("hold");
    fs::write(&hold, "").unwrap();
    let mut workers: Vec<Child> = (0..2).map(|_| worker(program)).collect();
    wait_until("all slots are taken", TIMEOUT, async || count(program, "running").await == 2 * SLOTS).await;
    strike(program, &mut workers).await;
    fs::remove_file(hold).unwrap();
    for kill in 1..KILLS {
        // The next kill follows after some more jobs have completed, at a random point.
        let enough = (kill * JOBS / (KILLS + 4)).saturating_sub(fastrand::usize(0..8));
        wait_until("more jobs are done", TIMEOUT, async || count(program, "completed").await >= enough).await;
        strike(program, &mut workers).await;
    }
    wait_until("all jobs are done", TIMEOUT, async || count(program, "completed").await == JOBS).await;
    let chains = program.json(&["chains", "--limit", "0"]).await;
    let mut outputs: Vec<_> = chains.iter().map(|chain| chain["output"].as_u64().unwrap()).collect();
    outputs.sort_unstable();
    assert_eq!(outputs, (0..JOBS as u64).collect::<Vec<_>>(), "each job returned its input, once");
    let jobs = program.json(&["jobs", "--limit", "0"]).await;
    let repeated = jobs.iter().filter(|job| job["attempt"].as_u64() > Some(1)).count();
    assert!(repeated > 0, "a kill hit a running job");
}

/// Kills a random worker and starts another in its place.
async fn strike(program: &Program, workers: &mut [Child]) {
    let victim = fastrand::usize(..workers.len());
    workers[victim].kill().await.unwrap();
    workers[victim] = worker(program);
}

/// Starts a worker with short leases and polls, so that the jobs of a killed worker are soon taken over.
fn worker(program: &Program) -> Child {
    let slots = SLOTS.to_string();
    let options = ["--concurrency", &slots, "--lease", "3s", "--poll", "200ms"];
    let command = "while [ -e hold ]; do sleep 0.2; done; sleep 0.05; cat";
    let arguments = [&["work", "echo", "--exec", command], &options[..]].concat();
    program.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

async fn count(program: &Program, status: &str) -> usize {
    let count = &program.json(&["queues", "echo"]).await[0][status];
    usize::try_from(count.as_u64().unwrap()).unwrap()
}
