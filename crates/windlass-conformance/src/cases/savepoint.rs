//! Savepoints.

use super::prelude::*;
use super::transaction::{create, is_stored};

pub(super) const CASES: &[Case] = &[
    case!(
        "savepoint.release",
        "Releasing a savepoint keeps what was written since.",
        ["SA-SP01"],
        [Transactions],
        release_savepoint
    ),
    case!(
        "savepoint.rollback",
        "A rollback to a savepoint discards later writes and keeps earlier ones.",
        ["SA-SP02", "SA-SP03"],
        [Transactions],
        rollback_to
    ),
    case!(
        "savepoint.nested",
        "Savepoints nest, and each rollback returns to its own savepoint.",
        ["SA-SP04"],
        [Transactions],
        nested
    ),
    case!(
        "savepoint.released_then_rolled_back",
        "An outer rollback also discards the writes of a released savepoint.",
        ["SA-SP04"],
        [Transactions],
        released_then_rolled_back
    ),
    case!(
        "savepoint.none",
        "A rollback without a savepoint is invalid.",
        ["contract"],
        [Transactions],
        no_savepoint
    ),
];

async fn release_savepoint(s: Subject) {
    let (one, two) = (s.start("a").build(), s.start("a").build());
    let mut tx = s.begin().await;
    create(&mut tx, one.clone()).await;
    tx.savepoint().await.unwrap();
    create(&mut tx, two.clone()).await;
    tx.release().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(chains_of(&s.acquire("a", 10).await), [one.id, two.id]);
}

async fn rollback_to(s: Subject) {
    let [one, two, three] = [(); 3].map(|()| s.start("a").key("k").build());
    let two = NewChain { key: None, ..two };
    let three = NewChain { key: None, ..three };
    let mut tx = s.begin().await;
    create(&mut tx, one.clone()).await;
    tx.savepoint().await.unwrap();
    create(&mut tx, two.clone()).await;
    tx.rollback_to().await.unwrap();
    assert!(
        is_stored(&mut tx, one.id).await && !is_stored(&mut tx, two.id).await,
        "only the second is forgotten"
    );
    create(&mut tx, three.clone()).await;
    tx.commit().await.unwrap();
    assert_eq!(s.find_chain(two.id).await, None);
    assert_eq!(chains_of(&s.acquire("a", 10).await), [one.id, three.id]);
    assert_eq!(s.by_key("a", "k").await, Some(one.id));
}

async fn nested(s: Subject) {
    let chains: Vec<_> = (0..4).map(|_| s.start("a").build()).collect();
    let mut tx = s.begin().await;
    create(&mut tx, chains[0].clone()).await;
    tx.savepoint().await.unwrap();
    create(&mut tx, chains[1].clone()).await;
    tx.savepoint().await.unwrap();
    create(&mut tx, chains[2].clone()).await;
    tx.rollback_to().await.unwrap();
    create(&mut tx, chains[3].clone()).await;
    tx.release().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(chains_of(&s.acquire("a", 10).await), [chains[0].id, chains[1].id, chains[3].id]);
}

async fn released_then_rolled_back(s: Subject) {
    let chains: Vec<_> = (0..3).map(|_| s.start("a").build()).collect();
    let mut tx = s.begin().await;
    create(&mut tx, chains[0].clone()).await;
    tx.savepoint().await.unwrap();
    tx.savepoint().await.unwrap();
    create(&mut tx, chains[1].clone()).await;
    tx.release().await.unwrap();
    create(&mut tx, chains[2].clone()).await;
    tx.rollback_to().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(chains_of(&s.acquire("a", 10).await), [chains[0].id]);
}

async fn no_savepoint(s: Subject) {
    let mut tx = s.begin().await;
    create(&mut tx, s.start("a").build()).await;
    assert_eq!(tx.rollback_to().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(tx.release().await.unwrap_err().kind(), ErrorKind::Invalid);
    tx.commit().await.unwrap();
    s.acquire_one("a").await;
}
