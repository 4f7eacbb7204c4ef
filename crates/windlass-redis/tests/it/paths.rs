//! The short path of a script and the library give equal replies and leave equal data.
//!
//! The same commands run on two namespaces: in one with the short paths, in the other without.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::aio::MultiplexedConnection;
use windlass_conformance::{Fixture, Subject, random};
use windlass_core::command::*;
use windlass_core::{
    BoxFuture, Capabilities, Counters, Error, ErrorKind, Finding, InProcessNotifier, ManualClock, Notifier,
    Result, Store, for_each_command,
};
use windlass_redis::known_bad::{BadPath, open_with_bad_path, open_without_short_paths};
use windlass_redis::{CAPABILITIES, Options, RedisStore};
use windlass_testkit::{RedisServer, print_figure};

use crate::fixture::connect;
use crate::mixture::Mixture;

/// Namespaces with the short paths and without.
const NAMESPACES: [&str; 2] = ["short", "library"];

/// Number of commands after which the stored data are compared.
const COMPARED_EVERY: usize = 10;

/// Runs each command in both namespaces and compares the replies, and at intervals the stored data.
struct Pair {
    short: RedisStore,
    library: RedisStore,
    connection: MultiplexedConnection,
    done: AtomicUsize,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

impl Pair {
    async fn open(server: &RedisServer, clock: &Arc<ManualClock>, bad: Option<BadPath>) -> Self {
        let [short, library] =
            NAMESPACES.map(|name| Options::default().namespace(name).clock(Arc::clone(clock) as _));
        let short = match bad {
            Some(bad) => open_with_bad_path(&server.url(), short, bad).await.unwrap(),
            None => RedisStore::open(&server.url(), short).await.unwrap(),
        };
        let library = open_without_short_paths(&server.url(), library).await.unwrap();
        Self { short, library, connection: connect(server.url()).await, done: AtomicUsize::new(0) }
    }

    async fn compare<R: fmt::Debug + PartialEq>(
        &self,
        command: Command,
        short: Result<R>,
        library: Result<R>,
    ) -> Result<R> {
        assert_eq!(plain(&short), plain(&library), "{command:#?}");
        if self.done.fetch_add(1, Ordering::Relaxed).is_multiple_of(COMPARED_EVERY) {
            self.compare_data(&format!("{command:#?}")).await;
        }
        short
    }

    async fn compare_data(&self, after: &str) {
        let mut connection = self.connection.clone();
        let [short, library] =
            [data(NAMESPACES[0], &mut connection).await, data(NAMESPACES[1], &mut connection).await];
        let keys: BTreeSet<_> = short.keys().chain(library.keys()).collect();
        for key in keys {
            let (short, library) = (short.get(key), library.get(key));
            assert!(
                short == library,
                "`{key}` differs after {after}\nshort path: {}\nlibrary: {}",
                difference(short, library),
                difference(library, short)
            );
        }
    }
}

/// Returns the part of a value that begins shortly before it differs from another one.
fn difference(of: Option<&Vec<u8>>, from: Option<&Vec<u8>>) -> String {
    let (Some(of), Some(from)) = (of, from) else { return format!("stored: {}", of.is_some()) };
    let equal = of.iter().zip(from).take_while(|(one, other)| one == other).count();
    let part = of.iter().skip(equal.saturating_sub(100)).take(300).copied().collect::<Vec<_>>();
    format!("{} (byte {equal} of {})", part.escape_ascii(), of.len())
}

/// A result without the text of its error.
fn plain<R>(result: &Result<R>) -> Result<&R, ErrorKind> {
    result.as_ref().map_err(Error::kind)
}

macro_rules! pair {
    ($($method:ident: $request:ident => $reply:ident,)*) => {
        impl Store for Pair {
            fn capabilities(&self) -> Capabilities {
                CAPABILITIES
            }

            $(fn $method(&self, request: $request) -> BoxFuture<'_, Result<$reply>> {
                Box::pin(async move {
                    let short = self.short.$method(request.clone()).await;
                    let library = self.library.$method(request.clone()).await;
                    self.compare(request.into(), short, library).await
                })
            })*

            fn erase(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.short.erase().await?;
                    self.library.erase().await
                })
            }

            fn health(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
                self.short.health()
            }

            fn counters(&self) -> Counters {
                self.short.counters()
            }

            fn notifier(&self) -> Arc<dyn Notifier> {
                Arc::new(InProcessNotifier::new())
            }

            fn close(&self) -> BoxFuture<'_, Result<()>> {
                Box::pin(async {
                    self.short.close().await?;
                    self.library.close().await
                })
            }
        }
    };
}
for_each_command!(pair);

