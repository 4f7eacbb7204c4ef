//! What commands leave behind in the small tables is removed without autovacuum.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_conformance::{Subject, complete, type_name};
use windlass_core::command::{Count, Delete, Settle, Settlement, Types};
use windlass_core::{Payload, Status, Store, Transactional, limit};
use windlass_postgres::{PostgresStore, Sqlx};
use windlass_testkit::wait_until;

use crate::Database;

const TIMEOUT: Duration = Duration::from_secs(120);

const NO_AUTOVACUUM: &str = "alter table {}.ready set (autovacuum_enabled = false);
    alter table {}.lease set (autovacuum_enabled = false); alter table {}.tally set (autovacuum_enabled = false)";

/// Starts and completes this many thousand jobs.
async fn drain(database: &Database, thousands: u32) {
    let s = database.subject();
    for _ in 0..thousands {
        s.advance(1);
        s.create((0..1000).map(|_| s.start("a").build()).collect()).await;
        let attempts = s.acquire("a", 1000).await;
        assert_eq!(attempts.len(), 1000);
        let settlement = |attempt: &windlass_core::command::Acquired| Settlement {
            job: attempt.job.id,
            fence: attempt.job.fence,
            outcome: complete("1"),
        };
        s.run(Settle { settlements: attempts.iter().map(settlement).collect() }).await;
    }
}

async fn number(database: &Database, query: &str) -> i64 {
    sqlx::query_scalar(database.sql(query)).fetch_one(&database.pool).await.unwrap()
}

const DEAD_ROWS: &str = "select pg_stat_get_dead_tuples('{}.ready'::regclass)";
const VACUUMS: &str = "select pg_stat_get_vacuum_count('{}.ready'::regclass)";

/// Adds dead rows to `ready`, as acquires do. Returns when the server has counted them.
async fn leave_dead_rows(database: &Database, rows: i64) {
    let text = format!(
        "begin; insert into {{}}.ready (seq, due_at, job, priority, has_blockers, bytes, type) \
         select -n, 0, gen_random_uuid(), 0, false, 1, 'gone' from generate_series(1, {rows}) n; \
         delete from {{}}.ready where type = 'gone'; commit"
    );
    sqlx::raw_sql(database.sql(&text)).execute(&database.pool).await.unwrap();
    wait_until("the server has counted the dead rows", TIMEOUT, async || {
        number(database, DEAD_ROWS).await >= rows
    })
    .await;
}

