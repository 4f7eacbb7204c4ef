//! Chains with keys that are created in one command.

use sqlx::Connection;
use windlass_conformance::{complete, json};
use windlass_core::command::{Create, Created, Delete, Existing, NewChain};
use windlass_core::{ChainId, KeyHold, Store, Transactional};

use crate::Database;

/// Returns each item's chain and whether it is new.
fn reported(created: &[Created]) -> Vec<(ChainId, bool)> {
    let reported = |created: &Created| match created {
        Created::New { job, .. } => (job.chain, true),
        Created::Existing(Existing { chain, .. }) => (*chain, false),
        other => panic!("{other:?}"),
    };
    created.iter().map(reported).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_every_kind_share_a_command() {
    let database = Database::new().await;
    let s = database.subject();
    let open = s.start("a").key("open").await;
    let cached = s.start("a").key("cached").hold(KeyHold::Any).await;
    s.start("a").key("free").await;
    for attempt in s.acquire("a", 3).await {
        if attempt.job.chain != open {
            s.settle(&attempt, complete("7")).await;
        }
    }
    let new = ["new", "open", "cached", "free"].map(|key| s.start("a").key(key).build());
    let chains: Vec<NewChain> = new.into_iter().chain([s.start("a").build()]).collect();
    let ids: Vec<_> = chains.iter().map(|chain| chain.id).collect();
    for _ in 0..2 {
        // Run twice: repeating the command after a lost reply must return the same.
        let created = s.create(chains.clone()).await;
        let expected = [(ids[0], true), (open, false), (cached, false), (ids[3], true), (ids[4], true)];
        assert_eq!(reported(&created), expected);
        let Created::Existing(Existing { output, .. }) = &created[2] else { panic!("{created:?}") };
        assert_eq!(output.as_ref(), Some(&json("7")));
    }
    let stored = "select chain from {}.job order by seq desc limit 3";
    let stored: Vec<sqlx::types::Uuid> =
        sqlx::query_scalar(database.sql(stored)).fetch_all(&database.pool).await.unwrap();
    assert_eq!(stored, [ids[4], ids[3], ids[0]].map(|id| *id.as_uuid()), "in their order");
    let dangling = "select count(*) from {}.key k left join {}.chain c on c.id = k.chain where c.key is distinct from k.key";
    let dangling: i64 = sqlx::query_scalar(database.sql(dangling)).fetch_one(&database.pool).await.unwrap();
    assert_eq!(dangling, 0);
}

/// A transaction whose snapshot contains a chain that was deleted since gets one answer per item.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_an_old_snapshot_gets_one_reply_per_item() {
    let database = Database::new().await;
    let s = database.subject();
    let open = s.start("a").key("open").await;
    s.start("a").key("free").await;
    for attempt in s.acquire("a", 2).await.into_iter().filter(|attempt| attempt.job.chain != open) {
        s.settle(&attempt, complete("7")).await;
    }
    let mut connection = database.pool.acquire().await.unwrap();
    let mut tx = connection.begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::raw_sql(database.sql("select count(*) from {}.chain")).execute(&mut *tx).await.unwrap();
    let gone = Delete { chains: vec![open.into()], cascade: true, seen: None };
    database.store.delete(gone).await.unwrap();
    let chains = ["open", "free"].map(|key| s.start("a").key(key).build()).to_vec();
    let created = database.store.run_in((&mut *tx).into(), Create { chains }).await;
    // PostgreSQL may refuse such a transaction. If it does not, the result must be complete.
    if let Ok(reply) = created {
        assert_eq!(reply.chains.len(), 2);
        tx.commit().await.unwrap();
    }
    let twice = "select count(*) from {}.key k left join {}.chain c on c.id = k.chain where c.id is null";
    let twice: i64 = sqlx::query_scalar(database.sql(twice)).fetch_one(&database.pool).await.unwrap();
    assert_eq!(twice, 0, "a key points at a chain that is not stored");
}
