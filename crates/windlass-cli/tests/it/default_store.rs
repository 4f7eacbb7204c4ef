//! The store that is used if none is named.

use crate::program::{Program, objects, run};

#[tokio::test]
async fn a_created_default_store_is_reported_once() {
    let program = Program::on_sqlite();
    let first = run(program.bare(&["start", "mail", "--json"])).await;
    assert_eq!((first.code, objects(&first.stdout).len()), (0, 1), "{first:?}");
    let path = program.directory().join("windlass.db");
    assert!(path.exists());
    assert_eq!(
        first.stderr,
        format!(
            "created the default store `sqlite:{}`: to use another, pass --store URL or set WINDLASS_STORE\n",
            path.display()
        )
    );
    let second = run(program.bare(&["start", "mail"])).await;
    assert_eq!((second.code, second.stderr.as_str()), (0, ""), "{second:?}");
}

#[tokio::test]
async fn every_command_that_creates_the_default_store_reports_it() {
    for arguments in
        [&["migrate"][..], &["enqueue", "mail", "1"], &["work", "mail", "--exec", "true", "--drain"]]
    {
        let program = Program::on_sqlite();
        let ran = run(program.bare(arguments)).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert_eq!(ran.stderr.matches("created the default store").count(), 1, "{arguments:?}: {ran:?}");
    }
}

#[tokio::test]
async fn nothing_is_reported_if_a_store_is_named_or_none_is_created() {
    let program = Program::on_sqlite();
    let named = program.run(&["start", "mail"]).await;
    assert_eq!((named.code, named.stderr.as_str()), (0, ""), "{named:?}");
    let named = run(program.bare(&["start", "mail", "--store", "sqlite:other.db"])).await;
    assert_eq!((named.code, named.stderr.as_str()), (0, ""), "{named:?}");
    let query = run(program.bare(&["jobs"])).await;
    assert_eq!(query.code, 4, "{query:?}");
    let invalid = run(program.bare(&["start", "mail", "no json"])).await;
    assert_eq!(invalid.code, 2, "{invalid:?}");
    for ran in [query, invalid] {
        assert!(ran.stderr.starts_with("error: ") && ran.stderr.lines().count() == 1, "{ran:?}");
    }
    assert!(!program.directory().join("windlass.db").exists());
}
