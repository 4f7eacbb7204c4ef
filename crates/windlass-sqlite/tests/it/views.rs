//! The views for people who read the tables.

use std::sync::Arc;

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Column, Row, ValueRef};
use windlass_conformance::samples::{jobs_of_every_status, unreadable_inputs};
use windlass_conformance::{Subject, complete, json};
use windlass_core::limit::TIMESTAMP_MAX_MS;
use windlass_core::{Clock, SystemClock, Timestamp, WorkerId};

use crate::File;

/// A store in a file, and a connection that is independent of it.
struct Database {
    file: File,
    subject: Subject,
    connection: SqliteConnection,
}

impl Database {
    async fn new() -> Self {
        let file = File::new();
        let store = Arc::new(file.open().await);
        let mut subject = Subject::new(store.clone(), store, file.clock.clone());
        subject.worker = WorkerId::new();
        let connection = file.connect().await;
        Self { file, subject, connection }
    }

    /// Returns the rows of a query as text, with `|` between columns.
    async fn rows(&mut self, text: &str) -> String {
        let rows = sqlx::query(sqlx::AssertSqlSafe(text)).fetch_all(&mut self.connection).await.unwrap();
        let rows: Vec<_> = rows.iter().map(as_text).collect();
        rows.join("\n")
    }
}

/// Returns the columns as text. A blob is an error: the views have none.
fn as_text(row: &SqliteRow) -> String {
    let text = |at: usize| match row.try_get_raw(at).unwrap() {
        value if value.is_null() => String::new(),
        value if value.type_info().to_string() == "INTEGER" => row.get::<i64, _>(at).to_string(),
        value => {
            assert_eq!(value.type_info().to_string(), "TEXT", "{}", row.column(at).name());
            row.get::<String, _>(at)
        }
    };
    let columns: Vec<_> = (0..row.len()).map(text).collect();
    columns.join("|")
}

#[tokio::test]
async fn jobs_of_every_status_are_readable() {
    let mut database = Database::new().await;
    jobs_of_every_status(&database.subject).await;
    let jobs = "select type, status, key, position, priority, attempt, max_attempts, worker_name, error, cancel_requested
        from windlass_jobs order by type";
    let expected = "\
blocked|blocked||0|0|0||||0
cancelled|cancelled||0|0|0||||0
completed|completed||0|0|1|3|host-7||0
failed|failed||0|0|2||host-7|no such order|0
first|completed||0|0|1||host-7||0
pending|pending|mail-7|0|0|0||||0
running|running||0|5|1||host-7||0
second|pending||1|0|0||||0";
    assert_eq!(database.rows(jobs).await, expected);

    let payloads = "select type, input, input_encoding, input_bytes, output, output_encoding, output_bytes
        from windlass_jobs where type in ('pending', 'completed') order by type";
    let expected = "\
completed|{}|json|2|{\"sum\":123456789012345678901234567890}|json|39
pending|{\"to\":\"Ann\",\"order\":7}|json|25|||";
    assert_eq!(database.rows(payloads).await, expected);

    let times = "select type, due_at, created_at, started_at, closed_at, leased_until
        from windlass_jobs where type in ('pending', 'running', 'failed') order by type";
    let expected = "\
failed|2027-01-15T08:00:00.000Z|2027-01-15T08:00:00.000Z|2027-01-15T08:00:01.000Z|2027-01-15T08:00:01.000Z|
pending|2027-01-15T08:00:05.000Z|2027-01-15T08:00:00.000Z|||
running|2027-01-15T08:00:00.000Z|2027-01-15T08:00:00.000Z|2027-01-15T08:00:00.000Z||2027-01-15T08:01:00.000Z";
    assert_eq!(database.rows(times).await, expected);

    let blocked = "select list.name, c.type from (
          select 'blockers' as name, blockers as chains from windlass_jobs where type = 'blocked' union all
          select 'waiting_for', waiting_for from windlass_jobs where type = 'blocked'
        ) list, json_each(list.chains) x join windlass_chains c on c.id = x.value order by list.name, x.key";
    assert_eq!(database.rows(blocked).await, "blockers|completed\nblockers|pending\nwaiting_for|pending");
}

