//! How soon schedules start, what they cost, and how fast many start at once.

use std::sync::Arc;

use windlass_redis::{Options, RedisStore};
use windlass_testkit::RedisServer;
use windlass_testkit::schedules::{check_idle_calls, check_lateness, check_many_at_once};

async fn open() -> (RedisServer, Arc<RedisStore>) {
    let server = RedisServer::start().await;
    let store = RedisStore::open(&server.url(), Options::default()).await.unwrap();
    (server, Arc::new(store))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_starts_within_a_tenth_of_a_second() {
    check_lateness("Redis", open).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_that_are_not_due_cost_less_than_a_call_a_second() {
    let (_server, store) = open().await;
    check_idle_calls("Redis", store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_schedules_start_at_once_without_delaying_an_acquire() {
    check_many_at_once("Redis", open).await;
}
