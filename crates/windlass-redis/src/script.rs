//! The Lua scripts: their texts and how they are called.

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_core::Result;

use crate::connection::Connection;
use crate::error::{corrupt, from_driver};
use crate::wire::Payloads;

/// The last line of a script, with a short path or without.
macro_rules! ends {
    () => {
        "return full()\n"
    };
    ($($hot:ident)+) => {
        "return hot() or full()\n"
    };
}

/// Scripts as `name: [files of the short path] libraries`.
macro_rules! scripts {
    ($($name:ident: $([$($hot:ident)*])? $($library:ident)*,)*) => {
        /// Name and text of every script, libraries included.
        pub(crate) const TEXTS: &[(&str, &str)] = &[$((
            stringify!($name),
            concat!(
                include_str!("../lua/lib/layout.lua"),
                $($(include_str!(concat!("../lua/hot/", stringify!($hot), ".lua")),)*)?
                // A function may have 200 local variables, and the outermost one already has those of the layout.
                "local function full()\n",
                $(include_str!(concat!("../lua/lib/", stringify!($library), ".lua")),)*
                include_str!(concat!("../lua/", stringify!($name), ".lua")),
                "end\n",
                ends!($($($hot)*)?),
            ),
        ),)*];

        /// The scripts, one per command.
        #[derive(Debug)]
        pub(crate) struct Scripts { $(pub(crate) $name: Call,)* }

        impl Scripts {
            /// Creates all scripts by calling `make` with each command's name and text.
            pub(crate) fn new(make: impl Fn(&str, &str) -> Call) -> Self {
                let mut calls = TEXTS.iter().map(|(name, text)| make(name, text));
                Self { $($name: calls.next().expect(concat!("a text for ", stringify!($name))),)* }
            }
        }
    };
}
scripts! {
    create: [plain create] stage row order indexes close create,
    acquire: [plain work acquire] stage row order indexes close ripple acquire,
    renew: stage row order indexes,
    settle: [plain work settle] stage row order indexes close ripple create settle,
    exchange: [plain work exchange] stage row order indexes close ripple create settle acquire,
    reap: stage row order indexes close ripple,
    next_due: stage row order indexes,
    expire: stage row order indexes remove,
    complete_from_outside: stage row order indexes close ripple create settle,
    cancel: stage row order indexes find close ripple,
    trigger: stage row order indexes find,
    retry: stage row order indexes,
    delete: stage row order indexes find remove,
    set_retention: stage row order indexes find,
    pause: stage row order indexes,
    get_chains: [plain get_chains] stage row order indexes find,
    get_jobs: stage row,
    list_chains: stage row order indexes page,
    list_jobs: stage row order indexes page,
    list_dependents: stage row order indexes page,
    list_attempts: stage row order indexes,
    count: stage row order indexes,
    beat: stage row order indexes registry,
    retire: stage row order indexes registry,
    list_workers: stage,
    leader_lock: stage row order indexes registry,
    change_schedules: stage row order indexes close create schedule,
    get_schedules: stage schedule,
    list_schedules: stage schedule,
    due_schedules: stage schedule,
    erase: stage,
}

/// How a command is executed.
#[derive(Debug)]
pub(crate) struct Call {
    script: Text,
    /// A script to call first, with the same arguments. Its reply becomes the last argument of the main script. Only
    /// stores that break the contract on purpose use it, to read and write in separate calls.
    read: Option<Text>,
}

