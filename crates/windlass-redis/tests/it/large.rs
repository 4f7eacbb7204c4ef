//! Large payloads.

use windlass_conformance::{complete, json};
use windlass_core::command::{Count, Create, Types};

use crate::database::subject;

const MIB: usize = 1024 * 1024;

/// An acquire that returned all due jobs could need gigabytes in the server and the worker.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_returns_at_most_16_mib() {
    let (subject, _) = subject().await;
    let large = json(&format!("\"{}\"", "x".repeat(3 * MIB)));
    for _ in 0..4 {
        let chain = || subject.start("a").payload(large.clone()).build();
        subject.run(Create { chains: vec![chain(), chain()] }).await;
    }
    let mut counts = Vec::new();
    for _ in 0..3 {
        counts.push(subject.acquire("a", 100).await.len());
    }
    assert_eq!(counts, [5, 3, 0]);
    assert_eq!(subject.run(Count { types: Types::All }).await.types[0].running, 8);
}

/// The outputs of blockers count too.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_exceeds_the_limit_alone_is_acquired_alone() {
    let (subject, _) = subject().await;
    let output = format!("\"{}\"", "x".repeat(3 * MIB));
    let mut blockers = Vec::new();
    for _ in 0..6 {
        blockers.push(subject.start("blocker").await);
        subject.work("blocker", complete(&output)).await;
    }
    subject.start("a").await;
    subject.start("a").blocked_by(blockers.clone()).await;
    subject.start("a").await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        let jobs = subject.acquire("a", 100).await;
        taken.push(jobs.iter().map(|acquired| acquired.blockers.len()).collect::<Vec<_>>());
    }
    assert_eq!(taken, [vec![0], vec![6], vec![0], vec![]]);
}
