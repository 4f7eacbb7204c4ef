//! The scripts: their texts, and how they are called.

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::Result;

use crate::connection::Connection;
use crate::error::{corrupt, from_driver};
use crate::wire::Payloads;

macro_rules! scripts {
    ($($name:ident: $($library:ident)*,)*) => {
        /// The text of every script, its libraries in front, by the name of its command.
        pub(crate) const TEXTS: &[(&str, &str)] = &[$((
            stringify!($name),
            concat!(
                $(include_str!(concat!("../lua/lib/", stringify!($library), ".lua")),)*
                include_str!(concat!("../lua/", stringify!($name), ".lua")),
            ),
        ),)*];

        /// The scripts, one for each command.
        #[derive(Debug)]
        pub(crate) struct Scripts { $(pub(crate) $name: Call,)* }

        impl Scripts {
            /// All scripts, each made of the command's name and its text.
            pub(crate) fn new(make: impl Fn(&str, &str) -> Call) -> Self {
                let mut calls = TEXTS.iter().map(|(name, text)| make(name, text));
                Self { $($name: calls.next().expect(concat!("a text for ", stringify!($name))),)* }
            }
        }
    };
}
scripts! {
    create: stage row place close create,
    acquire: stage row place close ripple acquire,
    renew: stage row place,
    settle: stage row place close ripple create settle,
    exchange: stage row place close ripple create settle acquire,
    reap: stage row place close ripple,
    next_due: stage row place,
    expire: stage row place remove,
    complete_from_outside: stage row place close ripple create settle,
    cancel: stage row place find close ripple,
    trigger: stage row place find,
    retry: stage row place,
    delete: stage row place find remove,
    set_retention: stage row place find,
    pause: stage row place,
    get_chains: stage row place find,
    get_jobs: stage row,
    list_chains: stage row place page,
    list_jobs: stage row place page,
    list_dependents: stage row place page,
    list_attempts: stage row place,
    count: stage row place,
    beat: stage row place registry,
    retire: stage row place registry,
    list_workers: stage,
    leader_lock: stage row place registry,
    erase: stage,
}

/// How a command is carried out.
#[derive(Debug)]
pub(crate) struct Call {
    script: Text,
    /// Called first, with the same arguments; its reply becomes the last argument of the script. A store that keeps its
    /// promises needs no such thing: it is for those that are wrong on purpose.
    look: Option<Text>,
}

/// A script and the name that the server knows it by.
#[derive(Debug)]
pub(crate) struct Text {
    text: String,
    hash: String,
}

impl Text {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.to_owned(), hash: Script::new(text).get_hash().to_owned() }
    }
}

impl Call {
    /// One script and nothing before it.
    pub(crate) fn new(text: &str) -> Self {
        Self { script: Text::new(text), look: None }
    }

    /// The same after a look.
    #[cfg_attr(not(feature = "known-bad"), expect(dead_code, reason = "good stores do not look first"))]
    pub(crate) fn after_look(mut self, text: &str) -> Self {
        self.look = Some(Text::new(text));
        self
    }

    /// Carries the command out.
    ///
    /// The request travels as one MessagePack map; payloads travel beside it, as arguments of their own, because the
    /// server's MessagePack reads no binary strings, and so that they are not copied once more.
    pub(crate) async fn run<A: Serialize, R: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        tag: &str,
        request: &A,
        payloads: Payloads,
    ) -> Result<R> {
        let mut arguments = arguments(request, payloads)?;
        if let Some(look) = &self.look {
            let seen = send(connection, look, tag, &arguments).await?;
            arguments.push(seen);
        }
        let reply: Vec<u8> = send(connection, &self.script, tag, &arguments).await?;
        read(&reply)
    }

    /// Carries the command out, and then another one that has to follow it on the same connection.
    pub(crate) async fn run_with<A: Serialize, R: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        tag: &str,
        request: &A,
        payloads: Payloads,
        then: &Cmd,
    ) -> Result<(R, Value)> {
        let arguments = arguments(request, payloads)?;
        let (reply, answer) = send_with(connection, &self.script, tag, &arguments, then).await?;
        Ok((read(&reply)?, answer))
    }
}

