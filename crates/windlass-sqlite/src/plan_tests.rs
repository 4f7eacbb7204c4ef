//! Every statement is valid, and none walks over a table.

use std::sync::Arc;

use crate::{Options, SqliteStore};

/// The names under which statements use the tables.
const TABLES: [&str; 10] = [
    "job",
    "first",
    "latest",
    "holder",
    "needed",
    "blocker",
    "attempt",
    "windlass_job",
    "windlass_blocker",
    "windlass_attempt",
];

/// Indexes that only hold what is to be done now: it is right to walk over them.
const SHORT_INDEXES: [&str; 2] = ["windlass_job_rippling", "windlass_job_running"];

/// How SQLite would carry each statement out.
async fn plans() -> Vec<(&'static str, Vec<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(Options::new(folder.path().join("jobs.db"))).await.unwrap();
    let mut plans = Vec::new();
    for (name, text) in store.statements().all() {
        let mut writer = store.writer().await.unwrap();
        let mut write = writer.begin().await.unwrap();
        let explain: Arc<str> = format!("explain query plan {text}").into();
        let rows = write.session().rows(&explain, Vec::new()).await;
        let rows = rows.unwrap_or_else(|error| panic!("{name}: {:?}", std::error::Error::source(&error)));
        plans.push((name, rows.iter().map(|row| row.get::<String>("detail").unwrap()).collect()));
    }
    plans
}

fn walks_over_a_table(step: &str) -> bool {
    let words: Vec<_> = step.split(' ').collect();
    words.first() == Some(&"SCAN")
        && words.get(1).is_some_and(|table| TABLES.contains(table))
        && !SHORT_INDEXES.iter().any(|index| step.contains(index))
}

#[tokio::test]
async fn no_statement_of_a_batch_walks_over_a_table() {
    for (name, plan) in plans().await {
        if !["erase_jobs", "latest_migration"].contains(&name) {
            let walks: Vec<_> = plan.iter().filter(|step| walks_over_a_table(step)).collect();
            assert!(walks.is_empty(), "{name} walks over a table: {walks:#?} in {plan:#?}");
        }
    }
}

#[tokio::test]
async fn each_statement_goes_by_the_index_made_for_it() {
    let plans = plans().await;
    let check = |name: &str, index: &str| {
        let (_, plan) = plans.iter().find(|(of, _)| *of == name).unwrap();
        assert!(plan.iter().any(|step| step.contains(index)), "{name} does not use {index}: {plan:#?}");
    };
    check("take_jobs", "windlass_job_pending (type=? AND priority=? AND due_at=? AND seq>?)");
    check("take_jobs", "windlass_job_pending (type=? AND priority=? AND due_at>? AND due_at<?)");
    check("take_jobs", "windlass_job_pending (type=? AND priority<?)");
    check("taken_jobs", "windlass_job_request (request=?)");
    check("expired_leases", "windlass_job_running (lease_until<?)");
    check("next_due", "windlass_job_pending (type>?)");
    check("next_due", "windlass_job_pending (type=? AND priority=?)");
    check("load_chains", "windlass_job_key (type=? AND key=?)");
    check("get_chains", "windlass_job_key (type=? AND key=?)");
    check("load_dependents", "windlass_blocker_waiting (chain=? AND job>?)");
    check("load_dependents", "windlass_blocker_eager (chain=? AND job>?)");
    check("load_dependents", "windlass_job_rippling");
    check("leaving_chains", "windlass_job_leaving (leaves_at<?)");
    check("trimmed_jobs", "windlass_job_trimming (trim_at<?)");
    check("trimmed_jobs", "windlass_job_chain (chain=? AND position=?)");
    check("more_to_expire", "windlass_job_leaving (leaves_at<?)");
}

#[tokio::test]
async fn a_walk_over_a_table_would_be_noticed() {
    assert!(walks_over_a_table("SCAN job"));
    assert!(walks_over_a_table("SCAN first USING INDEX windlass_job_chain"));
    assert!(!walks_over_a_table("SCAN windlass_job USING INDEX windlass_job_rippling"));
    assert!(!walks_over_a_table("SCAN json_each VIRTUAL TABLE INDEX 1:"));
}
