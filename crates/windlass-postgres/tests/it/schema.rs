//! The schema, its golden file, and the statements.

use std::fmt::Display;
use std::fs;

use windlass_core::limit;
use windlass_postgres::Options;

use crate::Database;

/// Describes everything in the schema, from PostgreSQL's catalog.
const DUMP: &str = "
select string_agg(text, E'\\n\\n' order by kind, text) || E'\\n' from (
  select 1 as kind, format(
    E'table %s (\\n  %s\\n)%s', c.relname,
    string_agg(
      format('%s %s%s%s', a.attname, format_type(a.atttypid, a.atttypmod), case when a.attnotnull then ' not null' end,
        coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')), E',\\n  ' order by a.attnum
    ), coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '')
  ) as text
  from pg_class c
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
  left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
  where c.relnamespace = '{}'::regnamespace and c.relkind in ('r', 'c')
  group by c.oid, c.relname, c.reloptions
  union all
  select 2, pg_get_constraintdef(k.oid) || ' on ' || k.conrelid::regclass
  from pg_constraint k where k.connamespace = '{}'::regnamespace and k.contype = 'c'
  union all
  select 3, pg_get_indexdef(i.indexrelid) from pg_index i join pg_class c on c.oid = i.indexrelid
  where c.relnamespace = '{}'::regnamespace
  union all
  select 4, format('view %s as%s', c.relname, E'\\n' || pg_get_viewdef(c.oid)) from pg_class c
  where c.relnamespace = '{}'::regnamespace and c.relkind = 'v'
  union all
  select 5, format('function %s(%s)', p.proname, pg_get_function_identity_arguments(p.oid))
    || coalesce(' set ' || array_to_string(p.proconfig, ' set '), '')
  from pg_proc p where p.pronamespace = '{}'::regnamespace
) all_of_it";

/// The first version that describes a view of one table without the table's alias. The golden file is from an earlier one.
const SHORT_NAMES: i32 = 160_000;

/// Removes the aliases of tables, which have one letter: `c.id` becomes `id`.
fn without_aliases(schema: &str) -> String {
    let mut short = String::with_capacity(schema.len());
    for part in schema.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
        let is_alias =
            part.len() == 2 && part.ends_with('.') && part.starts_with(|c: char| c.is_ascii_lowercase());
        if !is_alias {
            short.push_str(part);
        }
    }
    short
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_is_the_one_in_the_golden_file() {
    let database = Database::new().await;
    let schema: String = sqlx::query_scalar(database.sql(DUMP)).fetch_one(&database.pool).await.unwrap();
    let mut schema = schema.replace(&format!("{}.", database.server.namespace()), "");

    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
    if std::env::var_os("WINDLASS_UPDATE").is_some() {
        fs::write(golden, &schema).unwrap();
    }
    let mut expected = fs::read_to_string(golden).unwrap();
    let version: i32 = sqlx::query_scalar("select current_setting('server_version_num')::integer")
        .fetch_one(&database.pool)
        .await
        .unwrap();
    if version >= SHORT_NAMES {
        (schema, expected) = (without_aliases(&schema), without_aliases(&expected));
    }
    let changed = schema.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        schema == expected,
        "the schema changed: run the test with WINDLASS_UPDATE=1 and review the diff. First change: {changed:?}"
    );
}

