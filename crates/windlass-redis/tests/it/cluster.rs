//! Moves a namespace between the shards of a cluster under load.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use tokio::time::timeout;
use windlass_core::{Client, ErrorKind, Job, Notifier, Signal, Store, Topic, TypeName, Worker};
use windlass_redis::{Options, RedisNotifier, RedisStore};
use windlass_testkit::{RedisServer, wait_until};

use crate::fixture::connect;
use crate::noop::{Noop, noop};

const SLOTS: u16 = 16_384;
const TIMEOUT: Duration = Duration::from_secs(60);
const TAG: &str = "{windlass:moved}";
const JOBS_PER_MOVE: usize = 200;

struct Cluster {
    servers: Vec<RedisServer>,
    connections: Vec<MultiplexedConnection>,
    ids: Vec<String>,
}

impl Cluster {
    async fn start() -> Self {
        let (mut servers, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let server = RedisServer::builder().arg("--cluster-enabled", "yes").start().await;
            connections.push(connect(server.url()).await);
            servers.push(server);
        }
        let mut cluster = Self { servers, connections, ids: Vec::new() };
        let share = SLOTS / 3 + 1;
        for at in 0..3 {
            let first = share * at as u16;
            let last = (first + share - 1).min(SLOTS - 1);
            cluster.ask::<()>(at, "ADDSLOTSRANGE", &[&first.to_string(), &last.to_string()]).await;
            let id = cluster.ask(at, "MYID", &[]).await;
            cluster.ids.push(id);
            let port = cluster.servers[at].port().to_string();
            cluster.ask::<()>(0, "MEET", &["127.0.0.1", &port]).await;
        }
        for at in 0..3 {
            let mut connection = cluster.connections[at].clone();
            wait_until("the cluster is whole", TIMEOUT, async || {
                let info: String = cmd("INFO", &[]).query_async(&mut connection).await.unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
            })
            .await;
        }
        cluster
    }

    async fn ask<T: FromRedisValue>(&mut self, at: usize, command: &str, arguments: &[&str]) -> T {
        cmd(command, arguments).query_async(&mut self.connections[at]).await.unwrap()
    }

    /// Moves the slot of the namespace from one shard to another, key by key.
    async fn move_slot(&mut self, from: usize, to: usize) {
        let slot: u16 = self.ask(0, "KEYSLOT", &[TAG]).await;
        let slot = slot.to_string();
        let (source, target) = (self.ids[from].clone(), self.ids[to].clone());
        self.ask::<()>(to, "SETSLOT", &[&slot, "IMPORTING", &source]).await;
        self.ask::<()>(from, "SETSLOT", &[&slot, "MIGRATING", &target]).await;
        loop {
            let keys: Vec<String> = self.ask(from, "GETKEYSINSLOT", &[&slot, "20"]).await;
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate
                .arg("127.0.0.1")
                .arg(self.servers[to].port())
                .arg("")
                .arg(0)
                .arg(60_000)
                .arg("KEYS")
                .arg(keys);
            let _: () = migrate.query_async(&mut self.connections[from]).await.unwrap();
        }
        for at in [to, from, 3 - from - to] {
            self.ask::<()>(at, "SETSLOT", &[&slot, "NODE", &target]).await;
        }
    }

    /// Returns the shard that owned the namespace's slot when the cluster was created.
    async fn owner(&mut self) -> usize {
        let slot: u16 = self.ask(0, "KEYSLOT", &[TAG]).await;
        usize::from(slot / (SLOTS / 3 + 1))
    }
}

fn cmd(command: &str, arguments: &[&str]) -> Cmd {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg(command).arg(arguments);
    cmd
}

/// Checks that a plain connection to the wrong shard fails with an error that says so.
async fn check_elsewhere(connection: MultiplexedConnection, options: Options) {
    let error = RedisStore::with_connection(connection, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another shard holds this namespace"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_moves_between_shards_under_load() {
    let moves = if std::env::var_os("WINDLASS_FULL").is_some() { 6 } else { 1 };
    let mut cluster = Cluster::start().await;
    let mut owner = cluster.owner().await;
    // Opening with the URL of another shard must find the owner.
    let url = cluster.servers[(owner + 1) % 3].url();
    let options = Options::default().namespace("moved");
    check_elsewhere(cluster.connections[(owner + 1) % 3].clone(), options.clone()).await;
    let store = RedisStore::open(&url, options.clone()).await.unwrap();
    let notifier = RedisNotifier::open(&url, &options).await.unwrap();
    let client = Client::builder(store).notifier(notifier).build();
    let listener = RedisNotifier::open(&url, &options).await.unwrap();
    let topic = Topic::Scheduled(TypeName::new(Noop::NAME).unwrap());
    let mut heard = listener.subscribe(vec![topic]).await.unwrap();
    let worker = Worker::new(&client).concurrency(16).poll(Duration::from_millis(100)).handle(noop);
    let worker = worker.start().await.unwrap();

    let mut chains = Vec::new();
    for _ in 0..moves {
        let next = (owner + 1) % 3;
        let starting = client.clone();
        let starts = tokio::spawn(async move {
            let mut chains = Vec::new();
            for _ in 0..JOBS_PER_MOVE {
                // A start may fail while the namespace moves. In that case it has written nothing.
                let ends_at = Instant::now() + TIMEOUT;
                chains.push(loop {
                    match starting.start(Noop).await {
                        Ok(chain) => break chain,
                        Err(error) => assert!(Instant::now() < ends_at, "{error}"),
                    }
                });
            }
            chains
        });
        cluster.move_slot(owner, next).await;
        owner = next;
        chains.extend(starts.await.unwrap());
    }
    for chain in &chains {
        client.wait(*chain).timeout(TIMEOUT).await.unwrap();
    }
    worker.stop(TIMEOUT).await;
    println!("{} jobs while the namespace moved {moves} times", chains.len());
    assert_eq!(chains.len(), moves * JOBS_PER_MOVE);

    // The subscription signals a gap, and then receives hints from the namespace's new shard.
    let gap = async { while !matches!(heard.next().await.unwrap(), Signal::Gap { .. }) {} };
    timeout(TIMEOUT, gap).await.expect("the subscription receives a gap");
    while heard.try_next().is_some() {}
    client.start(Noop).await.unwrap();
    let signal = timeout(TIMEOUT, heard.next()).await.unwrap();
    assert!(signal.is_some());
    client.store().erase().await.unwrap();
}
