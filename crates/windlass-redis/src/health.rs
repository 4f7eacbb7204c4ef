//! Server version and settings, and the health findings derived from them.

use std::collections::HashMap;
use std::time::Duration;

use redis::Cmd;
use windlass_core::command::Durability;
use windlass_core::{Error, ErrorKind, Finding, Result};

use crate::connection::Connection;
use crate::error::{from_driver, is_forbidden};

/// Major version of the oldest Redis that can run the scripts.
const REDIS_MINIMUM_MAJOR: u32 = 7;

/// Share of `maxmemory`, in percent, from which a server is reported as nearly full.
const MEMORY_FULL_PERCENT: u64 = 90;

/// The eviction policy under which a full server refuses writes instead of removing keys.
const NO_EVICTION: &str = "noeviction";

/// A server's `INFO` and its `appendfsync` setting.
///
/// A part that the user may not query is empty. Without `INFO`, writes count as volatile; without the setting, at most
/// as buffered.
#[derive(Debug, Default)]
pub(crate) struct Server {
    info: HashMap<String, String>,
    settings: HashMap<String, String>,
}

impl Server {
    /// Queries the server that holds the keys of `tag`.
    pub(crate) async fn ask(connection: &mut Connection, tag: &str) -> Result<Self> {
        let info: String = allowed(connection.ask(&redis::cmd("INFO"), tag).await)?;
        let mut config = redis::cmd("CONFIG");
        config.arg("GET").arg("appendfsync");
        let settings = allowed(connection.ask(&config, tag).await)?;
        let info = info.lines().filter_map(|line| line.split_once(':'));
        Ok(Self { info: info.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), settings })
    }

    /// Returns an error if the server is too old for the scripts. An unknown version is accepted.
    pub(crate) fn check_version(&self) -> Result<()> {
        // Every Valkey version is recent enough.
        if self.info.contains_key("valkey_version") {
            return Ok(());
        }
        let version = self.info("redis_version");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < REDIS_MINIMUM_MAJOR) {
            let message = format!(
                "the server is Redis {version}, but the scripts require {REDIS_MINIMUM_MAJOR}.0 or later: upgrade it, \
                 or use a Valkey server"
            );
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        Ok(())
    }

    /// Returns an error if the server removes keys when its memory is full.
    pub(crate) fn check_eviction(&self) -> Result<()> {
        self.eviction().map_or(Ok(()), |finding| {
            let message =
                format!("{}: {}, or open the store with `accept_eviction`", finding.problem, finding.remedy);
            Err(Error::new(ErrorKind::Incompatible, message))
        })
    }

    /// Returns the command that waits until `replicas` replicas have all earlier writes, or until `timeout` ends.
    pub(crate) fn wait(&self, replicas: u32, timeout: Duration) -> Cmd {
        // Redis waits forever if the timeout is 0.
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut wait = redis::cmd(self.waits_with());
        if self.waits_for_disks() {
            wait.arg(0);
        }
        wait.arg(replicas).arg(millis);
        wait
    }

    /// Name of the command that [`wait`](Self::wait) returns.
    pub(crate) fn waits_with(&self) -> &'static str {
        if self.waits_for_disks() { "WAITAOF" } else { "WAIT" }
    }

    /// Whether to wait until replicas have synced to disk. This needs `WAITAOF`, added in Redis 7.2.
    ///
    /// If the server has no append-only file itself, its replicas are not expected to have one either.
    fn waits_for_disks(&self) -> bool {
        if self.info("aof_enabled") != "1" {
            return false;
        }
        let mut numbers =
            self.info("redis_version").split('.').map_while(|number| number.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(7), Some(2))
    }

    /// Durability of an acknowledged write.
    pub(crate) fn durability(&self) -> Durability {
        let synced = self.settings.get("appendfsync").is_some_and(|when| when == "always");
        match (self.info("aof_enabled"), synced) {
            ("1", true) => Durability::Synced,
            // Synced once a second or by the operating system: survives a crash of the server, but not a power failure.
            ("1", false) => Durability::Buffered,
            _ => Durability::Volatile,
        }
    }

    /// Problems that an operator should fix.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let found = [self.eviction(), self.persistence(), self.memory(), self.role()];
        found.into_iter().flatten().collect()
    }

    fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn eviction(&self) -> Option<Finding> {
        let policy = self.info("maxmemory_policy");
        (!policy.is_empty() && policy != NO_EVICTION).then(|| Finding {
            problem: format!(
                "the server's `maxmemory-policy` is `{policy}`: when its memory is full, it removes jobs"
            ),
            remedy: format!("set `maxmemory-policy {NO_EVICTION}`"),
        })
    }

    fn persistence(&self) -> Option<Finding> {
        if self.info("aof_enabled") == "0" {
            return Some(Finding {
                problem: "the server has no append-only file: when it stops, jobs are lost".to_owned(),
                remedy: "set `appendonly yes`, and `appendfsync always` to keep every acknowledged job"
                    .to_owned(),
            });
        }
        (self.info("aof_last_write_status") == "err").then(|| Finding {
            problem: "the server's last write to its append-only file failed".to_owned(),
            remedy: "check its disk and its log".to_owned(),
        })
    }

    fn memory(&self) -> Option<Finding> {
        let number = |name| self.info(name).parse::<u64>().ok();
        let (used, limit) = (number("used_memory")?, number("maxmemory").filter(|limit| *limit > 0)?);
        let percent = used.saturating_mul(100) / limit;
        (percent >= MEMORY_FULL_PERCENT).then(|| Finding {
            problem: format!(
                "the server uses {percent} % of its `maxmemory`: when its memory is full, it accepts no more jobs"
            ),
            remedy: "raise `maxmemory`, or shorten retentions".to_owned(),
        })
    }

    fn role(&self) -> Option<Finding> {
        (self.info("role") == "slave").then(|| Finding {
            problem: "the server is a replica, which accepts no writes".to_owned(),
            remedy: "connect to the primary".to_owned(),
        })
    }
}