/// The types of the columns of a job.
const JOB: &[&str] = &[
    "UUID", "UUID", "UUID", "UUID", "UUID", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT", "TEXT",
    "TEXT", "INT4", "INT2", "INT8", "INT8", "INT8", "INT8", "INT8", "INT8", "BOOL", "INT8", "INT8", "INT8",
    "BYTEA", "BYTEA", "UUID[]", "TEXT[]", "BOOL[]", "TEXT", "TEXT", "INT8", "INT8", "INT8", "INT8", "INT8",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_statement_can_be_prepared_and_returns_the_same_columns() {
    let database = Database::new().await;
    for (name, text) in database.store.statements() {
        let statement = sqlx::SqlSafeStr::into_sql_str(sqlx::AssertSqlSafe(text.to_string()));
        let prepared = sqlx::Executor::prepare(&database.pool, statement).await;
        let prepared = prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
        let types: Vec<_> = sqlx::Statement::columns(&prepared)
            .iter()
            .map(|column| sqlx::TypeInfo::name(sqlx::Column::type_info(column)).to_owned())
            .collect();
        let (columns, job) = types.split_at(6);
        assert_eq!(columns, ["TEXT", "INT4", "UUID[]", "TEXT[]", "INT8[]", "BYTEA[]"], "{name}");
        let with_jobs = [
            "acquire",
            "create_acquire",
            "create_keyed_acquire",
            "create_one_acquire",
            "create_plain_acquire",
            "exchange",
            "exchange_plain",
            "get_chains",
            "get_jobs",
            "list_chains",
            "list_dependents",
            "list_jobs",
            "list_open",
        ];
        assert_eq!(job, if with_jobs.contains(&name) { JOB } else { &[][..] }, "{name}");
    }
}

/// The schema is the same whether the store migrates it or the text of `migrations_sql` is run.
#[tokio::test(flavor = "multi_thread")]
async fn migrations_sql_creates_the_same_schema() {
    let database = Database::new().await;
    let by_hand = format!("{}_by_hand", database.server.namespace());
    let text = Options::default().schema(&by_hand).migrations_sql().unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&database.pool).await.unwrap();
    let dump = |schema: &str| sqlx::AssertSqlSafe(DUMP.replace("{}", schema));
    let own: String =
        sqlx::query_scalar(dump(database.server.namespace())).fetch_one(&database.pool).await.unwrap();
    let theirs: String = sqlx::query_scalar(dump(&by_hand)).fetch_one(&database.pool).await.unwrap();
    assert_eq!(theirs.replace(&by_hand, database.server.namespace()), own);
}

/// The limits of the contract that functions repeat as numbers, each with the text before the number.
const LIMITS: &[(&str, &dyn Display)] = &[
    (
        "reply_bytes_v1() returns bigint language sql immutable parallel safe as $$ select ",
        &limit::ACQUIRE_MAX_BYTES,
    ),
    ("own.version > ", &limit::HISTORY_MAX),
    ("order by fence desc offset ", &limit::HISTORY_MAX),
    ("keep_completed, ", &limit::REPEAT_WINDOW_MS),
    ("later_v1(closed_at, ", &limit::REPEAT_WINDOW_MS),
    ("cardinality(doomed) <= ", &limit::DELETE_MAX_CHAINS),
    ("cardinality(doomed) > ", &limit::DELETE_MAX_CHAINS),
    ("from reached limit ", &limit::CYCLE_SEARCH_MAX),
    ("ripple_v1(now, true, ", &limit::RIPPLE_MAX),
    ("ripple_v1(now, false, ", &limit::RIPPLE_MAX),
    ("'windlassjobs.left_over', true), '')::integer, ", &limit::RIPPLE_MAX),
    ("), '{}', ", &limit::RIPPLE_MAX),
    ("items, new_jobs, ", &limit::RIPPLE_MAX),
    ("where m.since < now order by m.since, m.seq limit ", &limit::RIPPLE_MAX),
    ("moment + span, ", &limit::TIMESTAMP_MAX_MS),
    ("coalesce(due_after, 0), ", &limit::TIMESTAMP_MAX_MS),
];

#[test]
fn the_functions_repeat_the_limits_of_the_contract() {
    let files = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/functions")).unwrap();
    let functions: Vec<_> = files
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for (before, limit) in LIMITS {
        let after = functions.iter().flat_map(|text| text.split(before).skip(1));
        let numbers = after.filter_map(|text| text.split(|c: char| !c.is_ascii_digit()).next());
        let numbers: Vec<_> = numbers.filter(|number| !number.is_empty()).collect();
        let is_repeated = !numbers.is_empty() && numbers.iter().all(|number| *number == limit.to_string());
        assert!(is_repeated, "expected {limit} after `{before}`, found {numbers:?}");
    }
}
