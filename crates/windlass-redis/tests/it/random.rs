//! The store agrees with the model about random commands.

use windlass_conformance::random;

use crate::fixture::Redis;

#[tokio::test(flavor = "multi_thread")]
async fn random_commands_get_the_models_replies() {
    let seeds = if std::env::var_os("WINDLASS_FULL").is_some() { 500 } else { 10 };
    for seed in 0..seeds {
        let tally = random(&Redis, seed, 400).await;
        assert_eq!(tally.commands, 400);
    }
}
