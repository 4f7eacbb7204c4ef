//! Stores and notifiers by URL.

mod url;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use windlass::nats::{self, NatsNotifier};
use windlass::postgres::{self, PostgresNotifier, PostgresStore};
use windlass::redis::{self, RedisNotifier, RedisStore};
use windlass::sqlite::{self, SqliteNotifier, SqliteStore};
use windlass::{
    ChainId, Client, InProcessNotifier, MemoryStore, NoObserver, Notifier, Observer, Store, Topic,
};

pub(crate) use url::StoreUrl;

use crate::arguments::Global;
use crate::exit::{Failure, Result};
use url::NotifierUrl;

/// The store of those who name none.
const DEFAULT: &str = "sqlite:windlass.db";

/// How long a store may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long it may take to make or migrate tables, behind others who do so.
const MIGRATION_PATIENCE: Duration = Duration::from_secs(600);

/// How long a command waits until it would hear its hint: a notifier may have to connect first.
const SUBSCRIBE_PATIENCE: Duration = Duration::from_secs(5);

/// How long a command then waits for its hint to be carried. Where none is heard, this is waited for in vain.
const HINT_PATIENCE: Duration = Duration::from_millis(500);

/// What a URL says whose driver is to keep no prepared statements.
const UNCACHED: &str = "statement-cache-capacity=0";

/// Which store and notifier to use, and which part of the store.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) store: StoreUrl,
    notifier: NotifierUrl,
    pub(crate) namespace: Option<String>,
}

/// What opening may do to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: what is missing is an error.
    Look,
    /// Make a SQLite file that is missing.
    Use,
    /// Make the tables, or bring them up to date.
    Migrate,
}

/// An open store with its notifier.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) store: AnyStore,
    pub(crate) notifier: Arc<dyn Notifier>,
}

/// A client of a store whose type matters: transactions are the driver's own.
#[derive(Debug)]
pub(crate) enum AnyStore {
    Memory(Client<MemoryStore>),
    Sqlite(Client<SqliteStore>),
    Postgres(Client<PostgresStore<postgres::Sqlx>>),
    Redis(Client<RedisStore>),
}

impl Place {
    pub(crate) fn new(global: &Global) -> Result<Self> {
        let store = StoreUrl::parse(global.named_store().unwrap_or(DEFAULT))?;
        let notifier = global.named_notifier().map_or(Ok(NotifierUrl::Own), NotifierUrl::parse)?;
        Ok(Self { store, notifier, namespace: global.named_namespace().map(str::to_owned) })
    }

