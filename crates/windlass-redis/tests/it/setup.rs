//! Server configuration: eviction, replicas, and waiting for replicas.

use std::time::Duration;

use redis::Value;
use windlass_conformance::{json, type_name};
use windlass_core::command::{Create, Created, Durability, NewChain, NewJob};
use windlass_core::{ChainId, ErrorKind, Store};
use windlass_redis::{Options, RedisStore};
use windlass_testkit::{RedisServer, wait_until};

use crate::fixture::connect;

const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn create() -> Create {
    Create { chains: vec![NewChain::new(ChainId::new(), NewJob::new(type_name("a"), json("1")))] }
}

/// Starts a replica of a server and waits until it is connected.
pub(crate) async fn replica_of(primary: &RedisServer) -> RedisServer {
    let address = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::builder().arg("--replicaof", address).start().await;
    let mut connection = connect(replica.url()).await;
    wait_until("the replica follows", TIMEOUT, async || {
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("replication").query_async(&mut connection).await.unwrap();
        info.contains("master_link_status:up")
    })
    .await;
    replica
}

#[tokio::test]
async fn connect_opens_a_store_with_the_defaults() {
    let server = RedisServer::start().await;
    let client: windlass_redis::Client =
        windlass_core::Client::new(windlass_redis::connect(&server.url()).await.unwrap());
    client.store().create(create()).await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("{windlass:default}:job:*")
        .query_async(&mut connect(server.url()).await)
        .await
        .unwrap();
    assert_eq!(keys.len(), 1);
}

#[tokio::test]
async fn data_in_another_layout_is_refused() {
    let server = RedisServer::start().await;
    let mut connection = connect(server.url()).await;
    let older = redis::cmd("SET").arg("{windlass:default}:seq").arg(5).to_owned();
    let numbered = |layout: u32| {
        let mut write = redis::cmd("HSET");
        write.arg("{windlass:default}:meta").arg("layout").arg(layout).arg("seq").arg(5);
        write
    };
    for (write, layout) in [(older, "layout 1"), (numbered(2), "layout 2"), (numbered(4), "layout 4")] {
        RedisStore::open(&server.url(), Options::default()).await.unwrap();
        let _: Value = write.query_async(&mut connection).await.unwrap();
        let error = RedisStore::open(&server.url(), Options::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        let text = error.to_string();
        assert!(text.contains(layout) && text.contains("erase it with the version that wrote it"), "{text}");
        // Another namespace is not affected.
        RedisStore::open(&server.url(), Options::default().namespace("other")).await.unwrap();
        let _: () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
    }
}

/// A process that opened the store before another version wrote to it stops at its next creation.
#[tokio::test]
async fn a_layout_that_changed_since_opening_is_refused() {
    let server = RedisServer::start().await;
    let store = RedisStore::open(&server.url(), Options::default()).await.unwrap();
    store.create(create()).await.unwrap();
    let mut newer = redis::cmd("HSET");
    newer.arg("{windlass:default}:meta").arg("layout").arg(4);
    let _: Value = newer.query_async(&mut connect(server.url()).await).await.unwrap();
    let error = store.create(create()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("has layout 4 and should have 3"), "{error}");
}

#[tokio::test]
async fn a_server_that_evicts_keys_is_refused_unless_accepted() {
    let server = RedisServer::builder().arg("--maxmemory-policy", "allkeys-lru").start().await;
    let error = RedisStore::open(&server.url(), Options::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let text = error.to_string();
    for part in ["allkeys-lru", "removes jobs", "maxmemory-policy noeviction", "accept_eviction"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let store = RedisStore::open(&server.url(), Options::default().accept_eviction()).await.unwrap();
    store.create(create()).await.unwrap();
    let findings = store.health().await.unwrap();
    assert!(findings.iter().any(|finding| finding.problem.contains("allkeys-lru")), "{findings:?}");
}

#[tokio::test]
async fn a_replica_rejects_writes_and_the_error_names_the_primary() {
    let primary = RedisServer::start().await;
    let replica = replica_of(&primary).await;
    let store = RedisStore::open(&replica.url(), Options::default()).await.unwrap();
    let error = store.create(create()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("connect to the primary"), "{error}");
    let findings = store.health().await.unwrap();
    assert!(findings.iter().any(|finding| finding.problem.contains("replica")), "{findings:?}");
}

#[tokio::test]
async fn a_creation_waits_for_replicas_and_reports_their_number() {
    let primary = RedisServer::start().await;
    let mut replica = replica_of(&primary).await;
    let options = Options::default().wait_for_replicas(1, TIMEOUT);
    let store = RedisStore::open(&primary.url(), options).await.unwrap();
    let reply = store.create(create()).await.unwrap();
    assert_eq!(reply.durability, Durability::Replicated(1));

    // If no replica has it in time, it is still written.
    replica.kill().await;
    let options = Options::default().wait_for_replicas(1, Duration::from_millis(50));
    let store = RedisStore::open(&primary.url(), options).await.unwrap();
    let reply = store.create(create()).await.unwrap();
    assert_eq!(reply.durability, Durability::Volatile);
}

/// With `WAITAOF`, a replica without an append-only file does not count.
#[tokio::test]
async fn a_creation_waits_for_the_disks_of_replicas_with_waitaof() {
    let primary = RedisServer::builder().arg("--appendonly", "yes").start().await;
    let replica = replica_of(&primary).await;
    let open = async |timeout| {
        let options = Options::default().wait_for_replicas(1, timeout);
        RedisStore::open(&primary.url(), options).await.unwrap()
    };
    let mut connection = connect(replica.url()).await;
    let has_waitaof: redis::RedisResult<Value> =
        redis::cmd("WAITAOF").arg(0).arg(0).arg(0).query_async(&mut connection).await;
    let has_waitaof = !has_waitaof.is_err_and(|error| error.to_string().contains("unknown command"));
    let (timeout, reached) = match has_waitaof {
        true => (Duration::from_millis(50), Durability::Buffered),
        false => (TIMEOUT, Durability::Replicated(1)),
    };
    let reply = open(timeout).await.create(create()).await.unwrap();
    assert_eq!(reply.durability, reached);

    let mut persist = redis::cmd("CONFIG");
    let _: () = persist.arg("SET").arg("appendonly").arg("yes").query_async(&mut connection).await.unwrap();
    let reply = open(TIMEOUT).await.create(create()).await.unwrap();
    assert_eq!(reply.durability, Durability::Replicated(1));
}

/// Applications create their client where it is convenient, for example in a constructor or a `OnceLock`.
#[test]
fn a_client_is_created_outside_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, store) = runtime.block_on(async {
        let server = RedisServer::start().await;
        let store = windlass_redis::connect(&server.url()).await.unwrap();
        (server, store)
    });
    let client: windlass_redis::Client = windlass_core::Client::new(store);
    runtime.block_on(async {
        let created = client.create(create().chains).await.unwrap();
        assert!(matches!(created[..], [Created::New { .. }]), "{created:?}");
        client.close().await.unwrap();
        drop(server);
    });
}
