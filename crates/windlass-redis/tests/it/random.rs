//! The store agrees with the model about random commands.

use windlass_conformance::{Tally, random};
use windlass_redis::CAPABILITIES;

use crate::fixture::Redis;

const SEEDS: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_get_the_models_replies() {
    let commands = if std::env::var_os("WINDLASS_FULL").is_some() { 100_000 } else { 10_000 };
    let mut tally = Tally::default();
    for seed in 0..SEEDS {
        tally.add(&random(&Redis, seed, commands / SEEDS as usize).await);
    }
    println!("{tally}");
    tally.assert_thorough(CAPABILITIES);
}
