//! Opens stores and notifiers by URL.

mod url;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use windlass::file::{self, FileStore};
use windlass::nats::{self, NatsNotifier};
use windlass::notifier::{InProcessNotifier, Notifier};
use windlass::postgres::{self, PostgresNotifier, PostgresStore};
use windlass::redis::{self, RedisNotifier, RedisStore};
use windlass::sqlite::{self, SqliteStore};
use windlass::{ChainId, Client, MemoryStore, Observer, Store};

pub(crate) use url::StoreUrl;

use crate::arguments::Global;
use crate::exit::{Failure, Result};
use url::NotifierUrl;

/// The store if no URL is given.
const DEFAULT_STORE: &str = "sqlite:windlass.db";

/// Timeout for connecting to a store or notifier.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout for creating or migrating tables. Another process may be migrating at the same time.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(600);

/// Timeout for opening a folder, which reads all of its jobs.
const LOADING_TIMEOUT: Duration = Duration::from_secs(600);

/// The store, notifier and namespace to use.
#[derive(Clone, Debug)]
pub(crate) struct StoreConfig {
    pub(crate) store: StoreUrl,
    notifier: NotifierUrl,
    pub(crate) namespace: Option<String>,
}

/// What opening a store may create or change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// Nothing. A missing file or table is an error.
    Existing,
    /// Creates a missing SQLite file with its tables, or a missing folder.
    CreateFile,
    /// Creates or migrates the tables.
    Migrate,
}

/// An open store with its notifier.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) store: AnyStore,
    pub(crate) notifier: Arc<dyn Notifier>,
}

/// A client with its concrete store type, which transactions of the database driver need.
#[derive(Debug)]
pub(crate) enum AnyStore {
    Memory(Client<MemoryStore>),
    Sqlite(Client<SqliteStore>),
    File(Client<FileStore>),
    Postgres(Client<PostgresStore<postgres::Sqlx>>),
    Redis(Client<RedisStore>),
}

impl StoreConfig {
    pub(crate) fn new(global: &Global) -> Result<Self> {
        let store = StoreUrl::parse(global.named_store().unwrap_or(DEFAULT_STORE))?;
        let notifier = global.named_notifier().map_or(Ok(NotifierUrl::Own), NotifierUrl::parse)?;
        Ok(Self { store, notifier, namespace: global.named_namespace().map(str::to_owned) })
    }

