//! The cost of a command does not grow with the number of stored jobs.
//!
//! Cost is measured in steps of SQLite's virtual machine, which do not depend on the load of the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePoolOptions};
use windlass_conformance::Subject;
use windlass_core::command::{ListChains, ListJobs, NextDue, Types};
use windlass_sqlite::{SqliteStore, Sqlx};

use crate::File;

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
      id, chain, position, type, chain_type, status, priority, due_at, attempt, fence, waits, blockers,
      on_blocker_failure, created_at, started_at, closed_at, latest, latest_position, key, key_hold, key_held,
      retain_completed, retain_failed, retain_cancelled, chain_closed_at, chain_closed_as, retain_until, leaves_at,
      input_codec, input
    )
    select
      id, id, 0, 'a', 'a', iif(closed, 'completed', 'pending'), 0, iif(closed, 0, 9000000000000), closed, n, 0, 0,
      'wait', 0, iif(closed, 0, null), iif(closed, 0, null), id, 0, iif(closed, 'key ' || n, null),
      iif(closed, 'any', null), iif(closed, 1, null), 1, 1, 1, iif(closed, 0, null), iif(closed, 'completed', null),
      iif(closed, 9000000000000, null), iif(closed, 9000000000000, null), 'json', x'31'
    from job";

/// Returns the steps of each command, on a file that holds this many other closed and pending jobs.
async fn steps(others: u32) -> Vec<(&'static str, u64)> {
    let file = File::new();
    let steps = Arc::new(AtomicU64::new(0));
    let store = counting(&file, &steps).await;
    if others > 0 {
        sqlx::query(FILL).bind(others).execute(&mut file.connect().await).await.unwrap();
    }
    let s = Subject::new(store.clone(), store, file.clock.clone());
    let mut all = Vec::new();
    let mut count = |name| all.push((name, steps.swap(0, Ordering::Relaxed)));

    count("nothing");
    s.create((0..300).map(|n| s.start("a").key(&n.to_string()).build()).collect()).await;
    count("create");
    s.create((0..100).map(|n| s.start("a").key(&n.to_string()).build()).collect()).await;
    count("key lookup");
    let attempts = s.acquire("a", 100).await;
    assert_eq!(attempts.len(), 100);
    count("acquire");
    s.complete(&attempts[0], "1").await;
    count("settle");
    s.advance(61_000);
    assert_eq!(s.reap().await.reaped.len(), 99);
    count("reap");
    s.run(NextDue { types: Types::All }).await;
    count("next due");
    s.expire().await;
    count("expire");
    assert_eq!(s.run(ListJobs::default()).await.jobs.len(), 50);
    count("list jobs");
    assert_eq!(s.run(ListChains::default()).await.chains.len(), 50);
    count("list chains");
    all
}

/// Opens a store whose connections count their steps.
async fn counting(file: &File, steps: &Arc<AtomicU64>) -> Arc<SqliteStore> {
    let steps = Arc::clone(steps);
    let pool = SqlitePoolOptions::new().max_connections(2).after_connect(
        move |connection: &mut SqliteConnection, _| {
            let steps = Arc::clone(&steps);
            Box::pin(async move {
                connection.lock_handle().await?.set_progress_handler(1, move || {
                    steps.fetch_add(1, Ordering::Relaxed);
                    true
                });
                Ok(())
            })
        },
    );
    let options = SqliteConnectOptions::new().filename(file.path()).create_if_missing(true);
    let pool = pool.connect_with(options).await.unwrap();
    let store = Arc::new(SqliteStore::over(Sqlx::from(pool.clone()), file.options()).await.unwrap());
    // A connection reads the schema with its first statement. Do that here, so that no command is charged for it.
    let mut connections = [pool.acquire().await.unwrap(), pool.acquire().await.unwrap()];
    for connection in &mut connections {
        sqlx::query("select 1 from windlass_job").fetch_all(&mut **connection).await.unwrap();
    }
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_command_does_not_depend_on_what_is_stored() {
    let (empty, full) = (steps(0).await, steps(stored()).await);
    for ((name, alone), (_, among_others)) in empty.iter().zip(&full) {
        println!("{name}: {alone} steps alone, {among_others} among {} others", 2 * stored());
        assert!(
            among_others * 2 <= alone * 3 + 20,
            "{name}: {alone} steps alone, {among_others} among others"
        );
    }
}