/// A script and its SHA-1 hash, by which the server knows it.
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
    /// Creates a call of one script.
    pub(crate) fn new(text: &str) -> Self {
        Self { script: Text::new(text), read: None }
    }

    /// Adds a script that runs first.
    #[cfg_attr(
        not(feature = "known-bad"),
        expect(dead_code, reason = "correct stores do not need a separate read")
    )]
    pub(crate) fn after_read(mut self, text: &str) -> Self {
        self.read = Some(Text::new(text));
        self
    }

    /// Executes the command.
    ///
    /// The request is one MessagePack map. Payloads are separate arguments, because the server's MessagePack decoder
    /// does not read binary strings, and to avoid copying them once more.
    pub(crate) async fn run<A: Serialize, R: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        tag: &str,
        request: &A,
        payloads: Payloads,
    ) -> Result<R> {
        match self.run_flat(connection, tag, arguments(request, payloads)?).await? {
            Answer::Full(reply) => Ok(reply),
            Answer::Flat(_) => Err(corrupt("a script replied with a list to a request that is not one")),
        }
    }

    /// Executes the command with flat arguments, which the script's short path reads. The first one is empty.
    pub(crate) async fn run_flat<R: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        tag: &str,
        mut arguments: Vec<Vec<u8>>,
    ) -> Result<Answer<R>> {
        if let Some(read) = &self.read {
            let seen = send(connection, read, tag, &arguments).await?;
            arguments.push(seen);
        }
        Answer::read(send(connection, &self.script, tag, &arguments).await?)
    }

    /// Executes the command, then `then` on the same connection.
    pub(crate) async fn run_with<R: DeserializeOwned>(
        &self,
        connection: &mut Connection,
        tag: &str,
        arguments: &[Vec<u8>],
        then: &Cmd,
    ) -> Result<(Answer<R>, Value)> {
        let (reply, answer) = send_with(connection, &self.script, tag, arguments, then).await?;
        Ok((Answer::read(reply)?, answer))
    }
}

/// A script's reply.
#[derive(Debug)]
pub(crate) enum Answer<R> {
    /// From the short path: a list of values.
    Flat(Vec<Value>),
    /// From the library: one MessagePack value.
    Full(R),
}

impl<R: DeserializeOwned> Answer<R> {
    fn read(reply: Value) -> Result<Self> {
        match reply {
            Value::Array(values) => Ok(Self::Flat(values)),
            reply => {
                let packed = Vec::from_redis_value(reply).map_err(|error| from_driver(error.into()))?;
                read(&packed).map(Self::Full)
            }
        }
    }
}

pub(crate) fn arguments(request: &impl Serialize, payloads: Payloads) -> Result<Vec<Vec<u8>>> {
    let mut arguments = vec![rmp_serde::to_vec_named(request).map_err(corrupt)?];
    arguments.extend(payloads.into_arguments());
    Ok(arguments)
}

fn read<R: DeserializeOwned>(reply: &[u8]) -> Result<R> {
    rmp_serde::from_slice(reply)
        .map_err(|error| corrupt(format!("the reply of a script cannot be decoded ({error})")))
}

/// Calls a script by its hash. If the server does not know it, sends the text with the call: loading it separately
/// would not help if the server flushed its scripts between the two calls.
///
/// The call names two keys of the namespace that never exist. While a cluster moves the namespace to another shard, key
/// by key, neither shard runs a script whose two keys are missing: the source redirects to the target, and the target
/// replies `TRYAGAIN`. So no script ever sees only part of the namespace.
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
    reply.map_err(|error| connection.error(error))
}

/// Calls a script like [`send`] and pipelines `then` directly after it, so that no other command comes between them.
/// Returns both replies.
async fn send_with(
    connection: &mut Connection,
    script: &Text,
    tag: &str,
    arguments: &[Vec<u8>],
    then: &Cmd,
) -> Result<(Value, Value)> {
    let pipeline = |command, script: &str| {
        let mut pipeline = redis::pipe();
        pipeline.add_command(call(command, script, tag, arguments)).add_command(then.clone()).ignore_errors();
        pipeline
    };
    let mut replies: Vec<RedisResult<Value>> = pipeline("EVALSHA", &script.hash)
        .query_async(connection)
        .await
        .map_err(|error| connection.error(error))?;
    if replies.first().is_some_and(|reply| reply.as_ref().is_err_and(is_unknown)) {
        let pipeline = pipeline("EVAL", &script.text);
        replies = pipeline.query_async(connection).await.map_err(|error| connection.error(error))?;
    }
    if let Some(Err(error)) = replies.first() {
        leave_replica(connection, error).await;
    }
    let mut replies = replies.into_iter();
    let mut next = || replies.next().unwrap_or(Ok(Value::Nil)).map_err(|error| connection.error(error));
    Ok((next()?, next()?))
}

/// Makes the application's connection manager reconnect if the server has become a replica. After a failover the address
/// may lead to the new primary, but an open connection stays with the old server.
///
/// The other connections do not need this: the store's own and those to a cluster follow the primary, and a multiplexed
/// connection cannot reconnect.
async fn leave_replica(connection: &mut Connection, error: &RedisError) {
    if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        && matches!(connection, Connection::Manager(_))
    {
        // `QUIT` makes the server close the connection. The driver notices with the next command and reconnects.
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
