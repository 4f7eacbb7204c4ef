//! `retry`, `cancel` and `delete` with a filter.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use windlass_testkit::{shared_postgres, wait_until};

use crate::program::{Program, Ran, ended, interrupt, objects, terminate};

/// More than two pages of chains.
const CHAINS: usize = 250;

#[tokio::test]
async fn chains_are_changed_by_filter_on_sqlite() {
    check_changes(&Program::on_sqlite()).await;
}

#[tokio::test]
async fn chains_are_changed_by_filter_on_postgres() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    check_changes(&program).await;
}

#[tokio::test]
async fn chains_are_changed_by_filter_on_redis() {
    check_changes(&Program::on_redis().await).await;
}

/// Cancels, retries and deletes several pages of chains. Chains that do not match stay as they are.
async fn check_changes(program: &Program) {
    start(program, "mail", CHAINS).await;
    let other = program.ok(&["start", "other"]).await;
    let filter = ["--type", "mail", "--since", "2h"];
    for (change, done, status) in
        [("cancel", "cancelled", "cancelled"), ("retry", "retried", "pending"), ("delete", "deleted", "")]
    {
        let options = match change {
            "retry" => &["--status", "cancelled"][..],
            "delete" => &["--status", "pending"],
            _ => &[],
        };
        let arguments = [&[change], &filter[..], options].concat();
        let before = program.json(&["chains", "--limit", "0"]).await;
        let ran = program.run(&[&arguments[..], &["--dry-run"]].concat()).await;
        assert_eq!((ran.code, ids(&ran).len()), (0, CHAINS), "{ran:?}");
        assert_eq!(ran.stdout.matches(&format!("  would be {done}\n")).count(), CHAINS, "{ran:?}");
        assert_eq!(ran.stderr, format!("chains that would be {done}: {CHAINS}\n"));
        let lines = program.json(&[&arguments[..], &["--dry-run"]].concat()).await;
        assert!(lines.len() == CHAINS && lines.iter().all(|line| line["done"] == false), "{lines:?}");
        assert_eq!(program.json(&["chains", "--limit", "0"]).await, before, "a dry run changes nothing");

        let confirmed = if change == "delete" { &["--yes", "--json"][..] } else { &["--json"] };
        let ran = program.run(&[&arguments[..], confirmed].concat()).await;
        assert_eq!((ran.code, ran.stderr), (0, format!("chains {done}: {CHAINS}\n")), "{}", ran.stdout);
        let lines = objects(&ran.stdout);
        let changed: BTreeSet<_> = lines.iter().map(|line| line["id"].as_str().unwrap()).collect();
        assert_eq!((changed.len(), lines.iter().all(|line| line["done"] == true)), (CHAINS, true));
        assert!(!changed.contains(other.as_str()));
        let left = program.json(&["chains", "--type", "mail", "--limit", "0"]).await;
        assert_eq!(left.len(), if change == "delete" { 0 } else { CHAINS });
        assert!(left.iter().all(|chain| chain["status"] == status), "{change}");

        let again = program.run(&[&arguments[..], confirmed].concat()).await;
        assert_eq!((again.code, again.stdout.as_str()), (0, ""), "nothing is left: {again:?}");
        assert_eq!(again.stderr, format!("chains {done}: 0\n"));
    }
    assert_eq!(program.json(&["chains", &other]).await[0]["status"], "pending");
}

/// The store refuses to delete in a transaction at this isolation level, so the command chooses its own.
#[tokio::test]
async fn chains_are_deleted_by_filter_at_any_default_isolation_level() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    start(&program, "mail", 2).await;
    let url = shared_postgres().await.url();
    assert!(!url.contains('?'), "{url}");
    let url = format!("{url}?options[default_transaction_isolation]=serializable");
    let ran = program.run(&["delete", "--status", "pending", "--yes", "--store", &url]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "chains deleted: 2\n"), "{ran:?}");
    assert!(program.json(&["chains"]).await.is_empty());
}

/// A retried chain that fails again matches the filter again, but it is not retried a second time.
#[tokio::test]
async fn each_chain_is_retried_once_while_a_worker_fails_it_again() {
    // More than one page.
    const CHAINS: usize = 120;
    let program = Program::on_sqlite();
    start(&program, "mail", CHAINS).await;
    let arguments = ["work", "mail", "--exec", "exit 65", "--concurrency", "4"];
    let worker = program.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let failed = async || program.json(&["queues"]).await[0]["failed"] == CHAINS;
    wait_until("all chains have failed", Duration::from_secs(60), failed).await;
    let ran = program.run(&["retry", "--status", "failed"]).await;
    assert_eq!((ran.code, ids(&ran).len(), ran.stdout.lines().count()), (0, CHAINS, CHAINS), "{ran:?}");
    wait_until("all chains have failed again", Duration::from_secs(60), failed).await;
    let ran = program.run(&["retry", "--since", "1h", "--dry-run"]).await;
    assert_eq!(
        (ran.code, ids(&ran).len()),
        (0, CHAINS),
        "without --status, failed chains are selected: {ran:?}"
    );
    terminate(&worker).await;
    ended(worker).await;
}

