//! Calls that must fail: with the right exit code, a one-line error and nothing written.

use crate::program::{Program, Ran, run};

const NOBODY: &str = "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11";

#[tokio::test]
async fn wrong_calls_say_what_and_how_to_cure_it() {
    let program = Program::on_sqlite();
    program.ok(&["start", "mail", "--key", "k"]).await;
    let cases: [(&[&str], i32, &str); 15] = [
        (&["start", "mail", "hello"], 2, "the input is not JSON"),
        (&["start", "mail", "{\"a\": }"], 2, "the input is not JSON"),
        (&["enqueue", "mail", "1", "oops"], 2, "the payload is not JSON"),
        (&["complete", NOBODY, "oops"], 2, "the output is not JSON"),
        (&["start", "mail", "--blocked-by", NOBODY], 3, "is not stored: start it first"),
        (&["wait", "not-an-id"], 2, "is not an id"),
        (&["wait", NOBODY], 3, "is not stored"),
        (&["cancel", "--type", "mail", "other"], 3, "no chain of type `mail` has the key `other`"),
        (&["jobs", NOBODY], 3, "is not stored"),
        (&["jobs", "--store", "mysql://h/d"], 2, "`mysql:` is no store"),
        (&["jobs", "--store", "memory:"], 2, "is gone with this process"),
        (&["jobs", "--notifier", "carrier-pigeon"], 2, "--notifier: `carrier-pigeon` is no notifier"),
        (&["jobs", "--store", "sqlite:"], 2, "names no file"),
        (&["queues", "odd"], 3, "no job of type `odd` is stored"),
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
async fn wrong_arguments_are_told_in_one_line() {
    let program = Program::on_sqlite();
    let cases: [(&[&str], &str); 14] = [
        (&["start"], "see `windlass help start`"),
        (&["start", ""], "the name is empty"),
        (&["start", "mail", "--priority", "1000"], "1000 is not in -128..=127"),
        (&["start", "mail", "--max-attempts", "0"], "0 is not in 1.."),
        (&["start", "mail", "--delay", "soon"], "`soon` is no duration: write it like"),
        (&["start", "mail", "--at", "soon"], "`soon` is no time: write it in UTC like"),
        (&["start", "mail", "--blocked-by", "x"], "`x` is not an id: one looks like"),
        (&["jobs", "x"], "`x` is not an id: one looks like"),
        (&["work", "mail"], "--exec <COMMAND>; see `windlass help work`"),
        (&["work", "mail", "--exec", " "], "it is empty: give what the shell is to run"),
        (&["jobs", "--status", "odd"], "scheduled, failing"),
        (&["jobs", "postgres://ada:s3cret@host/db"], "postgres://ada:***@host/db"),
        (&["docter"], "similar subcommand exists: 'doctor'"),
        (&["no-such-command"], "see `windlass help`"),
    ];
    for (arguments, what) in cases {
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "windlass {arguments:?}: {ran:?}");
        assert!(
            ran.stderr.starts_with("error: ")
                && ran.stderr.contains(what)
                && ran.stderr.contains("; see `windlass help"),
            "windlass {arguments:?}: {ran:?}"
        );
    }
    assert!(!program.folder().join("jobs.db").exists(), "nothing was written");
}

#[tokio::test]
async fn an_input_that_is_too_large_is_told_with_the_limit() {
    let program = Program::on_sqlite();
    let large = format!("\"{}\"", "x".repeat(4 * 1024 * 1024));
    for (arguments, what) in
        [(&["start", "mail", "-"][..], "input"), (&["enqueue", "mail", "1", "-"], "payload")]
    {
        let ran = program.run_with(arguments, &large).await;
        assert_eq!((ran.code, ran.stderr.lines().count()), (2, 1), "{ran:?}");
        assert!(
            ran.stderr.contains(&format!("the {what} is larger than 4 MiB: store it elsewhere")),
            "{ran:?}"
        );
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
    let status = program.run(&["migrate", "--status"]).await;
    assert_eq!((status.code, status.stderr.as_str()), (1, ""), "{status:?}");
    assert!(status.stdout.starts_with("there is no store here yet"), "{status:?}");
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

#[tokio::test]
async fn a_notifier_that_cannot_be_reached_is_told_and_leaves_no_store() {
    let program = Program::on_sqlite();
    for scheme in ["postgres", "redis", "nats"] {
        let url = format!("{scheme}://ada:s3cret@127.0.0.1:1/");
        let ran = program.run(&["start", "mail", "--notifier", &url]).await;
        assert_unreachable(&ran);
        assert!(ran.stderr.starts_with("error: --notifier: ") && ran.stderr.lines().count() == 1, "{ran:?}");
    }
    assert!(!program.folder().join("jobs.db").exists(), "nothing was written");
}

#[tokio::test]
async fn a_file_that_is_no_store_is_told_once() {
    let program = Program::on_sqlite();
    std::fs::write(program.folder().join("jobs.db"), "no database, and long enough to be seen as none")
        .unwrap();
    let ran = program.run(&["jobs"]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
    assert_eq!(ran.stderr.matches("not a database").count(), 1, "{ran:?}");
    let ran = program.run(&["start", "mail", "--store", "sqlite:no/such/folder/jobs.db"]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
    assert_eq!(ran.stderr.matches("unable to open").count(), 1, "{ran:?}");
}

fn assert_unreachable(ran: &Ran) {
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.lines().last().unwrap_or_default().starts_with("error: "), "{ran:?}");
    assert!(!ran.stderr.contains("s3cret") && !ran.stdout.contains("s3cret"), "{ran:?}");
}
