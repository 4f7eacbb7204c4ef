//! `schema.sql` matches the result of the migrations.

use sqlx::{Connection, Row};
use windlass_sqlite::{Options, SqliteStore};

#[tokio::test]
async fn the_schema_is_the_one_in_the_golden_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jobs.db");
    let store = SqliteStore::open(Options::new(&path)).await.unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path);
    let mut connection = sqlx::sqlite::SqliteConnection::connect_with(&options).await.unwrap();
    let all = "select sql from sqlite_schema where sql is not null and name not like 'sqlite_%' order by type desc, name";
    let rows = sqlx::query(all).fetch_all(&mut connection).await.unwrap();
    let schema: String = rows.iter().map(|row| format!("{};\n\n", row.get::<String, _>("sql"))).collect();
    drop(store);

    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/schema.sql");
    if std::env::var_os("WINDLASS_UPDATE").is_some() {
        std::fs::write(golden, &schema).unwrap();
    }
    let expected = std::fs::read_to_string(golden).unwrap();
    assert_eq!(
        schema, expected,
        "the schema changed: run the test with WINDLASS_UPDATE=1 and review the diff"
    );
}
