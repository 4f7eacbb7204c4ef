//! Compares the store's replies to random commands with the reference model's. Some run in transactions that are
//! rolled back.

use windlass_conformance::{Tally, random};
use windlass_core::Capabilities;

use crate::postgres;

const SEEDS: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_get_the_models_replies() {
    let commands = if std::env::var_os("WINDLASS_FULL").is_some() { 100_000 } else { 10_000 };
    let mut tally = Tally::default();
    for seed in 0..SEEDS {
        tally.add(&random(&postgres(), seed, commands / SEEDS as usize).await);
    }
    println!("{tally}");
    tally.assert_thorough(Capabilities::all());
    tally.assert_rolled_back();
}
