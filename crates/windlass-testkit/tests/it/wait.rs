use std::{future::pending, time::Duration};

use windlass_testkit::wait_until;

#[tokio::test(start_paused = true)]
async fn it_looks_until_the_condition_holds() {
    let mut looks = 0;
    wait_until("three looks", Duration::from_secs(1), async || {
        looks += 1;
        looks == 3
    })
    .await;
    assert_eq!(looks, 3);
}

#[tokio::test(start_paused = true)]
async fn it_looks_once_even_without_time() {
    wait_until("now", Duration::ZERO, async || true).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "waited for 5s in vain until pigs fly")]
async fn it_panics_with_what_it_waited_for() {
    wait_until("pigs fly", Duration::from_secs(5), async || false).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "in vain until an answer comes")]
async fn a_predicate_that_hangs_is_given_up() {
    wait_until("an answer comes", Duration::from_secs(5), async || pending().await).await;
}
