//! Checks the suite: it catches each store that is broken on purpose.

use std::collections::BTreeSet;

use windlass_conformance::{Fixture, Subject, race, run_cases};
use windlass_sqlite::known_bad::KnownBad;

use crate::File;
use crate::atomic::{applied_before_cut, applied_before_error};
use crate::fixture::Sqlite;

/// Asserts that each of these cases fails on the broken store.
async fn check(known_bad: KnownBad, cases: &[&str]) {
    let report = run_cases(&Sqlite { known_bad: Some(known_bad) }, cases).await;
    let caught: Vec<_> = report.failed().map(|(case, _)| case.id).collect();
    assert_eq!(caught, cases, "{known_bad:?} is not caught by each of these cases: {report}");
}

/// Asserts that the broken store loses the race.
async fn loses<F: Future<Output = ()> + Send + 'static>(known_bad: KnownBad, race: impl Fn(Subject) -> F) {
    let subject = Sqlite { known_bad: Some(known_bad) }.open().await;
    assert!(tokio::spawn(race(subject)).await.is_err(), "{known_bad:?} does not lose the race");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_ignores_the_fence_is_caught() {
    let cases = ["renew.lost.taken_over", "stale.taken_over", "stale.same_worker", "stale.future_fence"];
    check(KnownBad::FenceIgnored, &cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_reads_keys_too_early_is_caught() {
    check(KnownBad::KeyNotUnique, &["race.key"]).await;
    loses(KnownBad::KeyNotUnique, race::one_key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_reads_blockers_too_early_is_caught() {
    loses(KnownBad::RowsReadEarly, race::attached_while_closing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_reads_attempts_too_early_is_caught() {
    loses(KnownBad::RowsReadEarly, race::continued_twice).await;
    loses(KnownBad::RowsReadEarly, race::deleted_while_running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_reads_due_jobs_too_early_is_caught() {
    loses(KnownBad::TakenTwice, race::sixteen_workers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_reads_waits_too_early_is_caught() {
    check(KnownBad::RowsReadEarly, &["race.fan_in"]).await;
    loses(KnownBad::RowsReadEarly, race::blockers_end_at_once).await;
    loses(KnownBad::RowsReadEarly, race::batches_in_opposite_order).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_half_applies_a_refused_settlement_is_caught() {
    check(KnownBad::SettleHalfApplied, &["chain.carried.refused"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_commits_a_batch_item_by_item_is_caught() {
    let options = |file: &File| file.options().known_bad(KnownBad::BatchHalfApplied);
    assert_eq!(applied_before_error(options).await, 2);
    // Where a batch waits depends on the scheduling, so one pass may miss a moment between two items.
    let mut applied = BTreeSet::new();
    for _ in 0..50 {
        applied.extend(applied_before_cut(options, false).await);
        if applied.len() == 4 {
            break;
        }
    }
    assert_eq!(applied.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}
