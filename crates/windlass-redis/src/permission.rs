//! What the user of a connection may do.
//!
//! A script that met a forbidden command half-way would leave half of its work behind. Every script looks before its first
//! write; but whoever sets a server up wants to know at once, and all of it.

use windlass_core::{Error, ErrorKind, Result};

use crate::connection::Connection;
use crate::script::{Text, send};

/// What the store's scripts read with.
const READS: &[&str] = &[
    "EXISTS",
    "GET",
    "HGET",
    "HGETALL",
    "HMGET",
    "LRANGE",
    "SCAN",
    "SISMEMBER",
    "SMEMBERS",
    "SMISMEMBER",
    "TIME",
    "TYPE",
    "ZCARD",
    "ZCOUNT",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREVRANGEBYSCORE",
];

/// What they write with.
const WRITES: &[&str] = &["HDEL", "HSET", "LTRIM", "RPUSH", "SADD", "SET", "SREM", "UNLINK", "ZADD", "ZREM"];

/// What hints are carried by.
const HINTS: &[&str] = &["DECR", "GET", "INCRBY", "PEXPIRE", "SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];

/// Refuses a user who may use only some of the commands of a store; `more` is one that this store needs beside the others'.
/// A user who may write nothing at all may still look.
pub(crate) async fn check_store(connection: &mut Connection, tag: &str, more: Option<&str>) -> Result<()> {
    let writes: Vec<_> = WRITES.iter().copied().chain(more).collect();
    let mut missing = forbidden(connection, tag, &[READS, &writes].concat()).await?;
    if WRITES.iter().all(|command| missing.iter().any(|missing| missing == command)) {
        missing.retain(|command| READS.contains(&command.as_str()));
    }
    refuse(&missing, tag, &format!("~{tag}*"))
}

/// Refuses a user who may use only some of the commands of a notifier. One who may write nothing at all has nothing to
/// tell, and may still look at a store.
pub(crate) async fn check_notifier(connection: &mut Connection, tag: &str) -> Result<()> {
    let missing = forbidden(connection, tag, HINTS).await?;
    if ["DECR", "INCRBY", "PEXPIRE", "SPUBLISH"].iter().all(|write| missing.iter().any(|it| it == write)) {
        return Ok(());
    }
    refuse(&missing, tag, &format!("~{tag}* &{tag}*"))
}

/// Those of the commands that the user may not use under this tag.
async fn forbidden(connection: &mut Connection, tag: &str, commands: &[&str]) -> Result<Vec<String>> {
    let script = Text::new(include_str!("../lua/opening/permissions.lua"));
    // As one argument: to many of them a server that wants a password first says something else.
    send(connection, &script, tag, &[commands.join(" ").into_bytes()]).await
}

/// An error that names what is missing, and the rules that grant it in these places.
fn refuse(missing: &[String], tag: &str, places: &str) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let grants: String = missing.iter().map(|command| format!(" +{}", command.to_lowercase())).collect();
    let message = format!(
        "the Redis user may not use {} on {tag}*: have it allowed with `ACL SETUSER … {places}{grants}`",
        missing.join(", ")
    );
    Err(Error::new(ErrorKind::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::script::TEXTS;

    /// Words in capitals that scripts have between quotes and that are no commands.
    const OTHER: &[&str] = &["COUNT", "LIMIT", "MATCH", "WITHSCORES"];

    /// The words in capitals that stand between quotes.
    fn quoted<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
        let words = texts.into_iter().flat_map(|text| text.split('\''));
        words.filter(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())).collect()
    }

    #[test]
    fn all_commands_of_the_scripts_are_looked_at() {
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