#[tokio::test]
async fn a_time_range_selects_by_creation() {
    let program = Program::on_sqlite();
    start(&program, "mail", 2).await;
    for (range, selected) in [
        (&["--since", "1h"][..], 2),
        (&["--until", "1h"], 0),
        (&["--until", "2999-01-01"], 2),
        (&["--since", "2h", "--until", "1h"], 0),
    ] {
        let ran = program.run(&[&["cancel", "--dry-run"], range].concat()).await;
        assert_eq!((ran.code, ran.stdout.lines().count()), (0, selected), "{range:?}: {ran:?}");
        assert_eq!(program.json(&[&["chains"], range].concat()).await.len(), selected, "{range:?}");
        assert_eq!(program.json(&[&["jobs"], range].concat()).await.len(), selected, "{range:?}");
    }
}

/// A blocker is retried before the chains that wait for it, and cancelled and deleted after them.
#[tokio::test]
async fn dependent_chains_are_changed_together() {
    let program = Program::on_sqlite();
    let blocker = program.ok(&["start", "mail"]).await;
    let blocked = program.ok(&["start", "mail", "--blocked-by", &blocker]).await;
    for (arguments, done, order) in [
        (&["cancel", "--since", "1h"][..], ["cancelled", "cancelled"], [&blocked, &blocker]),
        (&["retry", "--status", "cancelled"], ["pending", "blocked"], [&blocker, &blocked]),
        (
            &["delete", "--status", "pending", "--status", "blocked", "--yes"],
            ["deleted", "deleted"],
            [&blocked, &blocker],
        ),
    ] {
        let lines = order.iter().zip(done).map(|(id, done)| format!("{id}  {done}\n"));
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (0, lines.collect::<String>().as_str()), "{ran:?}");
    }
}

/// Without `--status`, chains that have not run yet stay.
#[tokio::test]
async fn only_closed_chains_are_deleted_by_default() {
    let program = Program::on_sqlite();
    let (open, closed) = (program.ok(&["start", "mail"]).await, program.ok(&["start", "mail"]).await);
    program.ok(&["cancel", &closed]).await;
    let ran = program.run(&["delete", "--since", "1h", "--yes"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, format!("{closed}  deleted\n").as_str()), "{ran:?}");
    let left = program.json(&["chains"]).await;
    assert_eq!((left.len(), &left[0]["id"]), (1, &open.as_str().into()));
}

/// Another transaction is about to change the chain, so it stays.
#[tokio::test]
async fn a_locked_chain_is_skipped() {
    let program = Program::on_postgres().await;
    program.ok(&["migrate"]).await;
    start(&program, "mail", 3).await;
    let locked = program.ok(&["start", "mail"]).await;
    let mut connection = PgConnection::connect(&shared_postgres().await.url()).await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let lock = format!("select from \"{}\".job where id = '{locked}' for update", program.namespace());
    let rows = tx.fetch_all(AssertSqlSafe(lock)).await.unwrap();
    assert_eq!(rows.len(), 1);
    let ran = program.run(&["delete", "--status", "pending", "--yes"]).await;
    assert_eq!((ran.code, ran.stdout.matches("  deleted\n").count()), (1, 3), "{ran:?}");
    assert!(ran.stdout.contains(&format!("{locked}  locked by another transaction: try again")), "{ran:?}");
    assert!(ran.stderr.contains("chains skipped: 1"), "{ran:?}");
    tx.rollback().await.unwrap();
    let ran = program.run(&["delete", "--status", "pending", "--yes"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, format!("{locked}  deleted\n").as_str()), "{ran:?}");
}

/// A chain that cannot be deleted does not keep the others.
#[tokio::test]
async fn a_needed_chain_is_skipped() {
    for program in [Program::on_sqlite(), Program::on_redis().await] {
        start(&program, "first", 3).await;
        let needed = program.ok(&["start", "first"]).await;
        program.ok(&["start", "second", "--blocked-by", &needed]).await;
        let ran = program.run(&["delete", "--type", "first", "--status", "pending", "--yes"]).await;
        assert_eq!((ran.code, ran.stdout.lines().count()), (1, 4), "{ran:?}");
        assert!(ran.stdout.starts_with(&format!("{needed}  not deleted: open job ")), "{ran:?}");
        assert!(
            ran.stderr.starts_with("chains deleted: 3\nerror: chains skipped: 1; they were not deleted"),
            "{ran:?}"
        );
        let left = program.json(&["chains", "--type", "first"]).await;
        assert_eq!((left.len(), &left[0]["id"]), (1, &needed.as_str().into()));
    }
}

