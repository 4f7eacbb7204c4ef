//! Checks the Redis user's permissions when a store or notifier is opened.
//!
//! Every script checks permissions before its first write, because Redis does not roll back a script that is stopped.
//! Checking when the store is opened as well reports all missing permissions early, in one error.

use windlass_core::{Error, ErrorKind, Result};

use crate::connection::Connection;
use crate::script::{Text, send};

/// Commands with which the store's scripts read.
const READS: &[&str] = &[
    "EXISTS",
    "GET",
    "HGET",
    "HGETALL",
    "HMGET",
    "LRANGE",
    "MGET",
    "SCAN",
    "SISMEMBER",
    "SMEMBERS",
    "SMISMEMBER",
    "STRLEN",
    "TIME",
    "TYPE",
    "ZCARD",
    "ZCOUNT",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
];

/// Commands with which the store's scripts write.
const WRITES: &[&str] = &[
    "APPEND",
    "HDEL",
    "HSET",
    "LTRIM",
    "MSET",
    "RPUSH",
    "SADD",
    "SET",
    "SREM",
    "UNLINK",
    "ZADD",
    "ZREM",
    "ZREMRANGEBYRANK",
];

/// Commands that a notifier needs.
const HINTS: &[&str] = &["DECR", "GET", "INCRBY", "PEXPIRE", "SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];

/// Returns an error if the user lacks some of the commands that a store needs. `more` is an extra command that this
/// store needs.
///
/// A user that has none of the write commands is accepted as read-only.
pub(crate) async fn check_store(connection: &mut Connection, tag: &str, more: Option<&str>) -> Result<()> {
    let writes: Vec<_> = WRITES.iter().copied().chain(more).collect();
    let mut missing = forbidden(connection, tag, &[READS, &writes].concat()).await?;
    if WRITES.iter().all(|command| missing.iter().any(|missing| missing == command)) {
        missing.retain(|command| READS.contains(&command.as_str()));
    }
    refuse(&missing, tag, &format!("~{tag}*"), connection.user())
}

/// Returns an error if the user lacks some of the commands that a notifier needs.
///
/// A user that has none of the write commands is accepted, so that a client with a notifier can still read a store.
pub(crate) async fn check_notifier(connection: &mut Connection, tag: &str) -> Result<()> {
    let missing = forbidden(connection, tag, HINTS).await?;
    if ["DECR", "INCRBY", "PEXPIRE", "SPUBLISH"].iter().all(|write| missing.iter().any(|it| it == write)) {
        return Ok(());
    }
    refuse(&missing, tag, &format!("~{tag}* &{tag}*"), connection.user())
}

/// Returns the commands that the user may not run on keys and channels of `tag`.
async fn forbidden(connection: &mut Connection, tag: &str, commands: &[&str]) -> Result<Vec<String>> {
    let script = Text::new(include_str!("../lua/opening/permissions.lua"));
    // One argument, because a server that requires a password limits the number of arguments before authentication and
    // would reply with a protocol error.
    send(connection, &script, tag, &[commands.join(" ").into_bytes()]).await
}

/// Returns an error that lists the missing commands and the ACL rules that grant them, if any are missing.
fn refuse(missing: &[String], tag: &str, patterns: &str, user: Option<&str>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let user = user.unwrap_or("<user>");
    let grants: String = missing.iter().map(|command| format!(" +{}", command.to_lowercase())).collect();
    let message = format!(
        "the Redis user `{user}` may not run {} on {tag}*: run `ACL SETUSER {user} {patterns}{grants}`",
        missing.join(", ")
    );
    Err(Error::new(ErrorKind::AccessDenied, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::script::TEXTS;

    /// Quoted uppercase words in the scripts that are not commands.
    const OTHER: &[&str] = &["BYSCORE", "COUNT", "LIMIT", "MATCH", "WITHSCORES"];

    /// Returns the quoted uppercase words of the texts.
    fn quoted<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
        let words = texts.into_iter().flat_map(|text| text.split('\''));
        words.filter(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())).collect()
    }

    #[test]
    fn the_permission_check_covers_all_commands_of_the_scripts() {
        let used = quoted(TEXTS.iter().map(|(_, text)| *text));
        let listed: BTreeSet<_> = [READS, WRITES, OTHER].concat().into_iter().collect();
        assert_eq!(used, listed);
        let used =
            quoted([include_str!("../lua/notifier/publish.lua"), include_str!("../lua/notifier/claim.lua")]);
        let by_the_listener = ["SSUBSCRIBE", "SUNSUBSCRIBE"];
        assert_eq!(
            used,
            HINTS.iter().copied().filter(|command| !by_the_listener.contains(command)).collect()
        );
    }
}
