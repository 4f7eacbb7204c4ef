//! Health findings: problems that an operator should fix.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass_core::{Finding, Result};

use crate::provider::{Parameter, Provider};
use crate::reply::{Values, corrupt};
use crate::store::Call;

/// Age from which an open transaction is reported. Vacuum cannot remove rows that died after it began.
const LONG_TRANSACTION: Duration = Duration::from_secs(5 * 60);

/// Tolerated difference between the clocks of this machine and the database.
const SKEW_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn findings<P: Provider>(
    mut call: Call<'_, P>,
    held: Option<Duration>,
) -> Result<Vec<Finding>> {
    let seconds = i64::try_from(held.unwrap_or(LONG_TRANSACTION).as_secs()).unwrap_or(i64::MAX);
    let asked = now_millis();
    let rows = call.run(&call.statements().health, vec![Parameter::Number(Some(seconds))]).await?;
    let answered = now_millis();
    let found = rows.into_iter().map(|row| finding(row.into(), asked, answered));
    found.filter_map(Result::transpose).collect()
}

fn finding(mut values: Values, asked: i64, answered: i64) -> Result<Option<Finding>> {
    let (problem, remedy) = match values.part.as_str() {
        "held" => {
            let (application, state) = (values.maybe_text().unwrap_or_default(), values.maybe_text());
            let (pid, seconds): (i64, u64) = (values.number()?, values.number()?);
            let state = state.unwrap_or_default();
            (
                format!(
                    "process {pid} ({application:?}, {state}) has had a transaction open for {seconds} seconds"
                ),
                format!(
                    "end it, or its process with `select pg_terminate_backend({pid})`: until then, vacuum cannot remove \
                     rows that died since it began, and acquiring slows down; set \
                     `idle_in_transaction_session_timeout` to end such transactions automatically"
                ),
            )
        }
        "dead" => {
            let (table, dead, live): (_, u64, u64) = (values.text()?, values.number()?, values.number()?);
            (
                format!("the table {table} has {dead} dead rows and {live} live rows"),
                format!(
                    "run `vacuum {table}`; if they remain, an old transaction, a prepared transaction or a \
                     replication slot still needs them: check pg_stat_activity, pg_prepared_xacts and pg_replication_slots"
                ),
            )
        }
        "vacuum" => {
            let table = values.text()?;
            (
                format!("the table {table} lacks the autovacuum settings of its migration"),
                format!(
                    "run `alter table {table} reset (autovacuum_enabled)` and `alter table {table} set \
                     (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000)`"
                ),
            )
        }
        "may_not_vacuum" => {
            let (tables, role) = (values.text()?, values.text()?);
            (
                format!("role `{role}` may not vacuum {tables}"),
                format!(
                    "jobs are safe, but acquiring slows down on a busy queue until autovacuum comes: make the role a member \
                     of the tables' owner, or on PostgreSQL 17 and later run `grant maintain on {tables} to {role}`"
                ),
            )
        }
        "no_vacuum" => (
            "autovacuum is off on this server".to_owned(),
            "set `autovacuum = on` in postgresql.conf and reload it: nothing else removes dead rows"
                .to_owned(),
        ),
        "invalid" => {
            let index = values.text()?;
            (
                format!("the index {index} is invalid, because its build was interrupted"),
                format!("run `reindex index concurrently {index}`"),
            )
        }
        "isolation" | "read_only" | "timeout" | "hidden" => session(&mut values)?,
        "now" => return Ok(skew(values.number()?, asked, answered)),
        part => return Err(corrupt(&format!("a health check returned the unknown finding {part:?}"))),
    };
    Ok(Some(Finding { problem, remedy }))
}

