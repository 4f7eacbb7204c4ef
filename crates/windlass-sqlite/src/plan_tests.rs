//! Checks that every statement is valid, that none scans a table, and that commands cost the same however many jobs are
//! stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use windlass_core::command::{
    Acquire, Command, Create, Expire, ListChains, ListJobs, NewChain, NewJob, NewKey, NextDue, Outcome,
    Quota, Reap, Reply, Settle, Settlement, Types,
};
use windlass_core::{ChainId, Key, ManualClock, Millis, Payload, RequestId, Stalls, TypeName, WorkerId};

use crate::Options;
use crate::migrate::{MIGRATIONS, migrate};
use crate::session::{Base, Counted, Held};
use crate::statement::Texts;

/// The tables, with the aliases that statements use for them.
const TABLES: [&str; 9] = [
    "windlass_schedule",
    "job",
    "first",
    "latest",
    "inner_job",
    "blocker",
    "windlass_job",
    "windlass_blocker",
    "windlass_attempt",
];

/// Indexes that only contain pending work. Scanning them is fine.
const SHORT_INDEXES: [&str; 3] = ["windlass_job_rippling", "windlass_job_running", "windlass_schedule_due"];

fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    migrate(&connection, &Options::default(), MIGRATIONS).unwrap();
    connection
}

/// Returns SQLite's query plan of each statement.
fn plans() -> Vec<(&'static str, Vec<String>)> {
    let (connection, texts) = (database(), Texts::new("windlass_"));
    let plan = |(name, text): (&'static str, &str)| {
        let mut statement = connection.prepare(&format!("explain query plan {text}")).unwrap();
        let mut rows = statement.raw_query();
        let mut steps = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push(row.get(3).unwrap());
        }
        (name, steps)
    };
    texts.all().map(plan).collect()
}

fn walks_over_a_table(step: &str) -> bool {
    let words: Vec<_> = step.split(' ').collect();
    words.first() == Some(&"SCAN")
        && words.get(1).is_some_and(|table| TABLES.contains(table))
        && !SHORT_INDEXES.iter().any(|index| step.contains(index))
}

#[test]
fn no_statement_scans_a_table() {
    for (name, plan) in plans() {
        // These read the last entry of their index.
        let reads_last = ["largest_id", "largest_blocker"].contains(&name);
        let walks: Vec<_> = plan.iter().filter(|step| walks_over_a_table(step) && !reads_last).collect();
        assert!(walks.is_empty(), "{name} scans a table: {walks:#?} in {plan:#?}");
        let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE FOR ORDER BY"));
        // Only running jobs are sorted, which are few.
        let sorts_few = ["leased", "expired_leases", "running_leases"].contains(&name);
        assert!(!sorts || sorts_few, "{name} sorts: {plan:#?}");
    }
}

#[test]
fn each_statement_uses_its_index() {
    let plans = plans();
    let check = |name: &str, index: &str| {
        let (_, plan) = plans.iter().find(|(of, _)| *of == name).unwrap();
        assert!(plan.iter().any(|step| step.contains(index)), "{name} does not use {index}: {plan:#?}");
    };
    check("job_by_id", "windlass_job_id (id=?)");
    check("keyed", "windlass_job_key (type=? AND key=?)");
    check("leased", "windlass_job_running (request=?)");
    check("next_level", "COVERING INDEX windlass_job_pending (type=? AND priority<?)");
    check("due_jobs", "COVERING INDEX windlass_job_pending (type=? AND priority=? AND due_at<?)");
    check("first_due", "COVERING INDEX windlass_job_pending (type=? AND priority=?)");
    check("expired_leases", "windlass_job_running");
    check("running_leases", "COVERING INDEX windlass_job_running");
    check("running_attempt", "windlass_job_id (id=?)");
    check("largest_id", "COVERING INDEX windlass_job_id");
    check("first_rippling", "windlass_job_rippling");
    check("next_waiting", "windlass_blocker_waiting (chain=?)");
    check("next_eager", "windlass_blocker_eager (chain=?)");
    check("open_dependents", "windlass_blocker_chain (chain=?)");
    check("chain_jobs", "windlass_job_chain (chain=? AND position>? AND position<?)");
    check("first_removable", "windlass_job_leaving (leaves_at>? AND leaves_at<?)");
    check("first_trimmable", "windlass_job_trimming (trim_at>? AND trim_at<?)");
    check("update_trim", "windlass_job_chain (chain=? AND position>? AND position<?)");
    check("list_jobs", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)");
    check("list_jobs_down", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)");
    check("list_chains", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)");
    check("list_chains_down", "INTEGER PRIMARY KEY (rowid>? AND rowid<?)");
    check("list_chain_jobs", "windlass_job_chain (chain=? AND position>? AND position<?)");
    check("schedules_by_due", "windlass_schedule_due (due_at>? AND due_at<?)");
    check("schedule_due_time", "COVERING INDEX windlass_schedule_due");
    check("next_schedules", "windlass_schedule_due (due_at>?)");
    check("next_schedules", "windlass_schedule_due (due_at>? AND due_at<?)");
    check("schedule_by_id", "(id=?)");
    check("list_schedules", "PRIMARY KEY (name>?)");
    check("list_dependents", "windlass_blocker_chain (chain=? AND job>? AND job<?)");
}

/// SQLite plans a statement again whenever a parameter changes that the plan depends on: one that is compared with a
/// column, or a limit. That costs more than running the statement. A unary `+` in front of the parameter prevents it.
#[test]
fn no_statement_is_planned_again_for_its_parameters() {
    for (name, text) in Texts::new("windlass_").all() {
        let code = text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        for before in ["limit", "<", "<=", ">", ">=", "between"] {
            assert!(
                !code.contains(&format!(" {before} ?")),
                "{name} has a parameter behind `{before}`: write `+?`"
            );
        }
    }
}

