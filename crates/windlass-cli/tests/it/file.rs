//! The program on a folder.

use std::fs;
use std::time::Duration;

use windlass_testkit::wait_until;

use crate::program::{Program, ended, run, terminate};

#[tokio::test]
async fn jobs_are_started_worked_and_waited_for() {
    let program = Program::on_file();
    let chain = program.ok(&["start", "double", "21"]).await;
    assert_eq!(program.json(&["jobs"]).await[0]["status"], "pending");
    let ran = program.drain(&["double"], "expr $(cat) \\* 2").await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(program.ok(&["wait", &chain]).await, "42");
    let ran = program.doctor(&[], |ran| ran.code == 0).await;
    assert!(ran.stdout.contains("notifier: ok"), "{ran:?}");
}

/// A worker in another process is woken by the folder, not by its poll interval.
#[tokio::test]
async fn a_waiting_worker_runs_a_job_that_another_process_starts() {
    let program = Program::on_file();
    program.ok(&["migrate"]).await;
    let worker = program.command(&["work", "echo", "--exec", "cat", "--poll", "10min"]).spawn().unwrap();
    wait_until("the worker has started", Duration::from_secs(60), async || {
        !program.json(&["workers"]).await.is_empty()
    })
    .await;
    let chain = program.ok(&["start", "echo", "7"]).await;
    assert_eq!(program.ok(&["wait", &chain, "--timeout", "60s"]).await, "7");
    terminate(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
}

#[tokio::test]
async fn the_demo_runs_and_cleans_up() {
    let program = Program::on_file();
    program.ok(&["start", "mine"]).await;
    let summary = &program.json(&["demo", "--orders", "8"]).await[0];
    assert_eq!((&summary["ok"], summary["checks"].as_array().unwrap().len()), (&true.into(), 5), "{summary}");
    assert_eq!(program.json(&["jobs"]).await.len(), 1, "only what was there before");
    let ran = run(program.bare(&["demo", "--orders", "4", "--store", "file:new"])).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("running a shop on a folder"), "{ran:?}");
    assert!(!program.directory().join("new").exists(), "the folder that it made is removed");
}

#[tokio::test]
async fn the_benchmark_runs_and_cleans_up() {
    let program = Program::on_file();
    let figures = &program.json(&["bench", "--jobs", "100"]).await[0];
    assert_eq!(figures["store"], "file");
    assert!(figures["drain_per_s"].as_f64() > Some(0.0) && figures["drain_tx_per_s"].as_f64() > Some(0.0));
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "the folder that it made is removed");
}

#[tokio::test]
async fn namespaces_are_separate() {
    let program = Program::on_file();
    program.ok(&["start", "mine"]).await;
    program.ok(&["start", "other", "--namespace", "shop"]).await;
    assert_eq!(program.json(&["jobs"]).await[0]["type"], "mine");
    assert_eq!(program.json(&["jobs", "--namespace", "shop"]).await[0]["type"], "other");
    let ran = program.run(&["start", "mine", "--namespace", "../shop"]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("namespace"), "{ran:?}");
}

#[tokio::test]
async fn problems_of_the_folder_are_reported() {
    let program = Program::on_file();
    let status = program.run(&["migrate", "--status"]).await;
    assert_eq!(status.code, 1, "{status:?}");
    assert!(status.stdout.starts_with("the store folder `queue` does not exist: run "), "{status:?}");
    let ran = program.run(&["jobs"]).await;
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("the store folder `queue` does not exist"), "{ran:?}");
    fs::create_dir(program.directory().join("queue")).unwrap();
    fs::write(program.directory().join("queue/letter.txt"), "dear").unwrap();
    let ran = program.run(&["start", "mine"]).await;
    assert!(ran.stderr.contains("contains other files (`letter.txt`)"), "{ran:?}");
    fs::remove_file(program.directory().join("queue/letter.txt")).unwrap();
    program.ok(&["start", "mine"]).await;
    fs::write(program.directory().join("queue/letter.txt"), "dear").unwrap();
    let ran = program.run(&["doctor"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("letter.txt"), "{ran:?}");
}

/// A worker uses the folder while it is copied. The copy replaces the folder that was lost.
#[tokio::test]
async fn a_folder_in_use_is_backed_up_and_restored() {
    let program = Program::on_file();
    let chain = program.ok(&["start", "double", "21"]).await;
    let worker = program.command(&["work", "other", "--exec", "cat"]).spawn().unwrap();
    wait_until("the worker has started", Duration::from_secs(60), async || {
        !program.json(&["workers"]).await.is_empty()
    })
    .await;
    let printed = program.ok(&["backup", "copy"]).await;
    let copy = program.directory().join("copy");
    assert_eq!(printed, format!("wrote the backup `{}` (jobs: 1)", copy.display()));
    let ran = program.run(&["backup", "copy"]).await;
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (2, "", 1), "{ran:?}");
    assert!(ran.stderr.contains("exists: choose a name that does not exist"), "{ran:?}");
    terminate(&worker).await;
    assert_eq!(ended(worker).await.code, 0);
    fs::remove_dir_all(program.directory().join("queue")).unwrap();
    fs::rename(program.directory().join("copy"), program.directory().join("queue")).unwrap();
    program.drain(&["double"], "expr $(cat) \\* 2").await;
    assert_eq!(program.ok(&["wait", &chain]).await, "42");
}

#[tokio::test]
async fn only_a_folder_that_exists_is_backed_up() {
    let program = Program::on_file();
    let ran = program.run(&["backup", "copy"]).await;
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.contains("the store folder `queue` does not exist"), "{ran:?}");
    let cases = [
        ("sqlite:jobs.db", "`sqlite3 jobs.db \".backup DESTINATION\"` or use `VACUUM INTO`"),
        ("postgres://localhost/app", "use `pg_dump`"),
        ("redis://localhost", "see `BGSAVE`"),
        ("memory:", "works only for demo and bench"),
    ];
    for (store, tool) in cases {
        let ran = program.run(&["backup", "copy", "--store", store]).await;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (2, "", 1), "{ran:?}");
        assert!(ran.stderr.contains(tool), "{ran:?}");
    }
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 0, "nothing was created");
}

/// Opening a folder without a store would create an empty one, and its backup would succeed.
#[tokio::test]
async fn a_folder_without_a_store_is_not_backed_up() {
    let program = Program::on_file();
    let check = async |arguments: &[&str], part: &str| {
        let ran = program.run(&[&["backup", "copy"], arguments].concat()).await;
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (4, "", 1), "{ran:?}");
        assert!(ran.stderr.contains(part), "{ran:?}");
    };
    let queue = program.directory().join("queue");
    fs::create_dir(&queue).unwrap();
    check(&[], "the folder `queue` contains no store: choose another --store").await;
    fs::write(queue.join("journal-0000000001.tmp"), "incomplete").unwrap();
    check(&[], "contains no store").await;
    assert_eq!(fs::read_dir(&queue).unwrap().count(), 1, "nothing was created");
    fs::remove_dir_all(&queue).unwrap();
    program.ok(&["start", "mine", "--namespace", "shop"]).await;
    program.ok(&["start", "mine", "--namespace", "bar"]).await;
    check(&[], "or one of its namespaces with --namespace: `bar`, `shop`").await;
    check(&["--namespace", "mall"], "namespace-mall` contains no store").await;
    assert_eq!(fs::read_dir(&queue).unwrap().count(), 2, "nothing was created");
    assert_eq!(fs::read_dir(program.directory()).unwrap().count(), 1, "there is no backup");
    program.ok(&["backup", "copy", "--namespace", "shop"]).await;
}
