//! Client and worker behavior on the PostgreSQL store with PostgreSQL hints, and on the memory store with PostgreSQL
//! hints. A full run adds the PostgreSQL store without hints and with in-process, Redis and NATS hints.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "fixture/schema.rs"]
mod schema;

use std::sync::Arc;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgConnection, PgPool};
use tokio::sync::OnceCell;
use windlass_conformance::{BehaviorFixture, BehaviorSuite, MuteNotifier, Scene};
use windlass_core::{BoxFuture, Capabilities, InProcessNotifier, MemoryStore, Notifier};
use windlass_nats::NatsNotifier;
use windlass_postgres::{Options, PostgresNotifier, PostgresStore, Sqlx};
use windlass_redis::RedisNotifier;
use windlass_testkit::{NatsServer, SharedPostgres, is_full_run, shared_postgres, shared_redis};

use schema::Schema;

#[derive(Clone, Copy)]
enum Hints {
    None,
    InProcess,
    Postgres,
    Redis,
    Nats,
}

impl Hints {
    /// Creates the notifiers of two clients.
    async fn notifiers(
        self,
        pools: [PgPool; 2],
        options: &Options,
        namespace: &str,
    ) -> [Arc<dyn Notifier>; 2] {
        match self {
            Self::None => [Arc::new(MuteNotifier::default()), Arc::new(MuteNotifier::default())],
            Self::InProcess => {
                let notifier: Arc<dyn Notifier> = Arc::new(InProcessNotifier::new());
                [Arc::clone(&notifier), notifier]
            }
            Self::Postgres => pools.map(|pool| -> Arc<dyn Notifier> {
                Arc::new(PostgresNotifier::new(Sqlx::from(pool), options).unwrap())
            }),
            Self::Redis => {
                let url = shared_redis().await.url();
                let options = windlass_redis::Options::default().namespace(namespace);
                let open = async || Arc::new(RedisNotifier::open(&url, &options).await.unwrap());
                [open().await, open().await]
            }
            Self::Nats => {
                static SERVER: OnceCell<NatsServer> = OnceCell::const_new();
                let url = SERVER.get_or_init(NatsServer::start).await.url();
                let options = windlass_nats::Options::default().namespace(namespace).bucket("budgets");
                let open = async || Arc::new(NatsNotifier::open(&url, options.clone()).await.unwrap());
                [open().await, open().await]
            }
        }
    }
}

struct Postgres {
    name: &'static str,
    hints: Hints,
}

impl BehaviorFixture for Postgres {
    type Store = PostgresStore<Sqlx>;

    fn name(&self) -> &str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().in_parallel().joining()
    }

    fn has_hints(&self) -> bool {
        !matches!(self.hints, Hints::None)
    }

    fn has_outage(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, Scene<PostgresStore<Sqlx>>> {
        Box::pin(async {
            let schema = Schema::lease().await;
            let options = Options::default().schema(schema.name.as_str());
            let pools = [pool(&schema.url()), pool(&schema.url())];
            let [store, other] =
                pools.each_ref().map(|pool| PostgresStore::open(pool.clone().into(), options.clone()));
            let stores = [Arc::new(store.await.unwrap()), Arc::new(other.await.unwrap())];
            let notifiers = self.hints.notifiers(pools, &options, schema.server.namespace()).await;
            let outage = outage(&schema.server, &schema.name);
            let scene: Scene<PostgresStore<Sqlx>> = Scene::new(stores, notifiers);
            scene.with_outage(outage).with_poison(poison).keeping(schema)
        })
    }
}

/// The memory store, with hints through PostgreSQL.
struct Memory;

impl BehaviorFixture for Memory {
    type Store = MemoryStore;

    fn name(&self) -> &str {
        "memory+postgres"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn has_outage(&self) -> bool {
        true
    }

    fn open(&self) -> BoxFuture<'_, Scene<MemoryStore>> {
        Box::pin(async {
            let server = shared_postgres().await;
            let namespace = server.namespace();
            let options = Options::default().schema(namespace);
            let notifier = || -> Arc<dyn Notifier> {
                let url = format!("{}?application_name={namespace}", server.url());
                let provider = Sqlx::from(pool(&url));
                Arc::new(PostgresNotifier::new(provider, &options).unwrap())
            };
            let (store, notifiers) = (MemoryStore::new(), [notifier(), notifier()]);
            let stores = [Arc::new(store.clone()), Arc::new(store)];
            let outage = outage(&server, namespace);
            Scene::new(stores, notifiers).with_outage(outage).keeping(server)
        })
    }
}

/// Makes the transaction fail, so that it accepts no more statements.
fn poison<'t>(connection: &'t mut PgConnection, (): &'t ()) -> BoxFuture<'t, ()> {
    Box::pin(async move {
        connection.execute("select 1 / 0").await.unwrap_err();
    })
}

fn pool(url: &str) -> PgPool {
    PgPoolOptions::new().max_connections(4).connect_lazy(url).unwrap()
}

/// Returns a function that terminates the connections of one case, which have this name.
fn outage(
    server: &SharedPostgres,
    name: &str,
) -> impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static {
    let (pool, name) = (pool(&server.url()), name.to_owned());
    move || {
        let (pool, name) = (pool.clone(), name.clone());
        Box::pin(async move {
            let kill = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1";
            sqlx::query(kill).bind(name).execute(&pool).await.unwrap();
        })
    }
}

fn main() {
    let pair = |name, hints| Postgres { name, hints };
    let suite = BehaviorSuite::new().transactional_pair(pair("postgres+postgres", Hints::Postgres));
    if is_full_run() {
        suite
            .transactional_pair(pair("postgres+none", Hints::None))
            .transactional_pair(pair("postgres+in-process", Hints::InProcess))
            .transactional_pair(pair("postgres+redis", Hints::Redis))
            .transactional_pair(pair("postgres+nats", Hints::Nats))
            .transactional_pair(Memory)
            .run()
    } else {
        suite.notifier_pair(Memory).run()
    }
}
