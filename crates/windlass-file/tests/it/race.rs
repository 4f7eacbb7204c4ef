//! Races at full size, between two stores on one folder.

use windlass_conformance::{Fixture, Subject, race};

use crate::fixture::Folder;

async fn subject() -> Subject {
    Folder.open().await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrently_completed_blockers_leave_no_job_blocked() {
    race::blockers_end_at_once(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attaching_to_a_closing_chain_strands_no_job() {
    race::attached_while_closing(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_producers_of_one_key_create_one_chain() {
    race::one_key(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_continuation_settled_twice_continues_once() {
    race::continued_twice(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_workers_acquire_each_job_once() {
    race::sixteen_workers(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_deleted_completely() {
    race::deleted_while_running(subject().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_opposite_order_are_both_applied() {
    race::batches_in_opposite_order(subject().await).await;
}