/// A setting of the session that costs time or hides rows.
fn session(values: &mut Values) -> Result<(String, String)> {
    Ok(match values.part.as_str() {
        "isolation" => {
            let (level, role) = (values.text()?, values.text()?);
            (
                format!("transactions of role `{role}` are {level} by default"),
                format!(
                    "jobs are safe, but each command of the store takes two more round trips to run at read committed, \
                     and your own transactions must be run again after a conflict: run `alter role {role} set \
                     default_transaction_isolation = 'read committed'` unless you need that level (it may also be set \
                     for the database or in postgresql.conf)"
                ),
            )
        }
        "read_only" => {
            let role = values.text()?;
            (
                format!("transactions of role `{role}` are read-only by default"),
                format!(
                    "commands in your own transactions fail, and those of the store take two more round trips: run \
                     `alter role {role} set default_transaction_read_only = off` (it may also be set for the database or \
                     in postgresql.conf)"
                ),
            )
        }
        "timeout" => {
            let (role, timeout): (_, u64) = (values.text()?, values.number()?);
            (
                format!("`statement_timeout` of role `{role}` is {timeout} ms"),
                format!(
                    "a command may wait a second for locks, so those of the store take two more round trips to raise the \
                     timeout, and those in your own transactions may be cancelled: run `alter role {role} set \
                     statement_timeout = '10s'`, or more"
                ),
            )
        }
        "hidden" => {
            let table = values.text()?;
            (
                format!("row-level security hides rows of the table {table} from this role"),
                format!(
                    "run `alter table {table} disable row level security`, or grant the role `bypassrls`"
                ),
            )
        }
        part => return Err(corrupt(&format!("a health check returned the unknown finding {part:?}"))),
    })
}

/// Reports a clock difference greater than [`SKEW_MAX`]. `asked` and `answered` are this machine's times before and after
/// the query that read the server's clock.
fn skew(server: i64, asked: i64, answered: i64) -> Option<Finding> {
    let apart = (asked - server).max(server - answered);
    let apart = Duration::from_millis(u64::try_from(apart).unwrap_or(0));
    (apart > SKEW_MAX).then(|| Finding {
        problem: format!("the clocks of this machine and of the database differ by {apart:?}"),
        remedy: "synchronize both with a time server; due times follow the clock of the database".to_owned(),
    })
}

fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(all(test, feature = "sqlx"))]
mod tests {
    use windlass_core::{Store, Transactional};
    use windlass_testkit::shared_postgres;

    use super::*;
    use crate::{Options, PostgresStore, Sqlx};

    #[tokio::test(flavor = "multi_thread")]
    async fn health_findings_state_the_remedy() {
        let shared = shared_postgres().await;
        let provider = Sqlx::connect(&shared.url()).await.unwrap();
        let options = Options::default().schema(shared.namespace());
        let store = PostgresStore::open(provider, options).await.unwrap();
        assert_eq!(store.health().await.unwrap(), []);

        let schema = shared.namespace();
        let server = shared.server();
        server.query(&format!("alter table {schema}.key reset (autovacuum_vacuum_scale_factor)"));
        server.query(&format!(
            "update pg_index set indisvalid = false where indexrelid = '{schema}.job_seq'::regclass"
        ));
        let found = store.health().await.unwrap();
        let found: Vec<String> = found.into_iter().map(|found| found.remedy).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found.iter().any(|remedy| remedy.contains(&format!("alter table {schema}.key set"))),
            "{found:?}"
        );
        assert!(
            found
                .iter()
                .any(|remedy| remedy.contains(&format!("reindex index concurrently {schema}.job_seq"))),
            "{found:?}"
        );

        let mut tx = store.begin().await.unwrap();
        let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
        let found = findings(store.call(None).unwrap(), Some(Duration::ZERO)).await.unwrap();
        let held = found.iter().find(|found| found.problem.contains(&format!("process {pid} ")));
        assert!(held.is_some_and(|found| found.remedy.contains("pg_terminate_backend")), "{found:?}");
    }

    #[test]
    fn a_clock_difference_within_the_round_trip_is_accepted() {
        assert_eq!(skew(10_000, 0, 20_000), None);
        assert_eq!(skew(24_000, 0, 20_000), None);
        assert!(skew(26_000, 0, 20_000).is_some());
        assert!(skew(0, 6_000, 20_000).is_some());
    }
}