    /// The environment in which another call of this program finds the same place, in whatever folder.
    pub(crate) fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("WINDLASS_STORE", self.store.absolute()),
            ("WINDLASS_NAMESPACE", self.namespace.clone().unwrap_or_default()),
            ("WINDLASS_NOTIFIER", self.notifier.text()),
        ]
    }

    /// Whether there is nothing yet where the store is to be. Only SQLite's file can be looked for like that.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(&self.store, StoreUrl::Sqlite(path) if !path.exists())
    }

    /// This place with a namespace that nobody else has.
    pub(crate) fn apart(mut self, purpose: &str) -> Self {
        // The end of an id is random.
        let id = ChainId::new().to_string();
        let random = id.rsplit('-').next().unwrap_or_default();
        self.namespace = Some(format!("windlass_{purpose}_{random}"));
        self
    }

    /// Opens the store for a command that ends soon.
    pub(crate) async fn open(&self, access: Access) -> Result<Connection> {
        if self.store == StoreUrl::Memory {
            let text =
                "what `memory:` holds is gone with this process: it is for demo and bench; use sqlite:PATH";
            return Err(Failure::usage(text));
        }
        self.open_with(access, NoObserver).await
    }

    /// Opens the store, and tells this observer what happens.
    pub(crate) async fn open_with(&self, access: Access, observer: impl Observer) -> Result<Connection> {
        if access == Access::Look
            && let StoreUrl::Sqlite(path) = &self.store
            && self.is_missing()
        {
            let path = path.display();
            let text = format!("there is no file `{path}`: start something first, or give another --store");
            return Err(Failure::store(text));
        }
        // The notifier first: one that is wrong leaves no file behind.
        let other = match timeout(PATIENCE, self.other_notifier()).await {
            Ok(opened) => opened.map_err(|failure| failure.about("--notifier"))?,
            Err(_) => return Err(Failure::store(late("--notifier", PATIENCE))),
        };
        let patience = if access == Access::Migrate { MIGRATION_PATIENCE } else { PATIENCE };
        let connecting = self.connect(access, other, observer);
        timeout(patience, connecting).await.map_err(|_| Failure::store(late("the store", patience)))?
    }

    /// The statements that make the tables.
    pub(crate) fn migrations_sql(&self) -> Result<String> {
        match &self.store {
            StoreUrl::Memory | StoreUrl::Redis(_) => {
                Err(Failure::usage("the store has no tables: nothing is to be made"))
            }
            StoreUrl::Sqlite(path) => Ok(self.sqlite_options(path).migrations_sql()?),
            StoreUrl::Postgres(url) => Ok(self.postgres_options(url).migrations_sql()?),
        }
    }

    async fn connect(
        &self,
        access: Access,
        other: Option<Arc<dyn Notifier>>,
        observer: impl Observer,
    ) -> Result<Connection> {
        let (store, notifier) = match &self.store {
            StoreUrl::Memory => {
                let notifier = other.unwrap_or_else(|| Arc::new(InProcessNotifier::new()));
                (AnyStore::Memory(client(MemoryStore::new(), &notifier, observer)), notifier)
            }
            StoreUrl::Sqlite(path) => {
                let migrate = self.is_missing() || access == Access::Migrate;
                let store = Arc::new(SqliteStore::open(self.sqlite_options(path).migrate(migrate)).await?);
                let notifier = other.unwrap_or_else(|| Arc::new(SqliteNotifier::new(Arc::clone(&store))));
                (AnyStore::Sqlite(client(store, &notifier, observer)), notifier)
            }
            StoreUrl::Postgres(url) => {
                let provider = postgres::Sqlx::connect(url).await?;
                let options = self.postgres_options(url).migrate(access == Access::Migrate);
                let store = PostgresStore::open(provider.clone(), options.clone()).await?;
                let notifier = match other {
                    Some(other) => other,
                    None => Arc::new(PostgresNotifier::new(provider, &options)?),
                };
                (AnyStore::Postgres(client(store, &notifier, observer)), notifier)
            }
            StoreUrl::Redis(url) => {
                let store = RedisStore::open(url, self.redis_options()).await?;
                let notifier = match other {
                    Some(other) => other,
                    None => Arc::new(RedisNotifier::open(url, &self.redis_options()).await?),
                };
                (AnyStore::Redis(client(store, &notifier, observer)), notifier)
            }
        };
        Ok(Connection { store, notifier })
    }

    /// The notifier, if it is not the store's own.
    async fn other_notifier(&self) -> Result<Option<Arc<dyn Notifier>>> {
        Ok(match &self.notifier {
            NotifierUrl::Own => None,
            NotifierUrl::None => Some(Arc::new(InProcessNotifier::new())),
            NotifierUrl::Postgres(url) => {
                let provider = postgres::Sqlx::connect(url).await?;
                Some(Arc::new(PostgresNotifier::new(provider, &self.postgres_options(url))?))
            }
            NotifierUrl::Redis(url) => Some(Arc::new(RedisNotifier::open(url, &self.redis_options()).await?)),
            NotifierUrl::Nats { url, bucket } => {
                let options = bucket.iter().fold(self.nats_options(), nats::Options::bucket);
                Some(Arc::new(NatsNotifier::open(url, options).await?))
            }
        })
    }

    fn sqlite_options(&self, path: &Path) -> sqlite::Options {
        let options = sqlite::Options::new(path);
        match &self.namespace {
            Some(namespace) => options.prefix(format!("{namespace}_")),
            None => options,
        }
    }

    fn postgres_options(&self, url: &str) -> postgres::Options {
        // Whoever keeps no statements has a pooler in between: named ones would meet those of others.
        let options = postgres::Options::default().cached_statements(!url.contains(UNCACHED));
        self.namespace.iter().fold(options, postgres::Options::schema)
    }

    fn redis_options(&self) -> redis::Options {
        self.namespace.iter().fold(redis::Options::default(), redis::Options::namespace)
    }

    fn nats_options(&self) -> nats::Options {
        self.namespace.iter().fold(nats::Options::default(), nats::Options::namespace)
    }
}

