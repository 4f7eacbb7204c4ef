//! Server restarts, flushed scripts, durability settings, shared servers.

use std::time::Duration;

use windlass_conformance::{json, type_name};
use windlass_core::command::{Create, Created, Durability, GetChains, NewChain, NewJob};
use windlass_core::{ChainId, ErrorKind, Store, Timestamp};
use windlass_redis::{Options, RedisStore};
use windlass_testkit::{RedisServer, shared_redis, wait_until};

use crate::database::Database;
use crate::fixture::connect;

fn chain() -> NewChain {
    NewChain::new(ChainId::new(), NewJob::new(type_name("a"), json("1")))
}

async fn is_stored(store: &RedisStore, id: ChainId) -> bool {
    store.get_chains(GetChains { chains: vec![id.into()] }).await.unwrap().chains[0].is_some()
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    // A private server: flushing scripts would change the round trips that other tests count.
    let server = RedisServer::start().await;
    let store = RedisStore::open(&server.url(), Options::default()).await.unwrap();
    let mut connection = connect(server.url()).await;
    let new = chain();
    for repeated in [false, true] {
        let _: () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.unwrap();
        let reply = store.create(Create { chains: vec![new.clone()] }).await.unwrap();
        assert!(matches!(reply.chains[0], Created::New { repeated: again, .. } if again == repeated));
    }
}

#[tokio::test]
async fn a_store_reconnects_when_its_server_restarts() {
    let mut server =
        RedisServer::builder().arg("--appendonly", "yes").arg("--appendfsync", "always").start().await;
    let store = RedisStore::open(&server.url(), Options::default()).await.unwrap();
    let (first, second) = (chain(), chain());
    let reply = store.create(Create { chains: vec![first.clone()] }).await.unwrap();
    assert_eq!(reply.durability, Durability::Synced);

    server.kill().await;
    let error = store.create(Create { chains: vec![second.clone()] }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart().await;

    // Every command is safe to repeat.
    wait_until("the store has connected again", Duration::from_secs(60), async || {
        store.create(Create { chains: vec![second.clone()] }).await.is_ok()
    })
    .await;
    assert!(is_stored(&store, first.id).await);
    assert!(is_stored(&store, second.id).await);
}

#[tokio::test]
async fn durability_follows_the_server_settings() {
    let server = RedisServer::builder().arg("--appendonly", "yes").start().await;
    let mut connection = connect(server.url()).await;
    let settings = [
        ("CONFIG SET appendfsync always", Durability::Synced),
        ("CONFIG SET appendfsync everysec", Durability::Buffered),
        ("CONFIG SET appendfsync no", Durability::Buffered),
        ("CONFIG SET appendonly no", Durability::Volatile),
        ("CONFIG SET appendonly yes", Durability::Buffered),
        ("CONFIG SET appendfsync always", Durability::Synced),
        // Without permission to query the settings, the store reports the lowest durability.
        ("ACL SETUSER default -config", Durability::Buffered),
        ("ACL SETUSER default -info", Durability::Volatile),
    ];
    for (setting, durability) in settings {
        let words: Vec<_> = setting.split(' ').collect();
        let _: () = redis::cmd(words[0]).arg(&words[1..]).query_async(&mut connection).await.unwrap();
        let store = RedisStore::open(&server.url(), Options::default()).await.unwrap();
        let reply = store.create(Create { chains: vec![chain()] }).await.unwrap();
        assert_eq!(reply.durability, durability, "{setting}");
    }
}

#[tokio::test]
async fn a_callers_connection_is_used() {
    let server = RedisServer::start().await;
    let store = RedisStore::with_connection(connect(server.url()).await, Options::default()).await.unwrap();
    let new = chain();
    let before = Timestamp::now();
    let reply = store.create(Create { chains: vec![new.clone()] }).await.unwrap();
    let after = Timestamp::now();
    assert_eq!(reply.durability, Durability::Volatile);
    // Without a manual clock the store uses the server's clock, which is this machine's.
    let Created::New { job, .. } = reply.chains[0] else { panic!("it is new") };
    assert!(before <= job.due_at && job.due_at <= after, "{before:?} {:?} {after:?}", job.due_at);
}

#[tokio::test]
async fn erasing_a_namespace_leaves_the_others() {
    let (server, neighbor) = (shared_redis().await, shared_redis().await);
    let open = async |namespace: &str| {
        RedisStore::open(&server.url(), Options::default().namespace(namespace)).await.unwrap()
    };
    // The other namespace's name begins with this one's.
    let longer = format!("{}-{}", server.namespace(), neighbor.namespace());
    let (store, other) = (open(server.namespace()).await, open(&longer).await);
    let (own, foreign) = (chain(), chain());
    store.create(Create { chains: vec![own.clone()] }).await.unwrap();
    other.create(Create { chains: vec![foreign.clone()] }).await.unwrap();
    assert!(!is_stored(&store, foreign.id).await);

    store.erase().await.unwrap();
    assert_eq!(Database::open(&server).await.names().await, [""; 0]);
    assert!(!is_stored(&store, own.id).await);
    assert!(is_stored(&other, foreign.id).await);
}

#[tokio::test]
async fn a_batch_is_one_round_trip() {
    let server = shared_redis().await;
    let store =
        RedisStore::open(&server.url(), Options::default().namespace(server.namespace())).await.unwrap();
    let before = store.counters();
    let chains: Vec<_> = std::iter::repeat_with(chain).take(1_000).collect();
    store.create(Create { chains }).await.unwrap();
    let after = store.counters();
    assert_eq!((after.round_trips - before.round_trips, after.commits - before.commits), (1, 1));
}

#[tokio::test]
async fn an_invalid_namespace_and_an_unreachable_server_are_reported() {
    let server = shared_redis().await;
    let options = Options::default().namespace("no}tag");
    assert_eq!(RedisStore::open(&server.url(), options).await.unwrap_err().kind(), ErrorKind::Invalid);
    let mut gone = RedisServer::start().await;
    gone.stop().await;
    let error = RedisStore::open(&gone.url(), Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = RedisStore::open("http://127.0.0.1", Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