/// Returns the reply, or an empty value if the user may not run the command, as on many managed servers.
fn allowed<T: Default>(answer: redis::RedisResult<T>) -> Result<T> {
    match answer {
        Err(error) if is_forbidden(&error) => Ok(T::default()),
        answer => answer.map_err(from_driver),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(info: &[(&str, &str)]) -> Server {
        let info = info.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Server { info: info.collect(), settings: HashMap::new() }
    }

    #[test]
    fn a_wait_includes_disks_if_the_server_supports_it() {
        let check = |version, aof, words: &str| {
            let wait = server(&[("redis_version", version), ("aof_enabled", aof)]);
            let wait = wait.wait(2, Duration::from_micros(1)).get_packed_command();
            let wait: Vec<_> = String::from_utf8(wait).unwrap().lines().map(str::to_owned).collect();
            let wait: Vec<_> = wait.iter().filter(|line| !line.starts_with(['*', '$'])).collect();
            assert_eq!(wait, words.split(' ').collect::<Vec<_>>(), "{version}, {aof}");
        };
        check("7.0.15", "1", "WAIT 2 1");
        check("7.1.9", "1", "WAIT 2 1");
        check("7.2.0", "1", "WAITAOF 0 2 1");
        check("7.2.0", "0", "WAIT 2 1");
        check("8.0.0", "1", "WAITAOF 0 2 1");
        check("10.0", "1", "WAITAOF 0 2 1");
        check("", "", "WAIT 2 1");
    }

    #[test]
    fn findings_state_the_remedy() {
        let check = |info: &[(&str, &str)], problem: &str| {
            let findings = server(info).findings();
            assert!(
                findings.iter().any(|finding| finding.problem.contains(problem)),
                "{problem}: {findings:?}"
            );
            assert!(findings.iter().all(|finding| !finding.remedy.is_empty()));
        };
        check(&[("maxmemory_policy", "allkeys-lru")], "allkeys-lru");
        check(&[("aof_enabled", "0")], "no append-only file");
        check(&[("aof_enabled", "1"), ("aof_last_write_status", "err")], "failed");
        check(&[("used_memory", "95"), ("maxmemory", "100")], "95 %");
        check(&[("role", "slave")], "replica");
        let fine = [
            ("maxmemory_policy", "noeviction"),
            ("aof_enabled", "1"),
            ("aof_last_write_status", "ok"),
            ("used_memory", "95"),
            ("maxmemory", "0"),
            ("role", "master"),
        ];
        assert_eq!(server(&fine).findings(), []);
        assert_eq!(Server::default().findings(), []);
    }
}
