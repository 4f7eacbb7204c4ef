//! Checks server and session settings when the store is opened.
//!
//! The store adapts to unusual settings where it can; `functions/isolation.sql` has the checks that run with each
//! statement. Settings that would make the store silently wrong are refused here.

use windlass_core::command::Durability;
use windlass_core::{Error, ErrorKind, Result};

use crate::provider::{Parameter, Provider, Row, Statement};
use crate::statement::Names;

/// All tables except the migration table.
pub(crate) const TABLES: [&str; 13] = [
    "job", "ready", "lease", "tally", "leaving", "ripple", "key", "blocker", "attempt", "paused", "worker",
    "leader", "schedule",
];

const SETTINGS: &str = "select 'settings', null::integer, null::uuid[], array[\
    pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('fsync'), \
    pg_catalog.current_setting('default_transaction_isolation'), \
    pg_catalog.current_setting('default_transaction_read_only'), pg_catalog.pg_is_in_recovery()::text, \
    current_user::text, \
    (select pg_catalog.min(s.reset_val::bigint)::text from pg_catalog.pg_settings s where s.reset_val <> '0' and \
    s.name in ('statement_timeout', 'idle_in_transaction_session_timeout'))], \
    null::bigint[], null::bytea[]";

/// Queries the schemas of the search path, including implicit ones, in the order in which they are searched.
const SEARCH_PATH: &str = "select 'path', null::integer, null::uuid[], pg_catalog.current_schemas(true)::text[], \
    null::bigint[], null::bytea[]";

const ROW_SECURITY: &str = "select 'table', null::integer, null::uuid[], array[c.relname::text], null::bigint[], \
    null::bytea[] from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
    where n.nspname = $1 and c.relname = any ($2) and pg_catalog.row_security_active(c.oid) order by c.relname";

/// Defaults of one session. Other sessions of the pool may differ, so the store treats these as guesses.
pub(crate) struct Defaults {
    /// Durability of an acknowledged write.
    pub(crate) durability: Durability,
    /// Whether each command needs a transaction begun for it.
    pub(crate) needs_begin: bool,
    /// Whether that transaction needs longer timeouts.
    pub(crate) has_short_timeout: bool,
    /// Whether transactions read from a snapshot: repeatable read or serializable.
    pub(crate) snapshots: bool,
    /// Name of the role.
    pub(crate) role: String,
}

/// Returns the defaults of a session. Fails if the store would not work on this server or in this session.
pub(crate) async fn check<P: Provider>(provider: &P) -> Result<Defaults> {
    let found = texts(provider, SETTINGS, Vec::new()).await?;
    let setting = |index: usize| found.get(index).map(String::as_str).unwrap_or_default();
    if setting(4) == "true" {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "the server is a hot standby, which accepts no writes: connect to the primary",
        ));
    }
    check_path(&texts(provider, SEARCH_PATH, Vec::new()).await?)?;
    let durability = match (setting(0), setting(1)) {
        ("off", _) | (_, "off") => Durability::Buffered,
        _ => Durability::Synced,
    };
    let snapshots = matches!(setting(2), "repeatable read" | "serializable");
    // In milliseconds; `own_v1` has the same bound.
    let has_short_timeout = matches!(setting(6).parse(), Ok(1..10_000));
    let needs_begin = snapshots || setting(3) == "on" || has_short_timeout;
    let role = setting(5).to_owned();
    Ok(Defaults { durability, needs_begin, has_short_timeout, snapshots, role })
}

/// Returns an error if another schema precedes `pg_catalog` in the search path. An operator of the application could
/// then shadow one of PostgreSQL's in the store's queries. By default, PostgreSQL searches `pg_catalog` first.
fn check_path(schemas: &[String]) -> Result<()> {
    let first = schemas.iter().find(|schema| !schema.starts_with("pg_temp"));
    if first.is_none_or(|schema| schema == "pg_catalog") {
        return Ok(());
    }
    let path = schemas.join(", ");
    let text = format!(
        "the search path `{path}` puts other schemas before `pg_catalog`: leave `pg_catalog` out of `search_path`, or \
         put it first"
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Returns an error if row-level security hides rows of the tables from this role. Jobs would seem to be lost.
pub(crate) async fn check_access<P: Provider>(provider: &P, names: &Names) -> Result<()> {
    let tables = TABLES.map(|table| Some(format!("{}{table}", names.prefix)));
    let parameters =
        vec![Parameter::Text(Some(names.schema.clone())), Parameter::Texts(Some(tables.to_vec()))];
    let hidden = texts(provider, ROW_SECURITY, parameters).await?;
    if hidden.is_empty() {
        return Ok(());
    }
    let (schema, table) = (&names.schema, hidden.join("`, `"));
    let text = format!(
        "row-level security hides rows of `{table}` in schema `{schema}` from this role: run `alter table … disable row \
         level security`, connect as the owner of the tables, or grant the role `bypassrls`"
    );
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Returns the texts of all rows of a query.
async fn texts<P: Provider>(provider: &P, text: &str, parameters: Vec<Parameter>) -> Result<Vec<String>> {
    let rows: Vec<Row> = provider.run(&Statement::new(text.to_owned(), false), parameters).await?;
    Ok(rows.into_iter().flat_map(|row| row.texts).flatten().collect())
}
