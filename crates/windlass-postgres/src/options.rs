//! Options of the store and the notifier.

use std::sync::Arc;

use windlass_core::{Clock, Error, ErrorKind, Result};

use crate::migrate::{MIGRATIONS, roles, sql};
use crate::statement::Names;

/// Maximum length of a schema name or table prefix, in bytes.
pub const NAME_MAX_BYTES: usize = 30;

/// Options for opening a [`PostgresStore`](crate::PostgresStore) or a [`PostgresNotifier`](crate::PostgresNotifier).
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a store is opened with them"]
pub struct Options {
    schema: String,
    prefix: String,
    pub(crate) migrate: bool,
    /// `None`: the store asks its provider.
    pub(crate) cached_statements: Option<bool>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

impl Default for Options {
    /// Uses the schema `windlass` without a prefix, and creates and migrates it if needed.
    fn default() -> Self {
        Self {
            schema: "windlass".to_owned(),
            prefix: String::new(),
            migrate: true,
            cached_statements: None,
            clock: None,
        }
    }
}

impl Options {
    /// Sets the schema of the tables (default: `windlass`): 1 to 30 characters of `a-z`, `0-9` and `_`, not starting
    /// with a digit or `pg_`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets a prefix for the names of tables and functions (default: none): at most 30 characters of `a-z`, `0-9` and
    /// `_`, not starting with a digit.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets whether opening the store creates or migrates the schema (default: true). If false, opening fails if the
    /// schema is missing or outdated; see [`migrations_sql`](Self::migrations_sql).
    pub const fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Sets whether statements stay prepared on their connections. By default, the store asks its provider; see
    /// [`Provider::may_cache_statements`](crate::Provider::may_cache_statements).
    ///
    /// Turn this on only if each connection keeps its server process, or if the pooler supports prepared statements,
    /// such as PgBouncer 1.21 or later with `max_prepared_statements`. Otherwise a command may execute a statement that
    /// another client has prepared under the same name.
    pub const fn cached_statements(mut self, cached: bool) -> Self {
        self.cached_statements = Some(cached);
        self
    }

    /// Uses another clock than the database's, for tests. All stores of one schema must use the same clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Returns the statements that create the schema, to run them by other means.
    pub fn migrations_sql(&self) -> Result<String> {
        self.migrations_sql_from(0)
    }

    /// Returns the statements of the migrations after `version`. To find the version of a schema, run
    /// `select max(version)` on its table `migration`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if there is no such version.
    pub fn migrations_sql_from(&self, version: u32) -> Result<String> {
        let (version, latest) =
            (i64::from(version), MIGRATIONS.last().map_or(0, |migration| migration.version));
        if version > latest {
            let text = format!("there is no version {version}: the latest is {latest}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(sql(&self.names()?, MIGRATIONS, version))
    }

    /// Returns the statements that create three roles with the least privileges, to run as the owner of the tables after
    /// the migration: a reader, a producer, which also starts chains, and a worker, which also runs jobs. Their names begin
    /// with the schema, such as `windlass_worker`. They cannot log in: grant them to the roles of your programs.
    pub fn roles_sql(&self) -> Result<String> {
        Ok(roles(&self.names()?))
    }

    pub(crate) fn names(&self) -> Result<Names> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let good = |name: &str| {
            name.len() <= NAME_MAX_BYTES
                && name.bytes().all(plain)
                && !name.starts_with(|first: char| first.is_ascii_digit())
        };
        if self.schema.is_empty()
            || !good(&self.schema)
            || self.schema.starts_with("pg_")
            || !good(&self.prefix)
        {
            let text = format!(
                "the schema {:?} or the prefix {:?} is invalid: use at most {NAME_MAX_BYTES} characters of a-z, 0-9 and _ \
                 each, and begin neither with a digit nor with pg_",
                self.schema, self.prefix
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Names { schema: self.schema.clone(), prefix: self.prefix.clone() })
    }
}
