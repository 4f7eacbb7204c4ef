//! Checks that every statement is valid and that none scans a table.

use windlass_core::Transactional;

use crate::provider::{Provider, Statement};
use crate::statement::Statements;
use crate::{Options, SqliteStore};

/// The tables, with the aliases that statements use for them.
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

/// Indexes that only contain pending work. Scanning them is fine.
const SHORT_INDEXES: [&str; 2] = ["windlass_job_rippling", "windlass_job_running"];

/// Covering indexes that a count may scan, since a count costs as much as it counts.
const COUNTED: [&str; 3] = ["windlass_job_pending", "windlass_job_blocked", "windlass_job_closed"];

/// Returns SQLite's query plan of each statement.
async fn plans() -> Vec<(&'static str, Vec<String>)> {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(Options::new(directory.path().join("jobs.db"))).await.unwrap();
    let mut plans = Vec::new();
    for (name, statement) in store.base().statements.all() {
        let mut tx = store.begin().await.unwrap();
        let explain = Statement::new(format!("explain query plan {}", statement.text()));
        let rows = store.provider().run_in(&mut tx, &explain, Vec::new()).await;
        let rows = rows.unwrap_or_else(|error| panic!("{name}: {:?}", std::error::Error::source(&error)));
        plans.push((name, rows.iter().map(|row| row.text("detail").unwrap().to_owned()).collect()));
    }
    plans
}

fn walks_over_a_table(step: &str) -> bool {
    let words: Vec<_> = step.split(' ').collect();
    words.first() == Some(&"SCAN")
        && words.get(1).is_some_and(|table| TABLES.contains(table))
        && !SHORT_INDEXES.iter().any(|index| step.contains(index))
        && !COUNTED.iter().any(|index| step.ends_with(&format!("USING COVERING INDEX {index}")))
}

#[tokio::test]
async fn no_batch_statement_scans_a_table() {
    for (name, plan) in plans().await {
        if name != "latest_migration" {
            let walks: Vec<_> = plan.iter().filter(|step| walks_over_a_table(step)).collect();
            assert!(walks.is_empty(), "{name} scans a table: {walks:#?} in {plan:#?}");
        }
    }
}

#[tokio::test]
async fn each_statement_uses_its_index() {
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
    check("stopping_jobs", "windlass_job_running");
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
    check("count_jobs", "COVERING INDEX windlass_job_pending");
    check("count_jobs", "COVERING INDEX windlass_job_closed");
    check("list_chains", "windlass_job_first (seq<?)");
    check("list_chains", "windlass_job_first (seq>?)");
    check("list_jobs", "INTEGER PRIMARY KEY (rowid<?)");
    check("list_chain_jobs", "windlass_job_chain (chain=? AND position<?)");
    check("list_dependents", "windlass_blocker_chain (chain=? AND job<?)");
    check("open_dependents", "windlass_blocker_chain (chain=?)");
    check("load_cascade", "windlass_job_chain (chain=?)");
}

/// SQLite plans a statement again whenever a parameter changes that the plan depends on: one that is compared with a
/// column, or a limit. That costs more than running the statement. A unary `+` in front of the parameter prevents it.
#[test]
fn no_statement_is_planned_again_for_its_parameters() {
    for (name, statement) in Statements::new("windlass_").all() {
        let code =
            statement.text().lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        for before in ["limit", "<", "<=", ">", ">="] {
            assert!(
                !code.contains(&format!(" {before} ?")),
                "{name} has a parameter behind `{before}`: write `+?`"
            );
        }
    }
}

#[tokio::test]
async fn a_table_scan_is_detected() {
    assert!(walks_over_a_table("SCAN job"));
    assert!(walks_over_a_table("SCAN first USING INDEX windlass_job_chain"));
    assert!(!walks_over_a_table("SCAN windlass_job USING INDEX windlass_job_rippling"));
    assert!(!walks_over_a_table("SCAN json_each VIRTUAL TABLE INDEX 1:"));
}
