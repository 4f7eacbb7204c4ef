//! Compares the store's replies to random commands with the reference model's.

use windlass_conformance::{Tally, random};
use windlass_redis::CAPABILITIES;

use crate::fixture::Redis;

/// Few enough that no list exceeds the number of rows one page scans. The model scans more, so replies would differ.
const COMMANDS_PER_SEED: usize = 2_500;

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_get_the_models_replies() {
    let commands = if std::env::var_os("WINDLASS_FULL").is_some() { 100_000 } else { 10_000 };
    let mut tally = Tally::default();
    for seed in 0..commands / COMMANDS_PER_SEED {
        tally.add(&random(&Redis, seed as u64, COMMANDS_PER_SEED).await);
    }
    println!("{tally}");
    tally.assert_thorough(CAPABILITIES);
}
