//! The conformance suite catches stores that break the contract on purpose.

use std::sync::Arc;

use windlass_conformance::{Fixture, Subject, run_cases};
use windlass_core::{BoxFuture, Capabilities};
use windlass_redis::CAPABILITIES;
use windlass_redis::known_bad::{KnownBad, open};

use crate::damage::settles_by_half;
use crate::database::Database;
use crate::fixture::{Redis, fresh};

struct Bad(KnownBad);

impl Fixture for Bad {
    fn name(&self) -> &str {
        "known-bad redis"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(async {
            let (server, clock, options) = fresh().await;
            let store = open(&server.url(), options.clone(), self.0).await.unwrap();
            let other = open(&server.url(), options, self.0).await.unwrap();
            Subject::new(Arc::new(store), Arc::new(other), clock).keeping(server)
        })
    }
}

/// Checks that each of these cases fails on the faulty store and passes on the correct one.
async fn check(known_bad: KnownBad, cases: &[&str]) {
    let report = run_cases(&Bad(known_bad), cases).await;
    let caught_by: Vec<_> = report.failed().map(|(case, _)| case.id).collect();
    assert_eq!(caught_by, cases, "{known_bad:?} was not caught\n{report}");
    let report = run_cases(&Redis, cases).await;
    assert!(report.is_conformant(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ignored_fence_is_caught() {
    let cases = ["renew.lost.taken_over", "stale.taken_over", "stale.same_worker", "repeat.settle.later"];
    check(KnownBad::FenceIgnored, &cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_taken_twice_is_caught() {
    check(KnownBad::KeyNotUnique, &["race.key", "race.keys"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_unblock_is_caught() {
    check(KnownBad::UnblockLost, &["race.fan_in"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partially_applied_settlement_is_caught() {
    check(KnownBad::SettleHalfApplied, &["chain.carried.refused"]).await;
}

// Conformance cases cannot damage stored data. `damage.rs` shows that the correct store passes this check.
#[tokio::test(flavor = "multi_thread")]
async fn a_partially_written_batch_is_caught() {
    let (server, clock, options) = fresh().await;
    let mut database = Database::open(&server).await;
    let store = Arc::new(open(&server.url(), options, KnownBad::BatchHalfWritten).await.unwrap());
    let subject = Subject::new(store.clone(), store, clock);
    assert!(settles_by_half(&subject, &mut database).await);
}