/// Returns all keys with their values. Hashes and sets are sorted. The entries of `leaving` follow its scores.
const DUMP: &str = "
    local data = {}
    for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
        local kind, value, sorted = redis.call('TYPE', key).ok, nil, {}
        if kind == 'string' then
            value = redis.call('GET', key)
        elseif kind == 'list' then
            value = cmsgpack.pack(redis.call('LRANGE', key, 0, -1))
        elseif kind == 'zset' then
            value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
            value = key == ARGV[1] .. 'leaving' and table.concat(value, ' ') or cmsgpack.pack(value)
        else
            local stored = kind == 'set' and redis.call('SMEMBERS', key) or redis.call('HGETALL', key)
            local step = kind == 'set' and 1 or 2
            for at = 1, #stored, step do
                sorted[#sorted + 1] = stored[at] .. ' ' .. (kind == 'hash' and stored[at + 1] or '')
            end
            table.sort(sorted)
            value = table.concat(sorted, '\\n')
        end
        data[#data + 1] = string.sub(key, #ARGV[1] + 1)
        data[#data + 1] = value
    end
    return data
";

type Data = BTreeMap<String, Vec<u8>>;

/// Returns the stored data of a namespace by key.
async fn data(namespace: &str, connection: &mut MultiplexedConnection) -> Data {
    let mut dump = redis::cmd("EVAL");
    dump.arg(DUMP).arg(0).arg(format!("{{windlass:{namespace}}}:"));
    let data: Vec<Vec<u8>> = dump.query_async(connection).await.unwrap();
    let pairs = data.chunks(2).map(|pair| (String::from_utf8_lossy(&pair[0]).into_owned(), pair[1].clone()));
    let mut data: Data = pairs.collect();
    if let Some(entries) = data.remove("leaving") {
        let entries = leaving(&String::from_utf8(entries).unwrap(), &data);
        if !entries.is_empty() {
            data.insert("leaving".to_owned(), format!("{entries:?}").into_bytes());
        }
    }
    data
}

/// Returns the chains that leave and their times. An entry of the short path may name several chains, and stays when one
/// of them no longer leaves at this time.
fn leaving(entries: &str, data: &Data) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let words: Vec<_> = entries.split(' ').collect();
    for pair in words.chunks(2) {
        for member in pair[0].as_bytes().chunks(52) {
            let member = str::from_utf8(member).unwrap();
            if pair[0].len() == 52 || leaves_at(member, pair[1], data) {
                found.insert((pair[1].to_owned(), member.to_owned()));
            }
        }
    }
    found
}

/// Whether the row of a plain chain says that it leaves at this time.
fn leaves_at(member: &str, time: &str, data: &Data) -> bool {
    let Some(row) = data.get(&format!("job:{}", &member[16..])) else { return false };
    let number = |at: usize| i64::from_le_bytes(row[at..at + 8].try_into().unwrap());
    let (closed, retain_until) = (number(56), number(64));
    let is_plain = row[12..16] == [0; 4];
    row[144..160] == member.as_bytes()[..16]
        && is_plain
        && retain_until.max(closed + 600_000).to_string() == time
}

/// Number of calls in which a short path has acquired jobs: nothing else uses `ZREMRANGEBYRANK`.
async fn short_calls(connection: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await.unwrap();
    let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_zremrangebyrank:calls="));
    calls.and_then(|calls| calls.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

struct Pairs(Arc<RedisServer>);

impl Fixture for Pairs {
    fn name(&self) -> &str {
        "both paths"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn open(&self) -> BoxFuture<'_, Subject> {
        Box::pin(async {
            let clock = Arc::new(ManualClock::default());
            let pair: Arc<Pair> = Arc::new(Pair::open(&self.0, &clock, None).await);
            pair.erase().await.unwrap();
            Subject::new(pair.clone(), pair, clock)
        })
    }
}

/// Commands of all kinds, which also agree with the model.
#[tokio::test(flavor = "multi_thread")]
async fn both_paths_agree_on_the_commands_of_the_model() {
    let server = Arc::new(RedisServer::start().await);
    for seed in 100..102 {
        random(&Pairs(Arc::clone(&server)), seed, 500).await;
    }
    let calls = short_calls(&mut connect(server.url()).await).await;
    assert!(calls > 20, "{calls}");
}

/// Runs commands for mostly plain jobs.
async fn run_mixture(server: Arc<RedisServer>, seed: u64, commands: usize, bad: Option<BadPath>) -> Mixture {
    let clock = Arc::new(ManualClock::default());
    let pair = Pair::open(&server, &clock, bad).await;
    pair.erase().await.unwrap();
    let store: &dyn Store = &pair;
    let mut mixture = Mixture::new(seed);
    for _ in 0..commands {
        clock.advance(mixture.pause());
        let command = mixture.command();
        let reply = store.execute(command.clone()).await;
        mixture.learn(&command, &reply.unwrap());
    }
    pair.compare_data("the last command").await;
    mixture
}

#[tokio::test(flavor = "multi_thread")]
async fn both_paths_agree_on_mostly_plain_jobs() {
    let server = Arc::new(RedisServer::start().await);
    let (mut connection, commands) = (connect(server.url()).await, 700);
    let (mut completed, mut calls) = (0, 0);
    for seed in 0..3 {
        let mixture = run_mixture(Arc::clone(&server), seed, commands, None).await;
        completed += mixture.completed();
        calls = short_calls(&mut connection).await;
    }
    print_figure("acquires by short paths", format!("{calls}, {completed} jobs completed"));
    assert!(calls > 300 && completed > commands, "{calls} calls, {completed} jobs");
}

/// The comparison notices a short path with a fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_short_path_is_caught() {
    let server = Arc::new(RedisServer::start().await);
    for bad in BadPath::ALL {
        let mut caught = None;
        for seed in 0..5 {
            let run = tokio::spawn(run_mixture(Arc::clone(&server), seed, 500, Some(bad)));
            caught = caught.or(run.await.err());
            if caught.is_some() {
                break;
            }
        }
        let panic = caught.unwrap_or_else(|| panic!("{bad:?} was not caught")).into_panic();
        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains("differs after") || text.contains("left == right"), "{bad:?}: {text}");
    }
}