#[tokio::test]
async fn a_running_chain_is_skipped_without_running() {
    let program = Program::on_sqlite();
    let running = program.ok(&["start", "slow"]).await;
    // It ignores the request to stop, so that the chain is still running when it is deleted.
    let command = "trap '' TERM; touch begun; until [ -e never ]; do sleep 0.02; done";
    let worker = program.command(&["work", "slow", "--exec", command, "--lease", "10s"]).spawn().unwrap();
    wait_until("the command runs", Duration::from_secs(60), async || {
        program.directory().join("begun").exists()
    })
    .await;
    program.ok(&["pause", "slow"]).await;
    for (change, done) in [("cancel", "cancelled"), ("delete", "deleted")] {
        let pending = program.ok(&["start", "slow"]).await;
        let confirmed = if change == "delete" { &["--yes"][..] } else { &[] };
        let filter = ["--status", "running", "--status", "pending"];
        for options in [&["--dry-run"][..], confirmed] {
            let ran = program.run(&[&[change], &filter[..], options].concat()).await;
            let is_dry_run = options == ["--dry-run"];
            assert_eq!((ran.code, ran.stdout.lines().count()), (i32::from(!is_dry_run), 2), "{ran:?}");
            let skipped = format!("{running}  not {done}: it is running; use --running");
            assert!(ran.stdout.contains(&skipped), "{ran:?}");
            assert_eq!(ran.stdout.contains(&format!("{pending}  {done}")), !is_dry_run, "{ran:?}");
            assert_eq!(ran.stderr.contains("chains that would be skipped: 1"), is_dry_run, "{ran:?}");
        }
    }
    assert_eq!(
        program.ok(&["cancel", "--status", "running", "--running"]).await,
        format!("{running}  asked to stop")
    );
    assert_eq!(program.run(&["delete", "--status", "running", "--running", "--yes"]).await.code, 0);
    terminate(&worker).await;
    ended(worker).await;
}

#[tokio::test]
async fn an_interrupted_change_reports_its_progress_and_continues_when_repeated() {
    const MANY: usize = 3_000;
    let program = Program::on_sqlite();
    start(&program, "mail", MANY).await;
    let arguments = ["cancel", "--type", "mail", "--status", "pending"];
    let mut child = program.command(&arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The output of all chains does not fit into the pipe, so the command cannot end before the signal.
    assert!(lines.next_line().await.unwrap().is_some());
    interrupt(&child).await;
    let mut done = 1;
    while lines.next_line().await.unwrap().is_some() {
        done += 1;
    }
    let ran = ended(child).await;
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(done < MANY, "{done}");
    let last = ran.stderr.lines().last().unwrap();
    assert_eq!(
        last,
        format!("error: interrupted; chains cancelled: {done}; run the command again to continue")
    );
    let cancelled = program.json(&["chains", "--status", "cancelled", "--limit", "0"]).await.len();
    assert_eq!(cancelled, done, "each reported change was made, and no other");

    let ran = program.run(&arguments).await;
    assert_eq!((ran.code, ids(&ran).len()), (0, MANY - done), "{}", ran.stderr);
    let ran = program.run(&["retry", "--status", "cancelled"]).await;
    assert_eq!((ran.code, ids(&ran).len()), (0, MANY), "{}", ran.stderr);
    let progress =
        ["1000 so far", "2000 so far", "3000 so far", "3000"].map(|n| format!("chains retried: {n}\n"));
    assert_eq!(ran.stderr, progress.concat());
}

#[tokio::test]
async fn an_unclear_selection_is_an_error_and_changes_nothing() {
    let program = Program::on_sqlite();
    let chain = program.ok(&["start", "mail"]).await;
    let nothing = "no chains are selected: pass ids, or a filter with --status, --since, --until, --closed-since, \
         --closed-until or --top-level";
    let cases: [(&[&str], &str); 14] = [
        (&["retry"], nothing),
        (&["cancel"], nothing),
        (&["cancel", "--dry-run"], nothing),
        (&["cancel", "--type", "mail"], nothing),
        (&["delete"], nothing),
        (&["delete", "--yes"], nothing),
        (&["delete", "--type", "mail", "--yes"], nothing),
        (&["delete", "--since", "1h"], "pass --dry-run to print the chains, or --yes to delete them"),
        (&["delete", "--since", "1h", "--cascade", "--yes"], "--cascade needs ids"),
        (
            &["retry", "--status", "completed"],
            "--status completed: such chains cannot be retried; pass one of failed",
        ),
        (&["cancel", "--status", "failed"], "--status failed: such chains cannot be cancelled"),
        (&["cancel", &chain, "--status", "pending"], "cannot be used with"),
        (&["cancel", &chain, "--dry-run"], "cannot be used with"),
        (&["cancel", "--since", "soon"], "invalid time `soon`: use RFC 3339 in UTC"),
    ];
    for (arguments, what) in cases {
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(what), "{arguments:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{arguments:?}: {ran:?}");
    }
    assert_eq!(program.json(&["chains"]).await[0]["status"], "pending");
    let ran = program.run(&["cancel", "--type", "mail", "--type", "print", &chain]).await;
    assert_eq!((ran.code, ran.stderr.contains("a key belongs to one type")), (2, true), "{ran:?}");
}

async fn start(program: &Program, job_type: &str, chains: usize) {
    let ran = program.run_with(&["start", job_type, "--batch"], &"{}\n".repeat(chains)).await;
    assert_eq!((ran.code, ran.stdout.lines().count()), (0, chains), "{ran:?}");
}

/// Returns the ids of the printed chains.
fn ids(ran: &Ran) -> BTreeSet<&str> {
    ran.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect()
}
