//! Schema migrations.

use std::time::{Duration, Instant};

use windlass_core::{Error, ErrorKind, Result};

use crate::provider::{Parameter, Provider, Statement};
use crate::statement::Names;

/// How long to wait for another program that is migrating.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);
/// Delay between two attempts to get the migration lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(50);

/// One migration. A released migration is never changed; new ones are appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Migration {
    pub(crate) version: i64,
    pub(crate) name: &'static str,
    pub(crate) parts: &'static [&'static str],
    /// Whether the migration runs in the transaction that records it. PostgreSQL does not allow some statements in a
    /// transaction, such as `create index concurrently`. Such a migration runs on another connection and must be safe
    /// to repeat, because the program may crash before it is recorded.
    pub(crate) in_transaction: bool,
}

/// All migrations. Function names contain a version, so that a newer program can add its functions while an older one
/// still calls its own.
///
/// Version 1 was the layout of builds before the first release.
pub(crate) const MIGRATIONS: &[Migration] = &[Migration {
    version: 2,
    name: "tables, functions and views",
    in_transaction: true,
    parts: &[
        include_str!("../migrations/002_tables.sql"),
        include_str!("../functions/time.sql"),
        include_str!("../functions/isolation.sql"),
        include_str!("../functions/request.sql"),
        include_str!("../functions/state.sql"),
        include_str!("../functions/lock.sql"),
        include_str!("../functions/create.sql"),
        include_str!("../functions/close.sql"),
        include_str!("../functions/ripple.sql"),
        include_str!("../functions/settle.sql"),
        include_str!("../functions/acquire.sql"),
        include_str!("../functions/create_and_acquire.sql"),
        include_str!("../functions/reap.sql"),
        include_str!("../functions/expire.sql"),
        include_str!("../functions/manage.sql"),
        include_str!("../functions/get.sql"),
        include_str!("../functions/outside.sql"),
        include_str!("../functions/delete.sql"),
        include_str!("../functions/registry.sql"),
        include_str!("../functions/schedule.sql"),
        include_str!("../functions/count.sql"),
        include_str!("../functions/list.sql"),
        include_str!("../migrations/002_views.sql"),
    ],
}];

/// Replaces the role's timeouts in the migration's transaction: a migration takes as long as it takes, and its transaction is idle while a step runs on
/// another connection. It waits for locks for a bounded time, because commands queue up behind a migration that waits for
/// a table. Even on an empty database it waits now and then, for PostgreSQL's own catalogs.
const SET_TIMEOUTS: &str = "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0; \
                        set local lock_timeout = '30s'";

/// Keeps types and functions of the application from shadowing PostgreSQL's own.
const SEARCH_PATH: &str = "set local search_path = pg_catalog, pg_temp;\n";

/// Migrates the schema to the latest version if `allowed`; otherwise checks that it is there. Any number of programs
/// may call this at the same time.
pub(crate) async fn migrate<P: Provider>(
    provider: &P,
    names: &Names,
    migrations: &[Migration],
    allowed: bool,
) -> Result<()> {
    let latest = migrations.last().map_or(0, |migration| migration.version);
    let found = version(provider, names, None).await?;
    check(found, migrations, names)?;
    if found >= latest {
        return Ok(());
    }
    if !allowed {
        let missing = if found == 0 { "there are no Windlass tables: " } else { "" };
        return Err(Error::new(
            ErrorKind::Outdated,
            format!(
                "{missing}{} is at version {found}, but this program requires version {latest}: run the statements of \
                 `migrations_sql`, or let the store migrate",
                names.description()
            ),
        ));
    }
    for migration in migrations.iter().filter(|migration| migration.version > found) {
        apply(provider, names, migration, migrations).await?;
    }
    Ok(())
}

/// Returns the statements of the migrations after a version, to run by other means.
pub(crate) fn sql(names: &Names, migrations: &[Migration], after: i64) -> String {
    let mut text = preparation(names);
    for migration in migrations.iter().filter(|migration| migration.version > after) {
        let (begin, commit) = if migration.in_transaction { ("begin;\n", "commit;\n") } else { ("", "") };
        let path = if migration.in_transaction { SEARCH_PATH } else { "" };
        text.push_str(&format!("\n-- {}: {}\n{begin}{path}", migration.version, migration.name));
        migration.parts.iter().for_each(|part| text.push_str(&statements(names, part)));
        text.push_str(&names.render(&record(migration)));
        text.push_str(commit);
    }
    text
}

