//! A plain job table with hand-written statements that use batches and indexes.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection};
use windlass::BoxError;
use windlass::sqlite::Synchronous;

use crate::subject::Bare;

const TABLE: &str = "
create table job (
  id integer primary key, type text not null, status text not null default 'pending', due_at integer not null,
  input blob not null, output blob
);
create index job_pending on job (type, due_at) where status = 'pending'";

const INSERT_ONE: &str = "insert into job (type, due_at, input) values ('no-op', ?1, ?2)";

const INSERT_MANY: &str = "insert into job (type, due_at, input)
select 'no-op', value, '{\"number\":' || value || '}' from json_each(?1)";

const CLAIM: &str = "update job set status = 'running' where id in (
  select id from job where type = 'no-op' and status = 'pending' and due_at <= ?2 order by due_at limit ?1
) returning id, input";

const COMPLETE_ONE: &str =
    "update job set status = 'completed', output = ?2 where id = ?1 and status = 'running'";

const COMPLETE_MANY: &str = "update job set status = 'completed', output = o.value ->> 1
from json_each(?1) o where job.id = o.value ->> 0 and status = 'running'";

/// Jobs per insert and per claim.
const INSERTED: i64 = 1_000;
const CLAIMED: i64 = 100;

pub(super) async fn run(
    path: &Path,
    synchronous: Synchronous,
    bare: Bare,
    jobs: u64,
) -> Result<Duration, BoxError> {
    let mut connection = connect(path, synchronous).await?;
    let jobs = i64::try_from(jobs)?;
    if matches!(bare, Bare::ClaimOne | Bare::ClaimMany) {
        insert_many(&mut connection, 0..jobs).await?;
    }
    let began = Instant::now();
    match bare {
        Bare::InsertOne => {
            for number in 0..jobs {
                insert_one(&mut connection, number).await?;
            }
        }
        Bare::InsertMany => insert_many(&mut connection, 0..jobs).await?,
        Bare::ClaimMany => while work(&mut connection, CLAIMED, |_| {}).await? {},
        Bare::ClaimOne => while work(&mut connection, 1, |_| {}).await? {},
    }
    let took = began.elapsed();
    connection.close().await?;
    Ok(took)
}

/// Opens a new file with an empty table.
pub(crate) async fn connect(path: &Path, synchronous: Synchronous) -> Result<SqliteConnection, BoxError> {
    let synchronous = match synchronous {
        Synchronous::Full => SqliteSynchronous::Full,
        Synchronous::Normal => SqliteSynchronous::Normal,
    };
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(synchronous);
    let mut connection = options.disable_statement_logging().connect().await?;
    sqlx::raw_sql(TABLE).execute(&mut connection).await?;
    Ok(connection)
}

pub(crate) async fn insert_one(connection: &mut SqliteConnection, number: i64) -> Result<(), BoxError> {
    let input = format!("{{\"number\":{number}}}").into_bytes();
    sqlx::query(INSERT_ONE).bind(number).bind(input).execute(connection).await?;
    Ok(())
}

pub(crate) async fn insert_many(
    connection: &mut SqliteConnection,
    numbers: Range<i64>,
) -> Result<(), BoxError> {
    let end = numbers.end;
    for first in numbers.step_by(usize::try_from(INSERTED)?) {
        let numbers: Vec<i64> = (first..end.min(first + INSERTED)).collect();
        sqlx::query(INSERT_MANY).bind(serde_json::to_string(&numbers)?).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Claims jobs and completes them. Returns whether there were any.
pub(crate) async fn work(
    connection: &mut SqliteConnection,
    many: i64,
    handle: impl Fn(u64),
) -> Result<bool, BoxError> {
    let claim = sqlx::query_as(CLAIM).bind(many).bind(i64::MAX);
    let claimed: Vec<(i64, Vec<u8>)> = claim.fetch_all(&mut *connection).await?;
    claimed.iter().filter_map(|(id, _)| u64::try_from(*id).ok()).for_each(handle);
    match claimed.as_slice() {
        [] => return Ok(false),
        [(id, output)] => sqlx::query(COMPLETE_ONE).bind(id).bind(output).execute(connection).await?,
        many => {
            let texts: Result<Vec<(i64, &str)>, _> =
                many.iter().map(|(id, output)| std::str::from_utf8(output).map(|text| (*id, text))).collect();
            sqlx::query(COMPLETE_MANY).bind(serde_json::to_string(&texts?)?).execute(connection).await?
        }
    };
    Ok(true)
}