impl Connection {
    /// A client that does not know its store.
    pub(crate) fn client(&self) -> Client<dyn Store> {
        match &self.store {
            AnyStore::Memory(client) => client.clone().into_dyn(),
            AnyStore::Sqlite(client) => client.clone().into_dyn(),
            AnyStore::Postgres(client) => client.clone().into_dyn(),
            AnyStore::Redis(client) => client.clone().into_dyn(),
        }
    }

    /// Carries a command out that gives hints of these topics, and stays until one was carried: hints are sent in
    /// the background, and a process that ended at once would take them along. The command says whether it gave any.
    pub(crate) async fn announced<T>(
        &self,
        topics: Vec<Topic>,
        command: impl Future<Output = Result<(T, bool)>>,
    ) -> Result<T> {
        let subscription = timeout(SUBSCRIBE_PATIENCE, self.notifier.subscribe(topics)).await;
        let (done, hinted) = command.await?;
        if let (true, Ok(Ok(mut subscription))) = (hinted, subscription) {
            let _ = timeout(HINT_PATIENCE, subscription.next()).await;
        }
        Ok(done)
    }

    /// Removes the namespace with all that it holds. Nobody uses it any more.
    pub(crate) async fn remove(&self, place: &Place) -> Result {
        let client = self.client();
        client.store().erase().await?;
        let namespace = place.namespace.as_deref().unwrap_or_default();
        let dropped = match &self.store {
            AnyStore::Postgres(client) => drop_schema(client.store().provider().pool(), namespace).await,
            AnyStore::Sqlite(client) => drop_tables(client.store().provider().pool(), namespace).await,
            AnyStore::Memory(_) | AnyStore::Redis(_) => Ok(()),
        };
        dropped.map_err(|error| {
            Failure::store(format!("the namespace {namespace} is empty but still there: {error}"))
        })
    }
}

fn late(who: &str, patience: Duration) -> String {
    format!("{who} has not answered for {patience:?}: is the URL right, and does the server run?")
}

/// A client that tells through this notifier, and tells this observer.
fn client<S: Store>(
    store: impl Into<Arc<S>>,
    notifier: &Arc<dyn Notifier>,
    observer: impl Observer,
) -> Client<S> {
    Client::builder(store).notifier(Arc::clone(notifier)).observer(observer).build()
}

async fn drop_schema(pool: &sqlx::PgPool, schema: &str) -> sqlx::Result<()> {
    let text = format!("drop schema \"{schema}\" cascade");
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(pool).await.map(drop)
}

async fn drop_tables(pool: &sqlx::SqlitePool, prefix: &str) -> sqlx::Result<()> {
    let mut tx = pool.begin_with("begin immediate").await?;
    let named = "select name from sqlite_schema where type = 'table' and substr(name, 1, length($1)) = $1";
    let tables: Vec<String> =
        sqlx::query_scalar(named).bind(format!("{prefix}_")).fetch_all(&mut *tx).await?;
    // They refer to each other, and go together.
    sqlx::raw_sql("pragma defer_foreign_keys = on").execute(&mut *tx).await?;
    for table in tables {
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("drop table \"{table}\""))).execute(&mut *tx).await?;
    }
    tx.commit().await
}