/// Returns the statements of one part of a migration. PostgreSQL lets every role execute a new function, but the store's
/// functions run with the privileges of their owner.
fn statements(names: &Names, part: &str) -> String {
    let mut text = names.render(part);
    for function in part.split("create function ").skip(1).filter_map(|rest| rest.split('(').next()) {
        // The views use it, and PostgreSQL checks that privilege for the role that queries them.
        if function == "windlass.json_v1" {
            continue;
        }
        let function = names.render(function);
        text.push_str(&format!("revoke all on function {function} from public;\n"));
    }
    text
}

/// Returns the statements that create roles with the least privileges, and grant them what they need.
pub(crate) fn roles(names: &Names) -> String {
    let role = |name: &str| match names.prefix.as_str() {
        "" => format!("{}_{name}", names.schema),
        prefix => format!("{}_{prefix}{name}", names.schema),
    };
    // Insert the names after `render`, which would replace `windlass_` inside them.
    names
        .render(include_str!("../migrations/roles.sql"))
        .replace("{schema}", &format!("\"{}\"", names.schema))
        .replace("{reader}", &role("reader"))
        .replace("{producer}", &role("producer"))
        .replace("{worker}", &role("worker"))
}

async fn apply<P: Provider>(
    provider: &P,
    names: &Names,
    migration: &Migration,
    migrations: &[Migration],
) -> Result<()> {
    let mut tx = lock(provider, names).await?;
    provider.script_in(P::tx_ref(&mut tx), SEARCH_PATH).await?;
    provider.script_in(P::tx_ref(&mut tx), &preparation(names)).await?;
    let found = version(provider, names, Some(&mut tx)).await?;
    check(found, migrations, names)?;
    if found < migration.version {
        for part in migration.parts {
            let part = statements(names, part);
            match migration.in_transaction {
                true => provider.script_in(P::tx_ref(&mut tx), &part).await?,
                false => provider.script(&part).await?,
            }
        }
        provider.script_in(P::tx_ref(&mut tx), &names.render(&record(migration))).await?;
    }
    provider.commit(tx).await
}

/// Begins a transaction that holds the migration lock of the namespace, which only one program has at a time. Other
/// namespaces have other locks.
///
/// Polls for the lock instead of blocking on it. A blocked statement would hold its snapshot, and a migration outside
/// the transaction, such as `create index concurrently`, waits for all older snapshots to end: a deadlock.
async fn lock<P: Provider>(provider: &P, names: &Names) -> Result<P::Tx> {
    let text = format!(
        "select 'locked', null::integer, null::uuid[], null::text[], \
         array[pg_try_advisory_xact_lock(hashtextextended('{}', 0))::int::bigint], null::bytea[]",
        names.identifier()
    );
    let attempt = Statement::new(text, false);
    let ends_at = Instant::now() + LOCK_TIMEOUT;
    while Instant::now() < ends_at {
        let mut tx = provider.begin_read_committed().await?;
        let rows = provider.run_in(P::tx_ref(&mut tx), &attempt, Vec::new()).await?;
        if rows.first().is_some_and(|row| row.numbers == [Some(1)]) {
            provider.script_in(P::tx_ref(&mut tx), SET_TIMEOUTS).await?;
            return Ok(tx);
        }
        provider.rollback(tx).await?;
        tokio::time::sleep(LOCK_RETRY_DELAY).await;
    }
    let text = format!(
        "another program has been migrating {} for {LOCK_TIMEOUT:?}: check whether it is stuck, and end it if so",
        names.description()
    );
    Err(Error::new(ErrorKind::Busy, text))
}

/// Returns the statements that create the schema and the migration table if they are missing. A role that may not
/// create schemas works if another role has created the schema before.
fn preparation(names: &Names) -> String {
    let text = "\
do $$ begin
  if to_regnamespace('{schema}') is null then
    create schema {schema};
  end if;
end $$;
create table if not exists windlass.migration (
  version bigint primary key, name text not null, applied_at timestamptz not null default clock_timestamp()
);
";
    // Insert the schema name after `render`, which would replace `windlass_` inside it.
    names.render(text).replace("{schema}", &format!("\"{}\"", names.schema))
}

fn record(migration: &Migration) -> String {
    let Migration { version, name, .. } = migration;
    format!(
        "insert into windlass.migration (version, name) values ({version}, '{name}') on conflict do nothing;\n"
    )
}

