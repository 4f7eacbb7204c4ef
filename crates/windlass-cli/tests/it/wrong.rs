//! Calls that must fail: with their exit code, one line, and nothing written.

use crate::program::{Program, Ran, run};

const NOBODY: &str = "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11";

#[tokio::test]
async fn wrong_calls_say_what_and_how_to_cure_it() {
    let program = Program::on_sqlite();
    program.ok(&["start", "mail", "--key", "k"]).await;
    let cases: [(&[&str], i32, &str); 13] = [
        (&["start", "mail", "hello"], 2, "the input is not JSON"),
        (&["start", "mail", "{\"a\": }"], 2, "the input is not JSON"),
        (&["enqueue", "mail", "1", "oops"], 2, "the payload is not JSON"),
        (&["complete", NOBODY, "oops"], 2, "the output is not JSON"),
        (&["start", "mail", "--blocked-by", NOBODY], 2, "is not stored: start it first"),
        (&["wait", "not-an-id"], 2, "is not an id"),
        (&["wait", NOBODY], 3, "is not stored"),
        (&["cancel", "--type", "mail", "other"], 3, "no chain of type `mail` has the key `other`"),
        (&["jobs", NOBODY], 3, "is not stored"),
        (&["jobs", "--store", "mysql://h/d"], 2, "`mysql:` is no store"),
        (&["jobs", "--store", "memory:"], 2, "is gone with this process"),
        (&["jobs", "--notifier", "carrier-pigeon"], 2, "is no notifier"),
        (&["wait", "--type", "mail", "k", "--timeout", "50ms"], 5, "still open after 50ms"),
    ];
    for (arguments, code, what) in cases {
        let ran = program.run(arguments).await;
        assert_eq!(ran.code, code, "windlass {arguments:?}: {ran:?}");
        assert!(
            ran.stderr.starts_with("error: ") && ran.stderr.contains(what),
            "windlass {arguments:?}: {ran:?}"
        );
        assert_eq!(
            (ran.stderr.lines().count(), ran.stdout.as_str()),
            (1, ""),
            "windlass {arguments:?}: {ran:?}"
        );
    }
    assert_eq!(program.json(&["jobs"]).await.len(), 1, "nothing was written");
}

#[tokio::test]
async fn wrong_arguments_are_told_with_the_usage() {
    let program = Program::on_sqlite();
    let cases: [&[&str]; 8] = [
        &["start"],
        &["start", ""],
        &["start", "mail", "--priority", "1000"],
        &["start", "mail", "--max-attempts", "0"],
        &["start", "mail", "--delay", "soon"],
        &["work", "mail"],
        &["jobs", "--status", "odd"],
        &["no-such-command"],
    ];
    for arguments in cases {
        let ran = program.run(arguments).await;
        assert_eq!(ran.code, 2, "windlass {arguments:?}: {ran:?}");
        assert!(ran.stderr.starts_with("error: "), "windlass {arguments:?}: {ran:?}");
    }
    assert!(!program.folder().join("jobs.db").exists(), "nothing was written");
}

#[tokio::test]
async fn a_store_that_is_not_there_is_not_made_by_looking() {
    let program = Program::on_sqlite();
    for arguments in [&["jobs"][..], &["stats"], &["wait", NOBODY], &["pause", "mail"]] {
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
        assert!(ran.stderr.contains("there is no file `jobs.db`"), "{ran:?}");
    }
    assert!(!program.folder().join("jobs.db").exists());
    let ran = program.run(&["start", "mail", "not json"]).await;
    assert_eq!(ran.code, 2);
    assert!(!program.folder().join("jobs.db").exists(), "a wrong start makes no store");
}

#[tokio::test]
async fn an_unreachable_store_is_told_without_its_password() {
    let program = Program::on_sqlite();
    for url in ["postgres://ada:s3cret@127.0.0.1:1/db", "redis://:s3cret@127.0.0.1:1/"] {
        let ran = run(program.bare(&["jobs", "--store", url, "-vv"])).await;
        assert_unreachable(&ran);
        let mut by_environment = program.bare(&["start", "mail"]);
        by_environment.env("WINDLASS_STORE", url);
        assert_unreachable(&run(by_environment).await);
    }
}

fn assert_unreachable(ran: &Ran) {
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.lines().last().unwrap_or_default().starts_with("error: "), "{ran:?}");
    assert!(!ran.stderr.contains("s3cret") && !ran.stdout.contains("s3cret"), "{ran:?}");
}