    /// Returns the environment variables that make another `windlass` process use the same store, from any directory.
    pub(crate) fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("WINDLASS_STORE", self.store.absolute()),
            ("WINDLASS_NAMESPACE", self.namespace.clone().unwrap_or_default()),
            ("WINDLASS_NOTIFIER", self.notifier.text()),
        ]
    }

    /// Returns a sentence that names the missing SQLite file or folder, if the store does not exist yet.
    pub(crate) fn missing(&self) -> Option<String> {
        let (kind, path) = match &self.store {
            StoreUrl::File(path) => ("folder", self.file_options(path).folder()),
            StoreUrl::Sqlite(path) => ("file", path.clone()),
            StoreUrl::Memory | StoreUrl::Postgres(_) | StoreUrl::Redis(_) => return None,
        };
        self.is_missing().then(|| format!("the store {kind} `{}` does not exist", path.display()))
    }

    /// Whether the store does not exist yet. Checks only SQLite files and folders; other stores would need a connection.
    pub(crate) fn is_missing(&self) -> bool {
        match &self.store {
            StoreUrl::Sqlite(path) => !path.exists(),
            StoreUrl::File(path) => !self.file_options(path).folder().exists(),
            StoreUrl::Memory | StoreUrl::Postgres(_) | StoreUrl::Redis(_) => false,
        }
    }

    /// Returns the folder of the store, if it is in one.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        match &self.store {
            StoreUrl::File(path) => Some(self.file_options(path).folder()),
            _ => None,
        }
    }

    /// Returns this config with a new, unique namespace.
    pub(crate) fn with_unique_namespace(mut self, purpose: &str) -> Self {
        // The last part of an id is random.
        let id = ChainId::new().to_string();
        let random = id.rsplit('-').next().unwrap_or_default();
        self.namespace = Some(format!("windlass_{purpose}_{random}"));
        self
    }

    /// Opens the store for a command. Rejects `memory:`, whose data would be lost when the command ends.
    pub(crate) async fn open(&self, mode: OpenMode, observer: impl Observer) -> Result<Connection> {
        if self.store == StoreUrl::Memory {
            let text = "`memory:` works only for demo and bench, because its data is lost when the process exits: \
                        use `sqlite:PATH`";
            return Err(Failure::usage(text));
        }
        self.open_with(mode, observer).await
    }

    /// Opens the store and its notifier. The observer receives the client's events.
    pub(crate) async fn open_with(&self, mode: OpenMode, observer: impl Observer) -> Result<Connection> {
        if mode == OpenMode::Existing
            && let Some(missing) = self.missing()
        {
            let remedy = "run `windlass start` or `windlass migrate`, or choose another --store";
            return Err(Failure::store(format!("{missing}: {remedy}")));
        }
        // Open the notifier first: if that fails, no SQLite file has been created.
        let other = match timeout(CONNECT_TIMEOUT, self.open_notifier()).await {
            Ok(opened) => opened.map_err(|failure| failure.with_context("--notifier"))?,
            Err(_) => return Err(Failure::store(timeout_message("--notifier", CONNECT_TIMEOUT))),
        };
        let limit = self.opening_timeout(mode);
        let connecting = self.connect(mode, other, observer);
        timeout(limit, connecting).await.map_err(|_| Failure::store(timeout_message("the store", limit)))?
    }

    fn opening_timeout(&self, mode: OpenMode) -> Duration {
        match (&self.store, mode) {
            (StoreUrl::File(_), _) => LOADING_TIMEOUT,
            (_, OpenMode::Migrate) => MIGRATION_TIMEOUT,
            _ => CONNECT_TIMEOUT,
        }
    }

    /// Returns the SQL statements that create the tables.
    pub(crate) fn migrations_sql(&self, from: u32) -> Result<String> {
        match &self.store {
            StoreUrl::Memory | StoreUrl::File(_) | StoreUrl::Redis(_) => {
                Err(Failure::usage("this store has no tables: --sql applies only to SQLite and PostgreSQL"))
            }
            StoreUrl::Sqlite(path) => Ok(self.sqlite_options(path).migrations_sql_from(from)?),
            StoreUrl::Postgres(_) => Ok(self.postgres_options().migrations_sql_from(from)?),
        }
    }

    /// Returns the SQL statements that create roles with the least privileges.
    pub(crate) fn roles_sql(&self) -> Result<String> {
        match &self.store {
            StoreUrl::Postgres(_) => Ok(self.postgres_options().roles_sql()?),
            _ => Err(Failure::usage("this store has no roles: --roles applies only to PostgreSQL")),
        }
    }

    async fn connect(
        &self,
        mode: OpenMode,
        other: Option<Arc<dyn Notifier>>,
        observer: impl Observer,
    ) -> Result<Connection> {
        let notifier = |own: &dyn Store| other.unwrap_or_else(|| own.notifier());
        let (store, notifier) = match &self.store {
            StoreUrl::Memory => {
                let store = MemoryStore::new();
                let notifier = notifier(&store);
                (AnyStore::Memory(client(store, &notifier, observer)), notifier)
            }
            StoreUrl::Sqlite(path) => {
                let migrate = self.is_missing() || mode == OpenMode::Migrate;
                let store = SqliteStore::open(self.sqlite_options(path).migrate(migrate)).await?;
                let notifier = notifier(&store);
                (AnyStore::Sqlite(client(store, &notifier, observer)), notifier)
            }
            StoreUrl::File(path) => {
                let store = FileStore::open(self.file_options(path)).await?;
                let notifier = notifier(&store);
                (AnyStore::File(client(store, &notifier, observer)), notifier)
            }
            StoreUrl::Postgres(url) => {
                let provider = postgres::Sqlx::connect(url).await?;
                let options = self.postgres_options().migrate(mode == OpenMode::Migrate);
                let store = PostgresStore::open(provider, options).await?;
                let notifier = notifier(&store);
                (AnyStore::Postgres(client(store, &notifier, observer)), notifier)
            }
            StoreUrl::Redis(url) => {
                let store = RedisStore::open(url, self.redis_options()).await?;
                let notifier = notifier(&store);
                (AnyStore::Redis(client(store, &notifier, observer)), notifier)
            }
        };
        Ok(Connection { store, notifier })
    }

    /// Opens the notifier, unless it is the store's own.
    async fn open_notifier(&self) -> Result<Option<Arc<dyn Notifier>>> {
        Ok(match &self.notifier {
            NotifierUrl::Own => None,
            NotifierUrl::None => Some(Arc::new(InProcessNotifier::new())),
            NotifierUrl::Postgres(url) => {
                let provider = postgres::Sqlx::connect(url).await?;
                Some(Arc::new(PostgresNotifier::new(provider, &self.postgres_options())?))
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

    fn file_options(&self, path: &Path) -> file::Options {
        self.namespace.iter().fold(file::Options::new(path), file::Options::namespace)
    }

    fn postgres_options(&self) -> postgres::Options {
        self.namespace.iter().fold(postgres::Options::default(), postgres::Options::schema)
    }

    fn redis_options(&self) -> redis::Options {
        self.namespace.iter().fold(redis::Options::default(), redis::Options::namespace)
    }

    fn nats_options(&self) -> nats::Options {
        self.namespace.iter().fold(nats::Options::default(), nats::Options::namespace)
    }
}

impl Connection {
    /// Returns a client with a type-erased store.
    pub(crate) fn client(&self) -> Client<dyn Store> {
        match &self.store {
            AnyStore::Memory(client) => client.clone().into_dyn(),
            AnyStore::Sqlite(client) => client.clone().into_dyn(),
            AnyStore::File(client) => client.clone().into_dyn(),
            AnyStore::Postgres(client) => client.clone().into_dyn(),
            AnyStore::Redis(client) => client.clone().into_dyn(),
        }
    }

    /// Removes the namespace with all its data. It must no longer be in use.
    pub(crate) async fn remove(&self, config: &StoreConfig) -> Result {
        let client = self.client();
        client.store().erase().await?;
        let namespace = config.namespace.as_deref().unwrap_or_default();
        if let StoreUrl::File(path) = &config.store {
            client.store().close().await?;
            return remove_folder(&config.file_options(path).folder(), path);
        }
        let dropped = match &self.store {
            AnyStore::Postgres(client) => drop_schema(client.store().provider().pool(), namespace).await,
            AnyStore::Sqlite(client) => drop_tables(client.store().provider().pool(), namespace).await,
            AnyStore::Memory(_) | AnyStore::File(_) | AnyStore::Redis(_) => Ok(()),
        };
        dropped.map_err(|error| {
            Failure::store(format!(
                "the namespace `{namespace}` is empty, but could not be dropped: {error}; drop it by hand"
            ))
        })
    }
}

fn timeout_message(what: &str, limit: Duration) -> String {
    format!("{what} did not respond within {limit:?}: check the URL, and that the server is running")
}

/// Builds a client with this notifier and observer.
fn client<S: Store>(
    store: impl Into<Arc<S>>,
    notifier: &Arc<dyn Notifier>,
    observer: impl Observer,
) -> Client<S> {
    Client::builder(store).notifier(Arc::clone(notifier)).observer(observer).build()
}

/// Removes the folder of a namespace, and the folder that it is in if nothing else is left there.
fn remove_folder(folder: &Path, parent: &Path) -> Result {
    std::fs::remove_dir_all(folder).map_err(|error| {
        let folder = folder.display();
        Failure::store(format!("the folder `{folder}` could not be removed: {error}; remove it by hand"))
    })?;
    let _ = std::fs::remove_dir(parent);
    Ok(())
}

async fn drop_schema(pool: &sqlx::PgPool, schema: &str) -> sqlx::Result<()> {
    let text = format!("drop schema \"{schema}\" cascade");
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(pool).await.map(drop)
}

/// Drops the tables and views of a namespace.
async fn drop_tables(pool: &sqlx::SqlitePool, prefix: &str) -> sqlx::Result<()> {
    let mut tx = pool.begin_with("begin immediate").await?;
    // The views first: SQLite keeps a view whose tables are gone, and then refuses to rename any table.
    let drops = "select 'drop ' || type || ' \"' || name || '\"' from sqlite_schema \
         where type in ('table', 'view') and substr(name, 1, length($1)) = $1 order by type desc";
    let drops: Vec<String> = sqlx::query_scalar(drops).bind(format!("{prefix}_")).fetch_all(&mut *tx).await?;
    for statement in drops {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut *tx).await?;
    }
    tx.commit().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise no command could open a large folder.
    #[test]
    fn a_folder_may_take_minutes_to_load() {
        let timeout = |url, mode| {
            let store = StoreUrl::parse(url).unwrap();
            StoreConfig { store, notifier: NotifierUrl::Own, namespace: None }.opening_timeout(mode)
        };
        assert_eq!(timeout("file:queue", OpenMode::Existing), LOADING_TIMEOUT);
        assert_eq!(timeout("file:queue", OpenMode::Migrate), LOADING_TIMEOUT);
        assert_eq!(timeout("postgres://h/d", OpenMode::Migrate), MIGRATION_TIMEOUT);
        assert_eq!(timeout("postgres://h/d", OpenMode::Existing), CONNECT_TIMEOUT);
    }
}
