//! Calls that must fail: with the right exit code, a one-line error and nothing written.

use crate::program::{Program, Ran, run};

const UNKNOWN: &str = "019a81b2-5f0e-7c55-9d1e-0d3f6a1d7c11";

#[tokio::test]
async fn invalid_calls_fail_with_one_line() {
    let program = Program::on_sqlite();
    program.ok(&["start", "mail", "--key", "k"]).await;
    let cases: [(&[&str], i32, &str); 18] = [
        (&["start", "mail", "hello"], 2, "the input is not valid JSON"),
        (&["start", "mail", "{\"a\": }"], 2, "the input is not valid JSON"),
        (&["enqueue", "mail", "1", "oops"], 2, "the payload is not valid JSON"),
        (&["complete", UNKNOWN, "oops"], 2, "the output is not valid JSON"),
        (&["start", "mail", "--blocked-by", UNKNOWN], 3, "was not found: start it first"),
        (&["wait", "not-an-id"], 2, "invalid id `not-an-id`"),
        (&["wait", UNKNOWN], 3, "not found: it may have expired"),
        (&["cancel", "--type", "mail", "other"], 3, "no chain of type `mail` has the key `other`"),
        (&["jobs", UNKNOWN], 3, "not found: it may have expired"),
        (&["jobs", "x"], 2, "invalid id `x`: pass the id of a chain or job, or a key with --type TYPE"),
        (&["jobs", "postgres://ada:s3cret@host/db"], 2, "invalid id `postgres://ada:***@host/db`"),
        (&["jobs", "--type", "mail", "other"], 3, "no chain of type `mail` has the key `other`"),
        (&["jobs", "--store", "mysql://h/d"], 2, "unknown store scheme `mysql:`"),
        (&["jobs", "--store", "memory:"], 2, "works only for demo and bench"),
        (&["jobs", "--notifier", "carrier-pigeon"], 2, "--notifier: unknown scheme `carrier-pigeon`"),
        (&["jobs", "--store", "sqlite:"], 2, "has no path"),
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
async fn invalid_arguments_fail_with_one_line() {
    let program = Program::on_sqlite();
    let cases: [(&[&str], &str); 13] = [
        (&["start"], "see `windlass help start`"),
        (&["start", ""], "the name is empty"),
        (&["start", "mail", "--priority", "1000"], "1000 is not in -128..=127"),
        (&["start", "mail", "--max-attempts", "0"], "0 is not in 1.."),
        (&["start", "mail", "--delay", "soon"], "invalid duration `soon`: use a form like"),
        (&["start", "mail", "--at", "soon"], "invalid time `soon`: use RFC 3339 in UTC, like"),
        (&["start", "mail", "--blocked-by", "x"], "invalid id `x`: use a UUID like"),
        (&["work", "mail"], "--exec <COMMAND>; see `windlass help work`"),
        (&["work", "mail", "--exec", " "], "the command is empty: name the command to run"),
        (&["jobs", "--status", "odd"], "scheduled, failing"),
        (&["start", "mail", "--at", "postgres://ada:s3cret@host/db"], "postgres://ada:***@host/db"),
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
    assert!(!program.directory().join("jobs.db").exists(), "nothing was written");
}

#[tokio::test]
async fn a_payload_above_the_limit_is_rejected() {
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
    assert!(!program.directory().join("jobs.db").exists(), "nothing was written");
}

#[tokio::test]
async fn queries_do_not_create_a_store() {
    let program = Program::on_sqlite();
    for arguments in [&["jobs"][..], &["stats"], &["wait", UNKNOWN], &["pause", "mail"]] {
        let ran = program.run(arguments).await;
        assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
        assert!(ran.stderr.contains("the store file `jobs.db` does not exist"), "{ran:?}");
    }
    let status = program.run(&["migrate", "--status"]).await;
    assert_eq!((status.code, status.stderr.as_str()), (1, ""), "{status:?}");
    assert_eq!(
        status.stdout,
        "the store file `jobs.db` does not exist: run `windlass migrate` or `windlass start` to create it\n"
    );
    assert!(!program.directory().join("jobs.db").exists());
    let ran = program.run(&["start", "mail", "not json"]).await;
    assert_eq!(ran.code, 2);
    assert!(!program.directory().join("jobs.db").exists(), "an invalid start creates no file");
}

#[tokio::test]
async fn errors_about_an_unreachable_store_hide_the_password() {
    let program = Program::on_sqlite();
    for url in ["postgres://ada:s3cret@127.0.0.1:1/db", "redis://:s3cret@127.0.0.1:1/"] {
        let ran = run(program.bare(&["jobs", "--store", url, "-vv"])).await;
        assert_unreachable(&ran);
        let is_named = ran.stderr.contains("cannot be reached at 127.0.0.1:1/db: ");
        assert!(is_named || url.starts_with("redis:"), "{ran:?}");
        let mut by_environment = program.bare(&["start", "mail"]);
        by_environment.env("WINDLASS_STORE", url);
        assert_unreachable(&run(by_environment).await);
    }
}

#[tokio::test]
async fn an_unreachable_notifier_is_an_error_and_creates_no_store() {
    let program = Program::on_sqlite();
    for scheme in ["postgres", "redis", "nats"] {
        let url = format!("{scheme}://ada:s3cret@127.0.0.1:1/");
        let ran = program.run(&["start", "mail", "--notifier", &url]).await;
        assert_unreachable(&ran);
        assert!(ran.stderr.starts_with("error: --notifier: ") && ran.stderr.lines().count() == 1, "{ran:?}");
    }
    assert!(!program.directory().join("jobs.db").exists(), "nothing was written");
}

#[tokio::test]
async fn sources_are_printed_once() {
    let program = Program::on_sqlite();
    std::fs::write(program.directory().join("jobs.db"), "not a database, but long enough to be read as one")
        .unwrap();
    let ran = program.run(&["jobs"]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
    assert_eq!(ran.stderr.matches("`jobs.db`: file is not a database").count(), 1, "{ran:?}");
    let ran = program.run(&["start", "mail", "--store", "sqlite:no/such/directory/jobs.db"]).await;
    assert_eq!((ran.code, ran.stderr.lines().count()), (4, 1), "{ran:?}");
    assert_eq!(ran.stderr.matches("unable to open").count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("`no/such/directory/jobs.db`: unable to open"), "{ran:?}");
}

fn assert_unreachable(ran: &Ran) {
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.stderr.lines().last().unwrap_or_default().starts_with("error: "), "{ran:?}");
    assert!(!ran.stderr.contains("s3cret") && !ran.stdout.contains("s3cret"), "{ran:?}");
}