/// Returns the version of the schema, or 0 if there is none.
async fn version<P: Provider>(provider: &P, names: &Names, tx: Option<&mut P::Tx>) -> Result<i64> {
    let rows = |text: &str| Statement::new(names.render(text), false);
    let exists = rows(
        "select 'exists', null::integer, null::uuid[], null::text[], array[1::bigint], null::bytea[] \
         where to_regclass($1) is not null",
    );
    let latest = rows(
        "select 'version', null::integer, null::uuid[], null::text[], array[coalesce(max(m.version), 0)], \
         null::bytea[] from windlass.migration m",
    );
    let table = vec![Parameter::Text(Some(names.render("windlass.migration")))];
    let found = match tx {
        None if provider.run(&exists, table).await?.is_empty() => return Ok(0),
        None => provider.run(&latest, Vec::new()).await?,
        Some(tx) => provider.run_in(P::tx_ref(tx), &latest, Vec::new()).await?,
    };
    Ok(found.first().and_then(|row| row.numbers.first().copied().flatten()).unwrap_or(0))
}

fn check(found: i64, migrations: &[Migration], names: &Names) -> Result<()> {
    let version = |migration: Option<&Migration>| migration.map_or(0, |migration| migration.version);
    let (first, latest) = (version(migrations.first()), version(migrations.last()));
    if 0 < found && found < first {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "{} is at version {found}, the layout of a build before the first release, which cannot be converted: \
                 drop its tables (the jobs are lost), or use another schema",
                names.description()
            ),
        ));
    }
    // Each version keeps the functions of the version before it, so that programs can be updated one by one.
    if found <= latest + 1 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!(
            "{} is at version {found}, but this program supports versions up to {}: update this program",
            names.description(),
            latest + 1
        ),
    ))
}

#[cfg(all(test, feature = "sqlx"))]
mod tests {
    use windlass_testkit::shared_postgres;

    use super::*;
    use crate::Sqlx;

    const STEPS: &[Migration] = &[
        Migration {
            version: 1,
            name: "a table",
            in_transaction: true,
            parts: &["create table windlass.thing (id bigint, name text);"],
        },
        Migration {
            version: 2,
            name: "an index beside the transaction",
            in_transaction: false,
            parts: &["create index concurrently if not exists windlass_thing_name on windlass.thing (name)"],
        },
        Migration {
            version: 3,
            name: "a column",
            in_transaction: true,
            parts: &["alter table windlass.thing add column size bigint;"],
        },
    ];

    async fn namespace() -> (Sqlx, Names, &'static windlass_testkit::PostgresServer) {
        let shared = shared_postgres().await;
        let schema = format!("windlass_{}", shared.namespace());
        let names = Names { schema, prefix: "x_".to_owned() };
        let provider = Sqlx::connect(&shared.url()).await.expect("the server runs");
        (provider, names, shared.server())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_migrations_run_each_step_once() {
        let (provider, names, server) = namespace().await;
        migrate(&provider, &names, &STEPS[..1], true).await.unwrap();
        let starting: Vec<_> = (0..4)
            .map(|_| {
                let (provider, names) = (provider.clone(), names.clone());
                tokio::spawn(async move { migrate(&provider, &names, STEPS, true).await })
            })
            .collect();
        for started in starting {
            started.await.unwrap().unwrap();
        }
        let indexes = format!(
            "select count(*) from pg_indexes where schemaname = '{}' and indexname = 'x_thing_name'",
            names.schema
        );
        assert_eq!(server.query(&indexes).trim(), "1");
        let recorded =
            names.render("select string_agg(version::text, ' ' order by version) from windlass.migration");
        assert_eq!(server.query(&recorded).trim(), "1 2 3");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_migration_keeps_the_previous_version() {
        let (provider, names, server) = namespace().await;
        let bad = Migration {
            version: 2,
            name: "bad",
            in_transaction: true,
            parts: &["create table windlass.more (); nonsense"],
        };
        migrate(&provider, &names, &[STEPS[0], bad], true).await.unwrap_err();
        let recorded =
            names.render("select max(version), to_regclass('windlass.more') is null from windlass.migration");
        assert_eq!(server.query(&recorded).trim(), "1|t");
        migrate(&provider, &names, STEPS, true).await.unwrap();
    }
}
