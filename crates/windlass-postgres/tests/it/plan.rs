//! The cost of a command does not depend on how much else is stored.

use sqlx::types::Uuid;
use sqlx::{Connection, PgConnection};
use windlass_conformance::{LEASE, complete, continue_with, fail, key, retry_after, type_name};
use windlass_core::command::{
    Acquired, Cancel, CancelMode, ChainFilter, Command, Count, Create, Cursor, Delete, GetChains, GetJobs,
    JobFilter, ListChains, ListDependents, ListJobs, Order, Page, Renew, RenewLease, SetRetention, Settle,
    Settlement, Target, Trigger, Types,
};
use windlass_core::{ChainId, Status, Transactional};

use crate::Database;

/// Maximum number of rows that a command may read. Many times as many are stored.
const LOOKED_AT_MAX: i64 = 400;

/// Inserts `$1` completed jobs and as many that are due far in the future.
const STORED: &str = "
with stored as (
  insert into {}.job (id, chain, type, chain_type, status, priority, due_at, fence, on_blocker_failure, created_at, closed_at,
    input_codec, input, keep_completed, keep_failed, keep_cancelled, chain_closed_at, closed_as, retain_until)
  select i, i, 'a', 'a', case when n <= $1 then 'completed' else 'pending' end, 0,
    case when n <= $1 then 0 else 9000000000000 end, 0, 'wait', 0, case when n <= $1 then 0 end, 'json', '1', 1, 1, 1,
    case when n <= $1 then 0 end, case when n <= $1 then 'completed' end, case when n <= $1 then 9000000000000 end
  from (select n, gen_random_uuid() as i from generate_series(1, 2 * $1) n) rows
  returning id, seq, due_at, type, priority, status
), ready as (
  insert into {}.ready (seq, due_at, job, priority, has_blockers, bytes, type)
  select seq, due_at, id, priority, false, 1, type from stored where status = 'pending'
), leaving as (
  insert into {}.leaving (leaves_at, chains)
  select 9000000000000, array_agg(id) from stored where status = 'completed' group by seq / 1024000
)
insert into {}.tally (jobs, type, status) select count(*), type, status from stored group by type, status";

/// Returns how many rows this transaction has read so far: by sequential scans, and by index.
async fn looked_at(connection: &mut PgConnection, database: &Database) -> (i64, i64) {
    let text = "select coalesce(sum(seq_tup_read), 0)::bigint, coalesce(sum(idx_tup_fetch), 0)::bigint
        from pg_stat_xact_user_tables where schemaname = '{}' and relname in ('job', 'ready', 'lease', 'key', 'leaving', 'blocker')";
    sqlx::query_as(database.sql(text)).fetch_one(connection).await.unwrap()
}