fn arguments(request: &impl Serialize, payloads: Payloads) -> Result<Vec<Vec<u8>>> {
    let mut arguments = vec![rmp_serde::to_vec_named(request).map_err(corrupt)?];
    arguments.extend(payloads.into_arguments());
    Ok(arguments)
}

fn read<R: DeserializeOwned>(reply: &[u8]) -> Result<R> {
    rmp_serde::from_slice(reply)
        .map_err(|error| corrupt(format!("a script's reply cannot be read ({error})")))
}

/// Calls a script. A server that does not know it (yet, or any more) is given it with the call: if it were loaded
/// before, it could be forgotten again in between.
///
/// The call names two keys of the namespace that never exist. While a cluster moves the namespace from one shard to
/// another, key by key, neither shard carries out a call that names two keys and does not find them: the one asks to go to
/// the other, and that to try again. So no script ever sees a part of the namespace.
pub(crate) async fn send<T: FromRedisValue>(
    connection: &mut Connection,
    script: &Text,
    tag: &str,
    arguments: &[Vec<u8>],
) -> Result<T> {
    let reply = match call("EVALSHA", &script.hash, tag, arguments).query_async(connection).await {
        Err(error) if is_unknown(&error) => {
            call("EVAL", &script.text, tag, arguments).query_async(connection).await
        }
        reply => reply,
    };
    if let Err(error) = &reply {
        leave_replica(connection, error).await;
    }
    reply.map_err(from_driver)
}

/// The same, and then another command on the same connection, before anything else on it. Gives both replies.
async fn send_with(
    connection: &mut Connection,
    script: &Text,
    tag: &str,
    arguments: &[Vec<u8>],
    then: &Cmd,
) -> Result<(Vec<u8>, Value)> {
    let pipeline = |command, script: &str| {
        let mut pipeline = redis::pipe();
        pipeline.add_command(call(command, script, tag, arguments)).add_command(then.clone()).ignore_errors();
        pipeline
    };
    let mut replies: Vec<RedisResult<Value>> =
        pipeline("EVALSHA", &script.hash).query_async(connection).await.map_err(from_driver)?;
    if replies.first().is_some_and(|reply| reply.as_ref().is_err_and(is_unknown)) {
        replies = pipeline("EVAL", &script.text).query_async(connection).await.map_err(from_driver)?;
    }
    if let Some(Err(error)) = replies.first() {
        leave_replica(connection, error).await;
    }
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap_or(Ok(Value::Nil)).map_err(from_driver);
    let reply = Vec::from_redis_value(next()?).map_err(|error| from_driver(error.into()))?;
    Ok((reply, next()?))
}

/// Has the connection made anew if the server has become a replica: after a failover its address may lead to the new
/// primary, while a connection stays where it was. A cluster's does that by itself, and a plain one could not.
async fn leave_replica(connection: &mut Connection, error: &RedisError) {
    if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        && matches!(connection, Connection::Manager(_))
    {
        // The server ends the connection, as the driver learns from the next command, and connects again.
        for command in ["QUIT", "PING"] {
            let _ = redis::cmd(command).exec_async(connection).await;
        }
    }
}

fn call(command: &str, script: &str, tag: &str, arguments: &[Vec<u8>]) -> Cmd {
    let mut call = redis::cmd(command);
    call.arg(script).arg(2).arg(tag).arg(format!("{tag}:")).arg(arguments);
    call
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use redis::Client;
    use windlass_testkit::RedisServer;

    use super::*;

    #[tokio::test]
    async fn every_script_loads() {
        let server = RedisServer::start().await;
        let client = Client::open(server.url()).unwrap();
        let mut connection = Connection::open(&client, Duration::from_secs(60)).await.unwrap();
        for (name, text) in TEXTS {
            let loaded = Script::new(text).load_async(&mut connection).await;
            assert!(loaded.is_ok(), "{name}: {loaded:?}");
        }
    }

    #[test]
    fn every_file_is_a_script() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap();
        let files = files.filter_map(|file| {
            file.unwrap().file_name().into_string().unwrap().strip_suffix(".lua").map(str::to_owned)
        });
        let names: BTreeSet<_> = TEXTS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(files.collect::<BTreeSet<_>>(), names);
    }
}
