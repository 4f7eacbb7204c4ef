//! Updates of `job` on the plain path write no index: they are HOT.

use std::sync::Arc;
use std::time::Duration;

use windlass_conformance::Subject;
use windlass_core::command::{Outcome, Settle, Settled, Settlement};
use windlass_core::{ManualClock, Payload, Store};
use windlass_postgres::{Options, PostgresStore, Sqlx};
use windlass_testkit::{PostgresServer, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);
const BATCHES: usize = 10;
const BATCH: u32 = 50;
/// Jobs that are created, acquired and completed by statements on one row.
const SINGLE: usize = 100;

/// Returns a payload of this many bytes that PostgreSQL cannot compress.
fn payload(bytes: usize) -> Payload {
    let text: String = (2..bytes).map(|_| fastrand::alphanumeric()).collect();
    Payload::json(format!("\"{text}\"")).unwrap()
}

/// Runs jobs whose inputs and outputs have this many bytes. Returns their number.
async fn run(s: &Subject, bytes: usize) -> usize {
    for batch in 0..BATCHES {
        s.create((0..BATCH).map(|_| s.start("a").payload(payload(bytes)).build()).collect()).await;
        // If the outputs are equal, the store updates the jobs with another statement.
        let equal = batch.is_multiple_of(2).then(|| payload(bytes));
        let attempts = s.acquire("a", BATCH).await;
        let settlements = attempts.into_iter().map(|attempt| {
            let output = equal.clone().unwrap_or_else(|| payload(bytes));
            Settlement { job: attempt.job.id, fence: attempt.job.fence, outcome: Outcome::complete(output) }
        });
        let reply = s.run(Settle { settlements: settlements.collect() }).await;
        assert!(reply.settled.iter().all(|settled| matches!(settled, Settled::Applied(_))), "{reply:?}");
        assert_eq!(reply.settled.len(), BATCH as usize);
    }
    for _ in 0..SINGLE {
        s.start("a").payload(payload(bytes)).await;
        s.work("a", Outcome::complete(payload(bytes))).await;
    }
    BATCHES * BATCH as usize + SINGLE
}

/// An index on a column that an acquire or a completion changes would end HOT updates, and so would pages without room for
/// three versions of a row.
#[tokio::test(flavor = "multi_thread")]
async fn acquires_and_completions_are_hot_updates() {
    // While another session has a snapshot, the old versions of rows cannot be pruned, and a page may have no room for the
    // next ones. So there is no other session: the server is private, and the maintenance has to use the only connection.
    let server = PostgresServer::builder().setting("autovacuum", "off").start().await;
    for bytes in [100, 1_000, 10_000] {
        let schema = format!("of_{bytes}_bytes");
        let pool = Sqlx::pool_options().max_connections(1).connect(&server.url()).await.unwrap();
        let options = Options::default().schema(&schema);
        let store = Arc::new(PostgresStore::open(Sqlx::from(pool.clone()), options).await.unwrap());
        let s = Subject::new(store.clone(), store.clone(), Arc::new(ManualClock::default()));
        let jobs = run(&s, bytes).await;
        // A session publishes the rest of its statistics when it ends.
        store.close().await.unwrap();
        pool.close().await;
        let counts = format!(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = '{schema}' and relname = 'job'"
        );
        let counts = || -> Vec<usize> {
            server.query(&counts).split('|').map(|count| count.parse().unwrap()).collect()
        };
        wait_until("the statistics arrive", TIMEOUT, async || counts()[0] >= 2 * jobs).await;
        let (updated, hot) = (counts()[0], counts()[1]);
        assert_eq!(updated, 2 * jobs, "a job is updated twice: when it is acquired, and when it completes");
        // Rows grow with each update. If a page has many short rows and one command completes all of them, their second and
        // third versions do not quite fit together, and the last ones of the page move: 4 to 6 % of the updates.
        assert!(hot * 10 >= updated * 9, "{hot} of {updated} updates with {bytes} bytes are HOT");
    }
}