async fn check(database: &Database, connection: &mut PgConnection, text: &str) {
    // Repeat: a new session has no cached plans, and PostgreSQL may change its plan after some calls.
    for _ in 0..8 {
        let before = looked_at(connection, database).await;
        sqlx::raw_sql(database.sql(text)).execute(&mut *connection).await.unwrap();
        let after = looked_at(connection, database).await;
        assert_eq!(after.0, before.0, "a whole table was read: {text}");
        assert!(after.1 - before.1 <= LOOKED_AT_MAX, "{} rows were read: {text}", after.1 - before.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_and_future_jobs_cost_nothing() {
    let database = Database::new().await;
    let rows: i64 = if std::env::var_os("WINDLASS_FULL").is_some() { 1_000_000 } else { 100_000 };
    sqlx::query(database.sql(STORED)).bind(rows).execute(&database.pool).await.unwrap();
    let s = database.subject();
    s.create((0..50).map(|n| s.start("a").key(&n.to_string()).build()).collect()).await;
    s.acquire("a", 10).await;

    let mut connection = database.pool.acquire().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    for analyzed in [false, true] {
        if analyzed {
            tx.rollback().await.unwrap();
            sqlx::raw_sql(database.sql("analyze {}.job; analyze {}.ready"))
                .execute(&mut *connection)
                .await
                .unwrap();
            tx = connection.begin().await.unwrap();
        }
        for command in [
            "select * from {}.acquire_v1(1800000000000, gen_random_uuid(), gen_random_uuid(), null, '{a,b}', '{2,2}', '{5,5}', 2, null, null, null, false, false)",
            "select * from {}.reap_v1(1800000000000, null, 10, '{}'::uuid[])",
            "select * from {}.reap_v1(1800000000000, '{a}', 10, '{}'::uuid[])",
            "select * from {}.next_due_v1(1800000000000, null, null, null, null)",
            "select * from {}.next_due_v1(1800000000000, '{a}', null, null, null)",
            "select * from {}.expire_v1(1800000000000, 100)",
            "select * from {}.find_v1(1800000000000, '{null}', '{null}', '{a}', '{3}')",
        ] {
            // `{}` is the placeholder for the schema, so write empty arrays differently.
            let command = command.replace("'{}'::uuid[]", "array[]::uuid[]");
            check(&database, &mut tx, &command).await;
        }
    }
}

/// Inserts running and blocked jobs of another type, as many as a fleet of workers has.
const OTHERS: &str = "
with stored as (
  insert into {}.job (id, chain, type, chain_type, status, listed, priority, due_at, fence, on_blocker_failure, created_at,
    lease_until, request, input_codec, input, keep_completed, keep_failed, keep_cancelled)
  select i, i, 'other', 'other', case when n % 2 = 0 then 'running' else 'blocked' end,
    case when n % 2 = 0 then null else 'blocked' end, 0, 0, 1, 'wait', 0, case when n % 2 = 0 then 9000000000000 end,
    case when n % 2 = 0 then i end, 'json', '1', 1, 1, 1
  from (select n, gen_random_uuid() as i from generate_series(1, 20000) n) rows
  returning id, request
)
insert into {}.lease (request, until, type, has_blockers, jobs)
select request, 9000000000000, 'other', false, array[id] from stored where request is not null;";

/// Settling an attempt does not read other running or blocked jobs, even if the plan was made when there were few.
#[tokio::test(flavor = "multi_thread")]
async fn running_and_blocked_jobs_of_other_types_cost_nothing() {
    let database = Database::new().await;
    let s = database.subject();
    let blockers: Vec<_> = (0..60).map(|_| s.start("b").build()).collect();
    let ids: Vec<_> = blockers.iter().map(|chain| chain.id).collect();
    s.create(blockers).await;
    let waiting = ids.iter().map(|id| s.start("a").blocked_by([*id]).build());
    s.create(waiting.collect()).await;
    let mut attempts = s.acquire("b", 60).await;
    let mut tx = database.store.begin().await.unwrap();
    for filled in [false, true] {
        if filled {
            sqlx::raw_sql(database.sql(OTHERS)).execute(&mut *tx).await.unwrap();
        }
        for turn in 0..24 {
            let outcome = match turn % 4 {
                0 => complete("1"),
                1 => fail("no"),
                2 => retry_after(1_000, "later"),
                _ => continue_with(s.start("c").next_job()),
            };
            let Acquired { job, .. } = attempts.pop().unwrap();
            let lease = RenewLease { job: job.id, fence: job.fence, lease: LEASE };
            let settlement = Settlement { job: job.id, fence: job.fence, outcome };
            let commands: [Command; 2] =
                [Renew { leases: vec![lease] }.into(), Settle { settlements: vec![settlement] }.into()];
            for command in commands {
                let (whole, found) = cost(&database, &mut tx, command.clone()).await;
                assert!(
                    whole == 0 && found <= 40,
                    "{whole} rows were scanned and {found} found by index: {command:?}"
                );
            }
        }
    }
}

/// Inserts a key for each chain.
const KEYED: &str =
    "insert into {}.key (type, key, chain) select type, id::text, id from {}.chain on conflict do nothing";

/// A connection keeps its plans. Those made when little or nothing was stored must stay good later.
#[tokio::test(flavor = "multi_thread")]
async fn plans_made_on_small_tables_stay_efficient() {
    for first in [0, 60] {
        let database = Database::new().await;
        let s = database.subject();
        let mut chains: Vec<_> = (0..60).map(|n| s.start("b").key(&n.to_string()).build()).collect();
        s.create(chains[..first].to_vec()).await;
        let analyze = "analyze {}.job; analyze {}.ready; analyze {}.key";
        sqlx::raw_sql(database.sql(analyze)).execute(&database.pool).await.unwrap();
        let mut tx = database.store.begin().await.unwrap();
        database.store.run_in((&mut tx).into(), Create { chains: chains[first..].to_vec() }).await.unwrap();
        for filled in [false, true] {
            if filled {
                sqlx::query(database.sql(STORED)).bind(20_000_i64).execute(&mut *tx).await.unwrap();
                sqlx::query(database.sql(KEYED)).execute(&mut *tx).await.unwrap();
            }
            for turn in 0..3 {
                let [one, two, three] = [(); 3].map(|()| chains.pop().unwrap().id);
                let by_key = Target::Key(type_name("b"), key("1"));
                let new = |name: &str| s.start("b").key(&format!("{name} {filled} {turn}"));
                let commands: [Command; 9] = [
                    GetChains { chains: vec![one.into(), by_key] }.into(),
                    Trigger { jobs: vec![one.into()] }.into(),
                    Cancel { chains: vec![two.into()], mode: CancelMode::Ask }.into(),
                    SetRetention { chains: vec![two.into()], retention: LEASE }.into(),
                    Delete { chains: vec![three.into()], cascade: true, seen: None }.into(),
                    Create { chains: vec![new("one").build()] }.into(),
                    Create { chains: vec![s.start("b").key("1").build(), new("two").build()] }.into(),
                    Create { chains: vec![new("three").blocked_by([one]).build()] }.into(),
                    Create { chains: vec![new("four").blocked_by([ChainId::new()]).build()] }.into(),
                ];
                for command in commands {
                    let (whole, found) = cost(&database, &mut tx, command.clone()).await;
                    assert!(
                        whole == 0 && found <= 40,
                        "{whole} rows were scanned and {found} found by index: {command:?}"
                    );
                }
            }
        }
    }
}

/// The statistics may be those of a moment at which nothing was stored: PostgreSQL then expects one row in each table. A
/// plan that reads the table for each item, or the items for each row, would take minutes for a large batch.
#[tokio::test(flavor = "multi_thread")]
async fn large_batches_stay_efficient_on_emptied_tables() {
    let database = Database::new().await;
    let s = database.subject();
    s.create((0..500).map(|n| s.start("b").key(&n.to_string()).build()).collect()).await;
    let emptied = "delete from {}.job; delete from {}.ready; delete from {}.key;
        analyze {}.job; analyze {}.ready; analyze {}.key; analyze {}.blocker";
    for statement in emptied.split(';') {
        sqlx::raw_sql(database.sql(statement)).execute(&database.pool).await.unwrap();
    }
    let mut tx = database.store.begin().await.unwrap();
    let chains: Vec<_> = (0..1_000).map(|n| s.start("b").key(&n.to_string()).build()).collect();
    let targets: Vec<Target> = chains.iter().map(|chain| chain.id.into()).collect();
    let keys = (0..1_000).map(|n| Target::Key(type_name("b"), key(&n.to_string()))).collect();
    // A key that occurs twice: the chains are started one by one.
    let mut twice: Vec<_> = (1_000..1_999).map(|n| s.start("b").key(&n.to_string()).build()).collect();
    twice.push(s.start("b").key("1000").build());
    let blocked = chains.iter().map(|chain| s.start("c").blocked_by([chain.id]).build()).collect();
    let commands: [Command; 9] = [
        Create { chains: chains.clone() }.into(),
        Create { chains: chains.clone() }.into(),
        Create { chains: twice }.into(),
        Create { chains: blocked }.into(),
        GetChains { chains: keys }.into(),
        Trigger { jobs: targets.clone() }.into(),
        SetRetention { chains: targets.clone(), retention: LEASE }.into(),
        Cancel { chains: targets.clone(), mode: CancelMode::Ask }.into(),
        Delete { chains: targets, cascade: true, seen: None }.into(),
    ];
    for (turn, command) in commands.into_iter().enumerate() {
        let (whole, found) = cost(&database, &mut tx, command).await;
        assert!(
            whole == 0 && found <= 40_000,
            "command {turn} scanned {whole} rows and found {found} by index"
        );
    }
}

/// A plan that cannot avoid a disabled node has a huge cost. PostgreSQL would compile it, which takes longer than to run it.
#[tokio::test(flavor = "multi_thread")]
async fn functions_that_disable_plans_disable_compilation() {
    let database = Database::new().await;
    let text = "select p.proname::text, 'jit=off' = any (p.proconfig) from pg_proc p
        where p.pronamespace = '{}'::regnamespace and exists (select from unnest(p.proconfig) s where s like 'enable_%')";
    let functions: Vec<(String, bool)> =
        sqlx::query_as(database.sql(text)).fetch_all(&database.pool).await.unwrap();
    assert!(functions.len() > 10, "{functions:?}");
    let compiled: Vec<_> = functions.iter().filter(|(_, off)| !off).collect();
    assert!(compiled.is_empty(), "{compiled:?}");
}

/// Runs a command in a transaction. Returns how many rows it read: by sequential scans, and by index.
async fn cost(database: &Database, tx: &mut sqlx::PgTransaction<'static>, query: Command) -> (i64, i64) {
    let before = looked_at(tx, database).await;
    database.store.execute_in(tx.into(), query).await.unwrap();
    let after = looked_at(tx, database).await;
    (after.0 - before.0, after.1 - before.1)
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_lists_and_counts_use_indexes() {
    let database = Database::new().await;
    let rows: i64 = if std::env::var_os("WINDLASS_FULL").is_some() { 1_000_000 } else { 100_000 };
    sqlx::query(database.sql(STORED)).bind(rows).execute(&database.pool).await.unwrap();
    sqlx::query(database.sql(KEYED)).execute(&database.pool).await.unwrap();
    let s = database.subject();
    let chain = s.start("a").key("k").await;
    sqlx::raw_sql(database.sql("analyze {}.job; analyze {}.ready; analyze {}.key"))
        .execute(&database.pool)
        .await
        .unwrap();
    let page = Page { max: 20, ..Page::default() };
    let filter = JobFilter { chain: Some(chain), ..JobFilter::default() };
    let queries: [Command; 6] = [
        GetChains { chains: vec![chain.into(), Target::Key(type_name("a"), key("k"))] }.into(),
        GetJobs { jobs: vec![chain.first_job()] }.into(),
        ListJobs { filter: JobFilter::default(), page: page.clone() }.into(),
        ListJobs { filter, page: page.clone() }.into(),
        ListChains { filter: ChainFilter::default(), page: page.clone() }.into(),
        ListDependents { chain, page: page.clone() }.into(),
    ];
    let mut tx = database.store.begin().await.unwrap();
    for query in queries {
        for _ in 0..8 {
            let (whole, found) = cost(&database, &mut tx, query.clone()).await;
            assert!(
                whole == 0 && found <= LOOKED_AT_MAX,
                "{whole} rows were scanned and {found} found by index: {query:?}"
            );
        }
    }
    // Counts are exact, whatever is stored.
    let (whole, _) = cost(&database, &mut tx, Count { types: Types::All }.into()).await;
    assert_eq!(whole, 0, "a whole table was read to count");
    let counted = database.store.run_in((&mut tx).into(), Count { types: Types::All }).await.unwrap();
    let completed = i64::try_from(counted.types[0].completed).unwrap();
    assert!(!counted.closed_estimated && completed == rows, "{counted:?}");
    let (whole, _) =
        cost(&database, &mut tx, Count { types: Types::Only(vec![type_name("a")]) }.into()).await;
    assert_eq!(whole, 0, "a whole table was read to count one type");
    // Statuses without jobs cost nothing, whatever else is stored.
    for status in [Status::Blocked, Status::Failed, Status::Cancelled, Status::Running] {
        let filter = JobFilter { statuses: vec![status], ..JobFilter::default() };
        let query = Command::from(ListJobs { filter, page: page.clone() });
        let (whole, found) = cost(&database, &mut tx, query).await;
        assert!(
            whole == 0 && found <= 40,
            "{whole} rows were scanned and {found} found by index: {status:?}"
        );
    }
    // A page ends when it is full. The newest rows are pending, so many rows are scanned for completed ones, and for a
    // type that has none. A page then ends after the maximum number of scanned rows. A scanned chain may read two: the
    // chain, and its latest job.
    for (name, status, max) in [
        ("a", Status::Pending, LOOKED_AT_MAX),
        ("a", Status::Completed, 22_000),
        ("none", Status::Completed, 11_000),
    ] {
        let (types, statuses) = (vec![type_name(name)], vec![status]);
        let filter = JobFilter { types: types.clone(), statuses: statuses.clone(), ..JobFilter::default() };
        let jobs = ListJobs { filter, page: page.clone() };
        let chains = ListChains {
            filter: ChainFilter { types, statuses, ..ChainFilter::default() },
            page: page.clone(),
        };
        for query in [Command::from(jobs), chains.into()] {
            let (whole, found) = cost(&database, &mut tx, query.clone()).await;
            assert!(
                whole == 0 && found <= max,
                "{whole} rows were scanned and {found} found by index: {query:?}"
            );
        }
    }
}

/// Inserts `$1` jobs with each status but `running`, in chains of one job: pending ones first, which are due at random times,
/// and completed ones last.
const BY_STATUS: &str = "
with stored as (
  insert into {}.job (id, chain, type, chain_type, status, listed, priority, due_at, fence, on_blocker_failure, created_at,
    closed_at, input_codec, input, keep_completed, keep_failed, keep_cancelled, chain_closed_at, closed_as)
  select i, i, t, t, s, {}.listed_v1(s), n % 3, case s when 'pending' then n * 7919 % 100003 else 0 end, 0, 'wait', 0,
    case when c then n end, 'json', '1', 1, 1, 1, case when c then n end, case when c then s end
  from (
    select
      n, gen_random_uuid() as i, case n % 2 when 0 then 'a' else 'b' end as t, s, s in ('failed', 'cancelled', 'completed') as c
    from unnest(array['pending', 'blocked', 'failed', 'cancelled', 'completed']) with ordinality s (s, place)
    cross join generate_series(1, $1) n
    order by place, n
  ) rows
  returning id, seq, due_at, type, priority, status
), ready as (
  insert into {}.ready (seq, due_at, job, priority, has_blockers, bytes, type)
  select seq, due_at, id, priority, false, 1, type from stored where status = 'pending'
)
insert into {}.tally (jobs, type, status) select count(*), type, status from stored group by type, status";

/// Inserts `$1` chains of two jobs, the second of which failed.
const FAILED_LATER: &str = "
with pairs as materialized (
  select gen_random_uuid() as chain, gen_random_uuid() as latest from generate_series(1, $1)
), stored as (
  insert into {}.job (id, chain, position, latest, latest_position, type, chain_type, status, listed, priority, due_at, fence,
    on_blocker_failure, created_at, closed_at, input_codec, input, keep_completed, keep_failed, keep_cancelled,
    chain_closed_at, closed_as, chain_created_at)
  select
    case n when 0 then chain else latest end, chain, n, case n when 0 then latest end, 1 - n, case n when 0 then 'a' else 'b' end,
    'a', case n when 0 then 'completed' else 'failed' end, case n when 1 then 'failed' end, 0, 0, 0, 'wait', 0, 0, 'json',
    '1', 1, 1, 1, case n when 0 then 0 end, case n when 0 then 'failed' end, case n when 1 then 0 end
  from generate_series(0, 1) n
  cross join pairs
  returning type, status
)
insert into {}.tally (jobs, type, status) select count(*), type, status from stored group by type, status";

/// The ids of jobs and of chains with certain statuses, newest first.
const JOBS_OF: &str = "select id from {}.job where status = any ($1) order by seq desc";
const CHAINS_OF: &str = "select c.id from {}.chain c join {}.job j on j.id = c.latest where j.status = any ($1) order by c.seq desc";

/// All statuses but `completed`.
const OPEN: [(Status, &str); 5] = [
    (Status::Pending, "pending"),
    (Status::Blocked, "blocked"),
    (Status::Failed, "failed"),
    (Status::Cancelled, "cancelled"),
    (Status::Running, "running"),
];

/// What a transaction has read so far.
struct Visited {
    /// Rows that sequential scans have read.
    whole: i64,
    /// Entries of the index of `ready`.
    ready: i64,
    /// Entries of the other indexes.
    other: i64,
}

async fn visited(connection: &mut PgConnection, database: &Database) -> Visited {
    let text = "select
          coalesce(sum(n) filter (where kind = 'r' and of_table <> 'tally'), 0)::bigint,
          coalesce(sum(n) filter (where kind = 'i' and of_table = 'ready'), 0)::bigint,
          coalesce(sum(n) filter (where kind = 'i' and of_table <> 'ready'), 0)::bigint
        from (
          select c.relkind as kind, coalesce(t.relname, c.relname) as of_table, pg_stat_get_xact_tuples_returned(c.oid) as n
          from pg_class c left join pg_index i on i.indexrelid = c.oid left join pg_class t on t.oid = i.indrelid
          where c.relnamespace = '{}'::regnamespace
        ) read";
    let (whole, ready, other) = sqlx::query_as(database.sql(text)).fetch_one(connection).await.unwrap();
    Visited { whole, ready, other }
}

/// A page of jobs or chains with a status visits a small multiple of its rows, even if as many older jobs with each status and
/// newer completed ones are stored.
#[tokio::test(flavor = "multi_thread")]
async fn lists_by_status_visit_what_they_return() {
    const ROWS: i64 = 30_000;
    const ACQUIRED: u32 = 100;
    let database = Database::new().await;
    for (text, rows) in [(FAILED_LATER, 50), (BY_STATUS, ROWS), (FAILED_LATER, 50)] {
        sqlx::query(database.sql(text)).bind(rows).execute(&database.pool).await.unwrap();
    }
    let s = database.subject();
    s.create((0..ACQUIRED).map(|_| s.start("c").build()).collect()).await;
    s.acquire("c", ACQUIRED).await;
    let analyze = "analyze {}.job; analyze {}.ready";
    sqlx::raw_sql(database.sql(analyze)).execute(&database.pool).await.unwrap();
    let mut tx = database.store.begin().await.unwrap();
    for ((status, name), of_chains) in OPEN.into_iter().flat_map(|status| [(status, false), (status, true)]) {
        let all = if of_chains { CHAINS_OF } else { JOBS_OF };
        let query = sqlx::query_scalar::<_, Uuid>(database.sql(all)).bind([name]);
        let mut expected = query.fetch_all(&database.pool).await.unwrap();
        for order in [Order::Newest, Order::Oldest] {
            // The newest pending ones are older than the completed ones. The pending jobs are sorted, and the chains are
            // not found.
            let is_scan = of_chains && status == Status::Pending && order == Order::Newest;
            let is_sorted = !of_chains && status == Status::Pending && order == Order::Newest;
            let ready_max = if is_sorted { ROWS + i64::from(ACQUIRED) } else { 0 };
            let other_max = if is_scan { 11_000 } else { 700 };
            let (mut listed, mut after) = (Vec::new(), None);
            for _ in 0..2 {
                let page = Page { order, after: after.take(), ..Page::default() };
                let before = visited(&mut tx, &database).await;
                let (ids, next) = page_of(&database, &mut tx, status, of_chains, page).await;
                let Visited { whole, ready, other } = visited(&mut tx, &database).await;
                let (whole, ready, other) =
                    (whole - before.whole, ready - before.ready, other - before.other);
                assert!(
                    whole == 0 && ready <= ready_max && other <= other_max,
                    "{whole} rows, {ready} entries of `ready` and {other} other entries were read: {status:?}, {order:?}, \
                     chains: {of_chains}"
                );
                listed.extend(ids);
                after = next;
            }
            let len = if is_scan { 0 } else { 100 };
            assert!(listed == expected[..len], "{status:?}, {order:?}, chains: {of_chains}");
            expected.reverse();
        }
    }
}

/// Returns the ids on a page of jobs or chains with a status, and the cursor of the next page.
async fn page_of(
    database: &Database,
    tx: &mut sqlx::PgTransaction<'static>,
    status: Status,
    of_chains: bool,
    page: Page,
) -> (Vec<Uuid>, Option<Cursor>) {
    let statuses = vec![status];
    if of_chains {
        let list = ListChains { filter: ChainFilter { statuses, ..ChainFilter::default() }, page };
        let reply = database.store.run_in(tx.into(), list).await.unwrap();
        (reply.chains.iter().map(|chain| *chain.id.as_uuid()).collect(), reply.next)
    } else {
        let list = ListJobs { filter: JobFilter { statuses, ..JobFilter::default() }, page };
        let reply = database.store.run_in(tx.into(), list).await.unwrap();
        (reply.jobs.iter().map(|job| *job.id.as_uuid()).collect(), reply.next)
    }
}

/// Returns a list that calls a function directly, with the sizes of its pages: how many rows they return, and how many they scan.
async fn whole_list(
    database: &Database,
    of_chains: bool,
    newest: bool,
    statuses: &[&str],
    sizes: (i64, i64),
) -> Vec<Uuid> {
    let text = if of_chains {
        "select part, ids[1], numbers[1] from {}.list_chains_v1(
            $1, $2, $3, array[]::text[], $4, false, null, null, null, null, null, $5) where part <> 'job'"
    } else {
        "select part, id, numbers[1] from {}.list_open_v1(
            $1, $2, $3, array[]::text[], $4, array[]::text[], null, null, null, null, $5)"
    };
    let (mut listed, mut after) = (Vec::new(), None::<i64>);
    loop {
        let query = sqlx::query_as::<_, (String, Option<Uuid>, Option<i64>)>(database.sql(text));
        let query = query.bind(newest).bind(after.take()).bind(sizes.0).bind(statuses).bind(sizes.1);
        let rows = query.fetch_all(&database.pool).await.unwrap();
        for (part, id, place) in rows {
            match part.as_str() {
                "next" => after = place,
                _ => listed.push(id.unwrap()),
            }
        }
        if after.is_none() {
            return listed;
        }
    }
}

/// A page may find its rows in several ways, depending on how many jobs are stored and how many rows it may scan.
#[tokio::test(flavor = "multi_thread")]
async fn lists_are_the_same_however_a_page_finds_its_rows() {
    let database = Database::new().await;
    for (text, rows) in [(FAILED_LATER, 30), (BY_STATUS, 150), (FAILED_LATER, 30)] {
        sqlx::query(database.sql(text)).bind(rows).execute(&database.pool).await.unwrap();
    }
    let s = database.subject();
    s.create((0..30).map(|_| s.start("c").build()).collect()).await;
    s.acquire("c", 30).await;
    let sets: [&[&str]; 6] = [
        &["pending"],
        &["running"],
        &["blocked"],
        &["failed"],
        &["pending", "cancelled"],
        &["pending", "blocked", "failed", "cancelled", "running"],
    ];
    for (statuses, of_chains) in sets.into_iter().flat_map(|set| [(set, false), (set, true)]) {
        let all = if of_chains { CHAINS_OF } else { JOBS_OF };
        let query = sqlx::query_scalar::<_, Uuid>(database.sql(all)).bind(statuses);
        let mut expected = query.fetch_all(&database.pool).await.unwrap();
        assert!(expected.len() >= 30, "{statuses:?}");
        for newest in [true, false] {
            for sizes in [(20, 8), (20, 100), (3, 10_000), (1_000, 10_000)] {
                let listed = whole_list(&database, of_chains, newest, statuses, sizes).await;
                assert!(listed == expected, "{statuses:?}, chains: {of_chains}, newest: {newest}, {sizes:?}");
            }
            expected.reverse();
        }
    }
}