/// Waits until the maintenance of a store begins to run, again if it is running now.
async fn wait_for_maintenance(database: &Database, s: &Subject) {
    // It removes this row first, because its job is not running.
    let lease = "insert into {}.lease (request, until, type, has_blockers, jobs)
        values (gen_random_uuid(), 9000000000000, 'gone', false, array[gen_random_uuid()])";
    sqlx::raw_sql(database.sql(lease)).execute(&database.pool).await.unwrap();
    wait_until("the maintenance runs", TIMEOUT, async || {
        // It follows the commands of workers.
        s.reap().await;
        number(database, "select count(*) from {}.lease where type = 'gone'").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_and_ended_leases_are_removed_without_autovacuum() {
    let database = Database::new().await;
    sqlx::raw_sql(database.sql(NO_AUTOVACUUM)).execute(&database.pool).await.unwrap();
    drain(&database, 25).await;
    let s = database.subject();
    wait_until("dead rows are vacuumed", TIMEOUT, async || {
        // Maintenance follows the commands of workers.
        s.reap().await;
        number(&database, DEAD_ROWS).await < 10_000
    })
    .await;
    wait_until("ended leases are removed", TIMEOUT, async || {
        s.reap().await;
        number(&database, "select count(*) from {}.lease").await == 0
    })
    .await;
    let vacuums = number(&database, VACUUMS).await;
    assert!(vacuums > 0, "the store has vacuumed the table, not autovacuum");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_stay_exact_while_they_are_summed_up() {
    let database = Database::new().await;
    let s = database.subject();
    // Only the totals of this type remain.
    let gone = s.start("gone").await;
    s.work("gone", complete("1")).await;
    s.run(Delete { chains: vec![gone.into()], cascade: false, seen: None }).await;
    // Each command leaves a row.
    for _ in 0..1_100 {
        s.start("a").await;
    }
    s.acquire("a", 100).await;
    wait_until("the counts are summed up", TIMEOUT, async || {
        s.start("a").await;
        s.start("b").await;
        s.reap().await;
        let counted = s.run(Count { types: Types::Only(vec![type_name("a")]) }).await;
        let stored = "select count(*) from {}.job where type = 'a' and status = 'pending'";
        assert_eq!(i64::try_from(counted.types[0].pending).unwrap(), number(&database, stored).await);
        assert_eq!(counted.types[0].running, 100);
        number(&database, "select count(*) from {}.tally").await < 600
    })
    .await;
    assert_eq!(number(&database, "select count(*) from {}.tally where type = 'gone'").await, 1);
    s.start("gone").await;
    let counted = s.run(Count { types: Types::Only(vec![type_name("gone")]) }).await;
    assert_eq!((counted.types[0].completed, counted.types[0].ended.completed), (0, 1));
}

/// A transaction that is open while others work must not hide its own changes of the counts, nor count twice.
#[tokio::test(flavor = "multi_thread")]
async fn counts_include_a_transaction_when_it_commits() {
    let database = Database::new().await;
    let s = database.subject();
    let mut tx = database.store.begin().await.unwrap();
    let chain = s.start("a").build();
    let id = chain.id;
    let create = windlass_core::command::Create { chains: vec![chain] };
    database.store.run_in((&mut tx).into(), create).await.unwrap();
    s.start("a").await;
    let pending = async || {
        let counted = s.run(Count { types: Types::All }).await;
        counted.types.first().map_or(0, |count| count.pending)
    };
    assert_eq!(pending().await, 1);
    database.store.commit(tx).await.unwrap();
    assert_eq!(pending().await, 2);
    s.expect_status(id, Status::Pending).await;
    database.store.erase().await.unwrap();
    assert_eq!(pending().await, 0);
}

/// An open transaction, such as a backup, keeps dead rows from being vacuumed. Acquires skip them.
#[tokio::test(flavor = "multi_thread")]
async fn dead_rows_that_cannot_be_removed_do_not_slow_acquires_down() {
    const DRAINED: i64 = 60_000;
    const ACQUIRES: i64 = 300;
    let database = Database::new().await;
    let mut holder = database.pool.begin().await.unwrap();
    let snapshot = "set transaction isolation level repeatable read; select from {}.paused";
    sqlx::raw_sql(database.sql(snapshot)).execute(&mut *holder).await.unwrap();
    drain(&database, 60).await;
    let s = database.subject();
    for round in 0..3 {
        wait_until("the server has counted the dead rows", TIMEOUT, async || {
            s.reap().await;
            number(&database, DEAD_ROWS).await >= 50_000
        })
        .await;
        // The next run of the maintenance notices them.
        tokio::time::sleep(Duration::from_millis(1_200 * u64::from(round < 2))).await; // tidy: the interval of the maintenance
    }
    let read = "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where indexrelname = 'ready_due' and schemaname = '{}'";
    let (before, began) = (number(&database, read).await, Instant::now());
    for _ in 0..ACQUIRES {
        s.advance(1);
        s.start("a").await;
        assert_eq!(s.acquire("a", 10).await.len(), 1);
    }
    // An acquire looks at everything once a second.
    let all = i64::try_from(began.elapsed().as_secs()).unwrap() + 2;
    tokio::time::sleep(Duration::from_secs(3)).await; // tidy: PostgreSQL publishes statistics with a delay
    let after = number(&database, read).await;
    let bound = (DRAINED + 1_000) * all + ACQUIRES * 600;
    assert!(after - before <= bound, "{} entries were read, at most {bound} expected", after - before);
    // A reply cut at the size limit must not raise the floors above the jobs that it left out.
    for _ in 0..6 {
        s.start("large").payload(Payload::json(vec![b' '; limit::PAYLOAD_MAX_BYTES]).unwrap()).await;
    }
    s.advance(1);
    tokio::time::sleep(Duration::from_millis(1_100)).await; // tidy: the next acquire is a full scan
    assert_eq!(s.acquire("large", 10).await.len(), 4);
    assert_eq!(s.acquire("large", 10).await.len(), 2);
    holder.rollback().await.unwrap();
    // A job with another priority, and one whose due time is long past, are found all the same.
    let low = s.start("a").priority(-3).await;
    wait_until("a job with another priority is found", TIMEOUT, async || {
        s.acquire("a", 10).await.iter().any(|acquired| acquired.job.chain == low)
    })
    .await;
}

/// Of several processes, only the one that holds the lock vacuums.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_of_the_cluster_vacuums() {
    let database = Database::new().await;
    sqlx::raw_sql(database.sql(NO_AUTOVACUUM)).execute(&database.pool).await.unwrap();
    let s = database.subject();
    let other = PostgresStore::open(Sqlx::from(database.pool.clone()), database.options.clone());
    let other = Arc::new(other.await.unwrap());
    let other = Subject::new(other.clone(), other, database.clock.clone());
    leave_dead_rows(&database, 20_000).await;
    wait_until("the dead rows are vacuumed", TIMEOUT, async || {
        s.reap().await;
        number(&database, VACUUMS).await == 1
    })
    .await;
    // Its term is 30 s, which a slow machine may need for the rest of the test.
    let prolong = "update {}.leader set until = 253402300799999 where name = 'windlass.vacuum'";
    let prolonged = sqlx::raw_sql(database.sql(prolong)).execute(&database.pool).await.unwrap();
    assert_eq!(prolonged.rows_affected(), 1, "the process that vacuums holds the lock");
    leave_dead_rows(&database, 20_000).await;
    // When the second run begins, the first one has ended.
    wait_for_maintenance(&database, &other).await;
    wait_for_maintenance(&database, &other).await;
    assert_eq!(number(&database, VACUUMS).await, 1, "another process has vacuumed, too");
    wait_until("the process that holds the lock vacuums again", TIMEOUT, async || {
        s.reap().await;
        number(&database, VACUUMS).await == 2
    })
    .await;
}

/// While a transaction keeps the dead rows, the process waits for 1, 2, 4, … s before it vacuums again.
#[tokio::test(flavor = "multi_thread")]
async fn vacuuming_backs_off_while_a_snapshot_is_open() {
    // Intervals of 1, 2 and 4 s. Before each, the process waits for 0.6 s for the statistics.
    const FOUR_VACUUMS: Duration = Duration::from_millis(8_800);
    let database = Database::new().await;
    sqlx::raw_sql(database.sql(NO_AUTOVACUUM)).execute(&database.pool).await.unwrap();
    let mut holder = database.pool.begin().await.unwrap();
    let snapshot = "set transaction isolation level repeatable read; select from {}.paused";
    sqlx::raw_sql(database.sql(snapshot)).execute(&mut *holder).await.unwrap();
    leave_dead_rows(&database, 60_000).await;
    let (s, began) = (database.subject(), Instant::now());
    assert_eq!(number(&database, VACUUMS).await, 0);
    wait_until("the process has vacuumed four times", TIMEOUT, async || {
        s.reap().await;
        number(&database, VACUUMS).await >= 4
    })
    .await;
    let took = began.elapsed();
    assert!(took >= FOUR_VACUUMS, "four vacuums that removed nothing took {took:?}");
    holder.rollback().await.unwrap();
    wait_until("the dead rows are vacuumed", TIMEOUT, async || {
        s.reap().await;
        number(&database, DEAD_ROWS).await < 10_000
    })
    .await;
}
