//! The store contract on PostgreSQL, through tokio-postgres, in sessions with unusual settings.

#![allow(clippy::unwrap_used)]

mod fixture;

use tokio::sync::OnceCell;
use windlass_postgres::TokioPostgres;

/// Settings that change what a statement means, reads or returns. The store must work with all of them.
const SETTINGS: [&str; 15] = [
    "lock_timeout=1ms",
    "idle_in_transaction_session_timeout=30s",
    "row_security=off",
    "datestyle=SQL,DMY",
    "intervalstyle=sql_standard",
    "timezone=Pacific/Chatham",
    "bytea_output=escape",
    "extra_float_digits=-15",
    "array_nulls=off",
    "transform_null_equals=on",
    "standard_conforming_strings=off",
    "backslash_quote=off",
    "plpgsql.variable_conflict=use_variable",
    "plpgsql.extra_errors=all",
    "search_path=odd,public",
];

/// Functions that fail when called. They match the store's calls better than PostgreSQL's own, which take any array, so
/// calling one shows that the store resolves names through the session's search path.
const FUNCTIONS: &str = "create schema odd;
    create function odd.fail() returns integer language plpgsql as $$ begin raise exception 'an odd function'; end $$;
    create function odd.cardinality(uuid[]) returns integer language sql as $$ select odd.fail() $$;
    create function odd.cardinality(text[]) returns integer language sql as $$ select odd.fail() $$;
    create function odd.cardinality(integer[]) returns integer language sql as $$ select odd.fail() $$;
    create function odd.unnest(uuid[]) returns setof integer language sql as $$ select odd.fail() $$;
    create function odd.unnest(text[]) returns setof integer language sql as $$ select odd.fail() $$;
    create function odd.array_remove(uuid[], uuid) returns integer language sql as $$ select odd.fail() $$;
    create function odd.array_position(uuid[], uuid) returns integer language sql as $$ select odd.fail() $$;
    create function odd.array_to_string(text[], text) returns integer language sql as $$ select odd.fail() $$";

async fn connect(url: String) -> TokioPostgres {
    static MADE: OnceCell<()> = OnceCell::const_new();
    let server = windlass_testkit::shared_postgres().await;
    MADE.get_or_init(|| async { drop(server.server().query(FUNCTIONS)) }).await;
    let settings = SETTINGS.map(|setting| format!("-c {setting}")).join(" ");
    let settings = settings.replace(' ', "%20").replace('=', "%3D").replace(',', "%2C");
    TokioPostgres::connect(&format!("{url}&options={settings}")).await.unwrap()
}

fn main() {
    windlass_conformance::main(fixture::Postgres { name: "postgres, tokio-postgres", connect })
}
