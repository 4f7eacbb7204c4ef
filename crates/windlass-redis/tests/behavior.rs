//! Client and worker behavior on the Redis store with Redis hints, and on the memory store with Redis hints. A full run
//! adds the Redis store without hints.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "the contracts are tested elsewhere")]
mod fixture;

use std::sync::Arc;

use tokio::sync::Mutex;
use windlass_conformance::{BehaviorFixture, BehaviorSuite, MuteNotifier, Scene};
use windlass_core::{BoxFuture, Capabilities, MemoryStore, Notifier};
use windlass_redis::{CAPABILITIES, Options, RedisNotifier, RedisStore};
use windlass_testkit::{Proxy, SharedRedis, is_full_run};

use fixture::fresh;

/// The Redis store, with Redis hints or without hints.
struct Redis {
    name: &'static str,
    has_hints: bool,
}

impl BehaviorFixture for Redis {
    type Store = RedisStore;

    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn has_hints(&self) -> bool {
        self.has_hints
    }

    fn has_outage(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, Scene<RedisStore>> {
        Box::pin(async {
            let (server, url, proxy) = behind_a_proxy().await;
            let open = async || Arc::new(RedisStore::open(&url, options(&server)).await.unwrap());
            let notifier = async || -> Arc<dyn Notifier> {
                if self.has_hints {
                    redis_notifier(&url, &server).await
                } else {
                    Arc::new(MuteNotifier::default())
                }
            };
            let (stores, notifiers) = ([open().await, open().await], [notifier().await, notifier().await]);
            Scene::new(stores, notifiers).with_outage(cutting(proxy)).keeping(server)
        })
    }
}

/// The memory store with hints over Redis.
struct Memory;

impl BehaviorFixture for Memory {
    type Store = MemoryStore;

    fn name(&self) -> &str {
        "memory+redis"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn open(&self) -> BoxFuture<'_, Scene<MemoryStore>> {
        Box::pin(async {
            let (server, ..) = fresh().await;
            let notifiers =
                [redis_notifier(&server.url(), &server).await, redis_notifier(&server.url(), &server).await];
            let store = MemoryStore::new();
            Scene::new([Arc::new(store.clone()), Arc::new(store)], notifiers).keeping(server)
        })
    }
}

async fn redis_notifier(url: &str, server: &SharedRedis) -> Arc<dyn Notifier> {
    Arc::new(RedisNotifier::open(url, &options(server)).await.unwrap())
}

fn options(server: &SharedRedis) -> Options {
    Options::default().namespace(server.namespace())
}

/// Returns a server with a fresh namespace, and a URL that leads to it through a proxy.
async fn behind_a_proxy() -> (SharedRedis, String, Proxy) {
    let (server, ..) = fresh().await;
    let proxy = Proxy::to(server.server().port()).await;
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    (server, url, proxy)
}

/// Returns a function that cuts all connections through the proxy.
fn cutting(proxy: Proxy) -> impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static {
    let proxy = Arc::new(Mutex::new(proxy));
    move || {
        let proxy = Arc::clone(&proxy);
        Box::pin(async move { proxy.lock().await.cut().await })
    }
}

fn main() {
    let suite = BehaviorSuite::new().pair(Redis { name: "redis+redis", has_hints: true });
    if is_full_run() {
        suite.pair(Redis { name: "redis+none", has_hints: false }).transactional_pair(Memory).run()
    } else {
        suite.notifier_pair(Memory).run()
    }
}