#[test]
fn a_table_scan_is_detected() {
    assert!(walks_over_a_table("SCAN job"));
    assert!(walks_over_a_table("SCAN first USING INDEX windlass_job_chain"));
    assert!(!walks_over_a_table("SCAN windlass_job USING INDEX windlass_job_rippling"));
}

/// Number of closed jobs to store, and of jobs that are due in the future.
fn stored() -> u32 {
    if std::env::var_os("WINDLASS_FULL").is_some() { 1_000_000 } else { 40_000 }
}

/// Inserts `?1` completed jobs of type `a` that hold keys, and as many pending ones that are due in the far future.
const FILL: &str = "
    with recursive
      number (n) as (select 1 union all select n + 1 from number where n < 2 * ?1),
      job (n, id, closed) as (select n, unhex(printf('%032x', n)), n % 2 from number)
    insert into windlass_job (
      seq, id, chain, position, type, chain_type, status, priority, due_at, attempt, fence, version, cancel_requested,
      blockers, attempts, on_blocker_failure, created_at, started_at, closed_at, latest, latest_position, key, key_hold,
      key_held, retain_completed, retain_failed, retain_cancelled, chain_closed_at, chain_closed_as, retain_until,
      leaves_at, input_codec, input
    )
    select
      n, id, id, 0, 'a', 'a', iif(closed, 'completed', 'pending'), 0, iif(closed, 0, 9000000000000), closed, n, 0, 0, 0,
      0, 'wait', 0, iif(closed, 0, null), iif(closed, 0, null), id, 0, iif(closed, 'key ' || n, null),
      iif(closed, 'any', null), iif(closed, 1, null), 1, 1, 1, iif(closed, 0, null), iif(closed, 'completed', null),
      iif(closed, 9000000000000, null), iif(closed, 9000000000000, null), 'json', x'31'
    from job";

/// Returns the steps of SQLite's virtual machine for each command, which do not depend on the load of the machine, on a
/// file that holds this many other closed and pending jobs.
fn steps(others: u32) -> Vec<(&'static str, u64)> {
    let connection = database();
    if others > 0 {
        connection.execute(FILL, [others]).unwrap();
        connection.execute("update windlass_sequence set last = 2 * ?1", [others]).unwrap();
        let tally =
            "insert into windlass_tally select type, status, count(*), 0 from windlass_job group by 1, 2";
        connection.execute(tally, []).unwrap();
    }
    let (clock, counted) = (Arc::new(ManualClock::default()), Arc::new(AtomicU64::new(0)));
    let base = Base {
        texts: Texts::new("windlass_"),
        clock: clock.clone(),
        durability: windlass_core::command::Durability::Synced,
        stalls: Stalls::default(),
        counted: Counted::default(),
        held: Held::default(),
    };
    let steps = Arc::clone(&counted);
    let count = move || {
        steps.fetch_add(1, Ordering::Relaxed);
        false
    };
    connection.progress_handler(1, Some(count)).unwrap();
    let mut all = Vec::new();
    let mut run = |name, command: Command| {
        counted.store(0, Ordering::Relaxed);
        let reply = base.execute_on(&connection, &command).unwrap();
        all.push((name, counted.load(Ordering::Relaxed)));
        reply
    };

    let job_type = TypeName::new("a").unwrap();
    let keyed = |number: u32| {
        let mut new =
            NewChain::new(ChainId::new(), NewJob::new(job_type.clone(), Payload::json("1").unwrap()));
        new.key = Some(NewKey::new(Key::new(number.to_string()).unwrap()));
        new
    };
    run("create", Create { chains: (0..300).map(keyed).collect() }.into());
    run("key lookup", Create { chains: (0..100).map(keyed).collect() }.into());
    let quota = Quota { job_type: job_type.clone(), max: 100, lease: Millis::from_secs(60) };
    let acquire = Acquire {
        request: RequestId::new(),
        worker: WorkerId::new(),
        worker_name: None,
        types: vec![quota],
        max: 100,
    };
    let Reply::Acquire(acquired) = run("acquire", acquire.into()) else { unreachable!() };
    assert_eq!(acquired.jobs.len(), 100);
    let outcome =
        Outcome::Complete { output: Payload::json("1").unwrap(), retention: None, create: Vec::new() };
    let job = &acquired.jobs[0].job;
    run("settle", Settle { settlements: vec![Settlement { job: job.id, fence: job.fence, outcome }] }.into());
    clock.advance(Millis::from_secs(61));
    let renewal_interval = Millis::from_secs(20);
    let Reply::Reap(reaped) =
        run("reap", Reap { types: Types::All, max: 100, except: Vec::new(), renewal_interval }.into())
    else {
        unreachable!()
    };
    assert_eq!(reaped.reaped.len(), 99);
    run("next due", NextDue { types: Types::All }.into());
    run("expire", Expire { max: 1_000 }.into());
    run("list jobs", ListJobs::default().into());
    run("list chains", ListChains::default().into());
    all
}

#[test]
fn the_cost_of_a_command_does_not_depend_on_what_is_stored() {
    let (empty, full) = (steps(0), steps(stored()));
    for ((name, alone), (_, among_others)) in empty.iter().zip(&full) {
        println!("{name}: {alone} steps alone, {among_others} among {} others", 2 * stored());
        assert!(
            among_others * 2 <= alone * 3 + 20,
            "{name}: {alone} steps alone, {among_others} among others"
        );
    }
}
