//! A plain job table with hand-written statements that use batches, indexes and `skip locked`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use uuid::Uuid;
use windlass::BoxError;

use crate::subject::Bare;

pub(crate) const TABLE: &str = "
drop table if exists bare_job;
create table bare_job (
  id uuid primary key,
  type text not null,
  status text not null default 'pending',
  due_at bigint not null,
  input bytea not null,
  output bytea
) with (fillfactor = 70);
create index on bare_job (type, due_at) where status = 'pending';
checkpoint";

const INSERT_ONE: &str = "insert into bare_job (id, type, due_at, input) values ($1, 'no-op', $2, $3)";

const INSERT_MANY: &str = "insert into bare_job (id, type, due_at, input)
select new.id, 'no-op', new.due_at, new.input from unnest($1::uuid[], $2::bigint[], $3::bytea[]) new (id, due_at, input)";

const CLAIM: &str = "update bare_job set status = 'running' where id = any (array(
  select id from bare_job where type = 'no-op' and status = 'pending' and due_at <= $2
  order by due_at limit $1 for update skip locked
)) returning id, input";

const COMPLETE_ONE: &str =
    "update bare_job set status = 'completed', output = $2 where id = $1 and status = 'running'";

const COMPLETE_MANY: &str = "update bare_job j set status = 'completed', output = o.output
from unnest($1::uuid[], $2::bytea[]) o (id, output) where j.id = o.id and j.status = 'running'";

/// Jobs per insert and per claim.
const INSERTED: i64 = 1_000;
const CLAIMED: i64 = 100;

pub(super) async fn run(url: &str, bare: Bare, jobs: u64) -> Result<Duration, BoxError> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql(TABLE).execute(&mut connection).await?;
    let (clients, stored) = match bare {
        Bare::InsertOne => (16, 0),
        Bare::InsertMany => (2, 0),
        Bare::ClaimMany => (4, jobs),
        Bare::ClaimOne => (50, jobs),
    };
    let left = Arc::new(AtomicI64::new(i64::try_from(stored)?));
    while insert_next(&mut connection, INSERTED, &left).await? {}

    left.store(i64::try_from(jobs)?, Ordering::Relaxed);
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(PgConnection::connect(url).await?);
    }
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let left = Arc::clone(&left);
        tasks.spawn(async move {
            while match bare {
                Bare::InsertOne => insert_next(&mut connection, 1, &left).await?,
                Bare::InsertMany => insert_next(&mut connection, INSERTED, &left).await?,
                Bare::ClaimMany => work(&mut connection, CLAIMED, |_| {}).await?,
                Bare::ClaimOne => work(&mut connection, 1, |_| {}).await?,
            } {}
            Ok::<_, BoxError>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(began.elapsed())
}

/// Inserts the next jobs. Returns whether any were left.
async fn insert_next(connection: &mut PgConnection, many: i64, left: &AtomicI64) -> Result<bool, BoxError> {
    let before = left.fetch_sub(many, Ordering::Relaxed);
    match (before, many) {
        (..=0, _) => return Ok(false),
        (_, 1) => insert_one(connection, before).await?,
        _ => insert_many(connection, 0..many.min(before)).await?,
    }
    Ok(true)
}

pub(crate) async fn insert_one(connection: &mut PgConnection, number: i64) -> Result<(), BoxError> {
    let query = sqlx::query(INSERT_ONE).bind(Uuid::now_v7()).bind(number).bind(input(number));
    query.execute(connection).await?;
    Ok(())
}

pub(crate) async fn insert_many(connection: &mut PgConnection, numbers: Range<i64>) -> Result<(), BoxError> {
    let numbers: Vec<i64> = numbers.collect();
    let ids: Vec<Uuid> = numbers.iter().map(|_| Uuid::now_v7()).collect();
    let inputs: Vec<Vec<u8>> = numbers.iter().map(|number| input(*number)).collect();
    sqlx::query(INSERT_MANY).bind(ids).bind(numbers).bind(inputs).execute(connection).await?;
    Ok(())
}

/// Returns the input of a job.
pub(crate) fn input(number: i64) -> Vec<u8> {
    format!("{{\"number\":{number}}}").into_bytes()
}

/// Returns the number in an input.
pub(crate) fn number(input: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(input).ok()?;
    text.strip_prefix("{\"number\":")?.strip_suffix('}')?.parse().ok()
}

/// Claims jobs and completes them. Returns whether there were any.
pub(crate) async fn work(
    connection: &mut PgConnection,
    many: i64,
    handle: impl Fn(u64),
) -> Result<bool, BoxError> {
    let claimed = claim(connection, many).await?;
    claimed.iter().filter_map(|(_, input)| number(input)).for_each(handle);
    let (ids, outputs): (Vec<Uuid>, Vec<Vec<u8>>) = claimed.into_iter().unzip();
    match (ids.as_slice(), outputs.as_slice()) {
        ([], _) => return Ok(false),
        ([id], [output]) => sqlx::query(COMPLETE_ONE).bind(id).bind(output).execute(connection).await?,
        _ => sqlx::query(COMPLETE_MANY).bind(ids).bind(outputs).execute(connection).await?,
    };
    Ok(true)
}

/// Claims jobs. Returns their ids and inputs.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    many: i64,
) -> Result<Vec<(Uuid, Vec<u8>)>, BoxError> {
    Ok(sqlx::query_as(CLAIM).bind(many).bind(i64::MAX).fetch_all(connection).await?)
}
