//! `docs/conformance.md` is generated. `WINDLASS_UPDATE=1 cargo test -p windlass` rewrites it.

use std::path::Path;
use std::{env, fs};

use windlass::store::Capabilities;
use windlass_conformance::{EXCLUDED, QUEUE_EXCLUDED, behaviors, coverage, table};

#[test]
fn the_table_in_the_docs_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/conformance.md");
    let expected = page();
    if env::var_os("WINDLASS_UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let actual = fs::read_to_string(&path).unwrap();
    assert!(
        actual == expected,
        "docs/conformance.md is outdated: run `WINDLASS_UPDATE=1 cargo test -p windlass`"
    );
}

fn page() -> String {
    let stores = [
        ("memory", Capabilities::all()),
        ("SQLite", Capabilities::all()),
        ("file", Capabilities::all()),
        ("PostgreSQL", Capabilities::all()),
        ("Redis", windlass_redis::CAPABILITIES),
    ];
    let mut page = String::from(
        "# Conformance\n\n\
         Generated from the cases of `windlass-conformance`. `cargo xtask test` runs every case on each store, except cases that\n\
         need a capability the store lacks. To check your own store, see the crate's documentation.\n\n\
         Sources: *never n* is the n-th sentence of \"Never\" in [ARCHITECTURE.md](../ARCHITECTURE.md). *contract* is the\n\
         documentation of `Store`, *design n* the n-th [design note](design/README.md), and *words* the definitions of terms\n\
         in [the guide](guide.md). *client* is a behavior that the client relies on, and *issue* a requirement of this\n\
         project. The others are cases and defects of the two designs that Windlass comes from: SA- and NA- are test cases\n\
         of Queuert's state and notify adapters, A are defects of Queuert, and B of @platformatic/job-queue.\n\n",
    );
    for (store, capabilities) in stores {
        let (run, all) = coverage(capabilities);
        page.push_str(&format!("- {store}: {run} of {all} cases\n"));
    }
    page.push_str(&table(&stores));
    page.push_str(&queue());
    page.push_str("\n## Cases of the sources without a counterpart\n\n| case | why |\n|---|---|\n");
    for (case, reason) in EXCLUDED.iter().chain(QUEUE_EXCLUDED) {
        page.push_str(&format!("| {case} | {reason} |\n"));
    }
    page
}

/// Returns the table of queue cases, which hold on every store. There is a case for each test of the library that the
/// queue is modeled on.
fn queue() -> String {
    let mut text = String::from(
        "\n## The queue\n\n\
         What clients, consumers and reapers do, on every store. Sources beside those above are the titles of the tests of\n\
         @platformatic/job-queue by group (Q, D, RR, RE, LE, LF, MQ, E), its table of storage tests (ST-), and the features\n\
         that it lacks (*gaps*).\n\n\
         | case | rule | sources |\n|---|---|---|\n",
    );
    for case in behaviors().iter().filter(|case| case.id.starts_with("queue.")) {
        text.push_str(&format!("| `{}` | {} | {} |\n", case.id, case.name, case.sources.join(", ")));
    }
    text
}