#[tokio::test]
async fn chains_of_every_status_are_readable() {
    let mut database = Database::new().await;
    jobs_of_every_status(&database.subject).await;
    let chains = "select c.type, c.status, c.key, c.jobs, c.job_type, c.attempt, c.error, c.input, c.output
        from windlass_chains c join windlass_jobs j on j.id = c.job and j.chain = c.id order by c.type";
    let expected = "\
blocked|blocked||1|blocked|0||{}|
cancelled|cancelled||1|cancelled|0||{}|
completed|completed||1|completed|1||{}|{\"sum\":123456789012345678901234567890}
failed|failed||1|failed|2|no such order|{}|
first|pending||2|second|0||1|
pending|pending|mail-7|1|pending|0||{\"to\":\"Ann\",\"order\":7}|
running|running||1|running|1||{}|";
    assert_eq!(database.rows(chains).await, expected);
    let times = "select type, created_at, closed_at, retain_until, due_at from windlass_chains
        where type in ('failed', 'pending') order by type";
    let expected = "\
failed|2027-01-15T08:00:00.000Z|2027-01-15T08:00:01.000Z|2027-02-14T08:00:01.000Z|2027-01-15T08:00:00.000Z
pending|2027-01-15T08:00:00.000Z|||2027-01-15T08:00:05.000Z";
    assert_eq!(database.rows(times).await, expected);
}

#[tokio::test]
async fn all_attempts_are_readable() {
    let mut database = Database::new().await;
    jobs_of_every_status(&database.subject).await;
    let attempts = "select a.type, a.attempt, a.ended, a.started_at, a.ended_at, a.worker_name, a.error
        from windlass_attempts a join windlass_jobs j on j.id = a.job and j.chain = a.chain and j.worker = a.worker
        order by a.type, a.attempt";
    let expected = "\
completed|1|completed|2027-01-15T08:00:00.000Z|2027-01-15T08:00:00.000Z|host-7|
failed|1|retried|2027-01-15T08:00:00.000Z|2027-01-15T08:00:00.000Z|host-7|timed out
failed|2|failed|2027-01-15T08:00:01.000Z|2027-01-15T08:00:01.000Z|host-7|no such order
first|1|continued|2027-01-15T08:00:00.000Z|2027-01-15T08:00:00.000Z|host-7|
running|1|running|2027-01-15T08:00:00.000Z||host-7|";
    assert_eq!(database.rows(attempts).await, expected);
}

/// The views show ids and times as other tools write them.
#[tokio::test]
async fn ids_and_times_have_their_usual_form() {
    let mut database = Database::new().await;
    database.file.clock.set(Timestamp::from_millis(1_800_000_000_123).unwrap());
    let chain = database.subject.start("a").await;
    let last = Timestamp::from_millis(TIMESTAMP_MAX_MS).unwrap();
    database.subject.start("b").at(last).await;
    let expected = format!("{chain}|{chain}||2027-01-15T08:00:00.123Z");
    let first = "select id, chain, worker, created_at from windlass_jobs where type = 'a'";
    assert_eq!(database.rows(first).await, expected);
    let latest = "select due_at from windlass_jobs where type = 'b'";
    assert_eq!(database.rows(latest).await, "9999-12-31T23:59:59.999Z");
}

/// A payload that cannot be shown as JSON is null in the views, and does not make the query fail.
#[tokio::test]
async fn unreadable_payloads_are_null() {
    let mut database = Database::new().await;
    unreadable_inputs(&database.subject).await;
    for attempt in database.subject.acquire("unreadable", 1).await {
        database.subject.settle(&attempt, complete("{")).await;
    }
    let expected = "\
|json|10||json|1
|json|2|||
|json|100000|||
|msgpack|8|||
|json|0|||";
    for view in ["windlass_jobs", "windlass_chains"] {
        let inputs = "select input, input_encoding, input_bytes, output, output_encoding, output_bytes from ";
        assert_eq!(database.rows(&format!("{inputs}{view}")).await, expected, "{view}");
    }
}

/// Numbers are text, so they are never rounded.
#[tokio::test]
async fn large_numbers_are_exact() {
    let mut database = Database::new().await;
    for (job_type, text) in [("a", "18446744073709551615"), ("b", "1e999999")] {
        database.subject.start(job_type).payload(json(text)).await;
    }
    let rows = database.rows("select input from windlass_jobs order by type").await;
    assert_eq!(rows, "18446744073709551615\n1e999999");
}

/// A query reads only the tables that it selects from, and uses their indexes.
#[tokio::test]
async fn columns_that_are_not_selected_cost_nothing() {
    let mut database = Database::new().await;
    let plan =
        "explain query plan select type, count(*) from windlass_jobs where status = 'pending' group by type";
    let plan = database.rows(plan).await;
    assert!(plan.lines().count() == 1 && plan.contains("INDEX windlass_job_pending"), "{plan}");
}

/// The page with queries for these views. All of them are run here.
const PAGE: &str = include_str!("../../../../docs/operating.md");

#[tokio::test]
async fn the_queries_of_the_page_return_what_it_says() {
    let mut database = Database::new().await;
    database.file.clock.set(SystemClock.now());
    jobs_of_every_status(&database.subject).await;
    let blocks = PAGE.split("```sql\n").skip(1).filter_map(|block| block.split("```").next());
    let queries =
        blocks.flat_map(|block| block.split_inclusive(";\n")).filter(|query| query.contains("windlass_"));
    let mut results = Vec::new();
    for query in queries {
        results.push(database.rows(query).await);
    }
    let [due, failed, by_input] = results.as_slice() else { panic!("{results:?}") };
    assert!(due.starts_with("second|1|") && due.lines().count() == 1, "{due}");
    let (id, rest) = failed.split_once('|').unwrap();
    assert_eq!((id.len(), rest), (36, "failed||2|no such order|{}"));
    assert!(by_input.ends_with("|pending|pending|") && by_input.lines().count() == 1, "{by_input}");
}
