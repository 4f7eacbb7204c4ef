use std::{future::pending, time::Duration};

use windlass_testkit::wait_until;

#[tokio::test(start_paused = true)]
async fn it_checks_until_the_condition_holds() {
    let mut checks = 0;
    wait_until("three checks", Duration::from_secs(1), async || {
        checks += 1;
        checks == 3
    })
    .await;
    assert_eq!(checks, 3);
}

#[tokio::test(start_paused = true)]
async fn it_checks_once_even_with_a_zero_timeout() {
    wait_until("now", Duration::ZERO, async || true).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "timed out after 5s waiting until pigs fly")]
async fn it_panics_with_what_it_waited_for() {
    wait_until("pigs fly", Duration::from_secs(5), async || false).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "waiting until an answer comes")]
async fn a_predicate_that_hangs_times_out() {
    wait_until("an answer comes", Duration::from_secs(5), async || pending().await).await;
}
