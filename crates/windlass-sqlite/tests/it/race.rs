//! Races at full size, between two stores on one file.

use windlass_conformance::{Fixture, Subject, race};

use crate::fixture::Sqlite;

async fn subject() -> Subject {
    Sqlite::default().open().await
}

#[tokio::test(flavor = "multi_thread")]
async fn blockers_that_end_at_once_leave_nobody_blocked() {
    race::blockers_end_at_once(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_to_a_chain_that_closes_strands_nobody() {
    race::attached_while_closing(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_by_many_producers_is_one_chain() {
    race::one_key(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_that_comes_twice_is_one() {
    race::continued_twice(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_workers_take_each_job_once() {
    race::sixteen_workers(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_is_deleted_whole() {
    race::deleted_while_running(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_opposite_order_both_go_through() {
    race::batches_in_opposite_order(subject().await).await;
}
