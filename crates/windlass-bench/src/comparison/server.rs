use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use windlass::BoxError;
use windlass_testkit::{PostgresServer, RedisServer};

use super::program::Moment;
use crate::meter;

/// The store that all subjects run on, one after the other.
pub(super) enum Server {
    Postgres { server: PostgresServer, databases: u32 },
    Redis { server: Option<RedisServer> },
    Sqlite { directory: TempDir, files: u32 },
}

/// What the store has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreUsage {
    pub(super) cpu: Option<Duration>,
    pub(super) log_bytes: Option<u64>,
}

/// Settings of PostgreSQL besides its default durability: the results do not depend on checkpoints or a small cache.
const POSTGRES: [(&str, &str); 4] =
    [("fsync", "on"), ("synchronous_commit", "on"), ("shared_buffers", "1GB"), ("max_wal_size", "8GB")];

/// Settings of Redis: each write is synced before its reply. The log is not rewritten, so that its size can be measured.
const REDIS: [(&str, &str); 3] =
    [("--appendonly", "yes"), ("--appendfsync", "always"), ("--auto-aof-rewrite-percentage", "0")];

impl Server {
    pub(super) async fn start(store: &str) -> Result<Self, BoxError> {
        match store {
            "postgres" => {
                let builder = PostgresServer::builder();
                let builder =
                    POSTGRES.iter().fold(builder, |builder, (name, value)| builder.setting(*name, *value));
                Ok(Self::Postgres { server: builder.start().await, databases: 0 })
            }
            "redis" => Ok(Self::Redis { server: Some(start_redis().await) }),
            "sqlite" => Ok(Self::Sqlite { directory: TempDir::with_prefix("windlass-bench-")?, files: 0 }),
            unknown => Err(format!("there is no comparison for `{unknown}`").into()),
        }
    }

    /// Returns the URL of an empty store. Removes the previous one.
    pub(super) async fn empty(&mut self) -> Result<String, BoxError> {
        match self {
            Self::Postgres { server, databases } => {
                server.query(&format!("drop database if exists bench_{databases} with (force)"));
                *databases += 1;
                let name = format!("bench_{databases}");
                server.query(&format!("create database {name}"));
                server.query("checkpoint");
                Ok(server.url_of(&name))
            }
            Self::Redis { server } => {
                // A new server, because an old one would keep the log of what is removed.
                drop(server.take());
                Ok(server.insert(start_redis().await).url())
            }
            Self::Sqlite { directory, files } => {
                *files += 1;
                let folder = directory.path().join(files.to_string());
                std::fs::create_dir(&folder)?;
                Ok(folder.join("jobs.db").to_string_lossy().into_owned())
            }
        }
    }

    /// Returns what the store has used. Its processor time does not include that of this query.
    pub(super) fn usage(&self, moment: Moment) -> Result<StoreUsage, BoxError> {
        let early = if moment == Moment::After { self.cpu() } else { None };
        let log_bytes = self.log_bytes()?;
        Ok(StoreUsage { cpu: early.or_else(|| self.cpu()), log_bytes })
    }

    fn cpu(&self) -> Option<Duration> {
        let pid = match self {
            Self::Postgres { server, .. } => server.pid(),
            Self::Redis { server } => server.as_ref()?.pid(),
            Self::Sqlite { .. } => None,
        };
        pid.map(meter::cpu_time_of_family)
    }

    fn log_bytes(&self) -> Result<Option<u64>, BoxError> {
        match self {
            Self::Postgres { server, .. } => {
                let position = server.query("select (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint");
                Ok(Some(position.parse()?))
            }
            Self::Redis { server } => {
                let server = server.as_ref().ok_or("the server is stopped")?;
                Ok(Some(folder_bytes(server.directory())?))
            }
            Self::Sqlite { .. } => Ok(None),
        }
    }

    /// Returns the server with its version and settings.
    pub(super) fn describe(&self) -> String {
        let list = |settings: &[(&str, &str)]| {
            let words =
                settings.iter().map(|(name, value)| format!("`{} {value}`", name.trim_start_matches('-')));
            words.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Postgres { server, .. } => {
                let version = server.query("show server_version");
                let version = version.split_whitespace().next().unwrap_or_default().to_owned();
                format!("PostgreSQL {version}, {}", list(&POSTGRES))
            }
            Self::Redis { .. } => format!("{}, {}", redis_version(), list(&REDIS)),
            Self::Sqlite { .. } => "SQLite in WAL mode, `synchronous = normal`".to_owned(),
        }
    }
}

async fn start_redis() -> RedisServer {
    let builder = RedisServer::builder();
    REDIS.iter().fold(builder, |builder, (name, value)| builder.arg(*name, *value)).start().await
}

fn redis_version() -> String {
    let program = std::env::var("WINDLASS_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let name = if text.starts_with("Valkey") { "Valkey" } else { "Redis" };
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    format!("{name} {version}")
}

/// Returns the size of all files in a folder and the folders in it.
fn folder_bytes(folder: &Path) -> Result<u64, BoxError> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        bytes += if path.is_dir() { folder_bytes(&path)? } else { path.metadata()?.len() };
    }
    Ok(bytes)
}
