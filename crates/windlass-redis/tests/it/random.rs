//! The store agrees with the model about random commands.

use windlass_conformance::{Tally, random};
use windlass_redis::CAPABILITIES;

use crate::fixture::Redis;

/// A page of a list looks at a bounded number of rows, and the model at more: no run may have so many.
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
