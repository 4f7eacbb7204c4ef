//! The server refuses writes for a while: it is a replica, it becomes one, or its memory is full. Workers continue on
//! their own once it accepts writes again.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use redis::Cmd;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use windlass_core::{Client, ErrorKind, Store, Worker};
use windlass_redis::{Options, RedisStore};
use windlass_testkit::{RedisServer, wait_until};

use crate::fixture::connect;
use crate::noop::{Noop, noop};
use crate::setup::{create, replica_of};

const TIMEOUT: Duration = Duration::from_secs(30);

async fn client(url: &str) -> Client<RedisStore> {
    Client::new(RedisStore::open(url, Options::default()).await.unwrap())
}

fn worker(client: &Client<RedisStore>) -> Worker<RedisStore> {
    let fast = Duration::from_millis(50);
    Worker::new(client).concurrency(1).poll(fast).handle(noop)
}

/// Sends a command to a server directly, without the store.
async fn tell(server: &RedisServer, words: &str) {
    let mut connection = connect(server.url()).await;
    let words: Vec<_> = words.split(' ').collect();
    let mut command = Cmd::new();
    command.arg(words);
    let _: () = command.query_async(&mut connection).await.unwrap();
}

/// Checks the error of a start while the server refuses writes. Then calls `mend` and checks that a job can be started
/// and completes.
async fn check(client: &Client<RedisStore>, says: &str, mend: impl AsyncFnOnce()) {
    let error = client.start(Noop).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(says), "{error}");
    mend().await;
    wait_until("a job is started", TIMEOUT, async || client.start(Noop).await.is_ok()).await;
    let chain = client.start(Noop).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_continue_when_a_replica_is_promoted() {
    let primary = RedisServer::start().await;
    let chain = client(&primary.url()).await.start(Noop).await.unwrap();
    let replica = replica_of(&primary).await;
    let client = client(&replica.url()).await;
    wait_until("the replica has the job", TIMEOUT, async || {
        client.chain(chain.id()).await.unwrap().is_some()
    })
    .await;
    let worker = worker(&client).start().await.unwrap();
    check(&client, "connect to the primary", async || tell(&replica, "REPLICAOF NO ONE").await).await;
    client.wait(chain).timeout(TIMEOUT).await.unwrap();
    worker.stop(TIMEOUT).await;
}

/// The store reconnects after such an error, in case the address leads to another server by then. Commands that wait for
/// their replies on the connection must still get them.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_commands_on_a_replica_all_name_the_primary() {
    let primary = RedisServer::start().await;
    let replica = replica_of(&primary).await;
    let store = Arc::new(RedisStore::open(&replica.url(), Options::default()).await.unwrap());
    let callers = (0..16).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for _ in 0..20 {
                let error = store.create(create()).await.unwrap_err();
                assert!(error.to_string().contains("connect to the primary"), "{error}");
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
}

/// Returns the URL of a proxy to the server at `port`. When `port` changes, new connections go to the new server, but
/// open ones stay.
async fn address(port: Arc<AtomicU16>) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let port = port.load(Ordering::SeqCst);
            tokio::spawn(async move {
                let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
                copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_follow_an_address_to_the_new_primary() {
    let old = RedisServer::start().await;
    let new = replica_of(&old).await;
    let leads_to = Arc::new(AtomicU16::new(old.port()));
    let client = client(&address(Arc::clone(&leads_to)).await).await;
    let worker = worker(&client).start().await.unwrap();
    let chain = client.start(Noop).await.unwrap();
    client.wait(chain).timeout(TIMEOUT).await.unwrap();

    tell(&new, "REPLICAOF NO ONE").await;
    tell(&old, &format!("REPLICAOF 127.0.0.1 {}", new.port())).await;
    let lead = async || leads_to.store(new.port(), Ordering::SeqCst);
    check(&client, "connect to the primary", lead).await;
    worker.stop(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_continue_when_a_full_server_has_memory_again() {
    let server = RedisServer::builder().arg("--maxmemory-policy", "noeviction").start().await;
    let client = client(&server.url()).await;
    let waiting = client.start_many((0..100).map(|_| Noop)).await.unwrap();
    tell(&server, "CONFIG SET maxmemory 1").await;
    let worker = worker(&client).start().await.unwrap();
    check(&client, "out of memory", async || tell(&server, "CONFIG SET maxmemory 0").await).await;
    for chain in waiting {
        client.wait(chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
}
