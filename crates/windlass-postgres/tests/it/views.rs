//! The views for people who read the tables.

use windlass_conformance::samples::{jobs_of_every_status, unreadable_inputs};
use windlass_conformance::{complete, json};
use windlass_core::{Clock, SystemClock};

use crate::Database;

impl Database {
    /// Runs statements, with `{}` replaced by the schema. Returns the rows of the last one as text, with times in UTC.
    fn rows(&self, text: &str) -> String {
        let text = format!("set timezone to 'UTC'; {}", text.replace("{}", self.server.namespace()));
        self.server.server().query(&text)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_every_status_are_readable() {
    let database = Database::new().await;
    jobs_of_every_status(&database.subject()).await;
    let jobs = database.rows(
        "select type, status, key, position, priority, attempt, max_attempts, worker_name, error, cancel_requested
         from {}.jobs order by type",
    );
    let expected = "\
blocked|blocked||0|0|0||||f
cancelled|cancelled||0|0|0||||f
completed|completed||0|0|1|3|host-7||f
failed|failed||0|0|2||host-7|no such order|f
first|completed||0|0|1||host-7||f
pending|pending|mail-7|0|0|0||||f
running|running||0|5|1||host-7||f
second|pending||1|0|0||||f";
    assert_eq!(jobs, expected);

    let payloads = database.rows(
        "select type, input, input_encoding, input_bytes, output, output_encoding, output_bytes
         from {}.jobs where type in ('pending', 'completed') order by type",
    );
    let expected = "\
completed|{}|json|2|{\"sum\": 123456789012345678901234567890}|json|39
pending|{\"to\": \"Ann\", \"order\": 7}|json|25|||";
    assert_eq!(payloads, expected);

    let times = database.rows(
        "select type, due_at, created_at, started_at, closed_at, leased_until
         from {}.jobs where type in ('pending', 'running', 'failed') order by type",
    );
    let expected = "\
failed|2027-01-15 08:00:00+00|2027-01-15 08:00:00+00|2027-01-15 08:00:01+00|2027-01-15 08:00:01+00|
pending|2027-01-15 08:00:05+00|2027-01-15 08:00:00+00|||
running|2027-01-15 08:00:00+00|2027-01-15 08:00:00+00|2027-01-15 08:00:00+00||2027-01-15 08:01:00+00";
    assert_eq!(times, expected);

    let blocked = database.rows(
        "select array(select c.type from unnest(b.blockers) with ordinality x (id, at) join {}.chains c using (id)
           order by at),
           array(select c.type from {}.chains c where c.id = any (b.waiting_for)) from {}.jobs b where type = 'blocked'",
    );
    assert_eq!(blocked, "{completed,pending}|{pending}");
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_of_every_status_are_readable() {
    let database = Database::new().await;
    jobs_of_every_status(&database.subject()).await;
    let chains = database.rows(
        "select c.type, c.status, c.key, c.jobs, c.job_type, c.attempt, c.error, c.input, c.output
         from {}.chains c join {}.jobs j on j.id = c.job and j.chain = c.id order by type",
    );
    let expected = "\
blocked|blocked||1|blocked|0||{}|
cancelled|cancelled||1|cancelled|0||{}|
completed|completed||1|completed|1||{}|{\"sum\": 123456789012345678901234567890}
failed|failed||1|failed|2|no such order|{}|
first|pending||2|second|0||1|
pending|pending|mail-7|1|pending|0||{\"to\": \"Ann\", \"order\": 7}|
running|running||1|running|1||{}|";
    assert_eq!(chains, expected);
    let times = database.rows(
        "select type, created_at, closed_at, retain_until - closed_at, due_at from {}.chains
         where type in ('failed', 'pending') order by type",
    );
    let expected = "\
failed|2027-01-15 08:00:00+00|2027-01-15 08:00:01+00|30 days|2027-01-15 08:00:00+00
pending|2027-01-15 08:00:00+00|||2027-01-15 08:00:05+00";
    assert_eq!(times, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_attempts_are_readable() {
    let database = Database::new().await;
    jobs_of_every_status(&database.subject()).await;
    let attempts = database.rows(
        "select a.type, a.attempt, a.ended, a.started_at, a.ended_at, a.worker_name, a.error
         from {}.attempts a join {}.jobs j on j.id = a.job and j.chain = a.chain and j.worker = a.worker
         order by type, attempt",
    );
    let expected = "\
completed|1|completed|2027-01-15 08:00:00+00|2027-01-15 08:00:00+00|host-7|
failed|1|retried|2027-01-15 08:00:00+00|2027-01-15 08:00:00+00|host-7|timed out
failed|2|failed|2027-01-15 08:00:01+00|2027-01-15 08:00:01+00|host-7|no such order
first|1|continued|2027-01-15 08:00:00+00|2027-01-15 08:00:00+00|host-7|
running|1|running|2027-01-15 08:00:00+00||host-7|";
    assert_eq!(attempts, expected);
}

/// A payload that cannot be shown as JSON is null in the views, and does not make the query fail.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_payloads_are_null() {
    let database = Database::new().await;
    let s = database.subject();
    unreadable_inputs(&s).await;
    // PostgreSQL's `jsonb` has no NUL.
    s.start("nul").input(r#""a\u0000b""#).await;
    for attempt in s.acquire("unreadable", 1).await {
        s.settle(&attempt, complete("{")).await;
    }
    let inputs = "select input, input_encoding, input_bytes, output, output_encoding, output_bytes from {}";
    let expected = "\
|json|10||json|1
|json|2|||
|json|100000|||
|msgpack|8|||
|json|0|||
|json|10|||";
    for view in ["{}.jobs order by created_at, id", "{}.chains order by created_at, id"] {
        let rows = database.rows(&inputs.replace("{}", view));
        assert_eq!(sorted(&rows), sorted(expected), "{view}");
    }
}

fn sorted(rows: &str) -> Vec<&str> {
    let mut rows: Vec<_> = rows.lines().collect();
    rows.sort_unstable();
    rows
}

/// `jsonb` has no limit for integers. A number that it cannot hold is null.
#[tokio::test(flavor = "multi_thread")]
async fn large_numbers_are_exact() {
    let database = Database::new().await;
    let s = database.subject();
    let digits = "9".repeat(1_000);
    for (job_type, text) in [("a", "18446744073709551615"), ("b", digits.as_str()), ("c", "1e999999")] {
        s.start(job_type).payload(json(text)).await;
    }
    let rows = database.rows("select input from {}.jobs order by type");
    assert_eq!(rows, format!("18446744073709551615\n{digits}"), "the last one is null");
    assert_eq!(database.rows("select input_bytes from {}.jobs where type = 'c' and input is null"), "8");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_needs_only_the_views() {
    let database = Database::new().await;
    jobs_of_every_status(&database.subject()).await;
    let role = format!("{}_reader", database.server.namespace());
    let role = role.as_str();
    database.rows(&format!(
        "create role {role}; grant usage on schema {{}} to {role};
         grant select on {{}}.jobs, {{}}.chains, {{}}.attempts, {{}}.counts to {role}"
    ));
    for (view, rows) in [("jobs", "8"), ("chains", "7"), ("attempts", "5"), ("counts", "8")] {
        let all = format!("set role {role}; select count(x::text) from {{}}.{view} x");
        assert_eq!(database.rows(&all), rows, "{view}");
    }
    let tables = "set role {role}; select has_table_privilege('{}.job', 'select')".replace("{role}", role);
    assert_eq!(database.rows(&tables), "f");
}

/// A query reads only the tables that it selects from, and uses their indexes.
#[tokio::test(flavor = "multi_thread")]
async fn columns_that_are_not_selected_cost_nothing() {
    let database = Database::new().await;
    let plan = database.rows(
        "set enable_seqscan = off; explain select id, error from {}.jobs where type = 'a' and listed = 'failed'",
    );
    let tables: Vec<_> = plan.lines().filter(|line| line.contains(" on ")).collect();
    assert!(tables.len() == 1 && tables[0].contains("job_listed on job j"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_follow_the_jobs() {
    let database = Database::new().await;
    jobs_of_every_status(&database.subject()).await;
    let counts = "select type, status, jobs from {}.counts order by 1, 2";
    let jobs = "select type, status, count(*) from {}.jobs group by 1, 2 order by 1, 2";
    assert_eq!(database.rows(counts), database.rows(jobs));
}

/// The page with queries for these views. All of them are run here.
const PAGE: &str = include_str!("../../../../docs/operating.md");
/// The page with queries for the tables.
const MONITORING: &str = include_str!("../../../../docs/monitoring.md");

/// Returns the SQL of a page for PostgreSQL, statement by statement, with `{}` for the schema.
fn queries(page: &str) -> Vec<String> {
    let blocks = page.split("```sql\n").skip(1).filter_map(|block| block.split("```").next());
    let statements = blocks
        .flat_map(|block| block.split_inclusive(";\n"))
        .map(|statement| statement.replace("windlass.", "{}.").replace("schema windlass ", "schema {} "));
    statements.filter(|statement| statement.contains("{}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queries_of_the_page_return_what_it_says() {
    let database = Database::new().await;
    database.clock.set(SystemClock.now());
    jobs_of_every_status(&database.subject()).await;
    let role = format!("{}_reader", database.server.namespace());
    database.rows(&format!("create role {role}"));
    let queries_of =
        |page| queries(page).into_iter().map(|query| query.replace(" to reader;", &format!(" to {role};")));
    let results: Vec<_> = queries_of(PAGE).map(|query| database.rows(&query)).collect();
    let [.., due, failed, by_input, attempts] = results.as_slice() else { panic!("{results:?}") };
    assert_eq!(results.len(), 6, "two grants and four queries");
    assert!(due.starts_with("second|1|") && due.lines().count() == 1, "{due}");
    let (id, rest) = failed.split_once('|').unwrap();
    assert_eq!((id.len(), rest), (36, "failed||2|no such order|{}"));
    assert!(by_input.ends_with("|pending|pending|") && by_input.lines().count() == 1, "{by_input}");
    assert_eq!(attempts, "failed|no such order|1\nfailed|timed out|1");
    queries_of(MONITORING).for_each(|query| drop(database.rows(&query)));
    assert_eq!(database.rows(&format!("set role {role}; select count(*) from {{}}.jobs")), "8");
}
